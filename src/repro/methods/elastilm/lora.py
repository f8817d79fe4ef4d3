"""LoRA adapters of one sub-model, attached to its weight views and saved in one file.

Owns adapter sites, attaching and merging, and the file (ElastiLM 3.2). Must not know training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm.submodels import JoinedLinear, LayerSizes, TransposedLinear, UnitDecoder
from repro.models.checkpoints.safetensors_io import read_tensors, write_tensors
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear

RANK = 8
"""ElastiLM 3.2."""

SCALE = 2.0
"""LoRA alpha / rank, 16 / 8; the paper gives none, this is the release's value."""

MATRICES = ("q", "k", "v", "out", "gate", "up", "down")

Shape = tuple[int, int]
"""Number of inputs and outputs of a matrix."""


class Adapter(NamedTuple):
    """Low-rank update of a matrix: `narrow` (LoRA A) `[rank, inputs]`, `wide` (LoRA B) `[outputs, rank]`."""

    narrow: Tensor
    wide: Tensor


class Site(NamedTuple):
    """One matrix of a layer as in the checkpoint (q, k, v separate); `matrix` is one of `MATRICES`."""

    layer: int
    matrix: str


@dataclass(frozen=True)
class Lora:
    """The adapters of one sub-model.

    Attributes:
        adapters: adapters by matrix; a matrix may have none.
        sizes: units and neurons of each layer of the sub-model.
        order: digest of the unit order of the sub-model.
        scale: factor on the adapters' outputs.
    """

    adapters: Mapping[Site, Adapter]
    sizes: LayerSizes
    order: str
    scale: float = SCALE

    @property
    def parameters(self) -> int:
        """Elements of all adapters."""
        return sum(adapter.narrow.numel() + adapter.wide.numel() for adapter in self.adapters.values())


@dataclass(frozen=True, slots=True)
class AdaptedLinear(Linear):
    """A linear plus a LoRA adapter."""

    linear: Linear
    adapter: Adapter
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        update = (x.to(self.adapter.narrow.dtype) @ self.adapter.narrow.t()) @ self.adapter.wide.t()
        return self.linear(x) + self.scale * update

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the linear and the two of the adapter."""
        return {**self.linear.tensors(), "narrow": self.adapter.narrow, "wide": self.adapter.wide}


def shapes(config: DecoderConfig, sizes: LayerSizes, matrices: Sequence[str] = MATRICES) -> dict[Site, Shape]:
    """Shapes of the matrices of a sub-model that can have adapters; `gate` only if the MLP is gated."""
    site_shapes: dict[Site, Shape] = {}
    for i, (unit_count, neuron_count) in enumerate(zip(sizes.units, sizes.neurons, strict=True)):
        keys, queries = unit_count * config.head_dim, unit_count * config.groups * config.head_dim
        output_counts = {"q": queries, "k": keys, "v": keys, "gate": neuron_count, "up": neuron_count}
        matrix_shapes = {name: (config.hidden, outputs) for name, outputs in output_counts.items()}
        matrix_shapes |= {"out": (queries, config.hidden), "down": (neuron_count, config.hidden)}
        site_shapes |= {Site(i, m): matrix_shapes[m] for m in matrices if m != "gate" or config.gated}
    return site_shapes


def attach_adapters(decoder: UnitDecoder, lora: Lora) -> UnitDecoder:
    """A sub-model with adapters attached; its weights remain views.

    Raises:
        InputError: an adapter does not fit its matrix; the linears are not views, or already have adapters.
    """
    layers = [_adapt_layer(layer, i, lora) for i, layer in enumerate(decoder.resident_layers())]
    return type(decoder)(decoder.config, layers, decoder.ends)


def merge_adapters(sub: UnitDecoder) -> UnitDecoder:
    """A sub-model with adapters merged into copies of their matrices; other matrices stay views."""
    return type(sub)(sub.config, [layer.map(_merge_linear) for layer in sub.resident_layers()], sub.ends)


def _adapt_layer(layer: LayerWeights, i: int, lora: Lora) -> LayerWeights:
    def adapt(linear: Linear, matrix: str) -> Linear:
        adapter = lora.adapters.get(Site(i, matrix))
        if adapter is None:
            return linear
        adapter_shape = (adapter.narrow.shape[1], adapter.wide.shape[0])
        if adapter_shape != _shape(linear):
            raise InputError(
                f"the adapter of {matrix} in layer {i} is {adapter_shape}, its matrix {_shape(linear)}"
            )
        return AdaptedLinear(linear, adapter, lora.scale)

    def adapt_parts(linear: Linear, names: Sequence[str]) -> JoinedLinear:
        if not isinstance(linear, JoinedLinear):
            raise InputError(f"adapters stand beside views of matrices, not beside {type(linear).__name__}")
        return JoinedLinear(tuple(map(adapt, linear.parts, names[-len(linear.parts) :])))

    return replace(
        layer,
        qkv=adapt_parts(layer.qkv, ("q", "k", "v")),
        out=adapt(layer.out, "out"),
        up=adapt_parts(layer.up, ("gate", "up")),
        down=adapt(layer.down, "down"),
    )


def _shape(linear: Linear) -> Shape:
    """Inputs and outputs of a sub-model's matrix; InputError for other linears."""
    if isinstance(linear, PlainLinear | TransposedLinear):
        row_count, column_count = linear.weight.shape
        return (
            (row_count, column_count) if isinstance(linear, TransposedLinear) else (column_count, row_count)
        )
    raise InputError(f"adapters stand beside views of matrices, not beside {type(linear).__name__}")


def _merge_linear(linear: Linear) -> Linear:
    if isinstance(linear, JoinedLinear):
        return JoinedLinear(tuple(map(_merge_linear, linear.parts)))
    if not isinstance(linear, AdaptedLinear):
        return linear
    base_linear, update = linear.linear, linear.scale * linear.adapter.wide @ linear.adapter.narrow
    if isinstance(base_linear, TransposedLinear):
        return replace(base_linear, weight=base_linear.weight + update.t())
    assert isinstance(base_linear, PlainLinear), "attach_adapters takes matrices alone"
    return replace(base_linear, weight=base_linear.weight + update)


def save(lora: Lora, path: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write adapters to one file for `load`."""
    tensors = {
        f"{site.layer}.{site.matrix}.{name}": part.detach().to("cpu", dtype).contiguous()
        for site, adapter in lora.adapters.items()
        for name, part in adapter._asdict().items()
    }
    tensors |= {
        "units": torch.tensor(lora.sizes.units),
        "neurons": torch.tensor(lora.sizes.neurons),
        "order": torch.frombuffer(bytearray.fromhex(lora.order), dtype=torch.uint8),
        "scale": torch.tensor(lora.scale, dtype=torch.float64),
    }
    write_tensors(path, tensors, {})


def load(path: Path) -> Lora:
    """Read adapters from a file, in fp32.

    Raises:
        InputError: not an adapter file.
    """
    tensors = read_tensors(path)
    missing_names = {"units", "neurons", "order", "scale"} - set(tensors)
    if missing_names:
        raise InputError(f"{path} holds no adapters: it lacks {', '.join(sorted(missing_names))}")
    adapters = {}
    for name in tensors:
        site, _, part = name.rpartition(".")
        if part == "narrow":
            layer, _, matrix = site.partition(".")
            adapter = Adapter(tensors[name].float(), tensors[f"{site}.wide"].float())
            adapters[Site(int(layer), matrix)] = adapter
    sizes = LayerSizes(tuple(tensors["units"].tolist()), tuple(tensors["neurons"].tolist()))
    return Lora(adapters, sizes, bytes(tensors["order"].tolist()).hex(), float(tensors["scale"]))
