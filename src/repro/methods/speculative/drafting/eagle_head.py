"""An EAGLE-3 head: configuration, weights in the public checkpoint format, and operators.

The format is that of `SafeAILab/EAGLE`, SpecForge and AngelSlim: one decoder layer whose attention reads a
token's embedding concatenated with a feature of the target, and an output projection over a separate draft
vocabulary. Must not know about cache bookkeeping, token trees or where features come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import F, Tensor, torch
from repro.models.checkpoints.safetensors_io import StoredTensors
from repro.models.checkpoints.stored_numbers import NOTHING
from repro.models.costs.model_cost import Shape
from repro.models.transformer import families
from repro.models.transformer.attention import attend, attention_mask
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.linear import Linear, PlainLinear, fastest_linear
from repro.models.transformer.norm import RMSNorm
from repro.models.transformer.rope import frequencies, interleave, rotations
from repro.records.provenance import count_layers

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Names in SpecForge and AngelSlim; EAGLE's own heads say `LlamaForCausalLM`, but have `draft_vocab_size`."""

IDS = "eagle_aux_hidden_state_layer_ids"
BEFORE = "norm_before_residual"
OURS = ("draft_vocab_size", "target_hidden_size", "eagle_config", IDS, BEFORE)
"""Entries of a head's `config.json` beside those of its layer."""

ONLY: Mapping[str, tuple[Any, ...]] = {
    "fc_norm": (False,),
    "norm_before_fc": (False,),
    "norm_output": (False,),
    "logit_scale": (1.0,),
    "use_aux_hidden_state": (True,),
    "use_last_layernorm": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_mtp_layernorm": (False,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
}
"""Entries of a head's `config.json`, or of its `eagle_config`, with the only values that are computed."""

HARMLESS = ("max_window_layers", "modal_type", "target_model_type")
"""Entries that change nothing of a head: it has one layer, and no window unless another entry says so."""

DTYPES = ("float32", "bfloat16")
PREFIXES = ("", "model.")
NORMS = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
UNUSED = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
"""Tensors that say nothing of their own: RoPE's frequencies follow from `config.json`."""
OUTPUTS = 3


@dataclass(frozen=True)
class EagleConfig:
    """Configuration of an EAGLE-3 head.

    Attributes:
        layer: configuration of its single decoder layer, with the draft vocabulary.
        target_vocab: vocabulary size of the target.
        target_hidden: hidden size of the target.
        outputs: target layers whose outputs the head reads; `None` if the checkpoint does not name them.
        norm_before_residual: whether the normalized feature is what the layer adds to.
    """

    layer: DecoderConfig
    target_vocab: int
    target_hidden: int
    outputs: tuple[int, ...] | None
    norm_before_residual: bool = False

    @property
    def shape(self) -> Shape:
        """Dimensions for the cost model; the output projection is the head's own."""
        return replace(self.layer.shape, tied=False, features=self.features)

    @property
    def features(self) -> int:
        """Width of the concatenated target features."""
        return self.target_hidden * (OUTPUTS if self.outputs is None else len(self.outputs))

    @property
    def max_positions(self) -> int | None:
        """Position limit; `None` if unlimited."""
        return self.layer.max_positions

    def depths(self, layers: int) -> tuple[int, ...]:
        """Numbers of target layers after which hidden states are read: low, middle, high.

        Raises:
            InputError: the target does not have these layers.
        """
        outputs = self.outputs or (1, layers // 2 - 1, layers - 4)
        if not all(0 <= output < layers for output in outputs):
            raise InputError(
                f"an EAGLE-3 head reads the outputs of layers {list(outputs)}, and its target has {layers}; "
                f"eagle_config.{IDS} in its config.json names others"
            )
        return tuple(output + 1 for output in outputs)


def config_of(raw: Mapping[str, Any]) -> EagleConfig | None:
    """The configuration in a `config.json`, or `None` if the model is not an EAGLE-3 head.

    Raises:
        InputError: an unsupported head: more than one layer, biases, another activation, or an entry that is
            not read.
    """
    architectures = set(raw.get("architectures") or ()).intersection(ARCHITECTURES)
    if not architectures and raw.get("draft_vocab_size") is None:
        return None
    nested = raw.get("eagle_config") or {}
    if not isinstance(nested, Mapping):
        raise InputError(f"config.json has eagle_config={nested!r}; it must be a mapping")
    for name, value in (*raw.items(), *nested.items()):
        if value is not None and value not in ONLY.get(name, (value,)):
            raise InputError(
                f"an EAGLE-3 head with {name}={value!r} is not read here; only {ONLY[name][0]!r} is"
            )
    if unread := [name for name in nested if name not in (IDS, *ONLY) and nested[name] not in NOTHING]:
        raise InputError(
            f"an EAGLE-3 head with eagle_config.{unread[0]}={nested[unread[0]]!r} is not read here"
        )
    decoder = {name: value for name, value in raw.items() if name not in (*OURS, *ONLY, *HARMLESS)}
    layer = families.config_of({**decoder, "model_type": "llama"}, "an EAGLE-3 head")
    if layer.layers != 1 or layer.activation != "silu" or layer.qkv_bias or layer.mlp_bias:
        raise InputError(
            f"an EAGLE-3 head has one gated layer without biases; config.json says num_hidden_layers="
            f"{layer.layers}, hidden_act={layer.activation}, biases={layer.qkv_bias or layer.mlp_bias}"
        )
    if type(raw.get(BEFORE) or False) is not bool:
        raise InputError(f"config.json has {BEFORE}={raw[BEFORE]!r}; it must be true or false")
    return EagleConfig(
        layer=replace(layer, vocab=raw.get("draft_vocab_size") or layer.vocab),
        target_vocab=layer.vocab,
        target_hidden=raw.get("target_hidden_size") or layer.hidden,
        outputs=_outputs(raw.get(IDS), nested.get(IDS)),
        norm_before_residual=raw.get(BEFORE) or False,
    )


def _outputs(*named: Any) -> tuple[int, ...] | None:
    """The target layers that a head names in either of two places; InputError for other values."""
    lists = [ids for ids in named if ids]
    for ids in lists:
        if not isinstance(ids, list) or any(type(number) is not int for number in ids) or ids != lists[0]:
            raise InputError(f"config.json has {IDS}={ids!r}; it must be one list of layers, not {lists}")
    return tuple(lists[0]) if lists else None


@dataclass(frozen=True)
class EagleHead:
    """Operators of one head; hidden states are fp32 for every weight precision.

    Attributes:
        fuse: projects target features `[rows, features]` to the head's hidden size.
        targets: the target's id of each draft token, int64 `[draft vocab]`; `None` if the ids are equal.
        embedding: token embeddings, the head's or the target's, `[target vocab, hidden]`.
    """

    config: EagleConfig
    fuse: Linear
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    token_norm: RMSNorm
    feature_norm: RMSNorm
    mlp_norm: RMSNorm
    final_norm: RMSNorm
    output: Linear
    targets: Tensor | None
    embedding: Tensor
    frequency: Tensor

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.device

    def layer(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """Run the head's layer on tokens `[rows]` paired with fused features or guesses `[rows, hidden]`.

        The result `[rows, hidden]` is the head's guess at each token's feature. Positions and mask are as in
        `Decoder.layer`; keys and values are appended to the cache.
        """
        count_layers()
        c = self.config.layer
        normed = self.feature_norm(hidden)
        pair = torch.cat((self.token_norm(F.embedding(tokens, self.embedding)), normed), -1)
        heads = self.qkv(pair).float().view(len(tokens), -1, c.head_dim)
        cache.set_positions(0, positions)
        rotation = rotations(self.frequency, positions)
        heads.view(torch.complex64)[:, : c.heads + c.kv_heads].mul_(rotation)
        attention = attention_mask(c, 0, rotation, positions, mask, cache)
        keys, values = cache.append_joint(0, heads[:, c.heads :])
        x = (normed if self.config.norm_before_residual else hidden) + self.out(
            attend(c, heads[:, : c.heads], keys, values, attention)
        ).float()
        gate, up = self.up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate).mul_(up)).float()

    def logits(self, guesses: Tensor) -> Tensor:
        """Logits over the draft vocabulary, fp32 `[rows, draft vocab]`."""
        return self.output(self.final_norm(guesses)).float()


def load(
    folder: Path, config: EagleConfig, dtype: str, embedding: Tensor, device: torch.device | str = "cpu"
) -> EagleHead:
    """Load the head in a folder.

    Args:
        folder: `config.json` and `*.safetensors` with EAGLE-3's tensor names.
        config: the head's configuration.
        dtype: `float32` or `bfloat16`.
        embedding: the target's embedding, `[target vocab, hidden]`, used if the checkpoint has none.
        device: device of the weights.

    Raises:
        InputError: unsupported dtype; a tensor is missing or has the wrong shape or content.
    """
    if dtype not in DTYPES:
        raise InputError(
            f"an EAGLE-3 head computes in {' or '.join(DTYPES)}: {unknown('dtype', dtype, DTYPES)}"
        )
    stored = _Stored(folder, getattr(torch, dtype), torch.device(device))
    stored.require(config)
    c, width = config.layer, 2 * config.layer.hidden
    return EagleHead(
        config=config,
        fuse=stored.linear("fc", (c.hidden, config.features)),
        qkv=stored.qkv(c, width),
        out=stored.linear("midlayer.self_attn.o_proj", (c.hidden, c.heads * c.head_dim)),
        up=stored.up(c),
        down=stored.linear("midlayer.mlp.down_proj", (c.hidden, c.intermediate)),
        token_norm=stored.norm("midlayer.input_layernorm", c),
        feature_norm=stored.norm("midlayer.hidden_norm", c),
        mlp_norm=stored.norm("midlayer.post_attention_layernorm", c),
        final_norm=stored.norm("norm", c),
        output=stored.linear("lm_head", (c.vocab, c.hidden)),
        targets=stored.targets(config),
        embedding=stored.embedding(config, embedding),
        frequency=frequencies(c.rope, c.head_dim).to(device) if c.rope else torch.zeros(c.head_dim // 2),
    )


def require_tensors(folder: Path, config: EagleConfig) -> None:
    """InputError unless the folder has the head's tensors, in their shapes, and no others."""
    _Stored(folder, torch.float32, torch.device("cpu")).require(config)


class _Stored:
    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._tensors = StoredTensors(folder)
        self._prefix = self._tensors.prefix_of("midlayer.", PREFIXES)
        self._dtype, self._device = dtype, device

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor by name, stored with or without the checkpoint's common prefix."""
        return self._tensors.take(self._stored_name(name), shape).to(self._device)

    def require(self, config: EagleConfig) -> None:
        """See `require_tensors`."""
        c = config.layer
        heads, kv_heads = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (c.hidden, config.features),
            "midlayer.self_attn.q_proj.weight": (heads, 2 * c.hidden),
            **{f"midlayer.self_attn.{part}_proj.weight": (kv_heads, 2 * c.hidden) for part in "kv"},
            "midlayer.self_attn.o_proj.weight": (c.hidden, heads),
            **{f"midlayer.mlp.{part}_proj.weight": (c.intermediate, c.hidden) for part in ("gate", "up")},
            "midlayer.mlp.down_proj.weight": (c.hidden, c.intermediate),
            **{f"{norm}.weight": (c.hidden,) for norm in NORMS},
            "lm_head.weight": (c.vocab, c.hidden),
        }
        optional: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (config.target_vocab, c.hidden),
            "t2d": (config.target_vocab,),
        }
        (shapes if c.vocab != config.target_vocab else optional)["d2t"] = (c.vocab,)
        shapes |= {
            name: shape for name, shape in optional.items() if self._stored_name(name) in self._tensors
        }
        self._tensors.require({self._stored_name(name): shape for name, shape in shapes.items()}, UNUSED)

    def _stored_name(self, name: str) -> str:
        prefixed = self._prefix + name
        return prefixed if prefixed in self._tensors else name

    def linear(self, name: str, shape: tuple[int, ...]) -> Linear:
        return self._pack(self.take(f"{name}.weight", shape))

    def norm(self, name: str, c: DecoderConfig) -> RMSNorm:
        return RMSNorm.of(self.take(f"{name}.weight", (c.hidden,)).float(), c.norm_eps)

    def qkv(self, c: DecoderConfig, width: int) -> Linear:
        """The fused QKV weight, with RoPE pairs interleaved."""
        order, parts = interleave(c.rope, c.head_dim).to(self._device), []
        for part, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads)):
            weight = self.take(f"midlayer.self_attn.{part}_proj.weight", (heads * c.head_dim, width))
            if part != "v":
                weight = weight.view(heads, c.head_dim, width)[:, order].reshape(weight.shape)
            parts.append(weight)
        return self._pack(torch.cat(parts))

    def up(self, c: DecoderConfig) -> Linear:
        """The fused gate and up weight."""
        shape = (c.intermediate, c.hidden)
        names = ("gate", "up")
        return self._pack(torch.cat([self.take(f"midlayer.mlp.{n}_proj.weight", shape) for n in names]))

    def targets(self, config: EagleConfig) -> Tensor | None:
        """Target id of each draft id, from `d2t`, which stores target id minus draft id."""
        count, vocab = config.layer.vocab, config.target_vocab
        if count == vocab and self._stored_name("d2t") not in self._tensors:
            return None
        offsets = self._tensors.take_whole_numbers(self._stored_name("d2t"), (count,)).to(self._device)
        targets = torch.arange(count, device=self._device) + offsets
        ids = set(targets.tolist())
        if len(ids) < count or not ids <= set(range(vocab)):
            raise InputError(
                f"d2t must lead to {count} tokens of the target's {vocab}; it leads to {len(ids)} from "
                f"{min(ids)} to {max(ids)}"
            )
        name = self._stored_name("t2d")
        flags = self._tensors.take_whole_numbers(name, (vocab,)) if name in self._tensors else None
        if flags is not None and flags.nonzero().flatten().tolist() != sorted(ids):
            raise InputError(f"t2d and d2t in {self._tensors.folder} disagree on the head's tokens")
        return targets

    def embedding(self, config: EagleConfig, shared: Tensor) -> Tensor:
        """The checkpoint's embedding if present, else the target's (`shared`)."""
        shape = (config.target_vocab, config.layer.hidden)
        if self._stored_name("embed_tokens.weight") in self._tensors:
            return self.take("embed_tokens.weight", shape).to(self._dtype)
        if shared.shape != shape:
            raise InputError(
                f"{self._tensors.folder} needs an embedding of {shape[0]} x {shape[1]}, its target has "
                f"{shared.shape[0]} x {shared.shape[1]}"
            )
        return shared

    def _pack(self, weight: Tensor) -> Linear:
        return fastest_linear(PlainLinear(weight.to(self._dtype, copy=True)))
