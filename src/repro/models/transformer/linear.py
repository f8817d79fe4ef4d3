"""Linear operators with weights in several storage formats.

Owns how a weight is stored and which kernel multiplies it. Must not know about layers or checkpoints. A
linear accepts any float dtype and returns the dtype it computes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Protocol, Self

from repro.core.errors import InputError
from repro.libraries import F, Tensor, torch

# Rows up to which weight-only kernels are faster than 16-bit matmuls (workshop/benchmarks/decode.py --rows).
INT8_ROWS = 2
INT4_ROWS = 4
# Number of rows that oneDNN's blocked layout is optimized for. One row is as fast as with the layout for one
# row, a few rows are much faster.
PACKED_ROWS = 16


class TensorFields:
    """A dataclass whose tensor fields can be listed and replaced, so that a layer fits one buffer."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name, in field order."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same operator with other tensors of the same names and shapes."""
        return replace(self, **tensors)  # type: ignore[type-var]


class Linear(Protocol):
    """`[rows, inputs] -> [rows, outputs]`, for inputs of any float dtype."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply rows by the weight and add the bias."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors needed to restore this linear; TypeError if it is of a kind that is not stored."""
        raise TypeError(f"a {type(self).__name__} cannot be stored; build the layer with packed=False")

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same kind of linear with other stored tensors; TypeError as `tensors`."""
        raise TypeError(f"a {type(self).__name__} is made of no stored tensors")


@dataclass(frozen=True, slots=True)
class PlainLinear(TensorFields):
    """A dense weight `[outputs, inputs]` in fp32, bf16 or fp16."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


def as_plain(linear: Linear) -> PlainLinear:
    """The linear itself; InputError if its weight is not stored densely, and so cannot be changed or cut."""
    if not isinstance(linear, PlainLinear):
        raise InputError(
            f"only dense linears can be compressed, rounded or divided, not a {type(linear).__name__}; load "
            "float32 or bfloat16 weights with packed=False"
        )
    return linear


@cache
def _packed_product() -> Any:
    """A private torch op; None in builds without oneDNN, which use plain weights instead."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


@cache
def _reorder() -> Any:
    """A private torch op; None in builds without oneDNN."""
    return getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


@cache
def _has_bf16() -> bool:
    """Whether oneDNN supports bf16 on this CPU, which requires AVX-512."""
    is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return is_supported is not None and bool(is_supported())


@dataclass(frozen=True, slots=True)
class PackedLinear(Linear):
    """A dense weight in oneDNN's blocked layout, which cannot be read back or stored.

    `fastest_linear` creates one if this build of torch supports it.
    """

    blocked: Tensor
    dtype: torch.dtype
    bias: Tensor | None = None

    @classmethod
    def of(cls, dense_linear: PlainLinear, row_count: int = PACKED_ROWS) -> PackedLinear:
        """Reorder a dense weight for products of about `row_count` rows."""
        return cls(_reorder()(dense_linear.weight, row_count), dense_linear.weight.dtype, dense_linear.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        outputs: Tensor = _packed_product()(x.to(self.dtype), self.blocked, self.bias, "none", [], "")
        return outputs


def can_pack(weight: Tensor) -> bool:
    """Whether torch can reorder this weight for oneDNN; bf16 needs a CPU with AVX-512."""
    if _packed_product() is None or _reorder() is None or weight.device.type != "cpu":
        return False
    return weight.dtype != torch.bfloat16 or _has_bf16()


def fastest_linear(dense_linear: PlainLinear) -> Linear:
    """The fastest linear for this weight: reordered if torch can, else plain."""
    return PackedLinear.of(dense_linear) if can_pack(dense_linear.weight) else dense_linear


@dataclass(frozen=True, slots=True)
class Int8Linear(TensorFields):
    """8-bit weights `[outputs, inputs]` with one bf16 scale per output and bf16 activations.

    `twin`, if given, is a 16-bit copy for passes of many rows, which costs 2 more bytes per weight.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None
    twin: Linear | None = field(default=None, compare=False)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        if self.twin is not None and x.shape[0] > INT8_ROWS:
            return self.twin(x)
        outputs = torch._weight_int8pack_mm(x.to(torch.bfloat16), self.weight, self.scale)
        return outputs if self.bias is None else outputs + self.bias

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Int8Linear:
        """See `TensorFields`; the 16-bit copy of the old weight is dropped."""
        return Int8Linear(tensors["weight"], tensors["scale"], tensors.get("bias"))


@dataclass(frozen=True, slots=True)
class Int4Linear(TensorFields):
    """4-bit weights in torch's CPU packing, with a bf16 scale and zero per `group` inputs.

    A weight is `(code - 8) * scale + zero`, as in Q4_1. Outputs are padded to whole
    blocks of the kernel; `outputs` is the number without padding. `twin`: see `Int8Linear`.
    """

    codes: Tensor
    scales: Tensor
    outputs: int
    group: int
    bias: Tensor | None = None
    twin: Linear | None = field(default=None, compare=False)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        if self.twin is not None and x.shape[0] > INT4_ROWS:
            return self.twin(x)
        outputs: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(
            x.to(torch.bfloat16), self.codes, self.group, self.scales
        )
        if outputs.shape[1] != self.outputs:
            outputs = outputs[:, : self.outputs]
        return outputs if self.bias is None else outputs + self.bias

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Int4Linear:
        """See `TensorFields`; the 16-bit copy of the old weight is dropped."""
        return Int4Linear(tensors["codes"], tensors["scales"], self.outputs, self.group, tensors.get("bias"))
