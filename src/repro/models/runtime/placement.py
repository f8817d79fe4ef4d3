"""Where a model's weights are stored and where they run. Knows nothing of particular devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from repro.core.bounds import Layers, Share
from repro.device.memory import Memory
from repro.models.costs.model_cost import ModelCost


@dataclass(frozen=True)
class Placement:
    """Which processor runs a model and how much of it stays in memory.

    Attributes:
        on: processor of the layers; "" is the device's main one.
        head: processor of the output projection; "" is that of the layers.
        resident: share of the layers held in DRAM; the rest is streamed from flash in every pass.
        prefetch: layers read ahead of the one that computes; 0 alternates reading and computing.
        preload: between passes, keep reading the first layers of the next pass.
        run: resident layers per op; 0 is all. Short runs let other models use the processor in between.
        policy: `share` holds `resident` of the layers. `swap` models memory-mapped weights: everything stays
            in memory if it fits, else every layer is read again in every pass (an LRU page cache keeps
            nothing of a cyclic scan).
        fill: read layers ahead up to this share of the device's memory, in place of `prefetch`; 0 disables
            this, `None` is the device's default. At least one layer is always in memory.
        background: ops have lower priority than those of foreground models.
        beside: opens what the method uses beside the model, such as a network that reads its hidden states.
        buffer: share of all layers' bytes that a buffer for parts of streamed layers takes in memory.
    """

    on: str = ""
    head: str = ""
    resident: Share = 1.0
    prefetch: Layers = 1
    preload: bool = False
    run: int = 0
    policy: Literal["share", "swap"] = "share"
    fill: Share | None = 0.0
    background: bool = False
    beside: Callable[[Any], object] | None = None
    buffer: Share = 0.0

    def resident_layers(self, layer_count: int) -> int:
        """How many of `layer_count` layers `resident` keeps in memory: always the first ones."""
        return int(self.resident * layer_count + 1e-9)


class Residency(NamedTuple):
    """The outcome of a placement for one model and one memory.

    Attributes:
        layers: number of resident layers, the first ones.
        slots: slots for streamed layers that load or compute; one may hold the output projection.
        tables: whether embedding table and output projection are resident.
        encoder: encoder layers with room in memory: all, or the slots that they stream through.
    """

    layers: int
    slots: int
    tables: bool
    encoder: int = 0

    def bytes(self, model_cost: ModelCost) -> float:
        """Bytes of weights in memory, slots included."""
        size = self.layers * model_cost.layer_bytes + self.encoder * model_cost.encoder_layer_bytes
        size += model_cost.table_bytes if self.tables else 0.0
        if self.slots:
            size = size + (self.slots - 1) * model_cost.layer_bytes + self._widest(model_cost)
        return size

    def _widest(self, model_cost: ModelCost) -> float:
        return model_cost.layer_bytes if self.tables else max(model_cost.layer_bytes, model_cost.head(1)[1])


def settle(
    placement: Placement,
    model_cost: ModelCost,
    memory: Memory,
    token_count: int = 0,
    keeps_tables: bool = True,
    serial_reads: bool = False,
) -> Residency:
    """Decide what stays in the free memory beside a KV cache of `token_count` tokens.

    With `keeps_tables`, embedding table and output projection of a streamed model stay resident. With
    `serial_reads`, a streamed model has one slot: nothing is read before the layer before it has computed.
    """
    layer_count = model_cost.shape.layers
    free_bytes = memory.free - model_cost.cache_bytes(token_count)
    resident_layers = placement.resident_layers(layer_count)
    if placement.policy == "swap":
        resident_layers = layer_count if model_cost.model_bytes <= free_bytes else 0
    tables = keeps_tables or resident_layers == layer_count
    items = layer_count - resident_layers + (not tables)
    share = memory.read_ahead if placement.fill is None else placement.fill
    prefetch = placement.prefetch
    if serial_reads:
        share = prefetch = 0
    slot_count = min(items, 1 if share else prefetch + 1)
    encoder_count = model_cost.shape.encoder_layers
    if resident_layers < layer_count:
        encoder_count = min(encoder_count, prefetch + 1)
    residency = Residency(resident_layers, slot_count, tables, encoder_count)
    if not share or not items:
        return residency
    used_bytes = memory.in_use + model_cost.cache_bytes(token_count) + residency.bytes(model_cost)
    spare_bytes = min(share * memory.budget - used_bytes, (items - slot_count) * model_cost.layer_bytes)
    return residency._replace(slots=slot_count + max(0, int(spare_bytes // model_cost.layer_bytes)))


RESIDENT = Placement()
STREAMED = Placement(resident=0.0)
