"""The weights of one decoder layer, as tensors or in one byte buffer.

Owns the parts of a layer and the layout of the buffer. Must not know about files or computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import NamedTuple

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.transformer.linear import Linear
from repro.models.transformer.norm import Norm, RMSNorm

# Direct I/O needs addresses and lengths in multiples of a sector.
ALIGNMENT = 512


class Slot(NamedTuple):
    """The place of one tensor in a layer's buffer; `offset` in bytes, a multiple of 512."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, without padding."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The linears and norms of one layer.

    `qkv` is the fused QKV projection; `up` is the fused gate and up projection if the MLP is gated. Norms
    that the family does not have are None.
    """

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    before_attention: Norm | None = None
    after_attention: Norm | None = None
    before_mlp: Norm | None = None
    after_mlp: Norm | None = None
    qk_norm: RMSNorm | None = None

    @property
    def linears(self) -> tuple[Linear, Linear, Linear, Linear]:
        """The four linears in execution order."""
        return self.qkv, self.out, self.up, self.down

    def map(self, change: Callable[[Linear], Linear]) -> LayerWeights:
        """The layer with each linear changed, in execution order."""
        qkv, out, up, down = map(change, self.linears)
        return replace(self, qkv=qkv, out=out, up=up, down=down)

    def to_buffer(self, buffer: Tensor) -> None:
        """Copy all tensors to their places in `buffer`, uint8 `[buffer_bytes(layout(self))]` or longer."""
        slots = layout(self)
        _check(buffer, slots)
        for slot, tensor in zip(slots, _tensors(self).values(), strict=True):
            _view(buffer, slot).copy_(tensor)

    def from_buffer(self, buffer: Tensor) -> LayerWeights:
        """A layer of the same structure whose tensors are views on `buffer`; nothing is copied."""
        slots = layout(self)
        _check(buffer, slots)
        return self._over({slot.name: _view(buffer, slot) for slot in slots})

    def skeleton(self) -> LayerWeights:
        """A layer of the same structure on the meta device, for `layout` and `from_buffer`."""
        return self._over({name: tensor.to("meta") for name, tensor in _tensors(self).items()})

    def _over(self, tensors: dict[str, Tensor]) -> LayerWeights:
        parts = {}
        for f in fields(self):
            part = getattr(self, f.name)
            if part is not None:
                parts[f.name] = part.with_tensors({n: tensors[f"{f.name}.{n}"] for n in part.tensors()})
        return replace(self, **parts)


def layout(layer: LayerWeights) -> list[Slot]:
    """The places of a layer's tensors in its buffer, in order.

    Raises:
        TypeError: the layer has packed weights, which cannot be stored.
    """
    slots, offset = [], 0
    for name, tensor in _tensors(layer).items():
        slots.append(Slot(name, tensor.dtype, tuple(tensor.shape), offset))
        offset += _align(tensor.nbytes)
    return slots


def buffer_bytes(slots: Sequence[Slot]) -> int:
    """Buffer size in bytes for this layout, a multiple of 512."""
    return slots[-1].offset + _align(slots[-1].nbytes)


def _tensors(layer: LayerWeights) -> dict[str, Tensor]:
    fields_by_name = {f.name: getattr(layer, f.name) for f in fields(layer)}
    groups = {name: part.tensors() for name, part in fields_by_name.items() if part is not None}
    return {f"{part}.{name}": tensor for part, tensors in groups.items() for name, tensor in tensors.items()}


def _view(buffer: Tensor, slot: Slot) -> Tensor:
    return buffer[slot.offset : slot.offset + slot.nbytes].view(slot.dtype).view(slot.shape)


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _check(buffer: Tensor, slots: Sequence[Slot]) -> None:
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or buffer.shape[0] < buffer_bytes(slots):
        raise InputError(
            f"a layer's buffer must be uint8 with at least {buffer_bytes(slots)} bytes, "
            f"got {buffer.dtype} {list(buffer.shape)}"
        )
