"""Encoder-decoder models (T5, mT5, BART) through `transformers`, behind the same `Network` as decoders.

Owns their configuration, the encoder's output, and the mini-batch of tree branches that verifies several
positions in one pass (EdgeLLM sec. III-B). Must not know about devices, costs or methods.

A sequence is prompt plus answer, as for decoders. The encoder reads the prompt, the full prompt maps to
decoder position 0 (the start token), and answer tokens map to the positions after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import Tensor, torch
from repro.models.checkpoints.weight_files import require_plain
from repro.models.costs.model_cost import EncoderShape, Shape
from repro.models.forward.logit_cache import row_key
from repro.models.forward.network import Logits, Step
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights
from repro.records.provenance import count_layers

DTYPES = ("float32", "bfloat16")
LOOK_AHEAD = 2048
"""Positions of a decoder that drafts may reach past the last learned one, whose entry they read: nothing is
emitted behind it."""


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Configuration of one encoder-decoder.

    Attributes:
        shape: dimensions for the cost model.
        start: the decoder's start token.
        max_positions: position limit of encoder and decoder each; `None` if unlimited.
    """

    shape: Shape
    start: int
    max_positions: int | None


def config_of(config: Mapping[str, Any]) -> EncoderDecoderConfig | None:
    """The configuration in a `config.json`, or `None` if the model is not an encoder-decoder.

    Raises:
        InputError: unknown `model_type`, or a missing key.
    """
    if not config.get("is_encoder_decoder"):
        return None
    kind = str(config.get("model_type"))
    require_plain(config)
    if kind not in FAMILIES:
        raise InputError(unknown("encoder-decoder's model_type in config.json", kind, FAMILIES))
    try:
        return FAMILIES[kind](config)
    except KeyError as missing:
        raise InputError(f"config.json of {kind} lacks {missing}") from missing


def _t5(config: Mapping[str, Any]) -> EncoderDecoderConfig:
    shape = Shape(
        layers=config.get("num_decoder_layers") or config["num_layers"],
        hidden=config["d_model"],
        heads=config["num_heads"],
        kv_heads=config["num_heads"],
        head_dim=config["d_kv"],
        intermediate=config["d_ff"],
        vocab=config["vocab_size"],
        gated=str(config.get("feed_forward_proj", "relu")).startswith("gated"),
        tied=config.get("tie_word_embeddings", True),
        encoder=EncoderShape(config["num_layers"], config["d_ff"]),
    )
    return EncoderDecoderConfig(shape, config["decoder_start_token_id"], None)


def _bart(config: Mapping[str, Any]) -> EncoderDecoderConfig:
    heads = config["decoder_attention_heads"]
    shape = Shape(
        layers=config["decoder_layers"],
        hidden=config["d_model"],
        heads=heads,
        kv_heads=heads,
        head_dim=config["d_model"] // heads,
        intermediate=config["decoder_ffn_dim"],
        vocab=config["vocab_size"],
        gated=False,
        tied=config.get("tie_word_embeddings", True),
        encoder=EncoderShape(config["encoder_layers"], config["encoder_ffn_dim"]),
    )
    return EncoderDecoderConfig(shape, config["decoder_start_token_id"], config["max_position_embeddings"])


FAMILIES: dict[str, Callable[[Mapping[str, Any]], EncoderDecoderConfig]] = {
    "t5": _t5,
    "mt5": _t5,
    "bart": _bart,
}


class EncoderDecoder:
    """The weights of encoder and decoder.

    Attributes:
        config: their configuration.
        token_count: number of ids that logits are of; later rows of the output projection are padding.
    """

    def __init__(self, config: EncoderDecoderConfig, model: Any, token_count: int | None = None) -> None:
        """`model` is a `transformers` model for conditional generation, in evaluation mode."""
        self.config, self.tokens = config, token_count
        self._model = model

    @inference
    def encode(self, tokens: Sequence[int]) -> Tensor:
        """The encoder's output for a prompt, `[1, tokens, hidden]`."""
        encoder = self.config.shape.encoder
        count_layers(encoder.layers if encoder else 0)
        rows: Tensor = self._model.get_encoder()(input_ids=self._tensor([tokens])).last_hidden_state
        return rows

    def cache(self) -> Any:
        """An empty KV cache for self-attention and cross-attention."""
        from transformers import DynamicCache, EncoderDecoderCache

        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    @inference
    def decode(self, sequences: Sequence[Sequence[int]], encoder_states: Tensor, cache: Any) -> Tensor:
        """Logits `[batch, tokens, vocab]` of equally long continuations of a cache; appends to the cache."""
        count_layers(self.config.shape.layers)
        outputs = self._model(
            decoder_input_ids=self._tensor(sequences),
            encoder_outputs=(encoder_states.expand(len(sequences), -1, -1),),
            past_key_values=cache,
            use_cache=True,
        )
        logits: Tensor = outputs.logits[..., : self.tokens]
        return logits

    def _tensor(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([list(tokens) for tokens in sequences], device=self._model.device)


def load(
    folder: Path,
    config: EncoderDecoderConfig,
    dtype: str,
    device: torch.device | str = "cpu",
    token_count: int | None = None,
) -> EncoderDecoder:
    """Load the weights of a checkpoint folder; `token_count` as in `EncoderDecoder`.

    Raises:
        InputError: the dtype is not one of `DTYPES`; a tensor is missing, or one is not read.
    """
    from transformers import AutoModelForSeq2SeqLM  # late: takes seconds to import

    if dtype not in DTYPES:
        raise InputError(unknown("dtype of an encoder-decoder", dtype, DTYPES))
    model, info = AutoModelForSeq2SeqLM.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    for names, verb in ((info["missing_keys"], "lacks"), (info["unexpected_keys"], "has, unread,")):
        if names:
            raise InputError(f"{folder} {verb} {len(names)} tensors of its model: {sorted(names)[0]} first")
    if config.max_positions is not None:
        table = model.get_decoder().embed_positions
        later_positions = table.weight.detach()[-1:].expand(LOOK_AHEAD, -1)
        table.weight = torch.nn.Parameter(torch.cat((table.weight.detach(), later_positions)))
    return EncoderDecoder(config, model.to(device).eval(), token_count)


class EncoderDecoderNetwork:
    """An encoder-decoder with its prompt and the KV cache of one sequence (`_line`).

    Several wanted sequences run as a right-padded mini-batch of branches after their common prefix. The
    prefix's keys and values are computed once and copied for each branch. `transformers` runs all layers in
    one call, so a step computes everything in `rows` and nothing in `layers`; a timeline on real hardware
    shows the whole pass as the head.

    Deviation: a checkpoint's settings for `generate` (forced first tokens, banned n-grams, beams) are
    ignored; logits are the decoder's own.
    """

    depth = 0

    def __init__(self, weights: EncoderDecoder) -> None:
        self.weights = weights
        self._prompt: list[int] = []
        self._forget()

    def start(self, prompt: Prefix) -> None:
        """Start a request: clear all state and set the encoder's input to the prompt."""
        self._prompt = prompt.tokens()
        self._forget()

    def key(self, prefix: Prefix) -> bytes:
        """What a row is stored under: it depends on which tokens are the encoder's."""
        return row_key(prefix.digest, len(self._prompt))

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> _Pass:
        """A pass over the wanted sequences, one batch entry per branch (default: the fewest that cover them).

        Raises:
            RuntimeError: `start` was not called with a prompt, or a wanted sequence is shorter than it.
        """
        if not self._prompt or any(prefix.length < len(self._prompt) for prefix in prefixes):
            raise RuntimeError("an encoder-decoder is told its prompt first, and asked for nothing shorter")
        return _Pass(self, list(prefixes), list(branches) or _ends(prefixes))

    def keep(self, text: Prefix) -> None:
        """Crop the cache to its common prefix with `text`, unless the cached sequence extends `text`."""
        if not self._line.starts_with(text):
            self._crop(_fork(self._line, text))

    def rows(self, prefixes: list[Prefix], ends: list[Prefix]) -> list[Logits]:
        """Logits after each wanted sequence, from a mini-batch of the branches `ends`."""
        most_common = min(prefix.length for prefix in prefixes) - 1
        common_length = min(most_common, *(_fork(ends[0], end) for end in ends))
        self._crop(min(common_length, _fork(self._line, ends[0])))
        if len(ends) == 1:
            skipped_positions = self._inputs(self._line)
            logits = self._extend(ends[0])
        else:
            self._extend(ends[0].up_to(common_length))
            skipped_positions = self._inputs(self._line)
            logits = self._branches(ends)
        branch = [next(i for i, end in enumerate(ends) if end.starts_with(prefix)) for prefix in prefixes]
        position = [self._inputs(prefix) - 1 - skipped_positions for prefix in prefixes]
        return [Logits(row) for row in logits[branch, position].float()]

    def _forget(self) -> None:
        self._encoded: Tensor | None = None
        self._cache = self.weights.cache()
        self._line = Prefix.empty()

    def _inputs(self, prefix: Prefix) -> int:
        """Decoder tokens of a sequence, including the start token."""
        return max(0, prefix.length - len(self._prompt) + 1)

    def _tokens(self, end: Prefix) -> list[int]:
        """Decoder tokens of a sequence that are not in the cache yet."""
        inputs = [self.weights.config.start, *end.tokens(start=len(self._prompt))]
        return inputs[self._inputs(self._line) : self._inputs(end)]

    def _crop(self, length: int) -> None:
        """Cut the cached sequence to at most `length` tokens."""
        if length < self._line.length:
            shorter = self._line.up_to(length)
            if self._inputs(shorter):
                self._cache.crop(self._inputs(shorter) - self._inputs(self._line))
            else:
                self._cache = self.weights.cache()
            self._line = shorter

    def _extend(self, end: Prefix) -> Tensor:
        """Extend the cached sequence to `end`; logits `[1, tokens, vocab]` of the new tokens."""
        tokens = self._tokens(end)
        logits = self._decode([tokens], self._cache) if tokens else torch.empty(0)
        self._line = end
        return logits

    def _branches(self, ends: list[Prefix]) -> Tensor:
        """Logits `[branches, longest, vocab]` after the cached sequence, from a copy of the cache."""
        branches = [self._tokens(end) for end in ends]
        length = max(map(len, branches))
        # Right padding is safe: attention is causal, and logits at padded positions are not read.
        batch = [tokens + [self.weights.config.start] * (length - len(tokens)) for tokens in branches]
        cache = deepcopy(self._cache)
        cache.batch_repeat_interleave(len(ends))
        return self._decode(batch, cache)

    def _decode(self, sequences: list[list[int]], cache: Any) -> Tensor:
        if self._encoded is None:
            self._encoded = self.weights.encode(self._prompt)
        return self.weights.decode(sequences, self._encoded, cache)


class _Pass(Step):
    def __init__(
        self, network: EncoderDecoderNetwork, prefixes: list[Prefix], branches: list[Prefix]
    ) -> None:
        self._network, self._prefixes, self._branches = network, prefixes, branches

    def layers(self, start: int, end: int, weights: Sequence[LayerWeights] | None = None) -> None:
        """Nothing: `rows` runs all layers."""

    def rows(self, indices: Sequence[int] | None = None) -> list[Logits]:
        rows = self._network.rows(self._prefixes, self._branches)
        return rows if indices is None else [rows[i] for i in indices]


def _ends(prefixes: Sequence[Prefix]) -> list[Prefix]:
    """The wanted sequences that are not a prefix of another wanted one."""
    inner_prefixes: set[Prefix] = set()
    for prefix in prefixes:
        node = prefix.parent
        while node is not None and node not in inner_prefixes:
            inner_prefixes.add(node)
            node = node.parent
    return [prefix for prefix in dict.fromkeys(prefixes) if prefix not in inner_prefixes]


def _fork(prefix: Prefix, other_prefix: Prefix) -> int:
    """Length of the longest common prefix of two sequences."""
    length = min(prefix.length, other_prefix.length)
    node: Prefix | None = prefix.up_to(length)
    other_node: Prefix | None = other_prefix.up_to(length)
    while node is not other_node:
        node, other_node = node and node.parent, other_node and other_node.parent
    return node.length if node else 0
