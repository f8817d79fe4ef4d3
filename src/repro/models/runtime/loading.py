"""The layers of a model on their way from flash: each read once a pass, in order, never more than the slots.

Knows nothing of what a layer computes. Where the output projection does not stay in memory, it is the item
after the last layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Protocol

from repro.device.clock import Future
from repro.device.emulated import Device
from repro.device.op import FLASH, Op
from repro.models.transformer.layer import LayerWeights


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


class Loading:
    """One model's reads.

    Attributes:
        awaited: whether the model waits for an item.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        sizes: Sequence[float],
        held: int,
        slots: int,
        preload: bool,
        source: LayerSource | None = None,
    ) -> None:
        """Reads of the items from `held` on.

        Args:
            name: of the model, as timelines show it.
            device: whose flash is read.
            sizes: bytes of each item, held ones included; one of no bytes is there, and takes no slot.
            held: items that are never read.
            slots: items that may be on their way or in use at once.
            preload: whether reading goes on between passes.
            source: what a real device reads from.
        """
        self._name = name
        self._device = device
        self._sizes = sizes
        self._held = held
        # With more slots than items, reading on between passes would read a layer that is still held.
        self._slots = min(slots, max(1, sum(size > 0 for size in sizes[held:])))
        self._preload = preload
        self._source = source
        self._coming: deque[tuple[int, Future[Any]]] = deque()
        self._taken = 0
        self._next = len(sizes)
        self._under_way: deque[float] = deque()
        self._rate = 0.0
        self._since = 0.0
        self.awaited = False

    def take(self, item: int) -> Future[Any]:
        """The item to come, `LayerWeights` on a real device; `taken` says that it is there."""
        if not self._coming:
            self._next = item
        self._read_ahead()
        expected, loading = self._coming.popleft()
        assert expected == item, f"layer {item} was wanted, {expected} came"
        self.awaited = not loading.done
        return loading

    def taken(self) -> None:
        """The item that was asked for is there and in use."""
        self.awaited = False
        self._read_ahead()

    def give_back(self, item: int) -> None:
        """An item has computed; its slot takes the next one."""
        self._taken -= self._sizes[item] > 0
        if self._source:
            self._source.release(item)
        self._read_ahead()

    @property
    def due(self) -> float:
        """Seconds until the read that is under way should end, by the pace of the last one.

        0 if nothing is being read, infinite for the first read of all, whose pace nobody knows.
        """
        if not self._under_way:
            return 0.0
        if not self._rate:
            return inf
        return max(0.0, self._since + self._under_way[0] / self._rate - self._device.now)

    def close(self) -> None:
        """Let go of the disk."""
        if self._source:
            self._source.close()

    def _read_ahead(self) -> None:
        while self._room():
            if self._next == len(self._sizes):
                if not self._preload:
                    return
                self._next = self._held
            self._taken += self._sizes[self._next] > 0
            self._coming.append((self._next, self._load(self._next)))
            self._next += 1

    def _room(self) -> bool:
        """Whether one more item may be on its way."""
        return self._taken < self._slots and len(self._coming) < len(self._sizes) - self._held

    def _load(self, item: int) -> Future[Any]:
        size, source = self._sizes[item], self._source
        if not size:
            here: Future[Any] = Future()
            here.set(None)
            return here
        compute = (lambda: source.fetch(item)) if source else None
        if not self._under_way:
            self._since = self._device.now
        self._under_way.append(size)
        name = f"{self._name} load {item}"
        loading = self._device.run(Op(FLASH, "load", name, bytes=size, compute=compute))
        loading.on_done(self._loaded)
        return loading

    def _loaded(self) -> None:
        size = self._under_way.popleft()
        took = self._device.now - self._since
        self._rate = size / took if took > 0 else inf
        self._since = self._device.now
