"""Streams a model's layers from flash: each once per pass, in order, with a bounded number of slots.

Knows nothing of what a layer computes. An output projection that is not resident is the item after the last
layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from repro.device.clock import Future
from repro.device.emulated import Device
from repro.device.op import FLASH, Op
from repro.models.transformer.layer import LayerWeights
from repro.records.record import Scalar


class LayerSource(Protocol):
    """Source of streamed layers on a real device."""

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer on disk, all of which each read moves."""

    def fetch(self, layer: int) -> LayerWeights:
        """Read a layer's weights from disk; blocks, so call it on a flash worker."""

    def release(self, layer: int) -> None:
        """Free a layer's memory after it has computed."""

    def close(self) -> None:
        """Close the file and free its memory."""


@dataclass(frozen=True)
class LayerLoads:
    """What is read of each costed layer, where that is not the layer as it is stored.

    Attributes:
        loads: bytes read from flash per layer in every pass.
        unpacking: bytes moved in memory per layer to unpack what was read.
        preloaded: bytes of parts of layers that stay in memory, in the placement's `buffer`.
    """

    loads: tuple[float, ...]
    unpacking: tuple[float, ...]
    preloaded: float

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """What a record says of it."""
        return {}


class Loading:
    """Weight reads of one model.

    Attributes:
        awaited: whether the model is waiting for an item.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        sizes: Sequence[float],
        resident_layers: int,
        slot_count: int,
        preload: bool,
        reader: LayerSource | None = None,
    ) -> None:
        """Stream the items from index `resident_layers` on.

        Args:
            name: model name in timelines.
            device: device whose flash is read.
            sizes: bytes of each item, resident ones included; an item of 0 bytes needs no read and no slot.
            resident_layers: number of resident items, which are never read.
            slot_count: maximum number of items being read or in use.
            preload: whether reading continues between passes.
            reader: reads layers on a real device.
        """
        self._name = name
        self._device = device
        self._sizes = sizes
        self._resident = resident_layers
        # With more slots than items, preloading would read a layer that is still held.
        self._slots = min(slot_count, max(1, sum(layer_bytes > 0 for layer_bytes in sizes[resident_layers:])))
        self._preload = preload
        self._reader = reader
        self._coming: deque[tuple[int, Future[Any]]] = deque()
        self._in_use = 0
        self._next = len(sizes)
        self._under_way: deque[float] = deque()
        self._rate = 0.0
        self._since = 0.0
        self.awaited = False

    def take(self, item: int) -> Future[Any]:
        """A future of the next item, `LayerWeights` on a real device; `note_arrival` follows its arrival."""
        if not self._coming:
            self._next = item
        self._read_ahead()
        coming_item, loading = self._coming.popleft()
        assert coming_item == item, f"layer {item} was wanted, {coming_item} came"
        self.awaited = not loading.done
        return loading

    def note_arrival(self) -> None:
        """Note that the requested item has arrived and is in use."""
        self.awaited = False
        self._read_ahead()

    def give_back(self, item: int) -> None:
        """Free the slot of an item that has computed, for the next one."""
        self._in_use -= self._sizes[item] > 0
        if self._reader:
            self._reader.release(item)
        self._read_ahead()

    @property
    def due(self) -> float:
        """Estimated seconds until the current read ends, at the rate of the last one.

        0 if nothing is being read, infinite for the very first read.
        """
        if not self._under_way:
            return 0.0
        if not self._rate:
            return inf
        return max(0.0, self._since + self._under_way[0] / self._rate - self._device.now)

    def close(self) -> None:
        """Close the reader."""
        if self._reader:
            self._reader.close()

    def _read_ahead(self) -> None:
        while self._room():
            if self._next == len(self._sizes):
                if not self._preload:
                    return
                self._next = self._resident
            self._in_use += self._sizes[self._next] > 0
            self._coming.append((self._next, self._load(self._next)))
            self._next += 1

    def _room(self) -> bool:
        """Whether one more read may start."""
        return self._in_use < self._slots and len(self._coming) < len(self._sizes) - self._resident

    def _load(self, item: int) -> Future[Any]:
        size, reader = self._sizes[item], self._reader
        if not size:
            no_read: Future[Any] = Future()
            no_read.set(None)
            return no_read
        compute = (lambda: reader.fetch(item)) if reader else None
        if not self._under_way:
            self._since = self._device.now
        self._under_way.append(size)
        name = f"{self._name} load {item}"
        loading = self._device.run(Op(FLASH, "load", name, bytes=size, compute=compute))
        loading.on_done(self._note_read)
        return loading

    def _note_read(self) -> None:
        size = self._under_way.popleft()
        seconds = self._device.now - self._since
        self._rate = size / seconds if seconds > 0 else inf
        self._since = self._device.now
