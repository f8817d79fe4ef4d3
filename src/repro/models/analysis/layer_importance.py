"""Importance of a layer, its attention or its MLP: loss without it, or cosine between input and output.

Owns these measures. Must not know what is done with unimportant layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.layer_dropping import partial_decoder, without_attention, without_mlp
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder

Corpus = Sequence[Tensor]
"""Token sequences, int64 `[tokens]` each."""
Turn = tuple[Tensor, Tensor]
"""Hidden states before and after a layer or half, `[rows, hidden]` each."""


@torch.no_grad()
def losses_without(decoder: Decoder, corpus: Corpus) -> list[float]:
    """Mean next-token loss of a corpus in nats, without each layer in turn (ElastiLM 3.2).

    After one full pass, each layer is skipped by running the layers above it on its input.

    Raises:
        InputError: the corpus is empty, or a sequence has fewer than two tokens.
    """
    count, layers = _count_predicted(corpus), range(decoder.config.layers)
    sums = [0.0 for _ in layers]
    for tokens in corpus:
        for i, x in enumerate(rows_by_layer(decoder, tokens)[:-1]):
            sums[i] += _nats(decoder, through(decoder, layers[i + 1 :], x)[-1], tokens)
    return [total / count for total in sums]


@torch.no_grad()
def loss(decoder: Decoder, corpus: Corpus) -> float:
    """Mean next-token loss of a corpus in nats; raises as `losses_without`."""
    count = _count_predicted(corpus)
    return sum(_nats(decoder, decoder.hidden_rows(tokens), tokens) for tokens in corpus) / count


@torch.no_grad()
def block_influences(decoder: Decoder, corpus: Corpus) -> list[float]:
    """1 minus the mean cosine of a token's hidden state before and after each layer (ShortGPT's BI)."""
    cosines = _mean_cosines(list(pairwise(rows_by_layer(decoder, tokens))) for tokens in corpus)
    return [1.0 - cosine for cosine in cosines]


@torch.no_grad()
def half_similarities(decoder: Decoder, corpus: Corpus) -> tuple[list[float], list[float]]:
    """Mean cosines of a token's hidden state before and after each layer's attention, and each layer's MLP.

    The state after a half includes the residual (LLM-Drop); parallel halves start from the same state.
    """
    cosines = _mean_cosines(_halves(decoder, tokens) for tokens in corpus)
    return cosines[::2], cosines[1::2]


@torch.no_grad()
def rows_by_layer(decoder: Decoder, tokens: Tensor) -> list[Tensor]:
    """Hidden states before the first layer and after each one, `layers + 1` times fp32 `[tokens, hidden]`."""
    x = decoder.embed(tokens, torch.arange(len(tokens)))
    return through(decoder, range(decoder.config.layers), x)


@torch.no_grad()
def through(decoder: Decoder, layers: Iterable[int], x: Tensor) -> list[Tensor]:
    """Hidden states of a whole sequence: `x`, fp32 `[tokens, hidden]`, and one after each of some layers."""
    cache = KVCache(decoder.config, len(x))
    return [x, *decoder.states(x, torch.arange(len(x)), None, cache, layers)]


def _halves(decoder: Decoder, tokens: Tensor) -> list[Turn]:
    """Hidden states before and after attention, then MLP, of each layer."""
    layers = decoder.resident_layers()
    attention = partial_decoder(decoder, [without_mlp(layer) for layer in layers])
    mlp = partial_decoder(decoder, [without_attention(layer) for layer in layers])
    turns: list[Turn] = []
    for i, x in enumerate(rows_by_layer(decoder, tokens)[:-1]):
        mixed = through(attention, [i], x)[-1]
        start = x if decoder.config.block == "parallel" else mixed
        turns += [(x, mixed), (start, through(mlp, [i], start)[-1])]
    return turns


def _mean_cosines(sequences: Iterable[Sequence[Turn]]) -> list[float]:
    """Mean cosine of each before-after pair over all tokens of all sequences."""
    cosines = [[F.cosine_similarity(x, y, dim=-1) for x, y in turns] for turns in sequences]
    if not cosines:
        raise InputError("layers are ranked on a corpus of no sequence; set corpus.texts to at least 1")
    return [float(torch.cat(layer_cosines).double().mean()) for layer_cosines in zip(*cosines, strict=True)]


def _count_predicted(corpus: Corpus) -> int:
    """Number of predicted tokens of a corpus."""
    if not corpus or min(map(len, corpus)) < 2:
        raise InputError("a loss needs sequences of at least two tokens; raise corpus.texts or corpus.tokens")
    return sum(len(tokens) - 1 for tokens in corpus)


def _nats(decoder: Decoder, hidden: Tensor, tokens: Tensor) -> float:
    """Summed next-token loss of a sequence, from its hidden states after the last layer."""
    return float(F.cross_entropy(decoder.head(hidden[:-1]), tokens[1:], reduction="sum"))
