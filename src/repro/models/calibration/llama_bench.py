"""A device and an engine from the JSON that llama.cpp's `llama-bench -o json` writes, on any machine.

Owns what its fields mean and what can be learned from them. Must not know where files are. A test with
`n_prompt` alone is passes over a prompt, one with `n_gen` alone is passes of one row; tests that mix both
are left out. The time of a pass is `start + seconds * weights`, by rows: with one model the start is
assumed to be nothing. What a benchmark cannot know (flash, memory, power, other precisions) is marked
`assumed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.models.calibration.fit import PartCost, fit_layers, medians
from repro.models.calibration.probe import LAYER, Kernels, PartTiming
from repro.models.calibration.written import Section, curve, fact
from repro.models.costs.model_cost import Shape

NEEDED = (
    "model_type",
    "model_size",
    "model_n_params",
    "n_prompt",
    "n_gen",
    "n_threads",
    "n_ubatch",
    "avg_ns",
)
SAME = 0.01
"""Relative difference of parameter counts up to which a known shape is taken for the model's."""
TYPES = {"F32": "fp32", "F16": "fp16", "BF16": "fp16"}
QUANTIZED = ("Q", "IQ", "TQ", "MXFP", "NVFP")
OTHERS = ("fp32", "fp16", "int8")
ROW = 1


@dataclass(frozen=True)
class BenchRow:
    """One test of a file.

    Attributes:
        model: as llama-bench names it, with its quantization.
        arithmetic: precision under which it is billed: `fp32`, `fp16`, or `int8` for all quantized ones.
        size: bytes of its weights.
        parameters: number of its weights.
        rows: tokens of one pass.
        context: cached tokens before the pass, on average.
        seconds: of one pass.
        threads: CPU threads.
        layers_on_gpu: of the model; negative for all.
        backends: of the build, as written.
    """

    model: str
    arithmetic: str
    size: float
    parameters: float
    rows: int
    context: float
    seconds: float
    threads: int
    layers_on_gpu: int
    backends: str


def read_bench(path: Path) -> tuple[list[BenchRow], dict[str, str]]:
    """The tests of a file, and what it says of the machine (`cpu_info`, `gpu_info`, `build`).

    Raises:
        InputError: no such file, no JSON list of tests, a test lacks a field or has a wrong value, an
            unknown type of weights, or no test is left.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise InputError(f"--from-llama-bench {path}: {wrong.strerror or wrong}") from None
    except ValueError as wrong:
        raise InputError(f"{path} is no JSON ({wrong}); write it with llama-bench -o json") from None
    if not isinstance(content, list) or not all(isinstance(test, Mapping) for test in content):
        raise InputError(f"{path} is no list of tests; write it with llama-bench -o json")
    rows = [row for i, test in enumerate(content) if (row := _row(f"{path}, test {i + 1}", test))]
    if not rows:
        raise InputError(f"{path} has no test of a prompt (-p) or of generation (-n) alone")
    told = {name: str(content[0].get(name) or "") for name in ("cpu_info", "gpu_info", "build_commit")}
    return rows, told


def _row(place: str, test: Mapping[str, Any]) -> BenchRow | None:
    """A test's pass; `None` if it mixes prompt and generation."""
    if missing := [name for name in NEEDED if name not in test]:
        raise InputError(f"{place} lacks {', '.join(missing)}; write the file with llama-bench -o json")
    numbers = {name: _number(place, test, name) for name in NEEDED if name != "model_type"}
    for name in ("model_size", "model_n_params", "n_threads", "n_ubatch", "avg_ns"):
        if numbers[name] <= 0:
            raise InputError(f"{place}: {name} is {test[name]!r}; it must be above 0")
    prompt, generated = int(numbers["n_prompt"]), int(numbers["n_gen"])
    if (prompt > 0) == (generated > 0):
        return None
    passes = generated or ceil(prompt / numbers["n_ubatch"])
    depth = _number(place, test, "n_depth") if "n_depth" in test else 0.0
    return BenchRow(
        model=str(test["model_type"]),
        arithmetic=_arithmetic(place, str(test["model_type"])),
        size=numbers["model_size"],
        parameters=numbers["model_n_params"],
        rows=1 if generated else min(prompt, int(numbers["n_ubatch"])),
        context=depth + (prompt + generated) / 2,
        seconds=numbers["avg_ns"] / 1e9 / passes,
        threads=int(numbers["n_threads"]),
        layers_on_gpu=int(_number(place, test, "n_gpu_layers")) if "n_gpu_layers" in test else 0,
        backends=str(test.get("backends", "CPU")),
    )


def _number(place: str, test: Mapping[str, Any], name: str) -> float:
    try:
        value = float(test[name])
    except (TypeError, ValueError):
        raise InputError(f"{place}: {name} is {test[name]!r}; it must be a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{place}: {name} is {value}; it must be finite")
    return value


def _arithmetic(place: str, model: str) -> str:
    """The precision that a model type ends with, as in `llama 7B Q4_K - Medium` or `qwen2 0.5B all F32`."""
    words = model.replace("(guessed)", "").split()
    for word in reversed(words):
        if word in TYPES:
            return TYPES[word]
        if word.startswith(QUANTIZED):
            return "int8"
    raise InputError(
        f"{place}: model_type {model!r} names no known type of weights; known are {', '.join(TYPES)} and "
        f"those that begin with {', '.join(QUANTIZED)}"
    )


@dataclass(frozen=True)
class BenchFit:
    """What a file says of one setting of threads.

    Attributes:
        parts: start and rate of a pass by arithmetic precision.
        bandwidth: bytes of weights a second of the fastest generation: memory gives at least that.
        threads: of the tests that are used.
        on: `cpu` or `gpu`.
        models: those used, by name.
        single: precisions of which one model alone was timed, so that their start is assumed.
        unmatched: models whose shape is not known here.
        errors: of the fit, predicted over measured less 1.
    """

    parts: Mapping[str, PartCost]
    bandwidth: float
    threads: int
    on: str
    models: tuple[str, ...]
    single: tuple[str, ...]
    unmatched: tuple[str, ...]
    errors: tuple[float, ...]


def fit_bench(rows: Sequence[BenchRow], shapes: Sequence[Shape] = (), threads: int | None = None) -> BenchFit:
    """Fit the tests of one number of threads.

    Args:
        rows: of a file.
        shapes: known shapes, one of which may have as many parameters as a model.
        threads: whose tests are used; by default those of the fastest generation, or of the fastest prompt.

    Raises:
        InputError: no test has so many threads, or models lie on different processors.
    """
    offered = sorted({row.threads for row in rows})
    if threads is not None and threads not in offered:
        raise InputError(f"--threads {threads}: the file has tests of {', '.join(map(str, offered))}")
    chosen = threads if threads is not None else _fastest(rows)
    used = [row for row in rows if row.threads == chosen]
    places = {_place(row) for row in used}
    if len(places) > 1:
        raise InputError(
            "some tests ran on the CPU and some on the GPU (n_gpu_layers); give one kind at a time"
        )
    parts: dict[str, PartCost] = {}
    single: list[str] = []
    unmatched: set[str] = set()
    errors: list[float] = []
    for arithmetic in dict.fromkeys(row.arithmetic for row in used):
        timings = []
        for row in used:
            if row.arithmetic == arithmetic:
                found, weights, head = _weights(row, shapes)
                unmatched |= set() if found else {row.model}
                timings.append(_timing(row, weights, head))
        many = {t.rows for t in timings if len({o.weights for o in timings if o.rows == t.rows}) > 1}
        if many == {t.rows for t in timings}:
            layers, _, wrong = fit_layers(timings)
            parts[arithmetic] = layers[KERNELS]
            errors += wrong
        else:
            parts[arithmetic] = _rates_alone(timings)
            single.append(arithmetic)
    generated = [row.size / row.seconds for row in used if row.rows == ROW]
    return BenchFit(
        parts,
        max(generated, default=0.0),
        chosen,
        places.pop(),
        tuple(dict.fromkeys(row.model for row in used)),
        tuple(single),
        tuple(sorted(unmatched)),
        tuple(errors),
    )


KERNELS = Kernels("int4")


def _fastest(rows: Sequence[BenchRow]) -> int:
    """Threads of the largest model's fastest generation; of its fastest prompt if nothing was generated."""
    generation = [row for row in rows if row.rows == ROW] or list(rows)
    largest = max(row.parameters for row in generation)
    return min((row for row in generation if row.parameters == largest), key=lambda row: row.seconds).threads


def _place(row: BenchRow) -> str:
    """Where a test ran: on a GPU if layers were given to one and the build has one."""
    only_cpu = {name.strip() for name in row.backends.split(",")} <= {"CPU", "BLAS", ""}
    return "cpu" if only_cpu or not row.layers_on_gpu else "gpu"


def _weights(row: BenchRow, shapes: Sequence[Shape]) -> tuple[bool, float, float]:
    """Whether the shape is known, and the weights of the layers and of the output projection."""
    for shape in shapes:
        if abs(shape.parameters / row.parameters - 1.0) < SAME:
            return True, shape.layers * shape.layer_weights, shape.head_weights
    return False, row.parameters, 0.0


def _timing(row: BenchRow, weights: float, head: float) -> PartTiming:
    """A pass as one layer; llama-bench asks for the logits of the last token alone."""
    return PartTiming(KERNELS, LAYER, weights, 0.0, row.rows, round(row.context), row.seconds, head)


def _rates_alone(timings: Sequence[PartTiming]) -> PartCost:
    """Rates without a start, of the largest model at each number of rows."""
    found = {}
    for t in sorted(medians(timings), key=lambda t: t.weights):
        found[t.rows] = 2.0 * (t.rows * t.weights + t.single) / t.seconds
    rates = tuple(sorted(found.items()))
    return PartCost(tuple((rows, 0.0) for rows, _ in rates), rates)


def bench_device(name: str, found: BenchFit, largest: float, source: str) -> Section:
    """The device file; `largest` is the bytes of the largest model that ran, `source` the file's name."""
    best = {arithmetic: max(rate for _, rate in part.rate) for arithmetic, part in found.parts.items()}
    known = max(best.values())
    note = f"best rate in {source}"
    unknown = "not in the file: as the precision that is"
    peak = {
        arithmetic: fact(best[arithmetic] / 1e9, "GFLOP/s", note=note)
        if arithmetic in best
        else fact(known / 1e9, "GFLOP/s", "assumed", unknown)
        for arithmetic in OTHERS
    }
    if found.bandwidth:
        bandwidth = fact(
            found.bandwidth / 1e9, "GB/s", note=f"weights a second of the fastest generation in {source}"
        )
    else:
        bandwidth = fact(10.0, "GB/s", "assumed", "the file has no test of generation")
    watts = fact(3.0, "W", "assumed", "a benchmark of speed says nothing of power")
    shared = dict(bandwidth) | {"source": "assumed", "note": "what the processor reaches alone"}
    return {
        "name": name,
        "kind": "emulated",
        "main": found.on,
        "processors": {found.on: {"peak": peak, "bandwidth": bandwidth, "watts": watts}},
        "flash": {
            "bandwidth": fact(1.0, "GB/s", "assumed", "the file has no reads from disk"),
            "latency": fact(100.0, "us", "assumed", "as a phone's flash or an SSD"),
            "watts": fact(2.0, "W", "assumed", "as a phone's flash or an SSD"),
        },
        "dram": {
            "budget": fact(
                1.25 * largest / 1e9, "GB", "assumed", "a quarter more than the largest model that ran"
            ),
            "bandwidth": shared,
        },
        "power": {"idle": fact(1.0, "W", "assumed", "a benchmark of speed says nothing of power")},
    }


def bench_engine(name: str, found: BenchFit, source: str) -> Section:
    """The engine file: a pass's start stands with looking up embeddings, which every pass does once."""
    best = {arithmetic: max(rate for _, rate in part.rate) for arithmetic, part in found.parts.items()}
    starts: Section = {}
    efficiency: Section = {}
    for arithmetic, part in found.parts.items():
        alone = arithmetic in found.single
        note = "one model was timed, which cannot tell a start from a rate" if alone else ""
        points = [(rows, 1e6 * seconds) for rows, seconds in part.start]
        starts[arithmetic] = curve(points, "us", "assumed" if alone else "measured", note)
        unmatched = bool(found.unmatched)
        said = f"all parameters of {', '.join(found.unmatched)} counted as layers" if unmatched else ""
        efficiency[arithmetic] = curve(
            [(rows, rate / best[arithmetic]) for rows, rate in part.rate],
            "share",
            "assumed" if unmatched else "measured",
            said,
        )
    processor: Section = {
        "rate": {a: fact(rate / 1e9, "GFLOP/s", note=f"from {source}") for a, rate in best.items()},
        "efficiency": efficiency,
        "start": {"embed": starts},
        "threads": fact(found.threads, ""),
    }
    return {"name": name, "papers": [], "processors": {found.on: processor}}


def summary(found: BenchFit) -> Iterator[str]:
    """What was learned, a sentence a line."""
    yield f"{len(found.models)} models with {found.threads} threads on {found.on}: {', '.join(found.models)}"
    for arithmetic, part in found.parts.items():
        rates = ", ".join(f"{rows} rows {rate / 1e9:.3g} GFLOP/s" for rows, rate in part.rate)
        yield f"{arithmetic}: {rates}"
    if found.errors:
        yield f"worst error of the fit {max(map(abs, found.errors)):.0%}"
    if found.single:
        yield f"one model in {', '.join(found.single)}: a pass's start is assumed to be nothing"
    if found.unmatched:
        yield f"no shape in conf/model/shape has the parameters of {', '.join(found.unmatched)}"
