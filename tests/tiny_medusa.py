"""Tiny random Medusa heads, as the public file holds them or beside their target's output projection.

What they say is computed the plain way, from the tensors of the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from repro.models.transformer.decoder import Decoder
from tiny_eagle import inputs_of_layers

HEADS = 4


def raw_config(layers: int = 1) -> dict[str, Any]:
    """A `config.json` as the public heads for Vicuna have it: it names two heads, whatever there are."""
    return {"medusa_num_heads": 2, "medusa_num_layers": layers, "base_model_name_or_path": "tiny"}


def tensors_of(
    hidden: int, vocab: int, *, layers: int = 1, own: bool = True, heads: int = HEADS, seed: int = 0
) -> dict[str, Tensor]:
    """Random tensors under the public names; the blocks of a head are one and the same, as its code saves it.

    Without `own` there are no projections, and the blocks differ.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 2 * shape[-1] ** -0.5

    out = {}
    for head in range(heads):
        weight, bias = drawn(hidden, hidden), drawn(hidden)
        for layer in range(layers):
            out[f"{head}.{layer}.linear.weight"] = weight if own else drawn(hidden, hidden)
            out[f"{head}.{layer}.linear.bias"] = bias if own else drawn(hidden)
        if own:
            out[f"{head}.{layers}.weight"] = drawn(vocab, hidden)
    return out


def write_heads(folder: Path, tensors: dict[str, Tensor], layers: int = 1, pickled: bool = False) -> Path:
    """A folder of heads: the public `medusa_lm_head.pt`, or safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw_config(layers)), encoding="utf-8")
    if pickled:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def said(t: dict[str, Tensor], target: Decoder, tokens: Sequence[int], head: int, layers: int = 1) -> Tensor:
    """Logits of a head at the end of a sequence: of the token `head` + 2 places on."""
    assert target.ends.final_norm is not None
    x = target.ends.final_norm(inputs_of_layers(target, tokens)[-1][-1])
    for layer in range(layers):
        weight, bias = (t[f"{head}.{layer}.linear.{part}"] for part in ("weight", "bias"))
        x = x + F.silu(weight @ x + bias)
    own = t.get(f"{head}.{layers}.weight")
    return target.ends.head(x[None])[0].float() if own is None else own @ x
