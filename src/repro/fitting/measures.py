"""What a cell of a fit measures: forward passes and requests on an emulated machine, without weights.

Must not know published values. Each measure gives the value in the unit of the cells that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import discover, registered, unknown
from repro.core.yaml_file import read_mapping
from repro.device.cost import Machine
from repro.device.emulated import EmulatedDevice
from repro.device.op import NPU
from repro.methods.base import Request
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.costs.subgraphs import Layout, subgraphs
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Pass, Session
from repro.models.tokens.prefix import Prefix

Measure = Callable[[Machine], float]

CONTEXT = 128
"""Cached tokens of a measured pass, and source tokens of an encoder, unless a cell says otherwise."""

PLACEMENTS = {
    "resident": RESIDENT,
    "pipelined": Placement(resident=0.0, prefetch=1),
    "swapping": Placement(resident=0.0, prefetch=0),
}
"""Weights stay in memory; are read while the layer before computes; are read and then computed."""

SECONDS = ("pass_seconds", "request_seconds", "prefill_seconds", "npu_milliseconds", "pass_joules")
"""Measures that are times or energies, which a trivial rule scales by weights; others are ratios."""


@cache
def model_cost(model: str) -> ModelCost:
    """Cost of a model from its configuration; its checkpoint is not opened."""
    path = conf_dir() / "model" / f"{model}.yaml"
    if not path.exists():
        raise InputError(f"conf/model/{model}.yaml does not exist")
    given = read_mapping(path)
    shape = next(default["shape"] for default in given["defaults"] if "shape" in default)
    dimensions = read_mapping(conf_dir() / "model" / "shape" / f"{shape}.yaml")
    return ModelCost(Shape.parse(dimensions), precision(given["precision"]))


def one_pass(
    on: Machine,
    cost: ModelCost,
    rows: int = 1,
    context: int = CONTEXT,
    placement: Placement = RESIDENT,
) -> Pass:
    """A forward pass of `rows` tokens after `context` cached ones, with logits of the last row only."""
    device = EmulatedDevice(on)
    session = Session(Engine("model", device, cost, NoNetwork(), placement))
    text = Prefix.of([0] * context)
    whole = text if context else Prefix.of([0] * rows)
    for _ in range(rows if context else 0):
        whole = whole.then(0)
    session.start(whole)

    async def passes() -> None:
        if context:
            await session.forward([text])
        await session.forward([whole])

    device.play(passes())
    return session.passes[-1]


def _placement(name: str) -> Placement:
    if name not in PLACEMENTS:
        raise InputError(unknown("placement", name, PLACEMENTS))
    return PLACEMENTS[name]


def _verified(on: Machine, model: str, placement: str, rows: int) -> Pass:
    """A pass that gives logits at all of its rows, as a verification does."""
    return _played(EmulatedDevice(on), model, placement, rows)


def _played(device: EmulatedDevice, model: str, placement: str, rows: int) -> Pass:
    """As `_verified`, on a device whose trace the caller reads."""
    session = Session(Engine("model", device, model_cost(model), NoNetwork(), _placement(placement)))
    text = Prefix.of([0] * CONTEXT)
    session.start(text)

    async def passes() -> None:
        await session.forward([text])
        row = text
        await session.forward([row := row.then(0) for _ in range(rows)])

    device.play(passes())
    return session.passes[-1]


def pass_seconds(model: str, placement: str = "resident", rows: int = 1) -> Measure:
    """Seconds of a pass with logits at all rows."""

    def measure(on: Machine) -> float:
        done = _verified(on, model, placement, rows)
        return done.end - done.start

    return measure


def verification_speedup(model: str, rows: int = 10, placement: str = "swapping") -> Measure:
    """Time of verifying tokens one by one, over that of verifying them in one pass."""
    single, together = pass_seconds(model, placement), pass_seconds(model, placement, rows)
    return lambda on: rows * single(on) / together(on)


def rows_growth(model: str, rows: int = 10, placement: str = "resident") -> Measure:
    """Time of a pass of several rows over that of a pass of one row."""
    single, together = pass_seconds(model, placement), pass_seconds(model, placement, rows)
    return lambda on: together(on) / single(on)


def pass_joules(model: str, placement: str = "swapping", rows: int = 1) -> Measure:
    """Energy of a pass with logits at all rows, idle power included."""
    _placement(placement)

    def measure(on: Machine) -> float:
        device = EmulatedDevice(on)
        done = _played(device, model, placement, rows)
        burnt = device.trace.joules(done.start, done.end)
        assert burnt is not None, "an emulated device has an idle power"
        return burnt

    return measure


def reading_share(models: list[str], placement: str = "swapping") -> Measure:
    """Percent of a one-token pass spent waiting for flash; geometric mean over models."""

    def share(on: Machine, model: str) -> float:
        done = _verified(on, model, placement, 1)
        return 100 * done.loading / (done.end - done.start)

    return lambda on: prod(share(on, model) for model in models) ** (1 / len(models))


def npu_milliseconds(model: str, tokens: int) -> Measure:
    """Busy time of the NPU in a prefill of `tokens` tokens by mllm-NPU's chunks of 256."""
    asked = [part.op for part in subgraphs(model_cost(model), Layout(), tokens) if part.op.on == NPU]

    def measure(on: Machine) -> float:
        demands = [on.demand(op) for op in asked]
        return 1e3 * sum(demand.launch + demand.work for demand in demands)

    return measure


def _request(on: Machine, method: str, model: str, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds of a request's prefill and of the whole request, with a method."""
    discover("repro.methods")
    known = registered("method")
    if method not in known:
        raise InputError(unknown("method", method, known))
    runs = known[method]()
    device = EmulatedDevice(on)
    session = Session(Engine("target", device, model_cost(model), NoNetwork(), runs.places()["target"]))
    request = Request("fit", (0,) * prompt, tokens)
    session.start(Prefix.of(request.prompt))
    done = device.play(runs.serve(request, device, {"target": session}))
    return done.first - done.arrived, done.ended - done.arrived


def request_seconds(method: str, model: str, prompt: int, tokens: int) -> Measure:
    """Seconds from a prompt to the last token of its answer."""
    return lambda on: _request(on, method, model, prompt, tokens)[1]


def prefill_seconds(method: str, model: str, prompt: int, tokens: int = 2) -> Measure:
    """Seconds from a prompt to its first token."""
    return lambda on: _request(on, method, model, prompt, tokens)[0]


MEASURES: Mapping[str, Callable[..., Measure]] = {
    one.__name__: one
    for one in (
        pass_seconds,
        verification_speedup,
        rows_growth,
        pass_joules,
        reading_share,
        npu_milliseconds,
        request_seconds,
        prefill_seconds,
    )
}


def measure(name: str, given: Mapping[str, Any]) -> Measure:
    """A measure by name.

    Raises:
        InputError: there is none, or its arguments are others.
    """
    if name not in MEASURES:
        raise InputError(unknown("measure", name, MEASURES))
    try:
        return MEASURES[name](**given)
    except TypeError as wrong:
        raise InputError(f"measure {name}: {wrong}") from None


def weight_bytes(given: Mapping[str, Any]) -> float:
    """Bytes of the weights that a cell's measure passes through; the mean over several models."""
    models = given.get("models") or [given["model"]]
    return sum(model_cost(model).model_bytes for model in models) / len(models)
