"""Log-likelihoods of continuations, all choices of a dataset row in one forward pass.

Owns the pass that branches where choices diverge, and the KV cache of their shared prefix. Must not know
datasets or how likelihoods are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.forward.network import require_finite
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder

Tokens = Sequence[int]
Asked = tuple[int, int]
"""An index into a pass's hidden states, and a candidate next token."""

LOGITS = 1 << 24
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
        self._held: tuple[int, ...] = ()

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
        texts = [
            (*context, *continuation)[:-1] for context, continuation in pairs
        ]  # the last token is only predicted
        starts = [len(context) - 1 for context, _ in pairs]
        trunk = texts[0][: common(texts)]
        # Positions whose logits are needed must run, even if cached.
        held = min(common([self._held, trunk]), *starts)
        hidden = self._read(trunk, held, [text[len(trunk) :] for text in texts])
        self._held = trunk
        # All choices' first tokens share one position, which goes through the head once.
        asked = [
            list(zip(rows, continuation, strict=True))
            for rows, (_, continuation) in zip(_rows(texts, starts, len(trunk), held), pairs, strict=True)
        ]
        said = self._said(hidden, {one for some in asked for one in some})
        scores: dict[tuple[tuple[int, ...], tuple[int, ...]], Likelihood] = {}
        return [
            scores.setdefault(
                (tuple(context), tuple(continuation)), _joined([said[place] for place in places])
            )
            for (context, continuation), places in zip(pairs, asked, strict=True)
        ]

    def _read(self, trunk: Tokens, held: int, branches: Sequence[Tokens]) -> Tensor:
        """Hidden states of the trunk from `held` on, then of the branches; only the trunk stays cached."""
        decoder, device = self._decoder, self._decoder.device
        self._cache.truncate(held)
        tokens = [*trunk[held:], *(token for branch in branches for token in branch)]
        positions = [*range(held, len(trunk))]
        for branch in branches:
            positions += range(len(trunk), len(trunk) + len(branch))
        mask = _mask(held, len(trunk), [len(branch) for branch in branches])
        at = torch.tensor(positions, device=device)
        x = decoder.embed(torch.tensor(tokens, device=device), at)
        mask = None if mask is None else mask.to(device)
        x = decoder.run(x, at, mask, self._cache)
        self._cache.truncate(len(trunk))
        return x

    def _said(self, hidden: Tensor, asked: Collection[Asked]) -> dict[Asked, Likelihood]:
        """Likelihood of each asked token, given `hidden` `[rows, hidden]`."""
        said: dict[Asked, Likelihood] = {}
        wanted = sorted({row for row, _ in asked})
        step = max(1, LOGITS // self._decoder.config.vocab)
        for first in range(0, len(wanted), step):
            rows = wanted[first : first + step]
            logits = self._decoder.head(hidden[rows])
            normal, likeliest = logits.logsumexp(-1), logits.argmax(-1)
            require_finite(float(normal.max()))
            where = {row: i for i, row in enumerate(rows)}
            pairs = [one for one in asked if one[0] in where]
            at = torch.tensor([where[row] for row, _ in pairs], device=logits.device)
            token = torch.tensor([token for _, token in pairs], device=logits.device)
            nats, greedy = logits[at, token] - normal[at], likeliest[at] == token
            likeliest_ones = greedy.tolist()
            found = map(Likelihood, nats.tolist(), likeliest_ones, likeliest_ones)
            said |= zip(pairs, found, strict=True)
        return said


def _joined(tokens: Sequence[Likelihood]) -> Likelihood:
    """Combine token likelihoods to that of the continuation."""
    nats, greedy = sum(one.nats for one in tokens), all(one.greedy for one in tokens)
    return Likelihood(nats, greedy, tokens[-1].greedy)


def common(texts: Iterable[Tokens]) -> int:
    """Length of the longest common prefix of all texts."""
    count = 0
    for column in zip(*texts, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def _rows(texts: Sequence[Tokens], starts: Sequence[int], trunk: int, held: int) -> Iterator[list[int]]:
    """For each text, the pass's row indices of its positions from `start` on."""
    branch = trunk - held
    for text, start in zip(texts, starts, strict=True):
        yield [at - held if at < trunk else branch + at - trunk for at in range(start, len(text))]
        branch += len(text) - trunk


def _mask(held: int, trunk: int, branches: Sequence[int]) -> Tensor | None:
    """Attention mask: each row sees the trunk and its own branch up to itself; None if plain causal."""
    if sum(map(bool, branches)) <= 1:
        return None
    rows = trunk - held + sum(branches)
    mask = torch.zeros(rows, held + rows, dtype=torch.bool)
    mask[:, :trunk] = torch.ones(rows, trunk, dtype=torch.bool).tril(held)
    at = trunk - held
    for length in branches:
        mask[at : at + length, held + at : held + at + length] = torch.ones(length, length).tril().bool()
        at += length
    return mask
