"""Owns the draft model: cut from a target, sharing its frozen embeddings, saved without them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import write_tensors

OWN = ("model.layers.", "model.norm.")  # tensors of the draft; embeddings and head are the target's
MLP_ROWS, MLP_COLUMNS = ("gate_proj.weight", "up_proj.weight"), ("down_proj.weight",)


# A cut draft starts overconfident; with the target's final norm scaled by this its loss starts near
# that of a uniform guess (12.8 against 24.6 nats on SmolLM2),
# which saves about a hundred updates.
INITIAL_CONFIDENCE = 0.2


def cut_draft(target: PreTrainedModel, layers: list[int], width: int) -> PreTrainedModel:
    """A decoder of copies of these target layers, their MLPs narrowed to `width`; embeddings frozen."""
    config = copy.deepcopy(target.config)
    if not layers or not set(layers) <= set(range(config.num_hidden_layers)):
        raise InputError(f"layers {layers}: the target has 0 to {config.num_hidden_layers - 1}")
    if not 1 <= width <= config.intermediate_size:
        raise InputError(f"width {width}: the target's MLPs have 1 to {config.intermediate_size} neurons")
    config.num_hidden_layers, config.intermediate_size = len(layers), width
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = target.state_dict()
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("model.layers.")}
    for place, layer in enumerate(layers):
        kept |= _layer(weights, layer, place, width)
    kept["model.norm.weight"] = kept["model.norm.weight"] * INITIAL_CONFIDENCE
    draft.load_state_dict(kept)
    return freeze_embeddings(draft)


def freeze_embeddings(draft: PreTrainedModel) -> PreTrainedModel:
    """Freeze everything but the draft's own tensors."""
    for name, parameter in draft.named_parameters():
        parameter.requires_grad_(name.startswith(OWN))
    return draft


def _layer(weights: dict[str, Tensor], layer: int, place: int, width: int) -> dict[str, Tensor]:
    prefix = f"model.layers.{layer}."
    tensors = {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}
    # A neuron's importance is the product of the norms of its incoming and outgoing weights.
    reach = tensors["mlp.up_proj.weight"].norm(dim=1) * tensors["mlp.down_proj.weight"].norm(dim=0)
    chosen = reach.topk(width).indices.sort().values
    for name in tensors:
        if name.endswith(MLP_ROWS):
            tensors[name] = tensors[name][chosen]
        elif name.endswith(MLP_COLUMNS):
            tensors[name] = tensors[name][:, chosen]
    return {f"model.layers.{place}.{name}": tensor for name, tensor in tensors.items()}


def save_draft(draft: PreTrainedModel, folder: Path) -> None:
    """Write `model.safetensors` (bf16: layers and final norm) and `config.json` with `shares_embeddings`."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        name: t.detach().cpu().bfloat16() for name, t in draft.state_dict().items() if name.startswith(OWN)
    }
    whole = {name: tensor.contiguous() for name, tensor in own.items()}
    write_tensors(folder / "model.safetensors", whole, {})
    config: dict[str, Any] = draft.config.to_diff_dict() | {
        "architectures": [type(draft).__name__],
        "dtype": "bfloat16",
        "model_type": draft.config.model_type,
        "shares_embeddings": True,
        "tie_word_embeddings": draft.config.tie_word_embeddings,
    }
    config.pop("_name_or_path", None)
    config.pop("_model_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_draft(folder: Path, target: PreTrainedModel) -> PreTrainedModel:
    """The saved draft in fp32 with the target's embeddings (and head, where the two differ)."""
    config = AutoConfig.from_pretrained(folder)
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shared = {name: t for name, t in target.state_dict().items() if not name.startswith(OWN)}
    draft.load_state_dict(shared | load_file(folder / "model.safetensors"))
    return freeze_embeddings(draft)
