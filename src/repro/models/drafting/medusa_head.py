"""Medusa heads: configuration, weights in the public checkpoint format, and operators.

The format is that of `FasterDecoding/Medusa`: a residual block h + SiLU(W h + b) on the target's last hidden
state after its final norm, then a linear to the vocabulary. Head k reads the hidden state at token t and
predicts token t + k + 2. Must not know about token trees, memos or where features come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.core.late import late
from repro.core.registry import unknown
from repro.models.checkpoints.safetensors_io import PickledTensors, StoredTensors, Tensors
from repro.models.checkpoints.validate import MEDUSA
from repro.models.costs.model_cost import Shape
from repro.models.drafting.head_ranks import FILE as RANKS
from repro.models.transformer.decoder import EmbeddingAndHead
from repro.models.transformer.linear import Linear, PlainLinear, packed
from repro.models.transformer.norm import Norm

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch = late("torch")
    F = late("torch.nn.functional")

DTYPES = ("float32", "bfloat16")
NAMED = "medusa_num_heads"


@dataclass(frozen=True)
class MedusaConfig:
    """Configuration of the Medusa heads in a folder.

    Attributes:
        heads: number of heads in the tensor file; `config.json` is not consulted.
        layers: blocks per head. The public code repeats one block and stores it under several names.
        target_hidden: hidden size of the target.
        target_vocab: vocabulary size of the target.
        own: True if each head has an output projection; else all use the target's.
    """

    heads: int
    layers: int
    target_hidden: int
    target_vocab: int
    own: bool

    max_positions = None

    @property
    def shape(self) -> Shape:
        """Dimensions for the cost model."""
        return Shape.of_medusa(self.heads, self.target_hidden, self.target_vocab, not self.own, self.layers)

    def depths(self, layers: int) -> tuple[int, ...]:
        """Numbers of target layers after which hidden states are read: after all `layers`."""
        return (layers,)


def describes(raw: Mapping[str, Any]) -> bool:
    """Whether a `config.json` belongs to Medusa heads."""
    return NAMED in raw


def config_of(folder: Path, raw: Mapping[str, Any], vocab: int) -> MedusaConfig:
    """The configuration of the heads in a folder.

    Args:
        folder: folder of the tensors.
        raw: contents of its `config.json`.
        vocab: vocabulary size of the target, for heads that use its output projection.

    Raises:
        InputError: the folder has no heads, or `medusa_num_layers` is invalid.
    """
    layers = raw.get("medusa_num_layers", 1)
    if type(layers) is not int or layers < 1:
        raise InputError(f"medusa_num_layers is {layers!r} in {folder}; it must be 1 or more")
    tensors = _tensors(folder)
    heads = 0
    while f"{heads}.0.linear.weight" in tensors:
        heads += 1
    if not heads:
        raise InputError(f"{folder} holds no tensor 0.0.linear.weight, as Medusa heads have")
    own = f"0.{layers}.weight" in tensors
    return MedusaConfig(
        heads=heads,
        layers=layers,
        target_hidden=tensors.shape("0.0.linear.weight")[0],
        target_vocab=tensors.shape(f"0.{layers}.weight")[0] if own else vocab,
        own=own,
    )


@dataclass(frozen=True)
class MedusaHeads:
    """Operators of all heads; each input row belongs to one head, and rows are fp32 in every precision.

    Attributes:
        blocks: per layer one linear per head, `[hidden] -> [hidden]`.
        projections: one output projection per head, or a single shared one.
        norm: the target's final norm.
    """

    config: MedusaConfig
    blocks: Sequence[Sequence[Linear]]
    projections: Sequence[Linear]
    norm: Norm | None
    device: torch.device

    def hidden(self, features: Tensor, heads: Sequence[int]) -> Tensor:
        """The heads' hidden states from the target's after its last layer, both `[rows, hidden]`."""
        x = features if self.norm is None else self.norm(features)
        for linears in self.blocks:
            x = x + F.silu(_each(linears, x, heads))
        return x

    def logits(self, hidden: Tensor, heads: Sequence[int]) -> Tensor:
        """Logits of hidden states, fp32 `[rows, vocab]`."""
        return _each(self.projections, hidden, heads)


def _each(linears: Sequence[Linear], x: Tensor, heads: Sequence[int]) -> Tensor:
    """Apply each row's head's linear, or the single shared one."""
    if len(linears) == 1:
        return linears[0](x).float()
    chosen = torch.tensor(heads, device=x.device)
    order = torch.cat([(chosen == head).nonzero()[:, 0] for head in dict.fromkeys(heads)])
    made = torch.cat([linears[head](x[chosen == head]).float() for head in dict.fromkeys(heads)])
    return made[order.argsort()]


def load(
    folder: Path, config: MedusaConfig, dtype: str, ends: EmbeddingAndHead, device: torch.device | str = "cpu"
) -> MedusaHeads:
    """Load the heads in a folder.

    Args:
        folder: `config.json`, and `medusa_lm_head.pt` or `*.safetensors` with the same tensor names.
        config: the heads' configuration.
        dtype: `float32` or `bfloat16`.
        ends: the target's final norm, and its output projection for heads without one.
        device: device of the weights.

    Raises:
        InputError: unsupported dtype; a tensor is missing or has the wrong shape.
    """
    if dtype not in DTYPES:
        raise InputError(f"Medusa heads compute in {' or '.join(DTYPES)}: {unknown('dtype', dtype, DTYPES)}")
    tensors, c, width = _tensors(folder), config, config.target_hidden

    def linear(weight: str, outputs: int, bias: str = "") -> Linear:
        own = tensors.take(weight, (outputs, width)).to(device, getattr(torch, dtype), copy=True)
        added = tensors.take(bias, (outputs,)).to(device, getattr(torch, dtype), copy=True) if bias else None
        return packed(PlainLinear(own, added))

    blocks = [
        [linear(f"{k}.{layer}.linear.weight", width, f"{k}.{layer}.linear.bias") for k in range(c.heads)]
        for layer in range(c.layers)
    ]
    projections = [linear(f"{k}.{c.layers}.weight", c.target_vocab) for k in range(c.heads)] if c.own else []
    return MedusaHeads(c, blocks, projections or [ends.head], ends.final_norm, torch.device(device))


def _tensors(folder: Path) -> Tensors:
    """The weights from safetensors if any exist (the rank record does not count), else from the pickle."""
    if any(path.name != RANKS for path in folder.glob("*.safetensors")):
        return StoredTensors(folder)
    return PickledTensors(folder / MEDUSA)
