"""Fit the engines of mllm-NPU's latency table in closed form, and predict the rows that no fit touched.

python -m studies.fit_mllm            parameters, then errors by engine and protocol
python -m studies.fit_mllm --cells    every predicted cell too

Owns which published cells each fit touches (`FITTED`), the closed forms, and the two yardsticks beside an error: the
trivial predictor and the noise floor. Must not know devices or the emulator.

The forms were chosen after a review had seen the misses of the first engines and had tried these; the cells that they
are fitted to were written down before anything was computed with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, log
from statistics import median
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq, least_squares

from repro.core.paths import conf_dir
from repro.models.costs.model_cost import Shape
from repro.reports.reference.reference import find, load_cells

MODELS = ("qwen1_5_1_8b", "gemma_2b", "phi_2", "llama_2_7b", "mistral_7b")
DATASETS = ("2wiki", "triviaqa", "clock", "applauncher")
OURS = "ours"
SUPPORTED = {
    "mlc": MODELS,
    "lcpp": MODELS,
    "mnn": ("qwen1_5_1_8b", "phi_2", "llama_2_7b"),
    "pi": ("llama_2_7b", "mistral_7b"),
    "tflite": ("gemma_2b", "phi_2"),
    OURS: MODELS,
}
"""Models by column of the latency table (version 1's Table 4, version 2's Table 5)."""

CHOSEN = {
    "mlc": ("qwen1_5_1_8b", "llama_2_7b"),
    "lcpp": ("qwen1_5_1_8b", "llama_2_7b"),
    "mnn": ("qwen1_5_1_8b", "llama_2_7b"),
    "pi": ("llama_2_7b",),
    "tflite": ("gemma_2b",),
    OURS: ("qwen1_5_1_8b", "llama_2_7b"),
}
"""Models whose rows an engine is fitted to; TFLite has neither of the two, so Gemma-2B."""


def cell(column: str, model: str, dataset: str) -> str:
    """The id of a cell of the latency table."""
    return f"mllm_npu.table4.{dataset}.{model}.{column}"


PRODUCTS = (
    (64, 2048, 2048),
    (64, 2048, 8192),
    (64, 2048, 11008),
    (32, 4096, 4096),
    (32, 4096, 8192),
    (32, 4096, 11008),
)
"""Matrix products of version 2's Table 3: rows, inputs, outputs."""

MICRO = tuple(f"mllm_npu_v2.table3.{m}x{k}x{n}.npu_int8" for m, k, n in PRODUCTS)
BOUND = "mllm_npu.abstract.prefill_throughput"

FITTED: Mapping[str, tuple[str, ...]] = {
    **{
        column: tuple(cell(column, m, d) for m in CHOSEN[column] for d in DATASETS)
        for column in SUPPORTED
        if column != OURS
    },
    "zero_shot": (*MICRO, BOUND),
    "anchored": tuple(cell(OURS, m, d) for m in CHOSEN[OURS] for d in DATASETS),
}
"""Cells by fit. The zero-shot NPU knows no cell of the latency table; the anchored one is a variant of its own."""

RESTATED = (
    "mllm_npu.text.1.prefill_throughput",
    "mllm_npu_v2.abstract.prefill_throughput",
    "mllm_npu_v2.text.1.prefill_throughput",
)
"""Cells that repeat `BOUND`; the ratios of Table 3 repeat `MICRO`."""

CHUNK = 256
BOUND_AT = ("qwen1_5_1_8b", 1024)
"""The bound's model, which version 1 names, and its prompt: the longest of Fig. 14, since no length is printed."""

CPU, GPU = 44.15e9, 43.3e9
DECODES = {"mlc": GPU, "lcpp": CPU, "mnn": CPU, "pi": CPU, "tflite": GPU, OURS: CPU}
"""Bytes per second of an answer's tokens, by column: the processors' own bandwidths."""


@cache
def shape(model: str) -> Shape:
    """Dimensions of a model."""
    return Shape.parse(yaml.safe_load((conf_dir() / "model" / "shape" / f"{model}.yaml").read_text()))


@cache
def workload(dataset: str) -> tuple[int, int]:
    """Tokens of a dataset's prompt and answer."""
    given: dict[str, Any] = yaml.safe_load((conf_dir() / "setup" / f"mllm_{dataset}.yaml").read_text())
    return int(given["prompt_tokens"]), int(given["max_tokens"])


@cache
def published(name: str) -> float:
    """The value of a cell, or its only bound."""
    found = find(load_cells(), name)
    value = found.value_low if found.value_low is not None else found.value_high
    assert value is not None
    return value


def linears(model: str) -> int:
    """Weights of all layers' linears."""
    return shape(model).layers * shape(model).layer_weights


def products(model: str) -> list[int]:
    """Weights of each matrix product of a layer: Q, K, V, output, and those of the MLP."""
    s = shape(model)
    keys = s.hidden * s.kv_heads * s.head_dim
    query = s.hidden * s.heads * s.head_dim
    return [query, keys, keys, query, *[s.hidden * s.intermediate] * (3 if s.gated else 2)]


def decoding(column: str, model: str, dataset: str) -> float:
    """Seconds of an answer's tokens after the first: each reads all 8-bit weights once."""
    weights = linears(model) + shape(model).hidden * shape(model).vocab
    return (workload(dataset)[1] - 1) * weights / DECODES[column]


Predict = Callable[[str, str], float]
"""Seconds of a request, by model and dataset."""


@dataclass(frozen=True)
class Form:
    """A closed form with fitted parameters.

    Attributes:
        numbers: the parameters by name.
        predict: seconds of a request.
    """

    numbers: Mapping[str, float]
    predict: Predict


def quadratic(column: str, models: Sequence[str]) -> Form:
    """A baseline: `p (a L + b N) + q L h p^2`, then the answer; `a` only with two models or more to tell it from b."""

    def seconds(x: np.ndarray[Any, Any], model: str, dataset: str) -> float:
        s, prompt = shape(model), workload(dataset)[0]
        a, b, q = np.exp(x) if len(x) == 3 else (0.0, *np.exp(x))
        linear = prompt * (a * s.layers + b * linears(model))
        square = q * s.layers * s.hidden * prompt**2
        return float(linear + square + decoding(column, model, dataset))

    start = [log(1e-5), log(1e-11), log(1e-12)] if len(models) > 1 else [log(1e-11), log(1e-12)]
    x = fitted(start, seconds, column, models)
    values = np.exp(x) if len(x) == 3 else np.array([0.0, *np.exp(x)])
    return Form(dict(zip(("a", "b", "q"), map(float, values), strict=True)), lambda m, d: seconds(x, m, d))


def chunked(start: float, bandwidth: float, rate: float) -> Predict:
    """mllm-NPU: chunks of 256 rows, each product a start and the longer of reading and computing; the CPU hidden."""

    def predict(model: str, dataset: str) -> float:
        prompt = workload(dataset)[0]
        return prefill(model, prompt, start, bandwidth, rate) + decoding(OURS, model, dataset)

    return predict


def prefill(model: str, prompt: int, start: float, bandwidth: float, rate: float) -> float:
    """Seconds of the NPU's work of a prompt."""
    layer = sum(start + max(n / bandwidth, 2 * CHUNK * n / rate) for n in products(model))
    return ceil(prompt / CHUNK) * shape(model).layers * layer


def zero_shot() -> Form:
    """Start and bandwidth from Table 3; the rate at 256 rows such that the bound is just met."""

    def misses(x: np.ndarray[Any, Any]) -> list[float]:
        start, bandwidth = np.exp(x)
        ours = [start + k * n / bandwidth for _, k, n in PRODUCTS]
        return [log(o / (published(name) / 1e3)) for o, name in zip(ours, MICRO, strict=True)]

    start, bandwidth = np.exp(least_squares(misses, [log(5e-4), log(1e10)]).x)
    model, prompt = BOUND_AT
    rate = brentq(
        lambda r: prompt / prefill(model, prompt, start, bandwidth, r) - published(BOUND), 1e11, 1e14
    )
    return Form({"start": start, "bandwidth": bandwidth, "rate": rate}, chunked(start, bandwidth, rate))


def anchored(models: Sequence[str]) -> Form:
    """Start and rate from rows of the system's own column; the bandwidth is Table 3's."""
    bandwidth = zero_shot().numbers["bandwidth"]

    def seconds(x: np.ndarray[Any, Any], model: str, dataset: str) -> float:
        return chunked(float(np.exp(x[0])), bandwidth, float(np.exp(x[1])))(model, dataset)

    x = fitted([log(5e-4), log(5e12)], seconds, OURS, models)
    start, rate = map(float, np.exp(x))
    numbers = {"start": start, "bandwidth": bandwidth, "rate": rate}
    return Form(numbers, chunked(start, bandwidth, rate))


def fitted(
    start: Sequence[float],
    seconds: Callable[[np.ndarray[Any, Any], str, str], float],
    column: str,
    models: Sequence[str],
) -> np.ndarray[Any, Any]:
    """Logarithms of the parameters with the least sum of squared log ratios over the models' rows."""
    rows = [(m, d, published(cell(column, m, d))) for m in models for d in DATASETS]

    def misses(x: np.ndarray[Any, Any]) -> list[float]:
        return [log(seconds(x, m, d) / value) for m, d, value in rows]

    found: np.ndarray[Any, Any] = least_squares(misses, start, bounds=(-60, 60)).x
    return found


def nearest(column: str, models: Sequence[str]) -> Predict:
    """The trivial predictor: the fitted model nearest in weights, same dataset, by weights."""

    def predict(model: str, dataset: str) -> float:
        by = min(models, key=lambda m: abs(log(linears(m) / linears(model))))
        return published(cell(column, by, dataset)) * linears(model) / linears(by)

    return predict


def bound_by_weights(model: str, dataset: str) -> float:
    """The trivial predictor without a row: the bound's rate, by weights."""
    return workload(dataset)[0] / published(BOUND) * linears(model) / linears(BOUND_AT[0])


def errors(predict: Predict, column: str, models: Sequence[str]) -> dict[tuple[str, str], float]:
    """Signed relative errors over models' rows."""
    return {(m, d): predict(m, d) / published(cell(column, m, d)) - 1 for m in models for d in DATASETS}


def left_out(form: Callable[[Sequence[str]], Form], column: str) -> dict[tuple[str, str], float]:
    """Errors of each model by a fit to all other models of a column."""
    found: dict[tuple[str, str], float] = {}
    for model in SUPPORTED[column]:
        others = [m for m in SUPPORTED[column] if m != model]
        found |= errors(form(others).predict, column, [model])
    return found


def floor(column: str, models: Sequence[str]) -> dict[tuple[str, str], float]:
    """Errors that remain with a free time per token for every model: what no scaling over models can mend."""

    def free(model: str) -> Predict:
        rest = [published(cell(column, model, d)) - decoding(column, model, d) for d in DATASETS]
        rate = exp(sum(log(r / workload(d)[0]) for r, d in zip(rest, DATASETS, strict=True)) / len(DATASETS))
        return lambda m, d: rate * workload(d)[0] + decoding(column, m, d)

    return {key: e for m in models for key, e in errors(free(m), column, [m]).items()}


def said(found: Mapping[Any, float]) -> str:
    """Median and 90th percentile of the absolute errors."""
    if not found:
        return "-"
    sizes = sorted(abs(e) for e in found.values())
    return f"{median(sizes):.1%} ({sizes[ceil(0.9 * len(sizes)) - 1]:.0%})"


@dataclass(frozen=True)
class Engine:
    """An engine's fit, the form that made it, its predicted models and its trivial predictor."""

    name: str
    column: str
    form: Form
    again: Callable[[Sequence[str]], Form] | None
    predicted: tuple[str, ...]
    trivial: Predict


def engines() -> list[Engine]:
    """All fits: five baselines, and both protocols of mllm-NPU."""
    found = []
    for column in FITTED:
        if column in ("zero_shot", "anchored"):
            continue
        again = lambda models, column=column: quadratic(column, models)  # noqa: E731
        rest = tuple(m for m in SUPPORTED[column] if m not in CHOSEN[column])
        form = quadratic(column, CHOSEN[column])
        found.append(Engine(column, column, form, again, rest, nearest(column, CHOSEN[column])))
    found.append(Engine("ours, zero-shot", OURS, zero_shot(), None, MODELS, bound_by_weights))
    rest = tuple(m for m in MODELS if m not in CHOSEN[OURS])
    form = anchored(CHOSEN[OURS])
    found.append(Engine("ours, anchored", OURS, form, anchored, rest, nearest(OURS, CHOSEN[OURS])))
    return found


def first(predict: Predict, baselines: Mapping[str, Predict]) -> int:
    """Rows of the table in which mllm-NPU is predicted to be the fastest."""
    return sum(
        all(predict(m, d) < other(m, d) for column, other in baselines.items() if m in SUPPORTED[column])
        for m in MODELS
        for d in DATASETS
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", action="store_true", help="every predicted cell too")
    options = parser.parse_args(arguments)
    console, table = Console(width=160), Table(title="Median error (90th percentile)")
    heads = ("engine", "numbers", "fitted", "predicted", "n", "trivial", "skill", "floor", "one model left out")
    for head in heads:
        table.add_column(head)
    found = engines()
    for one in found:
        predicted = errors(one.form.predict, one.column, one.predicted)
        trivial = errors(one.trivial, one.column, one.predicted)
        skill = 1 - median(map(abs, predicted.values())) / median(map(abs, trivial.values()))
        inside = (
            {} if one.again is None else errors(one.form.predict, one.column, CHOSEN[one.column])
        )
        can_leave = one.again is not None and len(SUPPORTED[one.column]) > 1
        table.add_row(
            one.name,
            ", ".join(f"{name} {value:.3g}" for name, value in one.form.numbers.items()),
            said(inside),
            said(predicted),
            str(len(predicted)),
            said(trivial),
            f"{skill:.2f}",
            said(floor(one.column, one.predicted)),
            said(left_out(one.again, one.column)) if can_leave and one.again else "-",
        )
        if options.cells:
            console.print(one.name, {f"{m}.{d}": round(e, 3) for (m, d), e in predicted.items()})
    console.print(table)
    baselines = {one.column: one.form.predict for one in found if one.column != OURS}
    for one in found:
        if one.column == OURS:
            console.print(f"{one.name}: fastest in {first(one.form.predict, baselines)} of 20 rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
