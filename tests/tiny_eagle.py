"""A tiny random EAGLE-3 head in the public checkpoint format, and what it says, computed the plain way.

The reference knows no cache, no tree and no pass: it takes a sequence, how far the target has been, and
computes pair after pair from the tensors of the file.
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

from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder

HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, DRAFT_VOCAB = 4, 2, 24, 48, 70
EPS = 1e-5


def raw_config(target: Decoder, **changes: Any) -> dict[str, Any]:
    """A `config.json` as SpecForge writes it; a change to `None` leaves the field out."""
    c = target.config
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": c.hidden,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "hidden_act": "silu",
        "vocab_size": c.vocab,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 256,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, c.layers // 2, c.layers - 2]},
    }
    return {name: value for name, value in (config | changes).items() if value is not None}


def tensors_of(raw: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors under the names of the public format."""
    generator = torch.Generator().manual_seed(seed)
    h, f = raw["hidden_size"], raw["intermediate_size"]
    n, m, d = (raw[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    vocab = raw["vocab_size"]
    v = raw.get("draft_vocab_size") or vocab
    attention = {
        "q_proj": (n * d, 2 * h),
        "k_proj": (m * d, 2 * h),
        "v_proj": (m * d, 2 * h),
        "o_proj": (h, n * d),
    }
    mlp = {"gate_proj": (f, h), "up_proj": (f, h), "down_proj": (h, f)}
    shapes = {"fc.weight": (h, 3 * h), "lm_head.weight": (v, h)}
    shapes |= {f"midlayer.self_attn.{name}.weight": shape for name, shape in attention.items()}
    shapes |= {f"midlayer.mlp.{name}.weight": shape for name, shape in mlp.items()}
    out = {name: torch.randn(s, generator=generator) * 2 * s[-1] ** -0.5 for name, s in shapes.items()}
    for name in (
        "midlayer.hidden_norm",
        "midlayer.input_layernorm",
        "midlayer.post_attention_layernorm",
        "norm",
    ):
        out[f"{name}.weight"] = 1 + 0.3 * torch.randn(h, generator=generator)
    if v != vocab:
        known = torch.randperm(vocab, generator=generator)[:v].sort().values
        out["d2t"] = known - torch.arange(v)
        out["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, known, True)
    return out


def write_head(folder: Path, raw: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A head's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def inputs_of_layers(target: Decoder, tokens: Sequence[int]) -> list[Tensor]:
    """What goes into each of a target's layers, and what comes out of the last, for a sequence of its own."""
    positions, cache = torch.arange(len(tokens)), KVCache(target.config, len(tokens))
    x = [target.embed(torch.tensor(tokens), positions)]
    for i in range(target.config.layers):
        x.append(target.layer(i, x[-1], positions, None, cache))
    return x


def said(
    raw: dict[str, Any], t: dict[str, Tensor], target: Decoder, tokens: Sequence[int], boundary: int
) -> Tensor:
    """Logits `[target vocab]` after a sequence whose first `boundary` tokens the target has computed."""
    h, n, d = raw["hidden_size"], raw["num_attention_heads"], raw["head_dim"]
    groups, theta = n // raw["num_key_value_heads"], raw.get("rope_theta", 10_000.0)
    inputs = inputs_of_layers(target, tokens)
    ids = "eagle_aux_hidden_state_layer_ids"
    levels = [inputs[i + 1] for i in raw.get(ids) or raw["eagle_config"][ids]]
    features, embedding = torch.cat(levels, -1), t.get("embed_tokens.weight", target.ends.embedding)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (h,), t[f"{name}.weight"], EPS)

    def turned(x: Tensor, position: int) -> Tensor:
        angle = position * theta ** (-torch.arange(0, d, 2) / d)
        cos, sin = torch.cos(angle).repeat(2), torch.sin(angle).repeat(2)
        return x * cos + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1) * sin

    def attention(name: str, x: Tensor) -> Tensor:
        return (t[f"midlayer.self_attn.{name}_proj.weight"] @ x).view(-1, d)

    keys, values, guess = [], [], torch.zeros(h)
    for i in range(len(tokens) - 1):
        hidden = t["fc.weight"] @ features[i] if i < boundary else guess
        token = norm(embedding[tokens[i + 1]].float(), "midlayer.input_layernorm")
        normed = norm(hidden, "midlayer.hidden_norm")
        both = torch.cat((token, normed))
        keys.append(turned(attention("k", both), i))
        values.append(attention("v", both))
        mixed = []
        for head, query in enumerate(turned(attention("q", both), i)):
            scores = torch.stack([query @ key[head // groups] for key in keys]) / d**0.5
            weighted = zip(scores.softmax(0), values, strict=True)
            mixed.append(sum(weight * value[head // groups] for weight, value in weighted))
        x = (normed if raw.get("norm_before_residual") else hidden) + t[
            "midlayer.self_attn.o_proj.weight"
        ] @ torch.cat(mixed)
        y = norm(x, "midlayer.post_attention_layernorm")
        gate, up = t["midlayer.mlp.gate_proj.weight"] @ y, t["midlayer.mlp.up_proj.weight"] @ y
        guess = x + t["midlayer.mlp.down_proj.weight"] @ (F.silu(gate) * up)
    own = t["lm_head.weight"] @ norm(guess, "norm")
    if "d2t" not in t:
        return own
    whole = torch.full((raw["vocab_size"],), -torch.inf)
    whole[torch.arange(len(own)) + t["d2t"]] = own
    return whole
