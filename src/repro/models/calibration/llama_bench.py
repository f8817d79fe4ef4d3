"""A device and an engine from measured prompts and generations, on any machine.

Owns what can be learned from rows of llama.cpp's `llama-bench` or of a table. Must not know files, nor what
their fields mean (`llama_bench_file`, `rows_file`). The time of a pass is `start + seconds * weights`, by
rows: with one model the start is assumed to be nothing. What rows cannot
say (flash, memory, power, other precisions) is marked `assumed`, unless a known machine or the user says it.
Where a class of engines is known and two models were not timed at three numbers of rows or more, the class
stands, as many times slower as the rows are: that errs less than numbers of few rows (docs/emulator.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from statistics import median

import numpy as np

from repro.core.errors import InputError
from repro.device.engines.engine_file import chip_name
from repro.device.facts.holds import COUNTS_KEY, HOLDS_KEY
from repro.device.op import CPU
from repro.models.calibration.fit import PartCost, Points, fit_layers
from repro.models.calibration.known_machine import KnownMachine
from repro.models.calibration.llama_bench_file import BenchRow
from repro.models.calibration.probe import LAYER, Kernels, PartTiming
from repro.models.calibration.sections import GIGA, Section, fact, shares, starts

ARITHMETICS = ("fp32", "fp16", "int8")
ROW = 1
LEAST_COUNTS = 3
"""Numbers of rows from which two models' passes say more than a class of engines that is scaled to them."""
CLASS_WEIGHT = 0.25
"""How many rows a class counts as: so much less than they say is it scaled."""
UNCACHED_BYTES = 64e6
"""Bytes below which a model may lie in a cache, so that its passes say nothing of memory."""
KERNELS = Kernels("int4")


@dataclass(frozen=True)
class BenchFit:
    """What rows say of one processor, with one setting of threads.

    Attributes:
        parts: start and rate of a pass by arithmetic precision.
        generation: bytes of weights a second of the fastest generation, which memory gives at least; 0
            without generation by a model of 64 MB.
        bandwidth: the same without the passes' starts, if these are less than half of them.
        threads: of the tests that are used; 0 if not known.
        on: processor that computed.
        models: those used, by name.
        counts: numbers of rows that were measured, in every precision.
        lone_precisions: precisions of which one model alone was timed, so that their start is assumed.
        unmatched_models: models whose shape is not known here, by precision.
        errors: of the fit, predicted over measured less 1; without those of two models, which a start and a
            rate always meet.
        class_numbers: those of a class of engines, scaled to the rows, in place of the parts; empty for none.
        class_note: how they were scaled.
    """

    parts: Mapping[str, PartCost]
    generation: float
    bandwidth: float
    threads: int
    on: str
    models: tuple[str, ...]
    counts: tuple[int, ...]
    lone_precisions: tuple[str, ...]
    unmatched_models: Mapping[str, tuple[str, ...]]
    errors: tuple[float, ...]
    class_numbers: Section
    class_note: str

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


def fit_processors(
    rows: Sequence[BenchRow], threads: int | None = None, known: KnownMachine | None = None
) -> dict[str, BenchFit]:
    """Fit the rows of each processor, the one that generates fastest first.

    Args:
        rows: of one machine, on each processor of one setting.
        threads: whose rows are used; of several processors it is the CPU's. By default those of the fastest
            generation, or of the fastest prompt.
        known: stands in for what was not measured.

    Raises:
        InputError: no row has so many threads, or a prompt took no longer than its last pass.
    """
    processors = dict.fromkeys(row.on for row in rows)
    fits = {
        on: _fit_rows(
            [row for row in rows if row.on == on],
            threads if on == CPU or len(processors) == 1 else None,
            known,
        )
        for on in processors
    }
    return dict(sorted(fits.items(), key=lambda item: -item[1].generation))


def _fit_rows(rows: Sequence[BenchRow], threads: int | None, known: KnownMachine | None) -> BenchFit:
    thread_counts = sorted({row.threads for row in rows})
    if threads is not None and threads not in thread_counts:
        raise InputError(f"--threads {threads}: the file has tests of {', '.join(map(str, thread_counts))}")
    thread_count = threads if threads is not None else _fastest(rows)
    used_rows = [row for row in rows if row.threads == thread_count]
    fits = {
        arithmetic: _fit_precision([row for row in used_rows if row.arithmetic == arithmetic])
        for arithmetic in dict.fromkeys(row.arithmetic for row in used_rows)
    }
    common_counts = set.intersection(*(set(part.counts) for part in fits.values()))
    return BenchFit(
        {arithmetic: part.cost for arithmetic, part in fits.items()},
        max([0.0, *(rate for part in fits.values() for rate in part.generations)]),
        max([0.0, *(rate for part in fits.values() for rate in part.bandwidths)]),
        thread_count,
        used_rows[0].on,
        tuple(dict.fromkeys(row.model for row in used_rows)),
        tuple(sorted(common_counts or {rows for part in fits.values() for rows in part.counts})),
        tuple(arithmetic for arithmetic, part in fits.items() if part.lone),
        {arithmetic: names for arithmetic in fits if (names := _shapeless(used_rows, arithmetic))},
        tuple(error for part in fits.values() for error in part.errors),
        *(
            _class_numbers(used_rows, known)
            if known and any(part.lone or len(part.counts) < LEAST_COUNTS for part in fits.values())
            else ({}, "")
        ),
    )


def _class_numbers(rows: Sequence[BenchRow], known: KnownMachine) -> tuple[Section, str]:
    """The numbers of a processor's class scaled to its rows, and how; nothing without a class or shapes."""
    logs: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        class_seconds = sum(
            pass_count * (known.seconds(row, row_count) or 0.0) for row_count, pass_count in row.passes
        )
        if class_seconds:
            logs[row.rows == ROW].append(log(row.seconds / class_seconds))
    if not any(logs.values()):
        return {}, ""
    one, many = (exp(sum(logs[is_one]) / (len(logs[is_one]) + CLASS_WEIGHT)) for is_one in (True, False))
    note = (
        f"{known.class_name(rows[0].on)}, {one:.3g} times as long by {len(logs[True])} generations and "
        f"{many:.3g} times by {len(logs[False])} prompts"
    )
    return known.scaled_class(rows[0].on, one, many, note), note


@dataclass
class _PrecisionFit:
    """What the rows of one precision on one processor say; attributes as those of `BenchFit`."""

    cost: PartCost
    counts: tuple[int, ...]
    generations: list[float] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)
    lone: bool = False
    errors: tuple[float, ...] = ()


def _fit_precision(rows: Sequence[BenchRow]) -> _PrecisionFit:
    models: dict[tuple[str, float, float], list[BenchRow]] = {}
    for row in rows:
        models.setdefault((row.model, row.size, row.layers), []).append(row)
    passes = [(tests[0], _pass_seconds(tests)) for tests in models.values()]
    counts = tuple(sorted({count for _, seconds in passes for count in seconds}))
    timings = [
        PartTiming(KERNELS, LAYER, test.layers, 0.0, row_count, 0, seconds, test.head)
        for test, seconds_by_rows in passes
        for row_count, seconds in seconds_by_rows.items()
    ]
    models_timed = [len({o.weights for o in timings if o.rows == t.rows}) for t in timings]
    if min(models_timed) > 1:
        layers, _, layer_errors = fit_layers(timings)
        made = _PrecisionFit(layers[KERNELS], counts, errors=layer_errors if max(models_timed) > 2 else ())
    else:
        made = _PrecisionFit(_rates_alone(timings), counts, lone=True)
    start = dict(made.cost.start).get(ROW, 0.0)
    for test, seconds_by_rows in passes:
        if test.read >= UNCACHED_BYTES and ROW in counts and (seconds := seconds_by_rows.get(ROW)):
            made.generations.append(test.read / seconds)
            made.bandwidths.append(test.read / (seconds - min(start, seconds / 2)))
    return made


def _shapeless(rows: Sequence[BenchRow], arithmetic: str) -> tuple[str, ...]:
    """The models of a precision whose shape is not known, sorted by name."""
    return tuple(sorted({row.model for row in rows if row.arithmetic == arithmetic and not row.head}))


def _fastest(rows: Sequence[BenchRow]) -> int:
    """Threads of the largest model's fastest generation; of its fastest prompt if nothing was generated."""
    generation_rows = [row for row in rows if row.rows == ROW] or list(rows)
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
    name: str,
    fits: Mapping[str, BenchFit],
    largest_bytes: float,
    file: str,
    known: KnownMachine | None = None,
    memory: ChipMemory | None = None,
) -> Section:
    """The device file.

    Args:
        name: of the machine.
        fits: what was measured, by processor.
        largest_bytes: bytes of the largest model that ran.
        file: the names of the files with the rows.
        known: a machine whose facts stand where nothing was measured.
        memory: what is known of the machine's memory beside the rows.

    Raises:
        InputError: a fit is above what memory gives, or nothing says what memory gives.
    """
    flash_note = "as a phone's flash or an SSD"
    budget = fact(
        1.25 * largest_bytes / GIGA, "GB", "assumed", "a quarter more than the largest model that ran"
    )
    sheet = known.sheet if known else {}
    tables: Section = sheet.get("processors") or {}
    memories = {on: _bandwidths(bench, file, memory) for on, bench in fits.items()}
    measured_tables: Section = {
        on: {
            "peak": _peaks(bench, file),
            "bandwidth": memories[on][0],
            **{key: number for key, number in tables.get(on, {}).items() if key == "watts"},
        }
        for on, bench in fits.items()
        if not bench.class_numbers
    }
    chip_rate = max((rates[1] for rates in memories.values()), key=lambda rate: rate["value"])
    return {
        "name": name,
        "kind": "emulated",
        "main": next(iter(fits)),
        **({"soc": chip_name(known.device)} if known and chip_name(known.device) else {}),
        "processors": {on: tables.get(on) for on in fits} | tables | measured_tables,
        "flash": sheet.get("flash")
        or {
            "bandwidth": fact(1.0, "GB/s", "assumed", "the file has no reads from disk"),
            "latency": fact(100.0, "us", "assumed", flash_note),
            "watts": fact(2.0, "W", "assumed", flash_note),
        },
        "dram": {**(sheet.get("dram") or {"budget": budget}), "bandwidth": chip_rate},
        **({"power": sheet["power"]} if sheet.get("power") else {}),
    }


def _peaks(bench: BenchFit, file: str) -> Section:
    best_rate = max(part.best for part in bench.parts.values()) / GIGA
    fallback = fact(best_rate, "GFLOP/s", "assumed", "not in the file: as the precision that is")
    return {
        arithmetic: bench.rate(arithmetic, f"best rate in {file}") if arithmetic in bench.parts else fallback
        for arithmetic in ARITHMETICS
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


def bench_engine(
    name: str, fits: Mapping[str, BenchFit], file: str, known: KnownMachine | None = None
) -> Section:
    """The engine file: a pass's start stands with looking up embeddings, which every pass does once.

    Starts and rates of models without a shape are `assumed`: how many rows its output projection had is in no
    file. Processors without rows have the numbers of their class.
    """
    classes = (known.engine or {}).get("processors", {}) if known else {}
    return {
        "name": name,
        "papers": [],
        "processors": {on: _engine_of(bench, file) for on, bench in fits.items()}
        | {on: table for on, table in classes.items() if on not in fits},
    }


def _engine_of(bench: BenchFit, file: str) -> Section:
    measured = {
        **({"threads": fact(bench.threads, "")} if bench.threads else {}),
        HOLDS_KEY: {"rows": [bench.counts[0], bench.counts[-1]], COUNTS_KEY: [*bench.counts]},
    }
    if bench.class_numbers:
        return {**bench.class_numbers, **measured}
    start: Section = {}
    efficiency: Section = {}
    for arithmetic, part in bench.parts.items():
        doubt = bench.doubt(arithmetic)
        note = "one model was timed, which cannot tell a start from a rate"
        start_note = "; ".join(filter(None, [note if arithmetic in bench.lone_precisions else "", doubt]))
        start[arithmetic] = starts(part.start, _source(start_note), start_note)
        straight = PartCost(part.start, tuple(_straight_between(part.rate)))
        efficiency[arithmetic] = shares(straight, part.best, _source(doubt), doubt)
    return {
        "rate": {arithmetic: bench.rate(arithmetic, f"from {file}") for arithmetic in bench.parts},
        "efficiency": efficiency,
        "start": {"embed": start},
        **measured,
    }


def _straight_between(rates: Points) -> Iterator[tuple[int, float]]:
    """Rates by rows, with points between at which a pass's seconds are on a straight line."""
    measured_rows = [rows for rows, _ in rates]
    seconds = [rows / rate for rows, rate in rates]
    for fewer, more in pairwise(measured_rows):
        rows = fewer
        while rows < more:
            yield rows, rows / float(np.interp(rows, measured_rows, seconds))
            rows *= 2
    yield rates[-1]


def summary(fits: Mapping[str, BenchFit]) -> Iterator[str]:
    """What was learned, a sentence a line."""
    for bench in fits.values():
        threads = f" with {bench.threads} threads" if bench.threads else ""
        yield f"{len(bench.models)} models{threads} on {bench.on}: {', '.join(bench.models)}"
        for arithmetic, part in bench.parts.items() if not bench.class_note else ():
            rates = ", ".join(f"{row_count} rows {rate / 1e9:.3g} GFLOP/s" for row_count, rate in part.rate)
            yield f"{arithmetic}: {rates}"
        if bench.generation:
            yield f"generation reads {bench.generation / 1e9:.3g} GB/s of weights"
        if bench.errors:
            yield f"worst error of the fit {max(map(abs, bench.errors)):.0%}"
        if bench.class_note:
            yield f"{bench.on}: {bench.class_note}"
        elif bench.lone_precisions:
            yield f"one model in {', '.join(bench.lone_precisions)}: a pass's start is assumed to be nothing"
        if names := dict.fromkeys(m for models in bench.unmatched_models.values() for m in models):
            yield (
                f"no shape in conf/model/shape has the family and the parameters of {', '.join(names)}: all "
                "weights count as layers, and starts and rates are assumed"
            )
