"""Owns the EAGLE-3 head as a trainable model: started from its target, saved in the public checkpoint format.

Tensor names are those of the format. When drafting,
`repro.methods.speculative.drafting.eagle_head` computes the head; a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import write_tensors
from workshop.training.command import write_json

INITIAL_CONFIDENCE = 0.8
"""Factor of the target's final norm at which the linear guess has the lowest loss, on SmolLM2."""

SELF_SIGHT, TURNING = 28.0, 4
"""Initial attention score of a head on its own pair, and the number of fastest RoPE dimensions used."""


@dataclass(frozen=True)
class Start:
    """Initial values of a head; see `train_eagle.beginning`.

    `tokens [draft vocab]` are target ids in ascending order. The linear guess predicts what the target's
    output projection will read one token later (before its norm's weight): `fused [hidden, 3 * hidden]` times
    the feature, each part divided by its size, `sizes [3 * hidden]`, plus `embedded [hidden, hidden]` times
    the normed embedding. `same [2 * hidden]` is a direction along which all normed pairs are nearly 1.
    """

    tokens: Tensor
    sizes: Tensor
    fused: Tensor
    embedded: Tensor
    same: Tensor


def feature_layers(layers: int) -> tuple[int, int, int]:
    """Target layers whose input a head reads: low, middle, high (EAGLE-3's public training code)."""
    if layers < 6:
        raise InputError(f"target of {layers} layers: an EAGLE-3 head reads the inputs of 2, L//2 and L-3")
    return 2, layers // 2, layers - 3


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """Ids of the `size` tokens with the largest `counts [vocab]`, in ascending order; ties go to low ids."""
    return counts.argsort(descending=True, stable=True)[:size].sort().values


class Norm(nn.Module):
    """RMSNorm over the last axis, in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape `[..., width]`."""
        wide = x.float()
        return self.weight * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)


class Attention(nn.Module):
    """Projections of an attention whose input is twice as wide as its output."""

    frequency: Tensor

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, d = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads, self.head_dim = (
            config["num_attention_heads"],
            config["num_key_value_heads"],
            d,
        )
        self.q_proj = nn.Linear(2 * width, self.heads * d, bias=False)
        self.k_proj = nn.Linear(2 * width, self.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(2 * width, self.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(self.heads * d, width, bias=False)
        steps = torch.arange(0, d, 2) / d
        self.register_buffer("frequency", config["rope_theta"] ** -steps, persistent=False)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """`[b, rows, heads * d]` as `[b, rows, heads, d]`, with RoPE at `positions [b, rows]`."""
        angle = positions[..., None, None] * self.frequency
        cos, sin = (torch.cat([part, part], -1) for part in (angle.cos(), angle.sin()))
        split = x.unflatten(-1, (-1, self.head_dim)).float()
        low, high = split.chunk(2, -1)
        return split * cos + torch.cat([-high, low], -1) * sin

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[b, rows, kv heads, d]`."""
        return self.rotated(self.k_proj(x), positions), self.v_proj(x).unflatten(-1, (-1, self.head_dim))

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries `[b, rows, kv heads, query heads per kv head, d]`."""
        return self.rotated(self.q_proj(x), positions).unflatten(2, (self.kv_heads, -1))


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape `[..., width]`."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The one decoder layer: reads a token's embedding beside a feature, and adds to the feature."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            Norm(width, eps) for _ in range(3)
        )
        self.self_attn = Attention(config)
        self.mlp = Mlp(width, config["intermediate_size"])

    def joined(self, embedded: Tensor, feature: Tensor) -> Tensor:
        """Input of the attention, `[..., 2 * width]`."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(feature)], -1)

    def finished(self, feature: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, before the head's norm."""
        rows = feature + self.self_attn.o_proj(attended)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class Head(nn.Module):
    """An EAGLE-3 head with its own vocabulary; it shares the target's embeddings."""

    sizes: Tensor
    tokens: Tensor
    embedding: Tensor
    own: Tensor

    def __init__(
        self, config: dict[str, Any], tokens: Tensor, embedding: Tensor, sizes: Tensor | None = None
    ) -> None:
        """`tokens [draft vocab]` are target ids in ascending order, `embedding [vocab, hidden]`.

        `sizes [3 * hidden]` divide the feature's parts, and are folded into the fusion when it is saved. A
        few parts are a thousand times larger than most and would dominate, since the optimizer's steps have
        one size for all weights.
        """
        super().__init__()
        width = config["hidden_size"]
        self.config = config
        self.fc = nn.Linear(3 * config["target_hidden_size"], width, bias=False)
        self.midlayer = Layer(config)
        self.norm = Norm(width, config["rms_norm_eps"])
        self.lm_head = nn.Linear(width, len(tokens), bias=False)
        fused = 3 * config["target_hidden_size"]
        self.register_buffer("sizes", torch.ones(fused) if sizes is None else sizes, persistent=False)
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("embedding", embedding.detach().float(), persistent=False)
        own = torch.full((len(embedding),), -1)
        own[tokens] = torch.arange(len(tokens))
        self.register_buffer("own", own, persistent=False)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features `[..., 3 * hidden]` projected to the head's width."""
        return self.fc(features / self.sizes)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits over the draft vocabulary from hidden states `[..., width]`."""
        return self.lm_head(self.norm(rows))


def head_config(target: PreTrainedModel, vocabulary: int, width: int) -> dict[str, Any]:
    """The `config.json` of a head for this target: the target's shape, one layer, MLP of `width` neurons."""
    c = target.config
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "target_hidden_size": c.hidden_size,
        "intermediate_size": width,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_parameters["rope_theta"],
        "max_position_embeddings": c.max_position_embeddings,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def start_head(target: PreTrainedModel, start: Start, width: int) -> Head:
    """A head that starts as the linear guess of `start`.

    The feature's part of the guess is the fusion, which the residual carries. The embedding's part goes
    through values and outputs of the first head of each group, whose attention starts on the pair itself.
    Other queries and keys are those of the target's first layer, the MLP's input weights those of its last;
    their output weights start at zero.
    """
    weights = {name: tensor.detach().float().cpu() for name, tensor in target.state_dict().items()}
    config = head_config(target, len(start.tokens), width)
    hidden, d, groups = config["hidden_size"], config["head_dim"], config["num_key_value_heads"]
    first, last = "model.layers.0.", f"model.layers.{target.config.num_hidden_layers - 1}."
    wide = weights[f"{last}mlp.gate_proj.weight"].shape[0]
    if not 1 <= width <= wide:
        raise InputError(f"width {width}: the target's MLPs have 1 to {wide} neurons")
    head = Head(config, start.tokens, weights["model.embed_tokens.weight"], start.sizes)
    each = config["num_attention_heads"] // groups
    seen = weights[f"{first}input_layernorm.weight"]
    query, key = (
        torch.cat([weights[f"{first}self_attn.{name}_proj.weight"] * seen, torch.zeros(n * d, hidden)], 1)
        for name, n in (("q", groups * each), ("k", groups))
    )
    # A component equal for all pairs, in the fastest RoPE dimensions: the score peaks at distance zero.
    fast = torch.cat([torch.arange(TURNING), torch.arange(TURNING) + d // 2])
    strength = (SELF_SIGHT * d**0.5 / len(fast)) ** 0.5
    query.view(groups, each, d, -1)[:, :, fast] = 0
    query.view(groups, each, d, -1)[:, 0] = 0
    query.view(groups, each, d, -1)[:, 0, fast] = strength * start.same
    key.view(groups, d, -1)[:, fast] = strength * start.same
    rank = groups * d
    left, sizes, right = torch.linalg.svd(start.embedded, full_matrices=False)
    left, right = left[:, :rank] * sizes[:rank].sqrt(), sizes[:rank, None].sqrt() * right[:rank]
    out = torch.zeros(hidden, groups, each, d)
    out[:, :, 0] = torch.nn.functional.pad(left, (0, rank - left.shape[1])).view(hidden, groups, d)
    values = torch.nn.functional.pad(right, (0, hidden, 0, rank - right.shape[0]))
    # A neuron's importance is the product of the norms of its incoming and outgoing weights.
    incoming, outgoing = weights[f"{last}mlp.up_proj.weight"], weights[f"{last}mlp.down_proj.weight"]
    kept = (incoming.norm(dim=1) * outgoing.norm(dim=0)).topk(width).indices.sort().values
    ones = torch.ones(hidden)
    head.load_state_dict(
        {
            "fc.weight": start.fused,
            "midlayer.self_attn.q_proj.weight": query,
            "midlayer.self_attn.k_proj.weight": key,
            "midlayer.self_attn.v_proj.weight": values,
            "midlayer.self_attn.o_proj.weight": out.flatten(1),
            "midlayer.mlp.gate_proj.weight": weights[f"{last}mlp.gate_proj.weight"][kept],
            "midlayer.mlp.up_proj.weight": incoming[kept],
            "midlayer.mlp.down_proj.weight": torch.zeros(hidden, width),
            "midlayer.input_layernorm.weight": ones,
            "midlayer.hidden_norm.weight": ones,
            "midlayer.post_attention_layernorm.weight": weights[f"{last}post_attention_layernorm.weight"],
            "norm.weight": INITIAL_CONFIDENCE * weights["model.norm.weight"],
            "lm_head.weight": target.get_output_embeddings().weight.detach().float().cpu()[start.tokens],
        }
    )
    return head


def grown_head(folder: Path, target: PreTrainedModel, start: Start) -> Head:
    """The saved head, to continue training with the vocabulary and the sizes of `start`.

    Missing rows of its output projection are estimated by the linear map from the target's rows to the
    head's, fitted on the tokens it has.
    """
    old = load_head(folder, target)
    head = Head(
        {**old.config, "draft_vocab_size": len(start.tokens)}, start.tokens, old.embedding, start.sizes
    )
    rows = target.get_output_embeddings().weight.detach().float().cpu()
    change = torch.linalg.lstsq(rows[old.tokens], old.lm_head.weight.detach()).solution
    projection, places = rows[start.tokens] @ change, old.own[start.tokens]
    projection[places >= 0] = old.lm_head.weight.detach()[places[places >= 0]]
    weights = old.state_dict()
    weights["fc.weight"] = weights["fc.weight"] * start.sizes
    head.load_state_dict(weights | {"lm_head.weight": projection})
    return head


def save_head(head: Head, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` (bf16; `d2t` as offsets, `t2d` as a mask)."""
    folder.mkdir(parents=True, exist_ok=True)
    own = head.state_dict()
    own["fc.weight"] = own["fc.weight"] / head.sizes
    tensors = {name: t.detach().cpu().bfloat16().contiguous() for name, t in own.items()}
    tokens = head.tokens.cpu()
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = (head.own >= 0).cpu()
    write_tensors(folder / "model.safetensors", tensors, {})
    write_json(folder / "config.json", dict(sorted(head.config.items())))


def load_head(folder: Path, target: PreTrainedModel) -> Head:
    """The saved head in fp32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    tokens = tensors.pop("d2t") + torch.arange(config["draft_vocab_size"])
    del tensors["t2d"]
    head = Head(config, tokens, target.get_input_embeddings().weight)
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head
