"""An EAGLE-3 head: configuration, weights in the public checkpoint format, operators, and its passes.

The format is that of `SafeAILab/EAGLE`, SpecForge and AngelSlim: one decoder layer whose attention reads a
token's embedding concatenated with a feature of the target, and an output projection over a separate draft
vocabulary. Must not know about devices, costs, token trees or where features come from.

The head's input for a sequence is its last token paired with the target's feature at the token before, at
that feature's position: the first pair, of the second token, is at position 0. Where the target has not
computed the feature, the head's output (a guess) replaces it (`HeadLineage`). Such pairs are recomputed once
the target's features exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import F, Tensor, torch
from repro.models.checkpoints.safetensors_io import StoredTensors
from repro.models.checkpoints.weight_files import EMPTY_VALUES
from repro.models.costs.model_cost import Shape
from repro.models.forward.logit_cache import row_key
from repro.models.forward.network import RANK_COUNT, Features, Logits, Step
from repro.models.tokens.kv_slots import HeadLineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import families
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, fastest_linear
from repro.models.transformer.norm import RMSNorm
from repro.models.transformer.rope import interleave
from repro.records.provenance import count_layers

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Names in SpecForge and AngelSlim; EAGLE's own heads say `LlamaForCausalLM`, but have `draft_vocab_size`."""

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
NORM_KEY = "norm_before_residual"
OUR_KEYS = ("draft_vocab_size", "target_hidden_size", "eagle_config", IDS_KEY, NORM_KEY)
"""Entries of a head's `config.json` beside those of its layer."""

SUPPORTED_VALUES: Mapping[str, tuple[Any, ...]] = {
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

HARMLESS_KEYS = ("max_window_layers", "modal_type", "target_model_type")
"""Entries that change nothing of a head: it has one layer, and no window unless another entry says so."""

DTYPES = ("float32", "bfloat16")
PREFIXES = ("", "model.")
NORM_TENSORS = (
    "midlayer.input_layernorm",
    "midlayer.hidden_norm",
    "midlayer.post_attention_layernorm",
    "norm",
)
UNUSED_TENSOR = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
"""Tensors that say nothing of their own: RoPE's frequencies follow from `config.json`."""
OUTPUT_COUNT = 3


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
        return self.target_hidden * (OUTPUT_COUNT if self.outputs is None else len(self.outputs))

    @property
    def max_positions(self) -> int | None:
        """Position limit; `None` if unlimited."""
        return self.layer.max_positions

    def depths(self, layer_count: int) -> tuple[int, ...]:
        """Numbers of target layers after which hidden states are read: low, middle, high.

        Raises:
            InputError: the target does not have these layers.
        """
        outputs = self.outputs or (1, layer_count // 2 - 1, layer_count - 4)
        if not all(0 <= output < layer_count for output in outputs):
            raise InputError(
                f"an EAGLE-3 head reads the outputs of layers {list(outputs)}, and its target has "
                f"{layer_count}; eagle_config.{IDS_KEY} in its config.json names others"
            )
        return tuple(output + 1 for output in outputs)


def config_of(config_json: Mapping[str, Any]) -> EagleConfig | None:
    """The configuration in a `config.json`, or `None` if the model is not an EAGLE-3 head.

    Raises:
        InputError: an unsupported head: more than one layer, biases, another activation, or an entry that is
            not read.
    """
    architectures = set(config_json.get("architectures") or ()).intersection(ARCHITECTURES)
    if not architectures and config_json.get("draft_vocab_size") is None:
        return None
    nested = config_json.get("eagle_config") or {}
    if not isinstance(nested, Mapping):
        raise InputError(f"config.json has eagle_config={nested!r}; it must be a mapping")
    for name, value in (*config_json.items(), *nested.items()):
        if value is not None and value not in SUPPORTED_VALUES.get(name, (value,)):
            raise InputError(
                f"an EAGLE-3 head with {name}={value!r} is not read here; only "
                f"{SUPPORTED_VALUES[name][0]!r} is"
            )
    if unread_names := [
        name
        for name in nested
        if name not in (IDS_KEY, *SUPPORTED_VALUES) and nested[name] not in EMPTY_VALUES
    ]:
        raise InputError(
            f"an EAGLE-3 head with eagle_config.{unread_names[0]}={nested[unread_names[0]]!r} is not read "
            "here"
        )
    decoder = {
        name: value
        for name, value in config_json.items()
        if name not in (*OUR_KEYS, *SUPPORTED_VALUES, *HARMLESS_KEYS)
    }
    layer = families.config_of({**decoder, "model_type": "llama"}, "an EAGLE-3 head")
    if layer.layers != 1 or layer.activation != "silu" or layer.qkv_bias or layer.mlp_bias:
        raise InputError(
            f"an EAGLE-3 head has one gated layer without biases; config.json says num_hidden_layers="
            f"{layer.layers}, hidden_act={layer.activation}, biases={layer.qkv_bias or layer.mlp_bias}"
        )
    if type(config_json.get(NORM_KEY) or False) is not bool:
        raise InputError(f"config.json has {NORM_KEY}={config_json[NORM_KEY]!r}; it must be true or false")
    return EagleConfig(
        layer=replace(layer, vocab=config_json.get("draft_vocab_size") or layer.vocab),
        target_vocab=layer.vocab,
        target_hidden=config_json.get("target_hidden_size") or layer.hidden,
        outputs=_outputs(config_json.get(IDS_KEY), nested.get(IDS_KEY)),
        norm_before_residual=config_json.get(NORM_KEY) or False,
    )


def _outputs(*entries: Any) -> tuple[int, ...] | None:
    """The target layers that a head names in either of two places; InputError for other values."""
    lists = [ids for ids in entries if ids]
    for ids in lists:
        if not isinstance(ids, list) or any(type(layer) is not int for layer in ids) or ids != lists[0]:
            raise InputError(f"config.json has {IDS_KEY}={ids!r}; it must be one list of layers, not {lists}")
    return tuple(lists[0]) if lists else None


class PairDecoder(Decoder):
    """The one layer of a head, whose attention reads pairs, `[rows, 2 * hidden]`."""

    def read_pairs(
        self, x: Tensor, pairs: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """Add the layer's attention over pairs and its MLP to `x`; all else is as in `Decoder.layer`."""
        count_layers()
        (w,) = self.resident_layers()
        assert w.before_mlp is not None
        x = x + self._attention(0, pairs, w, self._shared_mask(0, positions, mask, cache), cache).float()
        return x + self._mlp(w.before_mlp(x), w).float()


@dataclass(frozen=True)
class EagleHead:
    """Operators of one head; hidden states are fp32 for every weight precision.

    Attributes:
        decoder: its layer, final norm and output projection over the draft vocabulary; the embedding is the
            head's or the target's, `[target vocab, hidden]`.
        fuse: projects target features `[rows, features]` to the head's hidden size.
        targets: the target's id of each draft token, int64 `[draft vocab]`; `None` if the ids are equal.
    """

    config: EagleConfig
    decoder: PairDecoder
    fuse: Linear
    token_norm: RMSNorm
    feature_norm: RMSNorm
    targets: Tensor | None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.decoder.device

    def layer(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """Run the head's layer on tokens `[rows]` paired with fused features or guesses `[rows, hidden]`.

        The result `[rows, hidden]` is the head's guess at each token's feature. Positions and mask are as in
        `Decoder.layer`; keys and values are appended to the cache.
        """
        normed = self.feature_norm(hidden)
        embedded = self.token_norm(F.embedding(tokens, self.decoder.ends.embedding))
        x = normed if self.config.norm_before_residual else hidden
        return self.decoder.read_pairs(x, torch.cat((embedded, normed), -1), positions, mask, cache)


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
    stored_tensors = _Stored(folder, getattr(torch, dtype), torch.device(device))
    stored_tensors.require(config)
    c, width = config.layer, 2 * config.layer.hidden
    layer = LayerWeights(
        qkv=stored_tensors.qkv(c, width),
        out=stored_tensors.linear("midlayer.self_attn.o_proj", (c.hidden, c.heads * c.head_dim)),
        up=stored_tensors.up(c),
        down=stored_tensors.linear("midlayer.mlp.down_proj", (c.hidden, c.intermediate)),
        before_mlp=stored_tensors.norm("midlayer.post_attention_layernorm", c),
    )
    output = stored_tensors.linear("lm_head", (c.vocab, c.hidden))
    ends = EmbeddingAndHead(
        stored_tensors.embedding(config, embedding), output, stored_tensors.norm("norm", c)
    )
    return EagleHead(
        config=config,
        decoder=PairDecoder(c, [layer], ends),
        fuse=stored_tensors.linear("fc", (c.hidden, config.features)),
        token_norm=stored_tensors.norm("midlayer.input_layernorm", c),
        feature_norm=stored_tensors.norm("midlayer.hidden_norm", c),
        targets=stored_tensors.targets(config),
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
            **{f"{norm}.weight": (c.hidden,) for norm in NORM_TENSORS},
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
        self._tensors.require(
            {self._stored_name(name): shape for name, shape in shapes.items()}, UNUSED_TENSOR
        )

    def _stored_name(self, name: str) -> str:
        prefixed = self._prefix + name
        return prefixed if prefixed in self._tensors else name

    def linear(self, name: str, shape: tuple[int, ...]) -> Linear:
        return self._pack(self.take(f"{name}.weight", shape))

    def norm(self, name: str, c: DecoderConfig) -> RMSNorm:
        return RMSNorm.of(self.take(f"{name}.weight", (c.hidden,)).float(), c.norm_eps)

    def qkv(self, c: DecoderConfig, width: int) -> Linear:
        """The fused QKV weight, with RoPE pairs interleaved."""
        order, weights = interleave(c.rope, c.head_dim).to(self._device), []
        for part, head_count in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads)):
            weight = self.take(f"midlayer.self_attn.{part}_proj.weight", (head_count * c.head_dim, width))
            if part != "v":
                weight = weight.view(head_count, c.head_dim, width)[:, order].reshape(weight.shape)
            weights.append(weight)
        return self._pack(torch.cat(weights))

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

    def embedding(self, config: EagleConfig, shared_embedding: Tensor) -> Tensor:
        """The checkpoint's embedding if present, else the target's (`shared_embedding`)."""
        shape = (config.target_vocab, config.layer.hidden)
        if self._stored_name("embed_tokens.weight") in self._tensors:
            return self.take("embed_tokens.weight", shape).to(self._dtype)
        if shared_embedding.shape != shape:
            raise InputError(
                f"{self._tensors.folder} needs an embedding of {shape[0]} x {shape[1]}, its target has "
                f"{shared_embedding.shape[0]} x {shared_embedding.shape[1]}"
            )
        return shared_embedding

    def _pack(self, weight: Tensor) -> Linear:
        return fastest_linear(PlainLinear(weight.to(self._dtype, copy=True)))


class DraftRow(Logits):
    """Logits over a head's reduced vocabulary, with tokens mapped to the target's ids."""

    def __init__(self, draft_logits: Tensor, targets: Tensor, vocab: int) -> None:
        """From logits `[draft vocab]`, the target's id of each token, and the target's vocabulary size."""
        super().__init__(None)
        self._draft_logits, self._targets, self._vocab = draft_logits, targets, vocab

    @property
    def logits(self) -> Tensor:
        """All logits `[target vocab]`, fp32; -inf for tokens outside the head's vocabulary."""
        logits = self._draft_logits.new_full((self._vocab,), -torch.inf)
        logits[self._targets] = self._draft_logits
        return logits

    def top_ranks(self) -> tuple[list[int], list[float]]:
        """See `Logits`; at most the head's vocabulary."""
        if self._ranked is None:
            best_ranks = self._draft_logits.topk(min(RANK_COUNT, len(self._draft_logits)))
            logps = best_ranks.values - self._draft_logits.logsumexp(dim=-1)
            self._ranked = self._targets[best_ranks.indices].tolist(), logps.tolist()
        return self._ranked


class EagleNetwork:
    """A head with its KV cache and its guesses at features; see `Network`."""

    depth = 1

    def __init__(
        self,
        config: EagleConfig,
        load: Callable[[], EagleHead],
        features: Features,
        device: torch.device | str = "cpu",
        capacity: int = 512,
    ) -> None:
        """`load` returns the weights on `device` and is called on first use; `capacity` as in
        `DecoderNetwork`."""
        self._load = load
        self.features = features
        self.lineage = HeadLineage(0)
        self.guesses: dict[Prefix, Tensor] = {}
        self._cache = partial(KVCache, config.layer, capacity, device=device)

    @cached_property
    def cache(self) -> KVCache:
        """The key-value cache, made for the first pass."""
        return self._cache()

    @cached_property
    def head(self) -> EagleHead:
        """The weights."""
        return self._load()

    def start(self, prompt: Prefix) -> None:
        """See `Network`; the target prefills the prompt before its head drafts."""
        self.lineage = HeadLineage(prompt.length)
        self.guesses.clear()
        self.features.start()

    def key(self, prefix: Prefix) -> bytes:
        """What a row is stored under: it depends on how many tokens have features of the target."""
        return row_key(prefix.digest, self.lineage.boundary)

    def begin(self, wanted_prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`; the levels of a tree are computed one after the other within the pass."""
        return _EagleStep(self, wanted_prefixes)

    def keep(self, text: Prefix) -> None:
        """Keep only the prefixes of `text` whose slots were computed from the target's features."""
        slots = self.lineage.keep(text)
        if "cache" in vars(self):  # a pass was computed
            inference(self.cache.keep)(*slots)
        self.guesses = {
            prefix: guess
            for prefix, guess in self.guesses.items()
            if prefix.length > self.lineage.boundary and prefix in self.lineage
        }
        self.features.keep(text)


class _EagleStep(Step):
    def __init__(self, network: EagleNetwork, prefixes: Sequence[Prefix]) -> None:
        self._network, self._prefixes = network, list(prefixes)
        self._waves = network.lineage.waves(prefixes)
        computed_prefixes = {prefix for wave in self._waves for prefix in wave}
        if not all(prefix in computed_prefixes or prefix in network.guesses for prefix in prefixes):
            raise RuntimeError("a sequence was asked for that has no pair, or whose pass is forgotten")
        network.cache.truncate(network.lineage.length)  # drop slots of an unfinished pass

    @inference
    def layers(self, start: int, end: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "a head stays in memory"
        for wave in self._waves if start < end else ():
            self._compute(wave)

    def _compute(self, wave: Sequence[Prefix]) -> None:
        network, head, lineage = self._network, self._network.head, self._network.lineage
        grounded = [prefix for prefix in wave if lineage.is_grounded(prefix)]
        inputs = dict(network.guesses)
        if grounded:
            parents = [prefix.parent for prefix in grounded if prefix.parent is not None]
            features = network.features.of(parents).to(head.device)
            inputs.update(zip(parents, head.fuse(features).float().unbind(), strict=True))
        hidden = torch.stack([inputs[prefix.parent] for prefix in wave if prefix.parent is not None])
        mask = lineage.mask(wave)
        guesses = head.layer(
            torch.tensor([prefix.token for prefix in wave], device=head.device),
            hidden,
            torch.tensor([prefix.length - 2 for prefix in wave], device=head.device),
            mask if mask is None else mask.to(head.device),
            network.cache,
        )
        lineage.add(wave)
        network.guesses.update(zip(wave, guesses.unbind(), strict=True))

    @inference
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        prefixes = self._prefixes if at is None else [self._prefixes[i] for i in at]
        head = self._network.head
        logits = head.decoder.head(torch.stack([self._network.guesses[prefix] for prefix in prefixes]))
        if head.targets is None:
            return [Logits(row) for row in logits]
        return [DraftRow(row, head.targets, head.config.target_vocab) for row in logits]
