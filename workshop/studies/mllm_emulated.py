"""Solve mllm-NPU's NPU with the emulator, whose schedule the closed forms leave out; check the engine files.

python -m workshop.studies.mllm_emulated                    every number of the engine files beside the fits'
python -m workshop.studies.mllm_emulated --check            exit 1 if one differs
python -m workshop.studies.mllm_emulated --cpu 0.3          rate and errors with another float rate of the CPU
python -m workshop.studies.mllm_emulated --anchored         errors of the anchored variant
python -m workshop.studies.mllm_emulated --score table.csv  errors of a made table4, trivial ones, the order

Owns how the forms of `mllm_closed_forms` become the numbers of conf/engine/mllm_npu.yaml and its variant.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import log
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq

from repro.device.cost import Curve, Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.methods.base import Request
from repro.methods.mllm_npu.mllm_npu import MllmNpu
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from workshop.fitting.measures import model_cost
from workshop.studies.fit_mllm import engines, middle, said
from workshop.studies.mllm_closed_forms import (
    BASELINES,
    BOUND,
    BOUND_AT,
    CHOSEN,
    CHUNK,
    DATASETS,
    MODELS,
    OURS,
    STARTS,
    SUPPORTED,
    Errors,
    Fits,
    answer,
    cell,
    errors,
    micro,
    published,
    setup,
)

DEVICE, HEADLINE, ANCHORED = "xiaomi_14", "mllm_npu", "mllm_npu_anchored"
PROGRAMS = {
    "mlc": ("mlc_gpu", "gpu"),
    "lcpp": ("llama_cpp_cpu", "cpu"),
    "mnn": ("mnn_cpu", "cpu"),
    "pi": ("powerinfer2_npu", "npu"),
    "tflite": ("tflite_gpu", "gpu"),
}
"""Program and processor of its prefill by column of the latency table."""

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
    device, method = EmulatedDevice(on), MllmNpu()
    target = Session(
        Engine("target", device, model_cost(f"{model}_int8"), NoNetwork(), method.places()["target"])
    )
    serving = device.play(method.prepare(device, {"target": target}))
    asked = Request("blank", (0,) * prompt, tokens)
    target.start(Prefix.of(asked.prompt))
    done = device.play(serving.serve(asked, device, {"target": target}))
    return done.first - done.arrived, done.ended - done.arrived


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
    rows = [(m, d) for m in CHOSEN[OURS] for d in DATASETS]

    @cache
    def left(start: float, rate: float) -> float:
        on = with_npu(start, micro()[1], rate)
        return sum(log(row(on, m, d) / published(cell(OURS, m, d))) ** 2 for m, d in rows)

    numbers, moved = Fits().anchored(CHOSEN[OURS]).numbers, True
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
    for one in engines(Fits())[: len(BASELINES)]:
        program, on = PROGRAMS[one.column]
        known, numbers = engine(HEADLINE, program).processors[on], one.form.numbers
        decoding = engine(HEADLINE, program).processors["cpu" if one.column == "pi" else on]
        fitted = answer(one.column, MODELS)
        yield f"{program}.peak.int8", known.peak["int8"], 2 / numbers["b"]
        yield f"{program}.rows_quadratic", known.rows_quadratic, numbers["k"]
        if one.column in STARTS:
            yield f"{program}.start.int8", decoding.start["int8"].at(1) + decoding.launch, fitted.start
        else:
            start = known.start["int8"].at(1) if "int8" in known.start else 0.0
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


def read_table(path: Path) -> dict[str, Errors]:
    """Errors by column of a made `mllm_npu/table4`, over its published cells."""
    with path.open(newline="", encoding="utf-8") as file:
        ratio = {line["reference"]: float(line["ratio"]) for line in csv.DictReader(file) if line["ratio"]}
    return {
        column: {(m, d): ratio[cell(column, m, d)] - 1 for m in models for d in DATASETS}
        for column, models in SUPPORTED.items()
    }


def score(path: Path, console: Console) -> None:
    """Print errors of the predicted cells of a made table, and how often the order is the paper's."""
    found = read_table(path)
    heads = ("engine", "fitted", "predicted", "n", "trivial", "skill")
    table = Table(*heads, title="Emulated: median error (90th percentile)")
    every: Errors = {}
    guesses: Errors = {}

    def add(name: str, inside: Errors, own: Errors, guess: Errors) -> None:
        skill = f"{1 - middle(own) / middle(guess):.2f}"
        table.add_row(name, said(inside), said(own), str(len(own)), said(guess), skill)

    known = engines(Fits())[:-1]
    for one in known:
        if one.column == OURS:
            add("all baselines", {}, every, guesses)
        own = {key: e for key, e in found[one.column].items() if key[0] in one.predicted}
        inside = {key: e for key, e in found[one.column].items() if key not in own}
        guess = errors(one.trivial, one.column, one.predicted)
        add(one.name, inside, own, guess)
        every |= {(f"{one.column} {m}", d): e for (m, d), e in own.items()}
        guesses |= {(f"{one.column} {m}", d): e for (m, d), e in guess.items()}
    add("all", {}, every, guesses)
    console.print(table)
    predicted = {one.column: [(m, d) for m in one.predicted for d in DATASETS] for one in known}
    for what, cells in (("all", {c: [*rows] for c, rows in found.items()}), ("predicted", predicted)):
        first, rows, right, pairs = order(found, cells)
        console.print(f"{what} cells: mllm-NPU the fastest in {first} of {rows} rows; ", end="")
        console.print(f"pairs of systems in the printed order: {right} of {pairs}")


def order(
    found: Mapping[str, Errors], cells: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[int, int, int, int]:
    """How well the order of the systems in each row is met, over some cells.

    Returns:
        Rows with mllm-NPU as the fastest, rows with it and another system, pairs of systems of a row in the
        printed order, and pairs.
    """
    first = rows = pairs = right = 0
    for place in ((m, d) for m in MODELS for d in DATASETS):
        printed = {c: published(cell(c, *place)) for c in cells if place in cells[c]}
        ours = {c: value * (1 + found[c][place]) for c, value in printed.items()}
        rows += OURS in ours and len(ours) > 1
        first += len(ours) > 1 and min(ours, key=ours.__getitem__) == OURS
        for a, b in combinations(printed, 2):
            pairs += 1
            right += (printed[a] < printed[b]) == (ours[a] < ours[b])
    return first, rows, right, pairs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say where the engine files differ")
    parser.add_argument("--cpu", type=float, default=0.0, metavar="TFLOPS", help="float rate of the CPU")
    parser.add_argument("--anchored", action="store_true", help="errors of the anchored variant")
    parser.add_argument("--score", type=Path, metavar="CSV", help="table.csv of a made mllm_npu/table4")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    if options.score:
        score(options.score, console)
        return 0
    if options.anchored:
        found = errors(lambda m, d: row(engine(ANCHORED), m, d), OURS, MODELS)
        inside = {key: e for key, e in found.items() if key[0] in CHOSEN[OURS]}
        rest = {key: e for key, e in found.items() if key not in inside}
        console.print(f"anchored: {said(inside)} on its own rows, {said(rest)} on {len(rest)} others")
        return 0
    if options.cpu:
        rate = solve_rate(options.cpu * 1e12)
        on = with_npu(*micro(), rate, options.cpu * 1e12)
        found = errors(lambda m, d: row(on, m, d), OURS, MODELS)
        console.print(f"CPU {options.cpu} TFLOP/s: NPU {rate / 1e12:.3g} TOP/s, errors {said(found)}")
        return 0
    wrong = []
    for name, ours, fit in fitted_numbers():
        wrong += [f"{name} is {ours:.4g}; the fit gives {fit:.4g}"] if differs(ours, fit) else []
        if not options.check:
            console.print(f"{name}: {ours:.4g}, fit {fit:.4g}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
