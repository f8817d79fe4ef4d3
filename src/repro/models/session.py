"""A model opened on a device: the only place where a forward pass becomes ops.

Knows nothing of methods, and not whether the device is real: the same ops carry the real computation and the
bill of the shape that is billed. Real layers are spread evenly over billed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from repro.core.clock import Future
from repro.core.device import Device
from repro.core.op import FLASH, Op
from repro.core.record import Scalar
from repro.models.chooser import Chooser
from repro.models.layer import LayerWeights
from repro.models.lineage import Lineage
from repro.models.loading import LayerSource, Loading
from repro.models.network import Network, Row, Step
from repro.models.placement import Placement, settle
from repro.models.prefix import Prefix
from repro.models.shape import Bill
from repro.models.shard_plan import ShardPlan
from repro.models.tree import TokenTree


class Verdict(NamedTuple):
    """What the target said of a tree: nodes accepted (root first), rows that were verified, and the new text,
    which is the accepted path and the target's own next token."""

    path: list[int]
    text: Prefix
    rows: int


class Pass(NamedTuple):
    """One forward pass: its rows, its start and end, and how long of it waited for reads; seconds."""

    rows: int
    start: float
    end: float
    loading: float


class Session:
    """One model on one device.

    Attributes:
        name: of the model's role, as timelines show it (`target`, `draft`).
        device: where it runs.
        passes: forward passes so far.
        residency: what of the model stays in memory.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        bill: Bill,
        network: Network,
        placement: Placement,
        source: LayerSource | None = None,
        tokens: int = 0,
        plan: ShardPlan | None = None,
    ) -> None:
        """Open a network under a bill; `tokens` is how many keys and values the memory must have room for.

        With a `plan` each layer's shards are read as it says.
        """
        self.name = name
        self.device = device
        self.passes: list[Pass] = []
        self._bill = bill
        self._network = network
        self._placement = placement
        self._stored = bill.stored
        self._on = device.resource(placement.on or device.main, bill.stored.arithmetic)
        self._head_on = device.resource(placement.head or self._on, bill.stored.arithmetic)
        self._lineage = Lineage()
        self._rows: dict[Prefix, Row] = {}
        self._source, self._encoded = 0, not bill.shape.encoder
        self._tokens = tokens
        self._plan = plan
        self.residency = settle(placement, bill, device.memory, tokens, device.keeps_tables)
        self._loading = self._reads(source)
        self._computing, self._waited = False, 0.0
        self._first: Session | None = None
        self._took: dict[str, float] = {}
        self._moved: Future[None] = Future()

    def _reads(self, source: LayerSource | None) -> Loading:
        bill, (held, slots, tables, _) = self._bill, self.residency
        sizes = [source.layer_bytes if source else bill.layer_bytes] * bill.shape.layers
        if self._plan:
            sizes = list(self._plan.loads)
        if not tables:
            sizes.append(bill.head(1)[1])
        preload = self._placement.preload
        return Loading(self.name, self.device, sizes, held, slots, preload, source)

    @property
    def resident_bytes(self) -> float:
        """Bytes of what stays in memory: tables, resident layers, the slots that layers stream through, the
        buffer of shards."""
        buffer = self._placement.shards.preload * self._bill.shape.layers if self._placement.shards else 0.0
        return self.residency.bytes(self._bill) + buffer * self._bill.layer_bytes

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
        memory.reserve(self._bill.cache_bytes(tokens), f"{self.name} keys and values of {tokens} tokens")

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

    def yield_to(self, other: Session | None) -> None:
        """From now on begin an op only if it should be over when `other` needs the processor."""
        self._first = other

    async def load(self) -> None:
        """Read what stays in memory from flash, once, before the first request."""
        held, _, tables, encoder = self.residency
        size = (self._bill.table_bytes if tables else 0.0) + held * self._bill.layer_bytes
        if held == self._bill.shape.layers:
            size += encoder * self._bill.encoder_layer_bytes
        size += self._plan.preloaded if self._plan else 0.0
        await self.device.run(Op(FLASH, "load", f"{self.name} load", bytes=size))

    def start(self, prompt: Prefix) -> None:
        """A new request: forget all of the one before. Of the prompt only the tokens count.

        Behind an encoder, which reads the prompt in the first pass, the prompt as a sequence stands for the
        decoder's start token, and nothing shorter has a row.
        """
        self._encoded = not self._bill.shape.encoder
        self._source = 0 if self._encoded else prompt.length
        self._lineage = Lineage(max(0, self._source - 1))
        self._network.start(prompt)
        self._rows = {}

    async def forward(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> list[Row]:
        """One pass over the wanted sequences and all that is not computed of them; one row for each.

        A sequence that was asked for before, and kept, costs nothing. With `branches`, which together hold
        all that is wanted, each of them is computed as a sequence of its own.
        """
        new = [prefix for prefix in dict.fromkeys(wanted) if prefix not in self._rows]
        if new:
            self._rows.update(zip(new, await self._pass(new, branches), strict=True))
        return [self._rows[prefix] for prefix in wanted]

    def known(self, prefix: Prefix) -> Row:
        """The row of a sequence that a pass has answered."""
        return self._rows[prefix]

    async def verify(self, tree: TokenTree, chooser: Chooser, apart: bool = False) -> Verdict:
        """One pass over a tree; the accepted path stays in the cache, the rest of the tree does not.

        With `apart` the branches are a mini-batch of sequences, padded to the longest (EdgeLLM sec. III-B),
        which is the only way with an encoder-decoder, and without it one sequence under a tree mask.
        """
        before = len(self.passes)
        apart = apart or self._bill.shape.encoder is not None
        branches = [tree.prefixes[leaf] for leaf in tree.leaves()] if apart else []
        rows = await self.forward(tree.prefixes, branches)
        path, bonus = chooser.accept(tree, rows)
        text = tree.prefixes[path[-1]].then(bonus)
        self.keep(text)
        return Verdict(path, text, sum(p.rows for p in self.passes[before:]))

    def keep(self, text: Prefix) -> None:
        """Forget all that neither leads to `text` nor goes on from it."""
        self._lineage.keep(text)
        self._network.keep(text)
        self._rows = {p: row for p, row in self._rows.items() if p.starts_with(text)}

    async def _pass(self, wanted: list[Prefix], branches: Sequence[Prefix]) -> list[Row]:
        missing = self._lineage.missing(wanted)
        context = self._lineage.length
        step = self._network.begin(wanted, branches)
        self._lineage.add(missing)
        rows = padded(missing, branches)
        start, self._waited, self._computing = self.device.now, 0.0, True
        try:
            if not self._encoded:
                await self._encode()
            await self._run("embed", self._on, rows, self._bill.embed(rows))
            await self._all_layers(step, rows, context)
            out = await self._project(step, rows if branches else len(wanted))
            self._encoded = True
        finally:
            self._computing = False
            self._wake()
        self.passes.append(Pass(rows, start, self.device.now, self._waited))
        return out

    async def _encode(self) -> None:
        """The encoder reads the prompt; its layers stay in memory if all of the decoder's do."""
        count, rows = self._bill.shape.encoder_layers, self._source
        if not rows:
            raise RuntimeError(f"{self.name} has an encoder, which must be told its prompt: start(prompt)")
        await self._run("embed", self._on, rows, self._bill.embed(rows), name="encoder embed")
        if self.residency.held == self._bill.shape.layers:
            name = f"encoder layers 0-{count - 1}"
            await self._run("encode", self._on, rows, self._bill.encode(count, rows), None, name, count)
            return
        sizes, slots = [self._bill.encoder_layer_bytes] * count, self.residency.encoder
        loading = Loading(f"{self.name} encoder", self.device, sizes, 0, slots, preload=False)
        for layer in range(count):
            await self._take(layer, loading)
            name = f"encoder layer {layer}"
            await self._run("encode", self._on, rows, self._bill.encode(1, rows), None, name)
            loading.give_back(layer)

    async def _all_layers(self, step: Step, rows: int, context: int) -> None:
        held = self.residency.held
        run = self._placement.run or held or 1
        for first in range(0, held, run):
            await self._layers(step, first, min(first + run, held), rows, context)
        for layer in range(held, self._bill.shape.layers):
            weights = await self._take(layer, self._loading)
            await self._layers(step, layer, layer + 1, rows, context, weights)
            self._loading.give_back(layer)

    async def _project(self, step: Step, rows: int) -> list[Row]:
        """The output projection, which may have to be read like one more layer."""
        item, cost = self._bill.shape.layers, self._bill.head(rows)
        if not self.residency.tables:
            await self._take(item, self._loading)
        out: list[Row] = await self._run("head", self._head_on, rows, cost, step.rows)
        if not self.residency.tables:
            self._loading.give_back(item)
        return out

    async def _take(self, item: int, loading: Loading) -> LayerWeights | None:
        waiting = self.device.now
        coming = loading.take(item)
        self._wake()
        weights: LayerWeights | None = await coming
        loading.taken()
        self._waited += self.device.now - waiting
        return weights

    async def _layers(
        self, step: Step, first: int, last: int, rows: int, context: int, weights: LayerWeights | None = None
    ) -> None:
        real = self._real(first), self._real(last)
        streamed = None if weights is None else [weights]
        name = f"layer {first}" if last == first + 1 else f"layers {first}-{last - 1}"
        cost = self._bill.layers(last - first, rows, context, self._source, first=not self._encoded)
        if self._plan:
            cost = cost[0], cost[1] + sum(self._plan.unpacking[first:last])
        launches = last - first
        await self._run("layer", self._on, rows, cost, lambda: step.layers(*real, streamed), name, launches)

    def _real(self, layer: int) -> int:
        return layer * self._network.depth // self._bill.shape.layers

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
            precision=self._stored.arithmetic,
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


def padded(missing: Sequence[Prefix], branches: Sequence[Prefix]) -> int:
    """Rows that a pass computes: each once, or a mini-batch of branches padded to the longest."""
    if not branches:
        return len(missing)
    new = set(missing)
    return len(branches) * max(sum(node in new for node in branch.back()) for branch in branches)
