"""mllm-NPU's NPU solved with the emulator, whose schedule the closed forms leave out.

Owns how the closed forms become the numbers of conf/engine/mllm_npu.yaml and its variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import log

from scipy.optimize import brentq

from repro.device.cost import Curve, Machine
from repro.device.device_file import machine
from repro.device.engines.engine_file import device_with_engine
from workshop.fitting import measures
from workshop.studies.fit_mllm.closed_forms import (
    BASELINES,
    BOUND,
    BOUND_AT,
    CHUNK,
    COLUMNS,
    DATASETS,
    MODELS,
    OURS,
    Fits,
    answer,
    cell,
    micro,
    published,
    setup,
)

DEVICE, HEADLINE, ANCHORED = "xiaomi_14", "mllm_npu", "mllm_npu_anchored"
TOLERANCE = 0.005
"""Relative difference allowed, since engine files round to three digits."""

NEGLIGIBLE = 1e-9
"""A fitted start or quadratic term below this is nothing, and the engine file has 0 or no entry."""


@cache
def engine(name: str = HEADLINE, program: str = "") -> Machine:
    """The device as an engine uses it."""
    return machine(device_with_engine(DEVICE, name), program)


def with_npu(start: float, bandwidth: float, rate: float, cpu: float = 0.0) -> Machine:
    """The headline's machine with other numbers of its NPU, and of the CPU's float rate if given."""
    on = engine()
    npu = on.processors["npu"]
    peak, starts = {**npu.peak, "int8": rate}, {**npu.start, "int8": Curve(((1.0, start),))}
    changed = {"npu": replace(npu, peak=peak, bandwidth=bandwidth, start=starts)}
    if cpu:
        known = on.processors["cpu"]
        changed["cpu"] = replace(known, peak={**known.peak, "fp32": cpu})
    return replace(on, processors={**on.processors, **changed})


def request(on: Machine, model: str, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds of mllm-NPU's prefill of a prompt, and of the whole request."""
    return measures.request(on, "mllm_npu", f"{model}_int8", prompt, tokens)


def row(on: Machine, model: str, dataset: str) -> float:
    """Seconds of a request of the latency table."""
    given = setup(dataset)
    return request(on, model, int(given["prompt_tokens"]), int(given["max_tokens"]))[1]


def solve_rate(cpu: float = 0.0) -> float:
    """The zero-shot rate: the least with which the whole schedule meets the abstract's bound."""
    model, prompt = BOUND_AT

    def above(rate: float) -> float:
        return prompt / request(with_npu(*micro(), rate, cpu), model, prompt, 1)[0] - published(BOUND)

    return float(brentq(above, 1e12, 1e14, rtol=1e-4))


def solve_anchored() -> tuple[float, float]:
    """Start and rate that leave least of the system's own rows of the chosen models; reading is Table 3's.

    Orders of subgraphs make steps, so that the search ends where no move of one number by 1 to 20% is better.
    """
    rows = [(m, d) for m in COLUMNS[OURS].fitted for d in DATASETS]

    @cache
    def left(start: float, rate: float) -> float:
        on = with_npu(start, micro()[1], rate)
        return sum(log(row(on, m, d) / published(cell(OURS, m, d))) ** 2 for m, d in rows)

    numbers, moved = Fits().anchored(COLUMNS[OURS].fitted).numbers, True
    found = (numbers["start"], numbers["rate"])
    while moved:
        factors = [by**sign for by in (1.2, 1.1, 1.05, 1.02, 1.01) for sign in (1, -1)]
        moves = [(found[0] * by, found[1]) for by in factors] + [(found[0], found[1] * by) for by in factors]
        best = min(moves, key=lambda place: left(*place))
        moved = left(*best) < left(*found)
        found = best if moved else found
    return found


def fitted_numbers() -> Iterator[tuple[str, float, float]]:
    """Every fitted number of both engine files: its place, the file's value, the fit's (SI units)."""
    for name in BASELINES:
        column = COLUMNS[name]
        numbers = Fits().baseline(name, column.fitted).numbers
        processors, program = engine(HEADLINE, column.program).processors, column.program
        prefilling = processors[column.processor]
        decoding = processors["cpu"] if name == "pi" else prefilling
        yield f"{program}.peak.int8", prefilling.peak["int8"], 2 / numbers["b"]
        yield f"{program}.rows_quadratic", prefilling.rows_quadratic, numbers["k"]
        fitted = answer(name, MODELS)
        if column.has_starts:
            yield f"{program}.start.int8", decoding.start["int8"].at(1) + decoding.launch, fitted.start
        else:
            start = prefilling.start["int8"].at(1) if "int8" in prefilling.start else 0.0
            yield f"{program}.start.int8", start, numbers["a"]
        yield f"{program}.bandwidth", decoding.bandwidth, fitted.bandwidth
    yield "cpu.start.int8", engine().processors["cpu"].start["int8"].at(1), answer(OURS, MODELS).start
    start, bandwidth = micro()
    own, anchored = engine().processors["npu"], engine(ANCHORED).processors["npu"]
    yield "npu.start.int8", own.start["int8"].at(CHUNK), start
    yield "npu.bandwidth", own.bandwidth, bandwidth
    yield "npu.rate.int8", own.peak["int8"], solve_rate()
    start, rate = solve_anchored()
    yield "anchored npu.start.int8", anchored.start["int8"].at(CHUNK), start
    yield "anchored npu.rate.int8", anchored.peak["int8"], rate
    yield "anchored npu.bandwidth", anchored.bandwidth, bandwidth


def differs(ours: float, fit: float) -> bool:
    """Whether a file's number is not the fit's."""
    if max(abs(ours), abs(fit)) < NEGLIGIBLE:
        return False
    return abs(ours - fit) > TOLERANCE * abs(fit)
