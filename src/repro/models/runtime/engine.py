"""A pass as ops of a device: what a model reads, computes and projects, where, and when it lets others in.

Knows nothing of methods or of what sequences its rows stand for, and not whether the device is real: the same
ops carry the real computation and the cost of the shape that is billed. Real layers are spread evenly over
billed ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

from repro.core.errors import InputError
from repro.device.clock import Future
from repro.device.emulated import Device
from repro.device.op import FLASH, Op
from repro.models.costs.model_cost import ModelCost
from repro.models.costs.partition import AttentionExtent, Split, Stage, attention, shares, stages
from repro.models.costs.shard_plan import ShardPlan
from repro.models.forward.network import Logits, Network, Step
from repro.models.parallel.tensor_parallel import DividableNetwork
from repro.models.runtime.loading import LayerSource, Loading
from repro.models.runtime.placement import Placement, settle
from repro.models.transformer.layer import LayerWeights
from repro.records.record import Scalar


@dataclass
class ForwardPass:
    """A pass under way: what computes it, its rows, those before it, what they attend to where that is
    divided, and the wanted ones that were left."""

    step: Step
    rows: int
    context: int
    extent: AttentionExtent | None = None
    kept: list[int] | None = None


@dataclass(frozen=True)
class EarlyExitPoint:
    """A look at the wanted rows before a layer of the network that computes: it scores so many tokens, each
    by a dot product of the hidden size, drops rows, and says which went on."""

    layer: int
    wanted: int
    scored: int
    judge: Callable[[Step], list[int]]


class Arrangement(Protocol):
    """Another way in which a pass's layers become ops than one after the other on one processor."""

    def takes(self, forward_pass: ForwardPass) -> bool:
        """Whether a pass is its business."""

    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """Run a pass's layers."""


class Engine:
    """One model's ops on one device.

    Attributes:
        name: of the model's role, as timelines show it (`target`, `draft`).
        device: where it runs.
        model_cost: what the device is told that layers, embeddings and head cost.
        network: what computes.
        residency: what of the model stays in memory.
        split: how passes are divided between two processors; None where they are not.
        waited: seconds for which the last pass waited for reads.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        model_cost: ModelCost,
        network: Network,
        placement: Placement,
        source: LayerSource | None = None,
        tokens: int = 0,
        plan: ShardPlan | None = None,
    ) -> None:
        """Open a network with a model cost; `tokens` are the keys and values the memory must have room for.

        With a `plan` each layer's shards are read as it says.
        """
        self.name = name
        self.device = device
        self.model_cost = model_cost
        self.network = network
        self._placement = placement
        self._on = device.resource(placement.on or device.main, model_cost.stored.arithmetic)
        self._head_on = device.resource(placement.head or self._on, model_cost.stored.arithmetic)
        self._tokens = tokens
        self._plan = plan
        self.residency = settle(placement, model_cost, device.memory, tokens, device.keeps_tables)
        self._loading = self._reads(source)
        self._computing, self.waited = False, 0.0
        self._first: Engine | None = None
        self._took: dict[str, float] = {}
        self._moved: Future[None] = Future()
        self._source, self._encoded = 0, not model_cost.shape.encoder
        self.split: Split | None = None
        self._arrangement: Arrangement | None = None

    def arrange(self, arrangement: Arrangement | None) -> None:
        """From now on leave the layers of passes that it takes to an arrangement, or no longer."""
        self._arrangement = arrangement

    def computing(self, forward_pass: ForwardPass, first: int, last: int) -> Callable[[], None]:
        """What computes a pass's billed layers `first` to `last - 1` for real."""
        return partial(forward_pass.step.layers, self._real(first), self._real(last))

    def divide(self, split: Split | None) -> None:
        """From now on divide every pass's layers and projection between two processors, or no longer.

        Raises:
            InputError: layers are streamed, or behind an encoder: nothing divides those.
        """
        if split and (self.residency.held < self.model_cost.shape.layers or self.model_cost.shape.encoder):
            raise InputError(f"{self.name} is divided between processors only if it is a decoder in memory")
        if isinstance(self.network, DividableNetwork):
            self.network.divide(split)  # for real, within the ops of a pass that stays whole
        else:
            self.split = split

    async def attend(self, extent: AttentionExtent) -> None:
        """One layer's attention alone, as it is divided at present: nothing comes of it but its time."""
        if isinstance(self.network, DividableNetwork):
            trial = partial(self.network.attend, extent)
            await self._run("attention", self._on, extent.rows, (0.0, 0.0), trial)
            return
        if self.split is None:
            raise RuntimeError(f"{self.name} is not divided")
        await self._stage(attention(self.model_cost, self.split, extent), extent.rows, "attention")

    def _reads(self, source: LayerSource | None) -> Loading:
        model_cost, (held, slots, tables, _) = self.model_cost, self.residency
        sizes = [source.layer_bytes if source else model_cost.layer_bytes] * model_cost.shape.layers
        if self._plan:
            sizes = list(self._plan.loads)
        if not tables:
            sizes.append(model_cost.head(1)[1])
        preload = self._placement.preload
        return Loading(self.name, self.device, sizes, held, slots, preload, source)

    @property
    def resident_bytes(self) -> float:
        """Bytes of what stays in memory: tables, resident layers, the slots that layers stream through, the
        buffer of shards."""
        buffer = (
            self._placement.shards.preload * self.model_cost.shape.layers if self._placement.shards else 0.0
        )
        return self.residency.bytes(self.model_cost) + buffer * self.model_cost.layer_bytes

    @property
    def planned(self) -> dict[str, Scalar]:
        """What a record says of the plan; nothing without one."""
        return self._plan.figures if self._plan else {}

    def reserve(self) -> None:
        """Take the memory for the model and for its keys and values.

        Raises:
            InputError: it does not fit the device's budget.
        """
        memory, tokens = self.device.memory, self._tokens
        memory.reserve(self.resident_bytes, f"{self.name} weights")
        memory.reserve(self.model_cost.cache_bytes(tokens), f"{self.name} keys and values of {tokens} tokens")

    def close(self) -> None:
        """Let go of the disk."""
        self._loading.close()

    @property
    def gap(self) -> float:
        """Seconds for which this model will leave its processor alone: 0 while it computes, else until its
        next layer should be there; infinite between passes."""
        if not self._computing:
            return inf
        return self._loading.due if self._loading.awaited else 0.0

    def yield_to(self, other: Engine | None) -> None:
        """From now on begin an op only if it should be over when `other` needs the processor."""
        self._first = other

    async def load(self) -> None:
        """Read what stays in memory from flash, once, before the first request."""
        held, _, tables, encoder = self.residency
        size = (self.model_cost.table_bytes if tables else 0.0) + held * self.model_cost.layer_bytes
        if held == self.model_cost.shape.layers:
            size += encoder * self.model_cost.encoder_layer_bytes
        size += self._plan.preloaded if self._plan else 0.0
        await self.device.run(Op(FLASH, "load", f"{self.name} load", bytes=size))

    async def _encode(self) -> None:
        """The encoder reads the prompt; its layers stay in memory if all of the decoder's do."""
        count, rows = self.model_cost.shape.encoder_layers, self._source
        if not rows:
            raise RuntimeError(f"{self.name} has an encoder, which must be told its prompt: start(prompt)")
        await self._run("embed", self._on, rows, self.model_cost.embed(rows), name="encoder embed")
        if self.residency.held == self.model_cost.shape.layers:
            name = f"encoder layers 0-{count - 1}"
            await self._run("encode", self._on, rows, self.model_cost.encode(count, rows), None, name, count)
            return
        sizes, slots = [self.model_cost.encoder_layer_bytes] * count, self.residency.encoder
        loading = Loading(f"{self.name} encoder", self.device, sizes, 0, slots, preload=False)
        for layer in range(count):
            await self._take(layer, loading)
            name = f"encoder layer {layer}"
            await self._run("encode", self._on, rows, self.model_cost.encode(1, rows), None, name)
            loading.give_back(layer)

    def start(self, prompt: int) -> None:
        """A new request, whose prompt has so many tokens: behind an encoder the first pass reads them."""
        self._encoded = not self.model_cost.shape.encoder
        self._source = 0 if self._encoded else prompt

    @contextmanager
    def computes(self) -> Iterator[None]:
        """Within the block a pass is under way."""
        self.waited, self._computing = 0.0, True
        try:
            yield
        finally:
            self._computing = False
            self._wake()

    async def embed(self, rows: int, fused: int, on: str) -> None:
        """Read the prompt by the encoder, if there is one that has not; look tokens up; fuse features."""
        if not self._encoded:
            await self._encode()
        if not self.model_cost.shape.medusa:  # its heads read the target's rows and look no token up
            await self._run("embed", on or self._on, rows, self.model_cost.embed(rows))
        if fused:
            await self._run("fuse", on or self._on, fused, self.model_cost.fuse(fused))

    async def layers(self, forward_pass: ForwardPass, on: str, exit_point: EarlyExitPoint | None) -> None:
        """Run all layers of a pass."""
        if self._arrangement and self._arrangement.takes(forward_pass):
            await self._arrangement.layers(self, forward_pass)
            return
        if self.split and not exit_point:
            await self._divided_layers(forward_pass, self.split)
            return
        held = self.residency.held
        look = self._billed(exit_point.layer) if exit_point else 0
        for first, last in self._runs(look):
            if exit_point and first == look:
                await self._drop(forward_pass, exit_point)
            weights = None if first < held else await self._take(first, self._loading)
            streamed = None if weights is None else [weights]
            compute = partial(forward_pass.step.layers, self._real(first), self._real(last), streamed)
            rows, count = forward_pass.rows, last - first
            name = f"layer {first}" if count == 1 else f"layers {first}-{last - 1}"
            together = self.model_cost.shape.sharing(rows)
            cost = self._layers_cost(forward_pass, first, last)
            await self._run("layer", on or self._on, together, cost, compute, name, count)
            if first >= held:
                self._loading.give_back(first)
        self._encoded = True

    def _layers_cost(self, forward_pass: ForwardPass, first: int, last: int) -> tuple[float, float]:
        """Operations and bytes of a pass's billed layers `first` to `last - 1`."""
        rows, context = forward_pass.rows, forward_pass.context
        cost = self.model_cost.layers(last - first, rows, context, self._source, first=not self._encoded)
        if self._plan:
            cost = cost[0], cost[1] + sum(self._plan.unpacking[first:last])
        return cost

    async def _divided_layers(self, forward_pass: ForwardPass, split: Split) -> None:
        assert forward_pass.extent is not None
        parts = list(stages(self.model_cost, split, forward_pass.extent))
        for layer in range(self.model_cost.shape.layers):
            for stage in parts[:-1]:
                await self._stage(stage, forward_pass.rows, f"layer {layer}")
            compute = self.computing(forward_pass, layer, layer + 1)
            await self._stage(parts[-1], forward_pass.rows, f"layer {layer}", compute)

    async def _stage(self, stage: Stage, rows: int, name: str, compute: Any = None) -> Any:
        """Run a stage's pieces side by side, each processor's first once it sees what the other wrote before;
        the value of what computes comes with the last."""
        assert self.split is not None
        first = {piece.other: piece for piece in reversed(stage)}
        ops = [
            Op(
                self.split.to if piece.other else self._on,
                piece.kind,
                f"{self.name} {name}",
                rows,
                flops=piece.flops,
                bytes=piece.bytes,
                precision=self.model_cost.stored.arithmetic,
                priority=int(self._placement.background),
                launches=piece.launches,
                synced=first[piece.other] is piece,
                compute=compute if piece is stage[-1] else None,
            )
            for piece in stage
        ]
        await self._turn("layer")
        values = [await one for one in [self.device.run(op) for op in ops]]
        self._wake()
        return values[-1]

    def _runs(self, split: int) -> Iterator[tuple[int, int]]:
        """Layers that go to the processor as one op: resident ones in runs, which end at `split`."""
        held = self.residency.held
        run = self._placement.run or held or 1
        first = 0
        while first < held:
            last = min(first + run, held)
            if first < split < last:
                last = split
            yield first, last
            first = last
        for layer in range(held, self.model_cost.shape.layers):
            yield layer, layer + 1

    async def _drop(self, forward_pass: ForwardPass, exit_point: EarlyExitPoint) -> None:
        """Judge the wanted rows in the middle of a pass; what is dropped leaves the cache too."""
        weights = exit_point.scored * self.model_cost.shape.hidden
        cost = 2.0 * weights, self.model_cost.weight_bytes(weights)
        judge = lambda: exit_point.judge(forward_pass.step)  # noqa: E731
        forward_pass.kept = await self._run("prune", self._head_on, forward_pass.rows, cost, judge)
        forward_pass.rows -= exit_point.wanted - len(forward_pass.kept)

    @asynccontextmanager
    async def head(self) -> AsyncIterator[None]:
        """The output projection, which may have to be read like one more layer."""
        item, here = self.model_cost.shape.layers, self.residency.tables
        if not here:
            await self._take(item, self._loading)
        yield
        if not here:
            self._loading.give_back(item)

    async def project(
        self, step: Step, rows: int, at: Sequence[int] | None = None, on: str = "", late: bool = False
    ) -> list[Logits]:
        """Rows of all that is wanted, or of what stands at some places of it; `late` ones may stay unread."""
        on = on or self._head_on
        compute = step.late_rows if late else lambda: step.rows(at)
        if self.split:
            stage = shares(self.split.share, "head", *self.model_cost.head(rows))
            divided: list[Logits] = await self._stage(stage, rows, "head", compute)
            return divided
        together = self.model_cost.shape.sharing(rows, projected=True)
        out: list[Logits] = await self._run("head", on, together, self.model_cost.head(rows), compute)
        return out

    async def _take(self, item: int, loading: Loading) -> LayerWeights | None:
        waiting = self.device.now
        coming = loading.take(item)
        self._wake()
        weights: LayerWeights | None = await coming
        loading.taken()
        self.waited += self.device.now - waiting
        return weights

    def _real(self, layer: int) -> int:
        return layer * self.network.depth // self.model_cost.shape.layers

    def _billed(self, layer: int) -> int:
        """The first billed layer that stands for a real one or a later one."""
        return -(-layer * self.model_cost.shape.layers // self.network.depth)

    async def _run(
        self,
        kind: str,
        on: str,
        rows: int,
        cost: tuple[float, float],
        compute: Any = None,
        name: str = "",
        launches: int = 1,
    ) -> Any:
        """Run an op, when its turn comes."""
        op = Op(
            on,
            kind,
            f"{self.name} {name or kind}",
            rows,
            flops=cost[0],
            bytes=cost[1],
            precision=self.model_cost.stored.arithmetic,
            priority=int(self._placement.background),
            launches=launches,
            compute=compute,
        )
        await self._turn(kind)
        start = self.device.now
        value = await self.device.run(op)
        self._took[kind] = self.device.now - start
        self._wake()
        return value

    async def _turn(self, kind: str) -> None:
        """Wait until an op of this kind fits into the time that the model which goes first leaves."""
        while self._first is not None and self._first.gap < self._took.get(kind, 0.0):
            await self._first._moved

    def _wake(self) -> None:
        """Tell who waits for this model's processor that an op is over, or that it waits itself."""
        moved, self._moved = self._moved, Future()
        moved.set(None)
