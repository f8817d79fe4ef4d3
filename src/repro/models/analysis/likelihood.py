"""Log-likelihoods of continuations, all choices of a dataset row in one forward pass.

Owns the pass that branches where choices diverge, and the KV cache of their shared prefix. Must not know
datasets or how likelihoods are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.forward.network import require_finite
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder

Tokens = Sequence[int]
Candidate = tuple[int, int]
"""An index into a pass's hidden states, and a candidate next token."""

MOST_LOGITS = 1 << 24
"""Logits computed at a time: 64 MB in fp32, for any vocabulary size."""


class Likelihood(NamedTuple):
    """Score of a continuation.

    `nats` is its total log-likelihood; `greedy` is whether every token is the argmax, `last` whether the last
    one is, after the true ones before it.
    """

    nats: float
    greedy: bool
    last: bool = False


class Reader:
    """Scores continuations with a decoder and caches the last shared prefix."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._cache = KVCache(decoder.config, 1, device=decoder.device)
        self._trunk: tuple[int, ...] = ()

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[Likelihood]:
        """Score continuations, each after its context, in one pass over what is not cached.

        The common prefix of all pairs (the trunk) is computed once and stays cached, so scoring rows in token
        order reuses prefixes. After it each pair is a branch that sees the trunk and itself. Equal pairs have
        equal scores, those of the first, which rounding would tell apart by where their branches stand.

        Args:
            pairs: context and continuation, token ids.

        Raises:
            InputError: a context or a continuation is empty.
            NotFiniteError: a logit is NaN or infinite.
        """
        if not all(context and continuation for context, continuation in pairs):
            raise InputError("a context or a continuation has no token; both need at least one")
        # A continuation's last token is only predicted.
        texts = [(*context, *continuation)[:-1] for context, continuation in pairs]
        starts = [len(context) - 1 for context, _ in pairs]
        trunk = texts[0][: common(texts)]
        # Positions whose logits are needed must run, even if cached.
        base_length = min(common([self._trunk, trunk]), *starts)
        hidden = self._read(trunk, base_length, [text[len(trunk) :] for text in texts])
        self._trunk = trunk
        rows = _rows(texts, starts, len(trunk), base_length)
        choices = [
            list(zip(row_indices, continuation, strict=True))
            for row_indices, (_, continuation) in zip(rows, pairs, strict=True)
        ]
        # All choices' first tokens share one position, which goes through the head once.
        likelihoods = self._likelihoods(hidden, set(chain.from_iterable(choices)))
        scores: dict[tuple[tuple[int, ...], tuple[int, ...]], Likelihood] = {}
        for (context, continuation), tokens in zip(pairs, choices, strict=True):
            score = _sum_tokens([likelihoods[token] for token in tokens])
            scores.setdefault((tuple(context), tuple(continuation)), score)
        return [scores[tuple(context), tuple(continuation)] for context, continuation in pairs]

    def _read(self, trunk: Tokens, base_length: int, branches: Sequence[Tokens]) -> Tensor:
        """Hidden states of the trunk behind `base_length`, then of the branches; the trunk stays cached."""
        decoder, device = self._decoder, self._decoder.device
        self._cache.truncate(base_length)
        tokens = [*trunk[base_length:], *(token for branch in branches for token in branch)]
        positions = [*range(base_length, len(trunk))]
        for branch in branches:
            positions += range(len(trunk), len(trunk) + len(branch))
        mask = _mask(base_length, len(trunk), [len(branch) for branch in branches])
        position_ids = torch.tensor(positions, device=device)
        x = decoder.embed(torch.tensor(tokens, device=device), position_ids)
        mask = None if mask is None else mask.to(device)
        x = decoder.run(x, position_ids, mask, self._cache)
        self._cache.truncate(len(trunk))
        return x

    def _likelihoods(self, hidden: Tensor, candidates: Collection[Candidate]) -> dict[Candidate, Likelihood]:
        """Likelihood of each candidate token, given `hidden` `[rows, hidden]`."""
        likelihoods: dict[Candidate, Likelihood] = {}
        rows = sorted({row for row, _ in candidates})
        step = max(1, MOST_LOGITS // self._decoder.config.vocab)
        for offset in range(0, len(rows), step):
            index = {row: i for i, row in enumerate(rows[offset : offset + step])}
            logits = self._decoder.head(hidden[list(index)])
            sums, tops = logits.logsumexp(-1), logits.argmax(-1)
            require_finite(float(sums.max()))
            pairs = [(row, token) for row, token in candidates if row in index]
            row_indices = torch.tensor([index[row] for row, _ in pairs], device=logits.device)
            token = torch.tensor([token for _, token in pairs], device=logits.device)
            nats, greedy = (
                (logits[row_indices, token] - sums[row_indices]).tolist(),
                (tops[row_indices] == token).tolist(),
            )
            likelihoods |= zip(pairs, map(Likelihood, nats, greedy, greedy), strict=True)
        return likelihoods


def _sum_tokens(tokens: Sequence[Likelihood]) -> Likelihood:
    """Combine token likelihoods to that of the continuation."""
    nats, greedy = sum(token.nats for token in tokens), all(token.greedy for token in tokens)
    return Likelihood(nats, greedy, tokens[-1].greedy)


def common(texts: Iterable[Tokens]) -> int:
    """Length of the longest common prefix of all texts."""
    count = 0
    for column in zip(*texts, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _rows(
    texts: Sequence[Tokens], starts: Sequence[int], trunk: int, base_length: int
) -> Iterator[list[int]]:
    """For each text, the pass's row indices of its positions from `start` on."""
    branch = trunk - base_length
    for text, start in zip(texts, starts, strict=True):
        yield [i - base_length if i < trunk else branch + i - trunk for i in range(start, len(text))]
        branch += len(text) - trunk


def _mask(base_length: int, trunk: int, branch_lengths: Sequence[int]) -> Tensor | None:
    """Attention mask: each row sees the trunk and its own branch up to itself; None if plain causal."""
    if sum(map(bool, branch_lengths)) <= 1:
        return None
    rows = trunk - base_length + sum(branch_lengths)
    mask = torch.zeros(rows, base_length + rows, dtype=torch.bool)
    mask[:, :trunk] = torch.ones(rows, trunk, dtype=torch.bool).tril(base_length)
    row = trunk - base_length
    for length in branch_lengths:
        mask[row : row + length, base_length + row : base_length + row + length] = (
            torch.ones(length, length).tril().bool()
        )
        row += length
    return mask
