"""What a cell of a fit measures: forward passes and requests on an emulated machine, without weights.

Must not know published values. A time is in seconds, an energy in joules; a ratio or a share is in the unit
of the cells that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.core.registry import discover, registered, unknown
from repro.device.cost import Machine
from repro.device.emulated import EmulatedDevice
from repro.device.op import NPU, Op
from repro.methods.base import Request
from repro.methods.mllm_npu.subgraphs import Layout, subgraphs
from repro.models.costs.model_cost import ModelCost, Shape, precision
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
    device: EmulatedDevice,
    cost: ModelCost,
    rows: int = 1,
    context: int = CONTEXT,
    placement: Placement = RESIDENT,
    logits: str = "all",
) -> Pass:
    """A forward pass of `rows` tokens after `context` cached ones, with nothing else running.

    Args:
        device: it has the pass's spans afterwards.
        cost: of the model.
        rows: tokens that the pass computes.
        context: tokens that are cached before.
        placement: where the weights are.
        logits: of `all` rows, as a verification gives them, or of the `last` one.
    """
    session = Session(Engine("model", device, cost, NoNetwork(), placement))
    cached = Prefix.of([0] * context)
    texts = [cached.then(0) if context else Prefix.of([0])]
    while len(texts) < rows:
        texts.append(texts[-1].then(0))
    session.start(cached if context else texts[-1])

    async def passes() -> None:
        if context:
            await session.forward([cached])
        await session.forward(texts if logits == "all" else texts[-1:])

    device.play(passes())
    return session.passes[-1]


def _placement(name: str, on: str = "") -> Placement:
    if name not in PLACEMENTS:
        raise InputError(unknown("placement", name, PLACEMENTS))
    return replace(PLACEMENTS[name], on=on)


def pass_seconds(
    model: str, placement: str = "resident", rows: int = 1, processor: str = "", context: int = CONTEXT
) -> Measure:
    """Seconds of a pass with logits at all rows, on a processor or on the machine's own."""
    where = _placement(placement, processor)

    def measure(on: Machine) -> float:
        done = one_pass(EmulatedDevice(on), model_cost(model), rows, context, where)
        return done.end - done.start

    return measure


def reading_seconds(model: str, placement: str = "swapping", context: int = CONTEXT) -> Measure:
    """Seconds of a one-token pass that wait for flash."""
    where = _placement(placement)
    return lambda on: one_pass(EmulatedDevice(on), model_cost(model), 1, context, where).loading


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
    where = _placement(placement)

    def measure(on: Machine) -> float:
        device = EmulatedDevice(on)
        done = one_pass(device, model_cost(model), rows, placement=where)
        burnt = device.trace.joules(done.start, done.end)
        assert burnt is not None, "an emulated device has an idle power"
        return burnt

    return measure


def reading_share(models: list[str], placement: str = "swapping") -> Measure:
    """Percent of a one-token pass spent waiting for flash; geometric mean over models."""
    reads = [reading_seconds(model, placement) for model in models]
    passes = [pass_seconds(model, placement) for model in models]

    def measure(on: Machine) -> float:
        shares = [100 * read(on) / whole(on) for read, whole in zip(reads, passes, strict=True)]
        return prod(shares) ** (1 / len(shares))

    return measure


def npu_seconds(model: str, tokens: int, launches: int = 0) -> Measure:
    """Busy time of the NPU in a prefill of `tokens` tokens by mllm-NPU's chunks of 256.

    Each subgraph has so many launches; 0 for one a matrix product.
    """
    parts = [part.op for part in subgraphs(model_cost(model), Layout(), tokens) if part.op.on == NPU]
    asked = [op._replace(launches=launches or op.launches) for op in parts]
    return lambda on: sum(on.demand(op).launch + on.demand(op).work for op in asked)


def product_seconds(
    rows: int, inputs: int, outputs: int, processor: str = NPU, precision: str = "int8"
) -> Measure:
    """Seconds of a single matrix product `[rows, inputs] x [inputs, outputs]`, a byte a weight."""
    size = inputs * outputs
    op = Op(processor, "linear", "product", rows, 2.0 * rows * size, float(size), precision)

    def measure(on: Machine) -> float:
        demand = on.demand(op)
        return demand.launch + demand.work

    return measure


def request(on: Machine, method: str, model: str, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds of a request's prefill and of the whole request, with a method."""
    discover("repro.methods")
    known = registered("method")
    if method not in known:
        raise InputError(unknown("method", method, known))
    device, runs = EmulatedDevice(on), known[method]()
    session = Session(Engine("target", device, model_cost(model), NoNetwork(), runs.places()["target"]))
    serving = device.play(runs.prepare(device, {"target": session}))
    asked = Request("fit", (0,) * prompt, tokens)
    session.start(Prefix.of(asked.prompt))
    done = device.play(serving.serve(asked, device, {"target": session}))
    return done.first - done.arrived, done.ended - done.arrived


@cache
def _lengths(setup: str) -> tuple[int, int]:
    """Prompt and answer tokens of a setup."""
    path = conf_dir() / "setup" / f"{setup}.yaml"
    if not path.exists():
        raise InputError(f"conf/setup/{setup}.yaml does not exist")
    given = read_mapping(path)
    if not given.get("prompt_tokens") or not given.get("max_tokens"):
        raise InputError(f"conf/setup/{setup}.yaml has no prompt_tokens or no max_tokens")
    return int(given["prompt_tokens"]), int(given["max_tokens"])


def request_seconds(method: str, model: str, setup: str, tokens: int = 0) -> Measure:
    """Seconds from a prompt of a setup's length to the last token of its answer.

    The answer has `tokens` tokens; 0 for the setup's.
    """
    prompt, answer = _lengths(setup)
    return lambda on: request(on, method, model, prompt, tokens or answer)[1]


def prefill_seconds(method: str, model: str, setup: str) -> Measure:
    """Seconds from a prompt of a setup's length to its first token."""
    prompt, answer = _lengths(setup)
    return lambda on: request(on, method, model, prompt, answer)[0]


def decode_seconds(method: str, model: str, setup: str) -> Measure:
    """Seconds from the first to the last token of a setup's answer."""
    prompt, answer = _lengths(setup)

    def measure(on: Machine) -> float:
        prefill, whole = request(on, method, model, prompt, answer)
        return whole - prefill

    return measure


MEASURES: Mapping[str, Callable[..., Measure]] = {
    one.__name__: one
    for one in (
        *(pass_seconds, reading_seconds, npu_seconds, product_seconds, request_seconds, prefill_seconds),
        *(decode_seconds, pass_joules, verification_speedup, rows_growth, reading_share),
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
    if "inputs" in given:
        return float(given["inputs"] * given["outputs"])
    models = given.get("models") or [given["model"]]
    return sum(model_cost(model).model_bytes for model in models) / len(models)
