"""Turns a forward pass into device ops: weight loads, layers, output projection.

Knows nothing of methods or of the sequences that its positions belong to, nor whether the device is real:
each op carries both the real computation and the modeled cost. The checkpoint's layers are spread evenly over
the costed layers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from typing import Any

from repro.device.clock import Future
from repro.device.emulated import Device
from repro.device.op import FLASH, PROCESSORS, Op
from repro.models.costs.model_cost import ModelCost
from repro.models.forward.network import Logits, Network, Step
from repro.models.runtime.arrangement import IN_ORDER, Arrangement, ForwardPass
from repro.models.runtime.placement import Placement, settle
from repro.models.streaming.loading import LayerLoads, LayerSource, Loading
from repro.models.transformer.layer import LayerWeights

Turn = Callable[[str], Awaitable[None]]
"""Waits until an op of a kind may start, so that another model has its processor when it needs it."""


class Engine:
    """One model's ops on one device.

    Attributes:
        name: role of the model in timelines (`target`, `draft`).
        device: device that runs the ops.
        model_cost: cost of layers, embeddings and head.
        network: computes the logits.
        residency: weights that stay in memory.
        encoder: the encoder of an encoder-decoder; None for other models.
        placement: where its weights are stored and where they run.
        on: the processor of its layers, by itself.
        head_on: the processor of its output projection and of what prunes a pass.
        arrangement: lays passes otherwise than in order; None for none.
        turn: waits until an op of a kind may start; None starts it at once.
        loads: what is read of each layer, if that is not its stored form.
        took: seconds that the last op of each kind took.
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
        reader: LayerSource | None = None,
        token_count: int = 0,
        loads: LayerLoads | None = None,
        outliers: Mapping[tuple[int, str], float] | None = None,
    ) -> None:
        """Open a network with a model cost and room for a KV cache of `token_count`.

        With `loads`, each layer loads the bytes that these say. `outliers` are by layer of the
        network; a costed layer has those of the layer that it computes.
        """
        self.name = name
        self.device = device
        self.model_cost = model_cost
        self.network = network
        self.placement = placement
        self.on = self._serving(placement.on or device.main)
        self._decoder = self.on  # the processor of the layers that ran last
        self.head_on = self._serving(placement.head or self.on)
        verifies = device.verifies if name == "target" and not placement.on else ""
        self._several_on = self._serving(verifies) if verifies else self.on
        self._tokens, self.loads = token_count, loads
        self.residency = settle(
            placement, model_cost, device.memory, token_count, device.keeps_tables, device.serial_reads
        )
        self._loading = self._reads(reader)
        self._computing, self.waited = False, 0.0
        self.turn: Turn | None = None
        self.took: dict[str, float] = {}
        self._gap_change: Future[None] = Future()
        self.encoder = Encoder() if model_cost.shape.encoder else None
        self.arrangement: Arrangement | None = None
        self.outliers = None if outliers is None else self._by_costed_layer(outliers)

    def _by_costed_layer(self, outliers: Mapping[tuple[int, str], float]) -> Mapping[tuple[int, str], float]:
        layers = range(self.model_cost.shape.layers)
        return {
            (layer, part): share
            for layer in layers
            for (real_layer, part), share in outliers.items()
            if real_layer == self.real(layer)
        }

    def arrange(self, arrangement: Arrangement | None) -> None:
        """Lay later passes by an arrangement; None lays them in order."""
        if self.arrangement is not None and self.arrangement is not arrangement:
            self.arrangement.leave()
        self.arrangement = arrangement

    def computing(self, forward_pass: ForwardPass, start: int, end: int) -> Callable[[], None]:
        """The real computation for the costed layers `start` to `end - 1`."""
        return partial(forward_pass.step.layers, self.real(start), self.real(end))

    def _reads(self, reader: LayerSource | None) -> Loading:
        model_cost, (layer_count, slots, tables, _) = self.model_cost, self.residency
        sizes = [reader.layer_bytes if reader else model_cost.layer_bytes] * model_cost.shape.layers
        if self.loads:
            sizes = list(self.loads.loads)
        if not tables:
            sizes.append(model_cost.head(1)[1])
        preload = self.placement.preload and not self.device.serial_reads
        return Loading(self.name, self.device, sizes, layer_count, slots, preload, reader)

    @property
    def resident_bytes(self) -> float:
        """Bytes of weights in memory: tables, resident layers, slots and buffer for streamed layers."""
        buffer = self.placement.buffer * self.model_cost.shape.layers
        return self.residency.bytes(self.model_cost) + buffer * self.model_cost.layer_bytes

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

    @property
    def gap_change(self) -> Future[None]:
        """Done when `gap` changes for the next time."""
        return self._gap_change

    async def load(self) -> None:
        """Load the resident weights from flash, once, before the first request."""
        layer_count, _, tables, encoder = self.residency
        size = (self.model_cost.table_bytes if tables else 0.0) + layer_count * self.model_cost.layer_bytes
        if layer_count == self.model_cost.shape.layers:
            size += encoder * self.model_cost.encoder_layer_bytes
        size += self.loads.preloaded if self.loads else 0.0
        await self.device.run(Op(FLASH, "load", f"{self.name} load", bytes=size))

    def pass_seconds(self, row_count: int, on: str = "") -> float:
        """Predicted seconds of a pass over a prompt alone, without reads from flash; infinite if unknown.

        Args:
            row_count: tokens of the prompt.
            on: the processor; "" for the one on which such a pass runs.
        """
        cost, on = self.model_cost, on or self.processor_of(row_count)
        layer_count = cost.shape.layers
        work = (
            *cost.layers(layer_count, row_count, 0, 0, is_first=False),
            cost.attention_flops(layer_count, row_count, 0),
        )
        ops = [self.op("embed", on, row_count, cost.embed(row_count))]
        ops += [
            self.op("layer", on, row_count, work, launch_count=layer_count),
            self.op("head", on, 1, cost.head(1)),
        ]
        return sum(map(self.device.predict_seconds, ops))

    def prompt_processor(self, row_count: int, target: Engine) -> str:
        """The processor on which a draft has first read a prompt that its target reads from now on.

        On the target's own processor it follows the target; elsewhere both read at once.
        """
        target_on = target.processor_of(row_count)
        processors = sorted(self.device.resources & {*PROCESSORS}, key=lambda on: (on != self.on, on))
        waits = {on: target.pass_seconds(row_count) if on == target_on else 0.0 for on in processors}
        return min(processors, key=lambda on: waits[on] + self.pass_seconds(row_count, on))

    def start(self, prompt_length: int) -> None:
        """Start a request with `prompt_length` tokens; an encoder reads them in the first pass."""
        if self.encoder:
            self.encoder.start(prompt_length)

    @contextmanager
    def computes(self) -> Iterator[None]:
        """Mark a pass as running inside the block."""
        self.waited, self._computing = 0.0, True
        try:
            yield
            if self.encoder:
                self.encoder.is_read = True
        finally:
            self._computing = False
            self._wake()

    async def embed(self, row_count: int, fused_rows: int, on: str) -> None:
        """Run the encoder if it has not run for this request, look up embeddings, fuse target features."""
        if self.encoder and not self.encoder.is_read:
            await self.encoder.run(self)
        if not self.model_cost.shape.medusa:  # Medusa heads read hidden states, not embeddings
            await self.run(
                self.op(
                    "embed", on or self.processor_of(row_count), row_count, self.model_cost.embed(row_count)
                )
            )
        if fused_rows:
            await self.run(self.op("fuse", on or self.on, fused_rows, self.model_cost.fuse(fused_rows)))

    def arrangement_of(self, forward_pass: ForwardPass) -> Arrangement:
        """What lays the layers of a pass."""
        arrangement = self.arrangement or IN_ORDER
        return arrangement if arrangement.takes(forward_pass) else IN_ORDER

    def lay_on(self, on: str) -> str:
        """The processor that computes layers laid on `on`; an output projection knows the last."""
        self._decoder = self._serving(on)
        return self._decoder

    def _serving(self, wanted: str) -> str:
        """The processor that serves the model's ops for `wanted`."""
        stored = self.model_cost.stored
        return self.device.resource(wanted, stored.arithmetic, stored.format)

    def layers_cost(self, forward_pass: ForwardPass, start: int, end: int) -> tuple[float, ...]:
        """FLOPs, bytes and attention's FLOPs of the costed layers `start` to `end - 1` in this pass."""
        row_count, context, encoder = forward_pass.rows, forward_pass.context, self.encoder
        prompt = encoder.rows if encoder else 0
        reads_encoder = encoder is not None and not encoder.is_read
        cost = self.model_cost.layers(end - start, row_count, context, prompt, is_first=reads_encoder)
        if self.loads:
            cost = cost[0], cost[1] + sum(self.loads.unpacking[start:end])
        return *cost, self.model_cost.attention_flops(end - start, row_count, context + prompt)

    @asynccontextmanager
    async def head(self) -> AsyncIterator[None]:
        """Keep the output projection in memory inside the block, streaming it if it is not resident."""
        item, is_resident = self.model_cost.shape.layers, self.residency.tables
        if not is_resident:
            await self.take(item)
        yield
        if not is_resident:
            self.give_back(item)

    async def project(
        self,
        step: Step,
        row_count: int,
        indices: Sequence[int] | None = None,
        on: str = "",
        late: bool = False,
    ) -> list[Logits]:
        """Logits of all requested sequences, or of those at `indices`; `late` ones may be computed lazily."""
        on = on or (self.head_on if self.placement.head else self.processor_of(row_count))
        compute = step.late_rows if late else lambda: step.rows(indices)
        return await (self.arrangement or IN_ORDER).project(self, row_count, compute, on)

    async def take(self, item: int, loading: Loading | None = None) -> LayerWeights | None:
        """Wait until a streamed layer, or the output projection after all layers, has been read."""
        loading, start = loading or self._loading, self.device.now
        arrival = loading.take(item)
        self._wake()
        weights: LayerWeights | None = await arrival
        loading.note_arrival()
        self.waited += self.device.now - start
        return weights

    def give_back(self, item: int) -> None:
        """Free the slot of what `take` waited for."""
        self._loading.give_back(item)

    def processor_of(self, row_count: int) -> str:
        """The processor of an op over so many rows, where neither method nor placement names one."""
        return self.on if row_count == 1 else self._several_on

    def real(self, layer: int) -> int:
        """Layers of the checkpoint that have run when costed layer `layer` begins."""
        return layer * self.network.depth // self.model_cost.shape.layers

    async def run(self, op: Op) -> Any:
        """Run an op when its turn has come; what it computed."""
        if self.turn:
            await self.turn(op.kind)
        start = self.device.now
        value = await self.device.run(op)
        self.took[op.kind] = self.device.now - start
        self._wake()
        return value

    async def run_together(self, ops: Sequence[Op]) -> list[Any]:
        """Run ops at once, on several processors; what they computed."""
        values = [await future for future in [self.device.run(op) for op in ops]]
        self._wake()
        return values

    def op(
        self,
        kind: str,
        on: str,
        row_count: int,
        cost: tuple[float, ...],
        compute: Any = None,
        name: str = "",
        launch_count: float = 1,
    ) -> Op:
        """An op of this model.

        Args:
            kind: its kind, and its name in timelines if it has none of its own.
            on: the resource.
            row_count: tokens processed together.
            cost: FLOPs, bytes moved, and the FLOPs that are attention's.
            compute: the function that computes it.
            name: name in timelines.
            launch_count: in units of one a layer.
        """
        return Op(
            on,
            kind,
            f"{self.name} {name or kind}",
            row_count,
            flops=cost[0],
            bytes=cost[1],
            precision=self.model_cost.stored.arithmetic,
            format=self.model_cost.stored.format,
            priority=int(self.placement.background),
            launches=launch_count,
            attention=sum(cost[2:]),
            compute=compute,
            decoder=self._decoder if kind == "head" else "",
        )

    def _wake(self) -> None:
        """Wake engines that wait for this model: its `gap` has changed."""
        if self._gap_change.has_waiters:
            gap_change, self._gap_change = self._gap_change, Future()
            gap_change.set(None)


class Encoder:
    """The encoder of an encoder-decoder in one request: it reads the prompt before the decoder's first pass.

    Attributes:
        rows: tokens of the prompt, which the decoder's layers attend to.
        is_read: whether a pass of the decoder has read its states, so that their keys and values are cached.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.is_read = False

    def start(self, prompt_length: int) -> None:
        """Start a request with `prompt_length` tokens."""
        self.rows, self.is_read = prompt_length, False

    async def run(self, engine: Engine) -> None:
        """Run the encoder over the prompt; its layers are streamed unless all decoder layers are resident.

        Raises:
            RuntimeError: no request was started.
        """
        cost, row_count = engine.model_cost, self.rows
        if not row_count:
            raise RuntimeError(f"{engine.name} has an encoder, which must be told its prompt: start(prompt)")
        count = cost.shape.encoder_layers
        await engine.run(
            engine.op("embed", engine.on, row_count, cost.embed(row_count), name="encoder embed")
        )
        if engine.residency.layers == cost.shape.layers:
            name = f"encoder layers 0-{count - 1}"
            await engine.run(
                engine.op(
                    "encode",
                    engine.on,
                    row_count,
                    cost.encode(count, row_count),
                    name=name,
                    launch_count=count,
                )
            )
            return
        sizes, slots = [cost.encoder_layer_bytes] * count, engine.residency.encoder
        loading = Loading(f"{engine.name} encoder", engine.device, sizes, 0, slots, preload=False)
        for layer in range(count):
            await engine.take(layer, loading)
            name = f"encoder layer {layer}"
            await engine.run(engine.op("encode", engine.on, row_count, cost.encode(1, row_count), name=name))
            loading.give_back(layer)
