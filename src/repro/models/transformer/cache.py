"""The KV cache of a decoder.

Owns the storage and which slots are valid. Must not know about tokens, trees or weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.transformer.config import DecoderConfig


class KVCache:
    """Keys and values of all layers in one preallocated tensor, `[layers, 2 * kv_heads, capacity, head_dim]`.

    Each layer has a separate length, because a pass fills the layers one by one and may drop rows between
    layers. They are fp32 even with bf16 weights: single-row attention is several times faster in it.
    """

    def __init__(self, config: DecoderConfig, capacity: int, device: torch.device | str = "cpu") -> None:
        if capacity < 1:
            raise InputError(f"a key-value cache needs a capacity of at least 1 slot, got {capacity}")
        self._kv_heads = config.kv_heads
        self._lengths = [0] * config.layers
        self._adopt(
            torch.zeros(config.layers, 2 * config.kv_heads, capacity, config.head_dim, device=device),
            torch.zeros(config.layers, capacity, dtype=torch.int64, device=device),
        )

    def _adopt(self, data: Tensor, slots: Tensor) -> None:
        """Set the storage; the views per layer are created once, as slicing takes microseconds per call."""
        self._data, self._slots = data, slots
        self._rows = list(data.unbind(0))
        self._keys = [rows[: self._kv_heads] for rows in self._rows]
        self._values = [rows[self._kv_heads :] for rows in self._rows]

    @property
    def capacity(self) -> int:
        """Allocated slots."""
        return self._data.shape[2]

    @property
    def length(self) -> int:
        """Number of valid slots of the first layer, which processes every row of a pass."""
        return self._lengths[0]

    @property
    def positions(self) -> Tensor:
        """The position of each valid slot of the first layer, int64 `[length]`."""
        return self._slots[0, : self.length]

    def length_of(self, layer: int) -> int:
        """Number of valid slots of one layer."""
        return self._lengths[layer]

    def slots_seen(self, layer: int, row_count: int) -> int:
        """Number of slots that `row_count` new rows of one layer attend to, masked ones included."""
        return self._lengths[layer] + row_count

    def farthest(self, positions: Tensor) -> int:
        """The largest of the positions of a pass."""
        return int(positions.max())

    def positions_of(self, layer: int, row_count: int = 0) -> Tensor:
        """Positions of one layer's slots, including `row_count` that are placed but not yet appended."""
        return self._slots[layer, : self._lengths[layer] + row_count]

    def set_positions(self, layer: int, positions: Tensor) -> None:
        """Set the positions of the next rows of `layer` and all later layers, int64 `[rows]`."""
        start = self._lengths[layer]
        self._reserve(start + positions.shape[0])
        self._slots[layer:, start : start + positions.shape[0]] = positions

    def append_joint(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, `[rows, 2 * kv_heads, head_dim]`, to one layer; all of its keys and values.

        The results are views `[kv_heads, length, head_dim]`, valid until the cache changes.
        """
        start = self._lengths[layer]
        stop = start + rows.shape[0]
        if stop > self._data.shape[2]:
            self._reserve(stop)
        self._rows[layer].narrow(1, start, stop - start).copy_(rows.transpose(0, 1))
        self._lengths[layer] = stop
        return self._keys[layer].narrow(1, 0, stop), self._values[layer].narrow(1, 0, stop)

    def truncate(self, length: int) -> None:
        """Drop all slots from `length` on, in all layers."""
        if not 0 <= length <= max(self._lengths):
            raise InputError(f"cannot truncate to {length}: the cache holds 0 to {max(self._lengths)} slots")
        self._lengths = [min(length, count) for count in self._lengths]

    def keep(self, base: int, slots: Sequence[int], layers: range | None = None) -> None:
        """Keep the first `base` slots, then the listed ones (absolute, in order), such as an accepted path.

        `layers` limits this to some layers, for passes that drop rows between layers.
        """
        span = range(len(self._lengths)) if layers is None else layers
        length = min(self._lengths[layer] for layer in span)
        strays = [slot for slot in slots if not base <= slot < length]
        if strays or not 0 <= base <= length:
            raise InputError(f"cannot keep slots {strays or base}: base {base}, {length} slots are held")
        stop = base + len(slots)
        if list(slots) != list(range(base, stop)):
            index = torch.tensor(slots, device=self._data.device)
            block, positions = self._data[span.start : span.stop], self._slots[span.start : span.stop]
            block[:, :, base:stop] = block.index_select(2, index)
            positions[:, base:stop] = positions.index_select(1, index)
        for layer in span:
            self._lengths[layer] = stop

    def _reserve(self, slot_count: int) -> None:
        """Grow to at least `slot_count`, at least doubling the capacity."""
        if slot_count <= self.capacity:
            return
        old_data, positions, length = self._data, self._slots, self.capacity
        capacity = max(slot_count, 2 * length)
        data = old_data.new_zeros(old_data.shape[0], old_data.shape[1], capacity, old_data.shape[3])
        data[:, :, :length] = old_data
        grown_positions = positions.new_zeros(positions.shape[0], capacity)
        grown_positions[:, :length] = positions
        self._adopt(data, grown_positions)


class FixedCache(KVCache):
    """A cache whose passes can be recorded and replayed: every pass has the same shapes and addresses.

    While `writes` is set, rows go to those slots and attend to the whole capacity, so that what they see is
    up to their mask, and the lengths stay as they are: `advance` sets them after the pass.

    Attributes:
        writes: slots of the rows of a fixed pass, int64 `[rows]`; None for an ordinary pass.
        moved: how often the storage was replaced by a larger one.
    """

    writes: Tensor | None = None
    moved = -1

    def _adopt(self, data: Tensor, slots: Tensor) -> None:
        super()._adopt(data, slots)
        self.moved += 1

    def reserve(self, slot_count: int) -> None:
        """Make room for so many slots."""
        self._reserve(slot_count)

    def advance(self, layers: range, length: int) -> None:
        """Count the first `length` slots of some layers as valid."""
        for layer in layers:
            self._lengths[layer] = length

    def slots_seen(self, layer: int, row_count: int) -> int:
        """See `KVCache`; a fixed pass attends to all slots."""
        return super().slots_seen(layer, row_count) if self.writes is None else self.capacity

    def farthest(self, positions: Tensor) -> int:
        """See `KVCache`; of a fixed pass an upper bound, since reading it would stop a recording."""
        return super().farthest(positions) if self.writes is None else self.capacity

    def positions_of(self, layer: int, row_count: int = 0) -> Tensor:
        """See `KVCache`."""
        return super().positions_of(layer, row_count) if self.writes is None else self._slots[layer]

    def set_positions(self, layer: int, positions: Tensor) -> None:
        """See `KVCache`."""
        if self.writes is None:
            super().set_positions(layer, positions)
            return
        later_positions = self._slots[layer:]
        later_positions.index_copy_(1, self.writes, positions.expand(len(later_positions), -1))

    def append_joint(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `KVCache`."""
        if self.writes is None:
            return super().append_joint(layer, rows)
        self._rows[layer].index_copy_(1, self.writes, rows.transpose(0, 1))
        return self._keys[layer], self._values[layer]
