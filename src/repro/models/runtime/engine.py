"""Turns a forward pass into device ops: weight loads, layers, output projection, and when to yield.

Knows nothing of methods or of the sequences that its positions belong to, nor whether the device is real:
each op carries both the real computation and the modeled cost. The checkpoint's layers are spread evenly over
the costed layers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from typing import Any, Protocol

from repro.core.errors import InputError
from repro.device.clock import Future
from repro.device.emulated import Device
from repro.device.op import FLASH, PROCESSORS, Op
from repro.models.costs.model_cost import ModelCost
from repro.methods.ghidorah.partition import AttentionExtent, Split, Stage, attention, shares, stages
from repro.models.costs.shard_plan import ShardPlan
from repro.models.forward.network import Logits, Network, Step
from repro.methods.ghidorah.tensor_parallel import DividableNetwork
from repro.models.runtime.forward_pass import EarlyExitPoint, ForwardPass
from repro.models.runtime.placement import Placement, settle
from repro.models.streaming.loading import LayerSource, Loading
from repro.models.transformer.layer import LayerWeights
from repro.records.record import Scalar


class Arrangement(Protocol):
    """A custom schedule of a pass's layers, in place of one op after the other on one processor."""

    def takes(self, forward_pass: ForwardPass) -> bool:
        """Whether it schedules this pass."""

    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """Run the layers of a pass."""


class Engine:
    """One model's ops on one device.

    Attributes:
        name: role of the model in timelines (`target`, `draft`).
        device: device that runs the ops.
        model_cost: cost of layers, embeddings and head.
        network: computes the logits.
        residency: weights that stay in memory.
        split: how passes are divided between two processors on an emulated device; None if undivided.
        outliers: linears whose outliers the network computes in float, by costed layer and linear: the share
            of their input channels that have one. None if its arithmetic has nothing of the kind.
        waited: seconds that the last pass waited for weight loads.
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
        outliers: Mapping[tuple[int, str], float] | None = None,
    ) -> None:
        """Open a network with a model cost and room for a KV cache of `tokens`.

        With a `plan`, each layer loads the bytes that the shard plan lists. `outliers` are by layer of the
        network; a costed layer has those of the layer that it computes.
        """
        self.name = name
        self.device = device
        self.model_cost = model_cost
        self.network = network
        self._placement = placement
        self._on = device.resource(placement.on or device.main, model_cost.stored.arithmetic)
        self._decoder = self._on  # the processor of the layers that ran last
        self._head_on = device.resource(placement.head or self._on, model_cost.stored.arithmetic)
        verifies = device.verifies if name == "target" and not placement.on else ""
        self._several_on = device.resource(verifies, model_cost.stored.arithmetic) if verifies else self._on
        self._tokens, self._plan = tokens, plan
        self.residency = settle(
            placement, model_cost, device.memory, tokens, device.keeps_tables, device.serial_reads
        )
        self._loading = self._reads(source)
        self._computing, self.waited = False, 0.0
        self._first: Engine | None = None
        self._took: dict[str, float] = {}
        self._moved: Future[None] = Future()
        self._source, self._encoded = 0, not model_cost.shape.encoder
        self.split: Split | None = None
        self._arrangement: Arrangement | None = None
        self.outliers = None if outliers is None else self._costed(outliers)

    def _costed(self, outliers: Mapping[tuple[int, str], float]) -> Mapping[tuple[int, str], float]:
        layers = range(self.model_cost.shape.layers)
        return {
            (layer, part): share
            for layer in layers
            for (real, part), share in outliers.items()
            if real == self._real(layer)
        }

    def arrange(self, arrangement: Arrangement | None) -> None:
        """Set the arrangement that runs the layers of passes it takes; None removes it."""
        self._arrangement = arrangement

    def computing(self, forward_pass: ForwardPass, first: int, last: int) -> Callable[[], None]:
        """The real computation for the costed layers `first` to `last - 1`."""
        return partial(forward_pass.step.layers, self._real(first), self._real(last))

    def divide(self, split: Split | None) -> None:
        """Divide layers and output projection of later passes between two processors; None stops it.

        Raises:
            InputError: layers are streamed, or the model is an encoder-decoder.
        """
        if split and (self.residency.held < self.model_cost.shape.layers or self.model_cost.shape.encoder):
            raise InputError(f"{self.name} is divided between processors only if it is a decoder in memory")
        if isinstance(self.network, DividableNetwork):
            self.network.divide(split)  # real execution: divided inside each undivided op
        else:
            self.split = split

    async def attend(self, extent: AttentionExtent) -> None:
        """Run one layer's attention with the current split, only to time it."""
        if isinstance(self.network, DividableNetwork):
            trial = partial(self.network.attend, extent)
            await self._run(self._op("attention", self._on, extent.rows, (0.0, 0.0), trial))
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
        preload = self._placement.preload and not self.device.serial_reads
        return Loading(self.name, self.device, sizes, held, slots, preload, source)

    @property
    def resident_bytes(self) -> float:
        """Bytes of weights in memory: tables, resident layers, slots for streamed layers, shard buffer."""
        buffer = (
            self._placement.shards.preload * self.model_cost.shape.layers if self._placement.shards else 0.0
        )
        return self.residency.bytes(self.model_cost) + buffer * self.model_cost.layer_bytes

    @property
    def planned(self) -> dict[str, Scalar]:
        """Record figures of the shard plan; empty without a plan."""
        return self._plan.figures if self._plan else {}

    def reserve(self) -> None:
        """Reserve memory for weights and KV cache.

        Raises:
            InputError: they exceed the device's budget.
        """
        memory, tokens = self.device.memory, self._tokens
        memory.reserve(self.resident_bytes, f"{self.name} weights")
        memory.reserve(self.model_cost.cache_bytes(tokens), f"{self.name} keys and values of {tokens} tokens")

    def close(self) -> None:
        """Release the disk."""
        self._loading.close()

    @property
    def gap(self) -> float:
        """Seconds until this model needs its processor again: 0 while it computes, the remaining load time
        while it waits for a layer, infinite between passes."""
        if not self._computing:
            return inf
        return self._loading.due if self._loading.awaited else 0.0

    def yield_to(self, other: Engine | None) -> None:
        """Start later ops only if they should end before `other` needs the processor; None removes this."""
        self._first = other

    async def load(self) -> None:
        """Load the resident weights from flash, once, before the first request."""
        held, _, tables, encoder = self.residency
        size = (self.model_cost.table_bytes if tables else 0.0) + held * self.model_cost.layer_bytes
        if held == self.model_cost.shape.layers:
            size += encoder * self.model_cost.encoder_layer_bytes
        size += self._plan.preloaded if self._plan else 0.0
        await self.device.run(Op(FLASH, "load", f"{self.name} load", bytes=size))

    async def _encode(self) -> None:
        """Run the encoder over the prompt; its layers are streamed unless all decoder layers are resident."""
        count, rows = self.model_cost.shape.encoder_layers, self._source
        if not rows:
            raise RuntimeError(f"{self.name} has an encoder, which must be told its prompt: start(prompt)")
        await self._run(self._op("embed", self._on, rows, self.model_cost.embed(rows), name="encoder embed"))
        if self.residency.held == self.model_cost.shape.layers:
            name = f"encoder layers 0-{count - 1}"
            await self._run(
                self._op("encode", self._on, rows, self.model_cost.encode(count, rows), None, name, count)
            )
            return
        sizes, slots = [self.model_cost.encoder_layer_bytes] * count, self.residency.encoder
        loading = Loading(f"{self.name} encoder", self.device, sizes, 0, slots, preload=False)
        for layer in range(count):
            await self._take(layer, loading)
            name = f"encoder layer {layer}"
            await self._run(self._op("encode", self._on, rows, self.model_cost.encode(1, rows), None, name))
            loading.give_back(layer)

    def pass_seconds(self, rows: int, on: str = "") -> float:
        """Predicted seconds of a pass over a prompt alone, without reads from flash; infinite if unknown.

        Args:
            rows: tokens of the prompt.
            on: the processor; "" for the one on which such a pass runs.
        """
        cost, on = self.model_cost, on or self.place(rows)
        layers = cost.shape.layers
        work = (*cost.layers(layers, rows, 0, 0, first=False), cost.attention_flops(layers, rows, 0))
        ops = [self._op("embed", on, rows, cost.embed(rows))]
        ops += [self._op("layer", on, rows, work, launches=layers), self._op("head", on, 1, cost.head(1))]
        return sum(map(self.device.predicted, ops))

    def prompt_place(self, rows: int, target: Engine) -> str:
        """The processor on which a draft has first read a prompt that its target reads from now on.

        On the target's own processor it follows the target; elsewhere both read at once.
        """
        taken = target.place(rows)
        places = sorted(self.device.resources & {*PROCESSORS}, key=lambda on: (on != self._on, on))
        after = {on: target.pass_seconds(rows) if on == taken else 0.0 for on in places}
        return min(places, key=lambda on: after[on] + self.pass_seconds(rows, on))

    def start(self, prompt: int) -> None:
        """Start a request with `prompt` tokens; an encoder reads them in the first pass."""
        self._encoded = not self.model_cost.shape.encoder
        self._source = 0 if self._encoded else prompt

    @contextmanager
    def computes(self) -> Iterator[None]:
        """Mark a pass as running inside the block."""
        self.waited, self._computing = 0.0, True
        try:
            yield
        finally:
            self._computing = False
            self._wake()

    async def embed(self, rows: int, fused: int, on: str) -> None:
        """Run the encoder if it has not run for this request, look up embeddings, fuse target features."""
        if not self._encoded:
            await self._encode()
        if not self.model_cost.shape.medusa:  # Medusa heads read hidden states, not embeddings
            await self._run(self._op("embed", on or self.place(rows), rows, self.model_cost.embed(rows)))
        if fused:
            await self._run(self._op("fuse", on or self._on, fused, self.model_cost.fuse(fused)))

    async def layers(self, forward_pass: ForwardPass, on: str, exit_point: EarlyExitPoint | None) -> None:
        """Run all layers of a pass."""
        if self._arrangement and self._arrangement.takes(forward_pass):
            await self._arrangement.layers(self, forward_pass)
            return
        if self.split and not exit_point:
            await self._divided_layers(forward_pass, self.split)
            return
        held = self.residency.held
        look = self._exit_before(exit_point.layer) if exit_point else 0
        for first, last in self._runs(look):
            if exit_point and first == look:
                await self._drop(forward_pass, exit_point)
            weights = None if first < held else await self._take(first, self._loading)
            streamed = None if weights is None else [weights]
            # With fewer costed layers than real ones, no costed layer may end where the predictor reads.
            begin, end = (
                exit_point.layer if exit_point and i == look else self._real(i) for i in (first, last)
            )
            compute = partial(forward_pass.step.layers, begin, end, streamed)
            rows, count = forward_pass.rows, last - first
            name = f"layer {first}" if count == 1 else f"layers {first}-{last - 1}"
            together = self.model_cost.shape.sharing(rows)
            cost = self._layers_cost(forward_pass, first, last)
            self._decoder = self.device.resource(on or self.place(rows), self.model_cost.stored.arithmetic)
            await self._run(self._op("layer", self._decoder, together, cost, compute, name, count))
            if first >= held:
                self._loading.give_back(first)
        self._encoded = True

    def _layers_cost(self, forward_pass: ForwardPass, first: int, last: int) -> tuple[float, ...]:
        """FLOPs, bytes and attention's FLOPs of the costed layers `first` to `last - 1` in this pass."""
        rows, context = forward_pass.rows, forward_pass.context
        cost = self.model_cost.layers(last - first, rows, context, self._source, first=not self._encoded)
        if self._plan:
            cost = cost[0], cost[1] + sum(self._plan.unpacking[first:last])
        return *cost, self.model_cost.attention_flops(last - first, rows, context + self._source)

    async def _divided_layers(self, forward_pass: ForwardPass, split: Split) -> None:
        assert forward_pass.extent is not None
        parts = list(stages(self.model_cost, split, forward_pass.extent))
        for layer in range(self.model_cost.shape.layers):
            for stage in parts[:-1]:
                await self._stage(stage, forward_pass.rows, f"layer {layer}")
            compute = self.computing(forward_pass, layer, layer + 1)
            await self._stage(parts[-1], forward_pass.rows, f"layer {layer}", compute)

    async def _stage(self, stage: Stage, rows: int, name: str, compute: Any = None) -> Any:
        """Run a stage's pieces concurrently; each processor's first piece synchronizes with the other.

        The last piece carries the real computation; its value is returned.
        """
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
                decoder=self._decoder if name == "head" and piece is stage[-1] else "",
            )
            for piece in stage
        ]
        await self._turn("layer")
        values = [await one for one in [self.device.run(op) for op in ops]]
        self._wake()
        return values[-1]

    def _runs(self, split: int) -> Iterator[tuple[int, int]]:
        """Layer ranges per op: resident layers in runs, cut at layer `split`; streamed layers singly."""
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
        """Prune the requested sequences in the middle of a pass; dropped ones leave the KV cache too."""
        weights = exit_point.scored * self.model_cost.shape.hidden
        cost = 2.0 * weights, self.model_cost.weight_bytes(weights)
        judge = lambda: exit_point.judge(forward_pass.step)  # noqa: E731
        forward_pass.kept = await self._run(self._op("prune", self._head_on, forward_pass.rows, cost, judge))
        forward_pass.rows -= exit_point.wanted - len(forward_pass.kept)

    @asynccontextmanager
    async def head(self) -> AsyncIterator[None]:
        """Keep the output projection in memory inside the block, streaming it if it is not resident."""
        item, here = self.model_cost.shape.layers, self.residency.tables
        if not here:
            await self._take(item, self._loading)
        yield
        if not here:
            self._loading.give_back(item)

    async def project(
        self, step: Step, rows: int, at: Sequence[int] | None = None, on: str = "", late: bool = False
    ) -> list[Logits]:
        """Logits of all requested sequences, or of those at `at`; `late` ones may be computed lazily."""
        on = on or (self._head_on if self._placement.head else self.place(rows))
        compute = step.late_rows if late else lambda: step.rows(at)
        if self.split:
            stage = shares(self.split.share, "head", *self.model_cost.head(rows))
            divided: list[Logits] = await self._stage(stage, rows, "head", compute)
            return divided
        together = self.model_cost.shape.sharing(rows, projected=True)
        out: list[Logits] = await self._run(
            self._op("head", on, together, self.model_cost.head(rows), compute)
        )
        return out

    async def _take(self, item: int, loading: Loading) -> LayerWeights | None:
        waiting = self.device.now
        coming = loading.take(item)
        self._wake()
        weights: LayerWeights | None = await coming
        loading.taken()
        self.waited += self.device.now - waiting
        return weights

    def place(self, rows: int) -> str:
        """The processor of an op over so many rows, where neither method nor placement names one."""
        return self._on if rows == 1 else self._several_on

    def _real(self, layer: int) -> int:
        return layer * self.network.depth // self.model_cost.shape.layers

    def _exit_before(self, layer: int) -> int:
        """The costed layer before which an exit after `layer` layers of the checkpoint is billed.

        The first that maps to layer `layer` or to a later one, and the last costed layer where none does.
        """
        costed = self.model_cost.shape.layers
        return min(-(-layer * costed // self.network.depth), costed - 1)

    async def _run(self, op: Op) -> Any:
        """Run an op after waiting for its turn (`_turn`)."""
        if self._first:
            await self._turn(op.kind)
        start = self.device.now
        value = await self.device.run(op)
        self._took[op.kind] = self.device.now - start
        self._wake()
        return value

    def _op(
        self,
        kind: str,
        on: str,
        rows: int,
        cost: tuple[float, ...],
        compute: Any = None,
        name: str = "",
        launches: int = 1,
    ) -> Op:
        return Op(
            on,
            kind,
            f"{self.name} {name or kind}",
            rows,
            flops=cost[0],
            bytes=cost[1],
            precision=self.model_cost.stored.arithmetic,
            priority=int(self._placement.background),
            launches=launches,
            attention=sum(cost[2:]),
            compute=compute,
            decoder=self._decoder if kind == "head" else "",
        )

    async def _turn(self, kind: str) -> None:
        """Wait until an op of this kind fits before the prioritized model needs the processor."""
        while self._first is not None and self._first.gap < self._took.get(kind, 0.0):
            await self._first._moved

    def _wake(self) -> None:
        """Wake engines that wait for this model: its `gap` has changed."""
        if self._moved.awaited:
            moved, self._moved = self._moved, Future()
            moved.set(None)
