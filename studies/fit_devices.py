"""Fit numbers of device files to published baseline values, by running the emulator itself.

python -m studies.fit_devices                        every fit: its numbers, then each cell beside ours
python -m studies.fit_devices jetson_tx2             one device's
python -m studies.fit_devices --check                exit 1 if a device file differs from its fit

Owns which number of a device file is fitted to which cells (EdgeLLM Figs. 3, 5 and 20; mllm-NPU sec. 3.4).
Must not know the cells that are predicted: it runs single passes of a draft or a target, never a method.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, prod, sqrt
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.device.cost import Machine
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import NPU
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.costs.subgraphs import Layout, subgraphs
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Pass, Session
from repro.models.tokens.prefix import Prefix
from repro.reports.reference.reference import find, load_cells

CONTEXT = 128
"""Context tokens of the measured pass, and source tokens of an encoder; the paper gives no length."""

VERIFIED = 14
"""Tokens of Fig. 20's verification: the root and sec. III-B's 12 to 15 draft tokens, geometric mean."""

PIPELINED = Placement(resident=0.0, prefetch=1)
"""Computing overlaps reading, as in EdgeLLM (sec. III-B), whose verification Fig. 20 shows."""

SWAPPING = Placement(resident=0.0, prefetch=0)
"""The standard engines of sec. II-B and II-C read a layer and then compute it."""

TOLERANCE = 0.005
"""Relative difference allowed, since device files round to three digits."""

Measure = Callable[[Machine], float]


@dataclass(frozen=True)
class Knob:
    """One number of a device file and the cells that it is fitted to.

    Attributes:
        path: its place in the file; for a curve the last point is fitted.
        between: lower and upper bound of the search, in the file's unit.
        cells: function that gives the emulator's value, by cell, in the cell's unit.
        restated: cells that only repeat the same measurements, or ratios of them.
        engine: engine whose rates the fitted machine has; empty for none.
    """

    path: str
    between: tuple[float, float]
    cells: Mapping[str, Measure]
    restated: tuple[str, ...] = ()
    engine: str = ""

    @property
    def determined(self) -> set[str]:
        """Every cell that is no longer a prediction."""
        return {*self.cells, *self.restated}


@dataclass(frozen=True)
class Fit:
    """A device file's fitted numbers, in fitting order."""

    device: str
    knobs: tuple[Knob, ...]


def device_file(name: str) -> dict[str, Any]:
    """A device file with its own engine over it, as committed."""
    return device_with_engine(name)


@cache
def model_cost(model: str) -> ModelCost:
    """Model cost from a model's configuration; its checkpoint is not opened."""
    given = yaml.safe_load((conf_dir() / "model" / f"{model}.yaml").read_text())
    shape = next(default["shape"] for default in given["defaults"] if "shape" in default)
    dimensions = yaml.safe_load((conf_dir() / "model" / "shape" / f"{shape}.yaml").read_text())
    return ModelCost(Shape.parse(dimensions), precision(given["precision"]))


def one_pass(on: Machine, model: str, placement: Placement, rows: int = 1) -> Pass:
    """A pass of `rows` tokens after a context, with nothing else running and nothing read in advance."""
    device = EmulatedDevice(on)
    session = Session(Engine("model", device, model_cost(model), NoNetwork(), placement))
    text = Prefix.of([0] * CONTEXT)
    session.start(text)

    async def passes() -> None:
        await session.forward([text])
        row = text
        await session.forward([row := row.then(0) for _ in range(rows)])

    device.play(passes())
    return session.passes[-1]


def seconds(model: str, placement: Placement, rows: int = 1) -> Measure:
    """Duration of a pass."""

    def measure(on: Machine) -> float:
        done = one_pass(on, model, placement, rows)
        return done.end - done.start

    return measure


def nav_reduction(model: str, tokens: int = 10) -> Measure:
    """Fig. 5: time of verifying tokens one by one, over that of verifying them in one pass (NAV)."""
    single, together = seconds(model, SWAPPING), seconds(model, SWAPPING, tokens)
    return lambda on: tokens * single(on) / together(on)


def io_share(*models: str) -> Measure:
    """Fig. 3: percent of a one-token pass spent waiting for the disk; geometric mean over models."""

    def share(on: Machine, model: str) -> float:
        done = one_pass(on, model, SWAPPING)
        return 100 * done.loading / (done.end - done.start)

    return lambda on: prod(share(on, model) for model in models) ** (1 / len(models))


def npu_milliseconds(model: str, tokens: int) -> Measure:
    """mllm-NPU sec. 3.4: busy time of the NPU in a prefill of `tokens` tokens, in chunks of 256.

    One launch a subgraph, as the device file has it; engine=mllm_npu replaces that number.
    """
    parts = subgraphs(model_cost(model), Layout(), tokens)
    asked = [part.op._replace(launches=1) for part in parts if part.op.on == NPU]

    def measure(on: Machine) -> float:
        demands = [on.demand(op) for op in asked]
        return 1e3 * sum(demand.launch + demand.work for demand in demands)

    return measure


FITS = (
    Fit(
        "jetson_tx2",
        (
            Knob(
                "processors.gpu.launch",
                (1.0, 100.0),
                {
                    "edgellm.fig20.mt5.generation": seconds("mt5_small", RESIDENT),
                    "edgellm.fig20.gpt2.generation": seconds("gpt2", RESIDENT),
                },
                restated=("edgellm.fig21.generation",),
            ),
            Knob(
                "flash.bandwidth",
                (0.03, 0.4),
                {
                    "edgellm.fig20.mt5.verification": seconds("mt5_large", PIPELINED, VERIFIED),
                    "edgellm.fig20.gpt2.verification": seconds("gpt2_large", PIPELINED, VERIFIED),
                },
                restated=("edgellm.fig20.verification_ratio", "edgellm.fig21.verification"),
            ),
        ),
    ),
    Fit(
        "jetson_orin_nx",
        (
            Knob(
                "processors.gpu.launch",
                (0.1, 100.0),
                {"edgellm.fig3.io_share": io_share("t5_large", "mt5_large", "gpt2_large")},
            ),
        ),
    ),
    Fit(
        "xiaomi_10",
        (
            Knob(
                "processors.cpu.bandwidth",
                (0.5, 25.0),
                {"edgellm.fig20.llama2.generation": seconds("llama_2_7b_chat", RESIDENT)},
            ),
            Knob(
                "flash.bandwidth",
                (0.2, 2.1),
                {"edgellm.fig20.llama2.verification": seconds("llama_2_13b_chat", PIPELINED, VERIFIED)},
                restated=("edgellm.fig20.verification_ratio",),
            ),
            Knob(
                "processors.cpu.rows_exponent",
                (0.05, 1.0),
                {"edgellm.fig5.nav_reduction": nav_reduction("llama_13b")},
            ),
        ),
    ),
    Fit(
        "xiaomi_14",
        (
            Knob(
                "processors.npu.efficiency",
                (0.005, 0.5),
                {"mllm_npu.text.3_4.npu_time": npu_milliseconds("qwen1_5_1_8b_int8", 256)},
            ),
        ),
    ),
)


CARRIED = {
    "processors.cpu.bandwidth": 51.2 / 44.0,
    "processors.cpu.rows_exponent": 1.0,
    "flash.bandwidth": 2.0 / 1.7,
}
"""Ratios of the Xiaomi 11 to the Xiaomi 10: buses, UFS 3.1 over 3.0. Nothing was measured on it."""


@cache
def published(cell: str) -> float:
    """A cell's value; for a range the geometric mean of its ends."""
    found = find(load_cells(), cell)
    assert found.value_low is not None, f"{cell} has no lower end"
    assert found.value_high is not None, f"{cell} has no upper end"
    return sqrt(found.value_low * found.value_high)


def leaf(device: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A fact as its file writes it."""
    fact: Any = device
    for key in path.split("."):
        fact = fact[key]
    assert isinstance(fact, dict), f"{path} is no fact"
    return fact


def put(device: Mapping[str, Any], path: str, value: float) -> None:
    """Set a fact's value; for a curve its last point."""
    fact = leaf(device, path)
    if "points" in fact:
        fact["points"][-1][1] = value
    else:
        fact["value"] = value


def get(device: Mapping[str, Any], path: str) -> float:
    """A fact's value in the file's unit; for a curve its last point."""
    fact = leaf(device, path)
    return float(fact["points"][-1][1] if "points" in fact else fact["value"])


def residual(device: Mapping[str, Any], knob: Knob, value: float) -> float:
    """Mean logarithm of ours over published, with the knob set to a value."""
    put(device, knob.path, value)
    on = machine(device, knob.engine)
    wrong = [log(measure(on) / published(cell)) for cell, measure in knob.cells.items()]
    return sum(wrong) / len(wrong)


def turn(device: Mapping[str, Any], knob: Knob, halvings: int = 22) -> None:
    """Set a knob by bisection so that the mean log ratio over its cells is zero.

    Raises:
        InputError: no value in the interval does that.
    """
    low, high = knob.between
    falls = residual(device, knob, low) > 0
    if falls == (residual(device, knob, high) > 0):
        raise InputError(f"no {knob.path} between {low} and {high} meets {', '.join(knob.cells)}")
    for _ in range(halvings):
        middle = sqrt(low * high)
        if (residual(device, knob, middle) > 0) == falls:
            low = middle
        else:
            high = middle
    put(device, knob.path, sqrt(low * high))


def solve(fit: Fit, sweeps: int = 2) -> dict[str, Any]:
    """The device file with its knobs fitted; repeated, since a knob's cells also depend on later knobs."""
    device = copy.deepcopy(device_file(fit.device))
    for _ in range(sweeps):
        for knob in fit.knobs:
            turn(device, knob)
    return device


def wrong(fit: Fit, solved: Mapping[str, Any]) -> Iterator[str]:
    """Differences between the committed device file and the fit."""
    committed = device_file(fit.device)
    known = {fact.path: fact for fact in facts(committed)}
    for knob in fit.knobs:
        written, found = get(committed, knob.path), get(solved, knob.path)
        if abs(log(written / found)) > TOLERANCE:
            yield f"{fit.device}: {knob.path} is {written:g}; the fit gives {found:.3g}"
        if set(known[knob.path].cells) != knob.determined:
            cells = ", ".join(sorted(knob.determined))
            yield f"{fit.device}: {knob.path} names {known[knob.path].cells}; it is fitted to {cells}"


def drifted(source: str = "xiaomi_10", carrier: str = "xiaomi_11") -> Iterator[str]:
    """Differences between a device that reuses another's fit and that fit."""
    fitted, carried = device_file(source), device_file(carrier)
    for path, ratio in CARRIED.items():
        written, expected = get(carried, path), ratio * get(fitted, path)
        if abs(log(written / expected)) > TOLERANCE:
            yield f"{carrier}: {path} is {written:g}; {source}'s fit gives {expected:.3g}"


def parameters(fit: Fit, solved: Mapping[str, Any]) -> Table:
    """The fitted numbers beside the committed ones."""
    table = Table(title=f"{fit.device}: parameters", title_justify="left")
    for heading in ("place", "solved", "in the file", "unit"):
        table.add_column(heading)
    committed = device_file(fit.device)
    for knob in fit.knobs:
        found, written = get(solved, knob.path), get(committed, knob.path)
        table.add_row(knob.path, f"{found:.4g}", f"{written:.4g}", leaf(committed, knob.path).get("unit", ""))
    return table


def reproduced(fit: Fit) -> Table:
    """Each fitted cell: the published value, and ours with the committed device file."""
    table = Table(title=f"{fit.device}: cells", title_justify="left")
    for heading in ("cell", "published", "ours", "ratio"):
        table.add_column(heading)
    for knob in fit.knobs:
        on = machine(device_file(fit.device), knob.engine)
        for cell, measure in knob.cells.items():
            ours, theirs = measure(on), published(cell)
            table.add_row(cell, f"{theirs:.4g}", f"{ours:.4g}", f"{exp(log(ours / theirs)):.3f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {fit.device: fit for fit in FITS}
    parser.add_argument("devices", nargs="*", metavar="DEVICE", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--check", action="store_true", help="only say where a device file differs")
    options = parser.parse_args(arguments)
    console, failures = Console(), list(drifted())
    try:
        for name in options.devices or known:
            if name not in known:
                raise InputError(unknown("fitted device", name, known))
            fit = known[name]
            solved = solve(fit)
            failures += list(wrong(fit, solved))
            if not options.check:
                console.print(parameters(fit, solved), reproduced(fit))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
