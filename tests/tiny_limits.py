"""A model and machines whose figures follow on paper: round numbers, and every cost absent that is not named.

A layer has 1,000 weights of a byte, and so has the output projection; a row of the embedding table has 10
bytes, and a token takes 40 bytes of a layer's key-value cache. What any model here says depends on a text's
length alone: after `n` tokens comes token `n`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from repro.core.registry import discover
from repro.device.cost import Curve, Flash, Machine, Processor
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, GPU, NPU
from repro.methods.base import Generation, Method, Request
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.metrics.base import score
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import KnownStep, Logits, Network, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.records.record import Scalar
from repro.scenarios.generation import figures

discover("repro.metrics")

LAYERS = 4
VOCAB = 100
PROMPT = 5
SHAPE = Shape(
    LAYERS, hidden=10, heads=1, kv_heads=1, head_dim=10, intermediate=30, vocab=VOCAB, gated=False, tied=True
)
TARGET = ModelCost(SHAPE, precision("int8"))
DRAFT = ModelCost(replace(SHAPE, layers=1), precision("int8"))
HEADS = ModelCost(Shape.of_medusa(4, 10, VOCAB, tied=True), precision("int8"))
SURE = Calibration(tuple((1.0, *(0.0,) * 9) for _ in range(4)))
"""Heads whose first choice is always right."""

Values = Mapping[str, Scalar]


class ByLength:
    """A model that is sure of token `n + ahead` after `n` tokens; the right one is the last it thinks of."""

    depth = 0

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    def start(self, prompt: Prefix) -> None:
        """Nothing is held."""

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        return KnownStep([self._row(prefix.length) for prefix in wanted])

    def keep(self, text: Prefix) -> None:
        """Nothing is held."""

    def _row(self, length: int) -> Logits:
        first, right = (length + self._ahead) % VOCAB, length % VOCAB
        others = [token for token in range(VOCAB) if token not in (first, right)]
        tokens = [first, *others, *([right] if right != first else [])]
        return Logits(None, (tokens, [0.0, *[-60.0] * (VOCAB - 1)]))


RIGHT, WRONG = ByLength(), ByLength(ahead=1)


def machine(
    read_s: float = 0.0,
    idle_watts: float = 0.0,
    processors: Mapping[str, Mapping[str, Any]] | None = None,
    **own: Any,
) -> Machine:
    """A machine on which nothing takes time but what is named.

    Args:
        read_s: seconds to read a layer from flash, half of them before its first byte.
        idle_watts: power of a machine that does nothing.
        processors: what processors have of their own, by name; without them there is a CPU.
        own: fields of every processor.
    """
    free: dict[str, Any] = {"peak": {"int8": inf, "fp32": inf}, "bandwidth": inf}
    made = {name: Processor(**free | own | more) for name, more in (processors or {CPU: {}}).items()}
    flash = Flash(Curve(((1.0, 2 * 1000 / read_s if read_s else inf),)), latency=read_s / 2)
    return Machine("paper", next(iter(made)), made, flash, inf, 1e9, idle_watts)


ALL = {CPU: {}, GPU: {}, NPU: {}}


def run(
    method: Method,
    on: Machine,
    tokens: int,
    draft: Network = RIGHT,
    model_costs: Mapping[str, ModelCost] | None = None,
    prompts: int = 1,
) -> tuple[Values, list[Generation]]:
    """The figures of `prompts` equal requests of `PROMPT` tokens, and their answers."""
    device, networks = EmulatedDevice(on), {"target": RIGHT, "draft": draft}
    costs = {"target": TARGET, "draft": DRAFT} | dict(model_costs or {})
    sessions = {
        role: Session(Engine(role, device, costs[role], networks[role], place))
        for role, place in method.places().items()
    }
    for session in sessions.values():
        session.beside = SURE
    serving = device.play(method.prepare(device, sessions))
    answers = []
    for number in range(prompts):
        request = Request(f"paper/{number}", tuple(range(PROMPT)), tokens)
        for session in sessions.values():
            session.start(request.prefix)
        answers.append(device.play(serving.serve(request, device, sessions)))
    values = dict(figures.timing(answers, device.trace)) | figures.calls(answers) | figures.drafting(answers)
    values |= figures.passes(answers, sessions) | figures.projecting(answers, device.trace)
    if values["target_calls"]:
        values |= score(["acceptance"], figures.outcome(answers))
    assert all(answer.tokens == [(PROMPT + i) % VOCAB for i in range(tokens)] for answer in answers)
    return values, answers
