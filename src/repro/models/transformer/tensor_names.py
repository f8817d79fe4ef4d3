"""Tensor names in the checkpoints of each family.

Owns these names only, as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Tensor names of a family; `prefixes` are tried in order, `layer` is formatted with the layer index.

    `parts` maps our part names (`q`, `out`, `before_mlp`, ...) to names within a layer; `qkv` is a fused one.
    """

    parts: Mapping[str, str]
    prefixes: tuple[str, ...] = ("model.", "")
    layer: str = "layers.{}."
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    head: str = "lm_head"
    transposed: bool = False  # linears stored as [inputs, outputs]


_ATTENTION = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
}
_GATED_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_QK_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
_LLAMA_PARTS = {
    **_ATTENTION,
    **_GATED_MLP,
    "before_attention": "input_layernorm",
    "before_mlp": "post_attention_layernorm",
}
_SANDWICH_PARTS = {
    **_LLAMA_PARTS,
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
LLAMA_NAMES = Names(_LLAMA_PARTS)
PHI_NAMES = Names(
    {
        **_ATTENTION,
        "out": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "before_attention": "input_layernorm",
    },
    final_norm="final_layernorm",
)
# OPT's norms have the same names before and after attention and MLP: `do_layer_norm_before` tells which.
OPT_NAMES = Names(
    {
        **_ATTENTION,
        "out": "self_attn.out_proj",
        "up": "fc1",
        "down": "fc2",
        "before_attention": "self_attn_layer_norm",
        "after_attention": "self_attn_layer_norm",
        "before_mlp": "final_layer_norm",
        "after_mlp": "final_layer_norm",
    },
    prefixes=("model.decoder.", "decoder.", ""),
    final_norm="final_layer_norm",
    positions="embed_positions",
    project_in="project_in",
    project_out="project_out",
)
GPT2_NAMES = Names(
    {
        "qkv": "attn.c_attn",
        "out": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
        "before_attention": "ln_1",
        "before_mlp": "ln_2",
    },
    prefixes=("transformer.", ""),
    layer="h.{}.",
    embedding="wte",
    final_norm="ln_f",
    positions="wpe",
    transposed=True,
)
QWEN3_NAMES = Names({**_LLAMA_PARTS, **_QK_NORMS})
GEMMA2_NAMES = Names(_SANDWICH_PARTS)
GEMMA3_NAMES = Names({**_SANDWICH_PARTS, **_QK_NORMS})
GEMMA3_MULTIMODAL_NAMES = Names(
    GEMMA3_NAMES.parts, prefixes=("model.language_model.", "language_model.model.")
)
