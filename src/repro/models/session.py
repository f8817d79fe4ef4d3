"""A model opened on a device: the only place where a forward pass becomes ops.

Knows nothing of methods, and not whether the device is real: the same ops carry the real computation and the
bill of the shape that is billed. Real layers are spread evenly over billed ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from repro.core.clock import Future
from repro.core.device import Device
from repro.core.op import FLASH, Op
from repro.models.chooser import Chooser
from repro.models.layer import LayerWeights
from repro.models.lineage import Lineage
from repro.models.network import Network, Row, Step
from repro.models.placement import Placement
from repro.models.prefix import Prefix
from repro.models.shape import Bill
from repro.models.tree import TokenTree


class LayerSource(Protocol):
    """Where a real device's streamed layers come from."""

    @property
    def layer_bytes(self) -> int:
        """Bytes that one layer takes on the disk, and that every read of it moves."""

    def fetch(self, layer: int) -> LayerWeights:
        """Read a layer's weights from the disk; runs on a flash worker and blocks."""

    def release(self, layer: int) -> None:
        """The layer has computed: its memory may be read into."""

    def close(self) -> None:
        """Let go of the file and its memory."""


class Verdict(NamedTuple):
    """What the target said of a tree: nodes accepted (root first), rows that were verified, and the new text,
    which is the accepted path and the target's own next token."""

    path: list[int]
    text: Prefix
    rows: int


class Session:
    """One model on one device.

    Attributes:
        name: of the model's role, as timelines show it (`target`, `draft`).
        device: where it runs.
        passes: forward passes so far.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        bill: Bill,
        network: Network,
        placement: Placement,
        source: LayerSource | None = None,
        priority: int = 0,
    ) -> None:
        self.name = name
        self.device = device
        self.passes = 0
        self._bill = bill
        self._network = network
        self._placement = placement
        self._priority = priority
        self._stored = bill.stored
        self._on = device.resource(placement.on or device.main, bill.stored.arithmetic)
        self._head_on = device.resource(placement.head or self._on, bill.stored.arithmetic)
        self._lineage = Lineage()
        self._rows: dict[Prefix, Row] = {}
        self._held = placement.held(bill.shape.layers)
        self._stream = _Stream(self, source)

    @property
    def resident_bytes(self) -> float:
        """Bytes of what stays in memory: tables, resident layers, the slots that layers stream through."""
        streamed = self._bill.shape.layers - self._held
        slots = min(streamed, self._placement.prefetch + 1)
        return self._bill.table_bytes + (self._held + slots) * self._bill.layer_bytes

    def reserve(self, tokens: int) -> None:
        """Take the memory for the model and for the keys and values of so many tokens.

        Raises:
            InputError: it does not fit the device's budget.
        """
        memory = self.device.memory
        memory.reserve(self.resident_bytes, f"{self.name} weights")
        memory.reserve(self._bill.cache_bytes(tokens), f"{self.name} keys and values of {tokens} tokens")

    def close(self) -> None:
        """Let go of the disk."""
        self._stream.close()

    async def load(self) -> None:
        """Read what stays in memory from flash, once, before the first request."""
        await self.device.run(Op(FLASH, "load", f"{self.name} load", bytes=self.resident_bytes))

    async def forward(self, wanted: Sequence[Prefix]) -> list[Row]:
        """One pass over the wanted sequences and all that is not computed of them; one row for each.

        A sequence that was asked for before, and kept, costs nothing.
        """
        new = [prefix for prefix in dict.fromkeys(wanted) if prefix not in self._rows]
        if new:
            self._rows.update(zip(new, await self._pass(new), strict=True))
        return [self._rows[prefix] for prefix in wanted]

    def known(self, prefix: Prefix) -> Row:
        """The row of a sequence that a pass has answered."""
        return self._rows[prefix]

    async def verify(self, tree: TokenTree, chooser: Chooser) -> Verdict:
        """One pass over a tree; the accepted path stays in the cache, the rest of the tree does not."""
        rows = await self.forward(tree.prefixes)
        path, bonus = chooser.accept(tree, rows)
        text = tree.prefixes[path[-1]].then(bonus)
        self.keep(text)
        return Verdict(path, text, len(set(tree.prefixes)))

    def keep(self, text: Prefix) -> None:
        """Forget all that neither leads to `text` nor goes on from it."""
        self._lineage.keep(text)
        self._network.keep(text)
        self._rows = {p: row for p, row in self._rows.items() if p.starts_with(text)}

    async def _pass(self, wanted: list[Prefix]) -> list[Row]:
        rows = self._lineage.missing(wanted)
        context = self._lineage.length
        step = self._network.begin(wanted)
        self._lineage.add(rows)
        self.passes += 1
        await self._run("embed", self._on, len(rows), self._bill.embed(len(rows)))
        run = self._placement.run or self._held or 1
        for first in range(0, self._held, run):
            await self._layers(step, first, min(first + run, self._held), len(rows), context)
        for layer in range(self._held, self._bill.shape.layers):
            weights = await self._stream.take(layer)
            await self._layers(step, layer, layer + 1, len(rows), context, weights)
            self._stream.give_back(layer)
        cost = self._bill.head(len(wanted))
        out: list[Row] = await self._run("head", self._head_on, len(wanted), cost, step.rows)
        return out

    async def _layers(
        self, step: Step, first: int, last: int, rows: int, context: int, weights: LayerWeights | None = None
    ) -> None:
        real = self._real(first), self._real(last)
        streamed = None if weights is None else [weights]
        name = f"layer {first}" if last == first + 1 else f"layers {first}-{last - 1}"
        cost = self._bill.layers(last - first, rows, context)
        await self._run("layer", self._on, rows, cost, lambda: step.layers(*real, streamed), name)

    def _real(self, layer: int) -> int:
        return layer * self._network.depth // self._bill.shape.layers

    def _run(
        self, kind: str, on: str, rows: int, cost: tuple[float, float], compute: Any = None, name: str = ""
    ) -> Future[Any]:
        op = Op(
            on,
            kind,
            f"{self.name} {name or kind}",
            rows,
            flops=cost[0],
            bytes=cost[1],
            precision=self._stored.arithmetic,
            priority=self._priority,
            compute=compute,
        )
        return self.device.run(op)


class _Stream:
    """The layers on their way from flash: each read once a pass, in order, never more than the slots."""

    def __init__(self, session: Session, source: LayerSource | None) -> None:
        self._session = session
        self._source = source
        self._layers = session._bill.shape.layers
        # With more slots than layers, reading on between passes would read a layer that is still held.
        self._ahead = min(session._placement.prefetch, self._layers - session._held - 1)
        self._coming: deque[tuple[int, Future[Any]]] = deque()
        self._computing = 0
        self._next = self._layers

    async def take(self, layer: int) -> LayerWeights | None:
        """Wait for a layer's weights."""
        if not self._coming:
            self._next = layer
        self._read_ahead()
        expected, loading = self._coming.popleft()
        assert expected == layer, f"layer {layer} was wanted, {expected} came"
        weights: LayerWeights | None = await loading
        self._computing += 1
        self._read_ahead()
        return weights

    def give_back(self, layer: int) -> None:
        """A layer has computed; its slot takes the next one."""
        self._computing -= 1
        if self._source:
            self._source.release(layer)
        self._read_ahead()

    def close(self) -> None:
        """Let go of the disk."""
        if self._source:
            self._source.close()

    def _read_ahead(self) -> None:
        placement = self._session._placement
        while len(self._coming) + self._computing <= self._ahead:
            if self._next == self._layers:
                if not placement.preload:
                    return
                self._next = self._session._held
            self._coming.append((self._next, self._load(self._next)))
            self._next += 1

    def _load(self, layer: int) -> Future[Any]:
        session, source = self._session, self._source
        compute = (lambda: source.fetch(layer)) if source else None
        size = source.layer_bytes if source else session._bill.layer_bytes
        name = f"{session.name} load {layer}"
        return session.device.run(Op(FLASH, "load", name, bytes=size, compute=compute))
