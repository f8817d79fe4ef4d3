"""Where a model's parts lie on a device. Facts of one opened model; knows nothing of devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.memory import Memory
from repro.device.op import PROCESSORS
from repro.models.costs.model_cost import ModelCost
from repro.models.costs.shard_plan import Sharding

POLICIES = ("share", "swap")


@dataclass(frozen=True)
class Placement:
    """Which processor runs a model and how much of it stays in memory.

    Attributes:
        on: the processor of the layers; "" is the device's main one.
        head: the processor of the output projection; "" is that of the layers.
        resident: share of the layers held in DRAM; the rest is streamed from flash in every pass.
        prefetch: layers that are read ahead of the one that computes; 0 reads and computes in turn.
        preload: reading goes on between passes with the first layers of the next.
        run: resident layers that go to the processor as one op; 0 is all of them. Small runs let others in.
        policy: `share` holds `resident` of the layers. `swap` is an engine that maps its weights: all stays
            in memory if it fits, else every layer is read again in every pass (a least-recently-used page
            cache holds nothing of what is read in a circle).
        fill: share of the device's memory up to which layers are read ahead, in place of `prefetch`; 0 does
            not, `None` is the device's own share. At least one layer is in memory, whatever the share.
        background: its ops wait for those of models that are not in the background.
        early_exit: the model's early-exit predictor is opened too (LEVER sec. 4.3).
        shards: how streamed layers are rounded to be read faster; `None` reads them whole.
    """

    on: str = ""
    head: str = ""
    resident: float = 1.0
    prefetch: int = 1
    preload: bool = False
    run: int = 0
    policy: str = "share"
    fill: float | None = 0.0
    background: bool = False
    early_exit: bool = False
    shards: Sharding | None = None

    def __post_init__(self) -> None:
        for processor in (self.on, self.head):
            if processor and processor not in PROCESSORS:
                raise InputError(unknown("processor", processor, PROCESSORS))
        for name, share in (("resident", self.resident), ("fill", self.fill or 0.0)):
            if not 0 <= share <= 1:
                raise InputError(f"placement.{name} is {share}; it is a share from 0 to 1")
        if self.prefetch < 0:
            raise InputError(f"placement.prefetch is {self.prefetch}; it must be 0 or more layers")
        if self.policy not in POLICIES:
            raise InputError(unknown("placement policy", self.policy, POLICIES))

    def held(self, layers: int) -> int:
        """How many of so many layers stay in memory by `resident`: the first ones."""
        return int(self.resident * layers + 1e-9)


class Residency(NamedTuple):
    """What a placement comes to for one model in one memory.

    Attributes:
        held: layers in memory for good, the first ones.
        slots: room for layers that are on their way or compute, of which one may be the output projection.
        tables: whether the embedding table and the output projection stay in memory.
        encoder: encoder layers that there is room for: all, or those on their way while it reads a prompt.
    """

    held: int
    slots: int
    tables: bool
    encoder: int = 0

    def bytes(self, model_cost: ModelCost) -> float:
        """Bytes of weights that lie in memory."""
        out = self.held * model_cost.layer_bytes + self.encoder * model_cost.encoder_layer_bytes
        out += model_cost.table_bytes if self.tables else 0.0
        return (
            out + (self.slots - 1) * model_cost.layer_bytes + self._widest(model_cost) if self.slots else out
        )

    def _widest(self, model_cost: ModelCost) -> float:
        return model_cost.layer_bytes if self.tables else max(model_cost.layer_bytes, model_cost.head(1)[1])


def settle(
    placement: Placement, model_cost: ModelCost, memory: Memory, tokens: int = 0, keeps_tables: bool = True
) -> Residency:
    """How much of a model stays in what a memory has left beside the keys and values of so many tokens.

    With `keeps_tables` the embedding table and the output projection of a streamed model do.
    """
    layers = model_cost.shape.layers
    room = memory.free - model_cost.cache_bytes(tokens)
    held = placement.held(layers)
    if placement.policy == "swap":
        held = layers if model_cost.model_bytes <= room else 0
    tables = keeps_tables or held == layers
    streamed = layers - held + (not tables)
    fill = memory.read_ahead if placement.fill is None else placement.fill
    slots = min(streamed, 1 if fill else placement.prefetch + 1)
    encoder = model_cost.shape.encoder_layers
    if held < layers:
        encoder = min(encoder, placement.prefetch + 1)
    least = Residency(held, slots, tables, encoder)
    if not fill or not streamed:
        return least
    taken = memory.held + model_cost.cache_bytes(tokens) + least.bytes(model_cost)
    spare = min(fill * memory.budget - taken, (streamed - slots) * model_cost.layer_bytes)
    return least._replace(slots=slots + max(0, int(spare // model_cost.layer_bytes)))


RESIDENT = Placement()
STREAMED = Placement(resident=0.0)
