"""A device and an engine from the tests of llama.cpp's `llama-bench`, on any machine.

Owns what can be learned from tests. Must not know files, nor what their fields mean (`llama_bench_file`).
The time of a pass is `start + seconds * weights`, by rows: with one model the start is assumed to be nothing.
What a benchmark cannot know (flash, memory, power, other precisions) is marked `assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from repro.core.errors import InputError
from repro.models.calibration.fit import PartCost, fit_layers
from repro.models.calibration.llama_bench_file import BenchRow
from repro.models.calibration.probe import LAYER, Kernels, PartTiming
from repro.models.calibration.sections import GIGA, Section, fact, shares, starts

ARITHMETICS = ("fp32", "fp16", "int8")
ROW = 1
UNCACHED_BYTES = 64e6
"""Bytes below which a model may lie in a cache, so that its passes say nothing of memory."""
KERNELS = Kernels("int4")


@dataclass(frozen=True)
class BenchFit:
    """What a file says of one setting of threads.

    Attributes:
        parts: start and rate of a pass by arithmetic precision.
        generation: bytes of weights a second of the fastest generation, which memory gives at least; 0
            without generation by a model of 64 MB.
        bandwidth: the same without the passes' starts, if these are less than half of them.
        threads: of the tests that are used.
        on: processor that computed.
        models: those used, by name.
        lone_precisions: precisions of which one model alone was timed, so that their start is assumed.
        unmatched_models: models whose shape is not known here, by precision.
        errors: of the fit, predicted over measured less 1; without those of two models, which a start and a
            rate always meet.
    """

    parts: Mapping[str, PartCost]
    generation: float
    bandwidth: float
    threads: int
    on: str
    models: tuple[str, ...]
    lone_precisions: tuple[str, ...]
    unmatched_models: Mapping[str, tuple[str, ...]]
    errors: tuple[float, ...]

    def doubt(self, arithmetic: str) -> str:
        """What is assumed of a precision's models whose shape is not known; "" without any."""
        models = ", ".join(self.unmatched_models.get(arithmetic, ()))
        return f"all weights in use of {models} count as layers" if models else ""

    def rate(self, arithmetic: str, note: str) -> Section:
        """The best rate of a precision as a fact, `assumed` where a model's shape is not known."""
        doubt = self.doubt(arithmetic)
        note = f"{note}, {doubt}" if doubt else note
        return fact(self.parts[arithmetic].best / GIGA, "GFLOP/s", _source(doubt), note)


def _source(doubt: str) -> str:
    return "assumed" if doubt else "measured"


def fit_bench(row_count: Sequence[BenchRow], threads: int | None = None) -> BenchFit:
    """Fit the tests of one number of threads.

    Args:
        row_count: of one setting.
        threads: whose tests are used; by default those of the fastest generation, or of the fastest prompt.

    Raises:
        InputError: no test has so many threads, or a test took no longer than its last pass.
    """
    thread_counts = sorted({row.threads for row in row_count})
    if threads is not None and threads not in thread_counts:
        raise InputError(f"--threads {threads}: the file has tests of {', '.join(map(str, thread_counts))}")
    thread_count = threads if threads is not None else _fastest(row_count)
    used_rows = [row for row in row_count if row.threads == thread_count]
    part_costs: dict[str, PartCost] = {}
    lone_precisions: list[str] = []
    errors: list[float] = []
    generation_rates, bandwidths = [0.0], [0.0]
    for arithmetic in dict.fromkeys(row.arithmetic for row in used_rows):
        models: dict[tuple[str, float, float], list[BenchRow]] = {}
        for row in (row for row in used_rows if row.arithmetic == arithmetic):
            models.setdefault((row.model, row.size, row.layers), []).append(row)
        passes = [(tests[0], _pass_seconds(tests)) for tests in models.values()]
        timings = [
            PartTiming(KERNELS, LAYER, test.layers, 0.0, row_count, 0, seconds, test.head)
            for test, seconds_by_rows in passes
            for row_count, seconds in seconds_by_rows.items()
        ]
        models_timed = [len({o.weights for o in timings if o.rows == t.rows}) for t in timings]
        if min(models_timed) > 1:
            layers, _, layer_errors = fit_layers(timings)
            part_costs[arithmetic] = layers[KERNELS]
            errors += layer_errors if max(models_timed) > 2 else ()
        else:
            part_costs[arithmetic] = _rates_alone(timings)
            lone_precisions.append(arithmetic)
        start = dict(part_costs[arithmetic].start).get(ROW, 0.0)
        for test, seconds_by_rows in passes:
            if test.read >= UNCACHED_BYTES and (seconds := seconds_by_rows.get(ROW)):
                generation_rates.append(test.read / seconds)
                bandwidths.append(test.read / (seconds - min(start, seconds / 2)))
    return BenchFit(
        part_costs,
        max(generation_rates),
        max(bandwidths),
        thread_count,
        used_rows[0].on,
        tuple(dict.fromkeys(row.model for row in used_rows)),
        tuple(lone_precisions),
        {arithmetic: names for arithmetic in part_costs if (names := _shapeless(used_rows, arithmetic))},
        tuple(errors),
    )


def _shapeless(rows: Sequence[BenchRow], arithmetic: str) -> tuple[str, ...]:
    """The models of a precision whose shape is not known, sorted by name."""
    return tuple(sorted({row.model for row in rows if row.arithmetic == arithmetic and not row.head}))


def _fastest(row_count: Sequence[BenchRow]) -> int:
    """Threads of the largest model's fastest generation; of its fastest prompt if nothing was generated."""
    generation_rows = [row for row in row_count if row.rows == ROW] or list(row_count)
    largest_size = max(row.size for row in generation_rows)
    tests = [row for row in generation_rows if row.size == largest_size]
    return min(
        tests,
        key=lambda row: row.seconds / sum(row_count * pass_count for row_count, pass_count in row.passes),
    ).threads


def _pass_seconds(tests: Sequence[BenchRow]) -> dict[int, float]:
    """Seconds of a model's passes by their rows: of the tests with the fewest cached tokens."""
    seconds: dict[int, float] = {}
    for row_count in sorted({test.rows for test in tests}):
        row_tests = [test for test in tests if test.rows == row_count]
        context_length = min(test.context for test in row_tests)
        seconds[row_count] = median(
            _largest_pass(test, seconds) for test in row_tests if test.context == context_length
        )
    return seconds


def _largest_pass(test: BenchRow, smaller_passes: Mapping[int, float]) -> float:
    """Seconds of a test's largest pass; of the other ones, those between passes that are known.

    Raises:
        InputError: nothing is left for it.
    """
    points = [0, *smaller_passes, test.rows]
    rows, counts = np.array(test.passes).T
    other_seconds = counts @ np.interp(rows, points, [0.0, *smaller_passes.values(), 0.0])
    share = counts @ np.interp(rows, points, [0.0] * (len(points) - 1) + [1.0])
    if other_seconds >= test.seconds:
        raise InputError(
            f"{test.model}: {rows.sum()} rows took less time than fewer rows did; leave a test out"
        )
    return float((test.seconds - other_seconds) / share)


def _rates_alone(timings: Sequence[PartTiming]) -> PartCost:
    """Rates without a start, of the largest model at each number of rows."""
    rate_by_rows = {
        t.rows: 2.0 * (t.rows * t.weights + t.single) / t.seconds
        for t in sorted(timings, key=lambda t: t.weights)
    }
    rates = tuple(sorted(rate_by_rows.items()))
    return PartCost(tuple((row_count, 0.0) for row_count, _ in rates), rates)


@dataclass(frozen=True)
class ChipMemory:
    """What is known of a machine's memory: its bandwidth in bytes a second, and what states it."""

    bandwidth: float
    origin: str


def bench_device(
    name: str, bench: BenchFit, largest_bytes: float, file: str, memory: ChipMemory | None = None
) -> Section:
    """The device file.

    Args:
        name: of the machine.
        bench: its fit.
        largest_bytes: bytes of the largest model that ran.
        file: the name of the file with the tests.
        memory: what is known of the machine's memory beside the file.

    Raises:
        InputError: the fit is above what memory gives, or nothing says what memory gives.
    """
    best_rate = max(part.best for part in bench.parts.values()) / GIGA
    fallback = fact(best_rate, "GFLOP/s", "assumed", "not in the file: as the precision that is")
    peak = {
        arithmetic: bench.rate(arithmetic, f"best rate in {file}") if arithmetic in bench.parts else fallback
        for arithmetic in ARITHMETICS
    }
    bandwidth, chip_rate = _bandwidths(bench, file, memory)
    power_note, flash_note = "a benchmark of speed says nothing of power", "as a phone's flash or an SSD"
    budget = fact(
        1.25 * largest_bytes / GIGA, "GB", "assumed", "a quarter more than the largest model that ran"
    )
    watts = fact(3.0, "W", "assumed", power_note)
    return {
        "name": name,
        "kind": "emulated",
        "main": bench.on,
        "processors": {bench.on: {"peak": peak, "bandwidth": bandwidth, "watts": watts}},
        "flash": {
            "bandwidth": fact(1.0, "GB/s", "assumed", "the file has no reads from disk"),
            "latency": fact(100.0, "us", "assumed", flash_note),
            "watts": fact(2.0, "W", "assumed", flash_note),
        },
        "dram": {"budget": budget, "bandwidth": chip_rate},
        "power": {"idle": fact(1.0, "W", "assumed", power_note)},
    }


def _bandwidths(bench: BenchFit, file: str, memory: ChipMemory | None) -> tuple[Section, Section]:
    """What the processor reads of memory, and what memory gives.

    Raises:
        InputError: as `bench_device`.
    """
    read_note = f"weights a second of the fastest generation in {file}"
    if memory is None:
        if not bench.bandwidth:
            raise InputError(
                f"{file} has no generation (-n) by a model of {UNCACHED_BYTES / 1e6:.0f} MB or more, so that "
                "memory's bandwidth is not known; give it in GB/s as --bandwidth, or a device as --device"
            )
        rate_note = f"{read_note}, if each reads all of them; no chip's figure was given"
        bandwidth = fact(bench.bandwidth / GIGA, "GB/s", "assumed", rate_note)
        return bandwidth, {**bandwidth, "note": "what the processor reaches alone"}
    if bench.generation > memory.bandwidth:
        raise InputError(
            f"{file}: generation reads {bench.generation / GIGA:.4g} GB/s of weights, and {memory.origin} "
            f"gives {memory.bandwidth / GIGA:.4g} GB/s: a field is wrong, or a pass does not read all "
            "weights (--active-parameters)"
        )
    chip_rate = fact(memory.bandwidth / GIGA, "GB/s", "assumed", memory.origin)
    if not bench.bandwidth:
        return chip_rate, chip_rate
    without_start = bench.unmatched_models.keys() - {*bench.lone_precisions}  # less a start that is assumed
    kind = "assumed" if without_start else "measured"
    rate = min(bench.bandwidth, memory.bandwidth)
    return fact(rate / GIGA, "GB/s", kind, f"{read_note}, at most that of {memory.origin}"), chip_rate


def bench_engine(name: str, bench: BenchFit, file: str) -> Section:
    """The engine file: a pass's start stands with looking up embeddings, which every pass does once.

    Starts and rates of models without a shape are `assumed`: how many rows its output projection had is in no
    file.
    """
    start: Section = {}
    efficiency: Section = {}
    for arithmetic, part in bench.parts.items():
        doubt = bench.doubt(arithmetic)
        note = "one model was timed, which cannot tell a start from a rate"
        start_note = "; ".join(filter(None, [note if arithmetic in bench.lone_precisions else "", doubt]))
        start[arithmetic] = starts(part.start, _source(start_note), start_note)
        efficiency[arithmetic] = shares(part, part.best, _source(doubt), doubt)
    processor: Section = {
        "rate": {arithmetic: bench.rate(arithmetic, f"from {file}") for arithmetic in bench.parts},
        "efficiency": efficiency,
        "start": {"embed": start},
        "threads": fact(bench.threads, ""),
    }
    return {"name": name, "papers": [], "processors": {bench.on: processor}}


def summary(bench: BenchFit) -> Iterator[str]:
    """What was learned, a sentence a line."""
    yield f"{len(bench.models)} models with {bench.threads} threads on {bench.on}: {', '.join(bench.models)}"
    for arithmetic, part in bench.parts.items():
        rates = ", ".join(f"{row_count} rows {rate / 1e9:.3g} GFLOP/s" for row_count, rate in part.rate)
        yield f"{arithmetic}: {rates}"
    if bench.generation:
        yield f"generation reads {bench.generation / 1e9:.3g} GB/s of weights"
    if bench.errors:
        yield f"worst error of the fit {max(map(abs, bench.errors)):.0%}"
    if bench.lone_precisions:
        yield f"one model in {', '.join(bench.lone_precisions)}: a pass's start is assumed to be nothing"
    if names := dict.fromkeys(model for models in bench.unmatched_models.values() for model in models):
        yield (
            f"no shape in conf/model/shape has the family and the parameters of {', '.join(names)}: all "
            "weights count as layers, and starts and rates are assumed"
        )
