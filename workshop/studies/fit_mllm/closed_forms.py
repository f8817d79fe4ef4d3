"""Closed forms of the engines in mllm-NPU's latency table, the cells that they are fitted to, and their fits.

Owns `FITTED`. Must not know devices or the emulator. The forms were chosen after a review had seen the misses
of the first engines and had tried these; the cells that they are fitted to were written down before anything
was computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import ceil, exp, log
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.optimize import brentq, least_squares

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.models.costs.model_cost import Shape
from repro.reports.reference.reference import find, load_cells
from workshop.fitting.measures import model_cost

MODELS = ("qwen1_5_1_8b", "gemma_2b", "phi_2", "llama_2_7b", "mistral_7b")
PRINTED = {"phi_2": "phi_2_2_7b"}
"""Models whose name in an id of the reference is another."""

DATASETS = ("2wiki", "triviaqa", "clock", "applauncher")
OURS = "ours"
CPU, GPU, MEMORY = 44.15e9, 43.3e9, 59.6e9
"""Bytes per second of the phone's processors and of its memory, which none of them exceeds."""


@dataclass(frozen=True)
class Column:
    """An engine of the latency table (version 1's Table 4, version 2's Table 5).

    Attributes:
        program: of the engine file.
        processor: of its prefill.
        models: that it runs.
        fitted: models whose rows its prefill is fitted to.
        answers: models whose rows of Persona-Chat, whose answers are the longest, its decoding is fitted to.
        free: free numbers of its prefill: a start for each layer and row (a), a rate (b), its quadratic
            term (k). Chosen by what leaving a model out leaves, after one form for all had been seen to miss.
        bandwidth: bytes per second of an answer's tokens, the processor's own, where they are not fitted.
        has_starts: whether answers are fitted by a start for each layer, else by their bandwidth. The
            printed tokens of MLC and llama.cpp take longer a weight in the small model than in the large
            one, those of MNN as long in both; of PowerInfer-V2 one model is printed. Chosen with both
            models' rows seen.
    """

    program: str
    processor: str
    models: tuple[str, ...] = MODELS
    fitted: tuple[str, ...] = ("qwen1_5_1_8b", "llama_2_7b")
    answers: tuple[str, ...] = ("qwen1_5_1_8b", "llama_2_7b")
    free: str = "bk"
    bandwidth: float = CPU
    has_starts: bool = False


COLUMNS = {
    # With the GPU's own bandwidth, LLaMA-2-7B's 8-bit weights alone would take longer than printed.
    "mlc": Column("mlc_gpu", "gpu", bandwidth=MEMORY, has_starts=True),
    "lcpp": Column("llama_cpp_cpu", "cpu", has_starts=True),
    "mnn": Column("mnn_cpu", "cpu", ("qwen1_5_1_8b", "phi_2", "llama_2_7b"), free="abk"),
    "pi": Column(
        "powerinfer2_npu", "npu", ("llama_2_7b", "mistral_7b"), ("llama_2_7b",), ("llama_2_7b",), free="b"
    ),
    # It has neither of the two usual models, and no answer of it is printed.
    "tflite": Column("tflite_gpu", "gpu", ("gemma_2b", "phi_2"), ("gemma_2b",), (), "b", GPU),
    OURS: Column("", "npu"),
}
BASELINES = tuple(column for column in COLUMNS if column != OURS)


def cell(column: str, model: str, dataset: str) -> str:
    """The id of a cell of the latency table."""
    return f"mllm_npu.table4.{dataset}.{PRINTED.get(model, model)}.{column}"


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


def answer_cell(column: str, model: str) -> str:
    """The id of the seconds that an engine decodes an answer of Persona-Chat (version 2's Table 5)."""
    return f"mllm_npu_v2.table5.persona.{PRINTED.get(model, model)}.{column}.decode"


ODD = ("mllm_npu_v2.table5.applauncher.llama_2_7b.mnn.prefill",)
"""A row whose parts miss its total by a second."""


FASTEST = 5e12
"""Most operations per second of a baseline: MNN's rows leave none for a rate beside its two other terms."""


def prefill_cell(column: str, model: str, dataset: str) -> str:
    """The id of the seconds of a request's prefill (version 2's Table 5)."""
    return f"mllm_npu_v2.table5.{dataset}.{PRINTED.get(model, model)}.{column}.prefill"


def fitted_row(column: str, model: str, dataset: str) -> str:
    """What a prefill is fitted to: its printed seconds, or the whole request where they are not known."""
    name = prefill_cell(column, model, dataset)
    return name if name in load_cells() and name not in ODD else cell(column, model, dataset)


FITTED: Mapping[str, tuple[str, ...]] = {
    **{
        column: (
            *(fitted_row(column, m, d) for m in COLUMNS[column].fitted for d in DATASETS),
            *(answer_cell(column, m) for m in COLUMNS[column].answers),
        )
        for column in BASELINES
    },
    "zero_shot": (*MICRO, BOUND),
    "anchored": tuple(cell(OURS, m, d) for m in COLUMNS[OURS].fitted for d in DATASETS),
}
"""Cells by fit. The zero-shot NPU knows no cell of the latency table; the anchored one is its own variant."""

RESTATED = (
    "mllm_npu.text.1.prefill_throughput",
    "mllm_npu_v2.abstract.prefill_throughput",
    "mllm_npu_v2.text.1.prefill_throughput",
    "mllm_npu_v2.text.2_1.chat_latency",
    *(cell(column, m, d) for column in BASELINES for m in COLUMNS[column].fitted for d in DATASETS),
    *(
        answer_cell(column, m).removesuffix(".decode")
        for column in BASELINES
        for m in COLUMNS[column].answers
    ),
)
"""Cells that repeat `BOUND`, and requests whose parts are fitted; the ratios of Table 3 repeat `MICRO`."""

CHUNK = 256
BOUND_AT = ("qwen1_5_1_8b", 1024)
"""The bound's model, which version 1 names, and Fig. 14's longest prompt, since no length is printed."""


def shape(model: str) -> Shape:
    """Dimensions of a model."""
    return model_cost(f"{model}_int8").shape


@cache
def setup(dataset: str) -> dict[str, Any]:
    """The setup file of a dataset."""
    return read_mapping(conf_dir() / "setup" / f"mllm_{dataset}.yaml")


@cache
def published(name: str) -> float:
    """The value of a cell, or its only bound."""
    printed = find(load_cells(), name)
    value = printed.value_low if printed.value_low is not None else printed.value_high
    assert value is not None
    return value


def linears(model: str) -> int:
    """Weights of all layers' linears."""
    return shape(model).layers * shape(model).layer_weights


def products(model: str) -> list[int]:
    """Weights of each matrix product of a layer: Q, K, V, output, and those of the MLP."""
    s = shape(model)
    keys, query = s.hidden * s.kv_heads * s.head_dim, s.hidden * s.heads * s.head_dim
    return [query, keys, keys, query, *[s.hidden * s.intermediate] * (3 if s.gated else 2)]


@dataclass(frozen=True)
class Answer:
    """How an engine decodes: each token reads all 8-bit weights and the cached keys and values once.

    Attributes:
        start: seconds before each layer, and before the output projection, the launch of its op included.
        bandwidth: bytes per second.
    """

    start: float
    bandwidth: float

    def seconds(self, model: str, dataset: str) -> float:
        """Seconds of the tokens after the first of a dataset's answer."""
        size, steps = shape(model), int(setup(dataset)["max_tokens"]) - 1
        context = int(setup(dataset)["prompt_tokens"]) + steps / 2
        moved = linears(model) + size.head_weights + 2 * size.layers * size.cache_elements(context)
        return steps * ((size.layers + 1) * self.start + moved / self.bandwidth)


@cache
def answer(column: str, models: tuple[str, ...]) -> Answer:
    """An engine's decoding, fitted to Persona-Chat's rows of those of the models that are known.

    mllm-NPU's is llama.cpp's: both decode on the same cores, and version 2 prints the same seconds for both.
    """
    column = "lcpp" if column == OURS else column
    seen = [(m, published(answer_cell(column, m))) for m in COLUMNS[column].answers if m in models]
    held = Answer(0.0, COLUMNS[column].bandwidth)

    def form(x: Sequence[float]) -> Answer:
        value = exp(x[0])
        return replace(held, start=value) if COLUMNS[column].has_starts else replace(held, bandwidth=value)

    def misses(x: Sequence[float]) -> list[float]:
        return [log(form(x).seconds(m, "persona") / value) for m, value in seen]

    first = log(1e-3 if COLUMNS[column].has_starts else held.bandwidth)
    return form(least_squares(misses, [first], bounds=(-60, 60)).x) if seen else held


def decoding(column: str, model: str, dataset: str, models: Sequence[str] = MODELS) -> float:
    """Seconds of an answer's tokens after the first; the decoding is fitted to those of the models."""
    return answer(column, tuple(models)).seconds(model, dataset)


STARTED = {"product": 0, "subgraph": 3, "layer": 1}
"""What takes a start on the NPU: so many parts of a layer; 0 for each of its matrix products."""


def prefill(
    model: str, prompt: int, start: float, bandwidth: float, rate: float, started: str = "product"
) -> float:
    """Seconds of the NPU's work of a prompt in chunks of 256 rows; the CPU is taken to be hidden.

    Each part takes a start, then the longer of reading its weights and computing.
    """
    starts = STARTED[started] or len(products(model))
    weights = sum(products(model))
    layer = starts * start + max(weights / bandwidth, 2 * CHUNK * weights / rate)
    return ceil(prompt / CHUNK) * shape(model).layers * layer


Predict = Callable[[str, str], float]
"""Seconds of a request, by model and dataset."""

Errors: TypeAlias = "pd.Series[float]"
"""Signed relative errors by model and dataset."""


@dataclass(frozen=True)
class Form:
    """A closed form: its fitted parameters by name, and seconds of a request."""

    numbers: Mapping[str, float]
    predict: Predict


PROMPTS = ("printed", "middle", "range")
QUADRATICS = ("rate", "attention")
SCALE = 4e4
"""Weights by layer and hidden channel, about; it only brings both quadratic terms to one size."""


@dataclass(frozen=True)
class Fits:
    """All fits under one reading of the prompts and one form of the baselines.

    Attributes:
        prompts: lengths of prompts: `printed` in version 1's table, the `middle` of version 2's ranges, or
            the mean over all lengths of a `range`.
        quadratic: what the baselines' quadratic term grows with: the linears' weights, as a `rate` that falls
            with rows, or `attention`'s layers and channels.
        started: what takes a start on the NPU, a key of `STARTED`.
    """

    prompts: str = PROMPTS[0]
    quadratic: str = QUADRATICS[0]
    started: str = "product"

    def lengths(self, dataset: str) -> Sequence[int]:
        """Prompt lengths of a dataset, over which a prediction is the mean."""
        if self.prompts == "printed":
            return [int(setup(dataset)["prompt_tokens"])]
        printed = find(load_cells(), f"mllm_npu_v2.table5.{dataset}.prompt_length")
        assert printed.value_low is not None
        assert printed.value_high is not None
        low, high = int(printed.value_low), int(printed.value_high)
        return [(low + high + 1) // 2] if self.prompts == "middle" else range(low, high + 1)

    def baseline(self, column: str, models: Sequence[str]) -> Form:
        """`p a L + b N p (1 + k p)`, then the answer; `Column.free` are the numbers that a program has."""
        free = COLUMNS[column].free

        def numbers(x: Sequence[float]) -> dict[str, float]:
            return {"a": 0.0, "k": 0.0, **dict(zip(free, map(exp, x), strict=True))}

        def prefilling(x: Sequence[float], model: str, dataset: str) -> float:
            s, n, by_name = shape(model), linears(model), numbers(x)
            a, b, k = (by_name[name] for name in "abk")
            by = n if self.quadratic == "rate" else s.layers * s.hidden * SCALE
            return float(
                np.mean([p * a * s.layers + b * p * (n + k * p * by) for p in self.lengths(dataset)])
            )

        def request(x: Sequence[float], model: str, dataset: str) -> float:
            return prefilling(x, model, dataset) + decoding(column, model, dataset, models)

        def misses(x: Sequence[float]) -> list[float]:
            logs = []
            for m, d in product(models, DATASETS):
                name = fitted_row(column, m, d)
                seconds = request if name == cell(column, m, d) else prefilling
                logs.append(log(seconds(x, m, d) / published(name)))
            return logs

        first = {"a": log(1e-5), "b": log(1e-11), "k": log(1e-4)}
        least = [log(2 / FASTEST) if name == "b" else -60.0 for name in free]
        x = least_squares(misses, [first[name] for name in free], bounds=(least, 60)).x
        return Form(numbers(x), partial(request, x))

    def chunked(self, **numbers: float) -> Form:
        """mllm-NPU with an NPU of these numbers."""

        def seconds(model: str, dataset: str) -> float:
            each = [prefill(model, p, **numbers, started=self.started) for p in self.lengths(dataset)]
            return float(np.mean(each)) + decoding(OURS, model, dataset)

        return Form(numbers, seconds)

    def zero_shot(self) -> Form:
        """Start and bandwidth from Table 3; the rate at 256 rows that just meets the abstract's bound."""
        start, bandwidth = micro()
        model, prompt = BOUND_AT

        def above(rate: float) -> float:
            seconds = prefill(model, prompt, start, bandwidth, rate, self.started)
            return prompt / seconds - published(BOUND)

        return self.chunked(start=start, bandwidth=bandwidth, rate=float(brentq(above, 1e11, 1e14)))

    def anchored(self, models: Sequence[str]) -> Form:
        """Start and rate from rows of the system's own column; the bandwidth is Table 3's."""
        bandwidth = micro()[1]

        def form(x: Sequence[float]) -> Form:
            return self.chunked(start=exp(x[0]), bandwidth=bandwidth, rate=exp(x[1]))

        def misses(x: Sequence[float]) -> list[float]:
            rows = product(models, DATASETS)
            return [log(form(x).predict(m, d) / published(cell(OURS, m, d))) for m, d in rows]

        return form(least_squares(misses, [log(5e-4), log(5e12)], bounds=(-60, 60)).x)

    def floor(self, column: str, models: Sequence[str]) -> Errors:
        """Errors that remain with a free time for every model, a token or, of mllm-NPU, a chunk.

        No scaling over models can mend these: they are what the paper's own rows disagree about.
        """

        def size(dataset: str) -> float:
            each = [ceil(p / CHUNK) if column == OURS else p for p in self.lengths(dataset)]
            return float(np.mean(each))

        def free(model: str) -> Predict:
            rest = [published(cell(column, model, d)) - decoding(column, model, d) for d in DATASETS]
            each = [log(seconds / size(d)) for seconds, d in zip(rest, DATASETS, strict=True)]
            rate = exp(sum(each) / len(each))
            return lambda m, d: rate * size(d) + decoding(column, m, d)

        return pd.concat([errors(free(model), column, [model]) for model in models])

    def bound_by_weights(self, model: str, dataset: str) -> float:
        """The trivial predictor without a row: the abstract's rate, by weights."""
        prompt = float(np.mean(self.lengths(dataset)))
        return prompt / published(BOUND) * linears(model) / linears(BOUND_AT[0])


def errors(predict: Predict, column: str, models: Sequence[str]) -> Errors:
    """Errors over models' rows."""
    rows = pd.MultiIndex.from_product([models, DATASETS], names=["model", "dataset"])
    return pd.Series([predict(*row) / published(cell(column, *row)) - 1 for row in rows], rows, dtype=float)


@cache
def micro() -> tuple[float, float]:
    """Start in seconds and bytes per second of the NPU's products of 32 and 64 rows (Table 3)."""

    def misses(x: Sequence[float]) -> list[float]:
        start, bandwidth = np.exp(x)
        ours = [start + k * n / bandwidth for _, k, n in PRODUCTS]
        return [log(o / (published(name) / 1e3)) for o, name in zip(ours, MICRO, strict=True)]

    start, bandwidth = np.exp(least_squares(misses, [log(5e-4), log(1e10)]).x)
    return float(start), float(bandwidth)
