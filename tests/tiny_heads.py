"""Medusa heads that are a random function of the text, and sessions of them beside a target's."""

from __future__ import annotations

from collections.abc import Sequence

from repro.device.cost import FREE_MACHINE
from repro.device.emulated import Device, EmulatedDevice
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import KnownStep, Logits, Network, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix
from tiny import MODEL_COST, TableNetwork

VOCAB = 12


class TableHeads:
    """Head k's logits are those of a table of its own at the target's feature."""

    depth = 0

    def __init__(self, heads: int, vocab: int = VOCAB, seed: int = 100) -> None:
        self._tables = [TableNetwork(vocab, seed + head) for head in range(heads)]
        self._lineage = MedusaLineage(0, heads)

    def start(self, prompt: Prefix) -> None:
        self._lineage = MedusaLineage(prompt.length, len(self._tables))

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        places = [self._lineage.root_and_head(prefix) for prefix in wanted]
        return KnownStep([Logits(self._tables[head].logits(feature)) for feature, head in places])

    def keep(self, text: Prefix) -> None:
        self._lineage.keep(text)


def beside(
    target: Network, heads: Network, count: int, device: Device | None = None
) -> tuple[Device, dict[str, Session]]:
    """Sessions of a target and its heads, on a machine that costs nothing unless there is another."""
    device = device or EmulatedDevice(FREE_MACHINE)
    model_cost = ModelCost(Shape.of_medusa(count, hidden=8, vocab=VOCAB, tied=True), precision("fp32"))
    return device, {
        "target": Session(Engine("target", device, MODEL_COST, target, RESIDENT)),
        "draft": Session(Engine("draft", device, model_cost, heads, RESIDENT)),
    }
