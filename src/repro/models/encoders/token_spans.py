"""Where tokens lie in the text that they decode to, so that two tokenizers of one text can be compared.

Owns the character spans of tokens and what numbers about spans of one kind say of spans of another. Must not
know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

Decode = Callable[[Sequence[int]], str]

BROKEN = "\ufffd"
"""What a character decodes to while some of its bytes are missing."""
LONGEST = 8
"""Tokens that may share one character; behind so many a broken one is taken for itself."""


class TextSpan(NamedTuple):
    """Characters `start` to `stop` of a text, the latter left out; of no character if both are equal."""

    start: int
    stop: int


def located(tokens: Sequence[int], decode: Decode) -> tuple[str, list[TextSpan]]:
    """The text of tokens, and the span of each; tokens that make one character together share its span.

    Each token is decoded behind the one before it, since some tokenizers drop the blank in front of a text.
    """
    whole, spans, held = "", [], list[int]()
    before: list[int] = []
    for i, token in enumerate(tokens):
        held.append(token)
        piece = decode([*before, *held])[len(decode(before)) if before else 0 :]
        if piece.endswith(BROKEN) and len(held) < LONGEST and i + 1 < len(tokens):
            continue
        spans += [TextSpan(len(whole), len(whole) + len(piece))] * len(held)
        whole += piece
        before, held = held[-1:] if BROKEN not in decode(held[-1:]) else held, []
    return whole, spans


def carried(
    values: Sequence[float], at: Sequence[TextSpan], to: Sequence[TextSpan], bare: float
) -> list[float]:
    """For each span of `to` the mean of the values of those spans of `at` that share a character with it.

    Args:
        values: one for each span of `at`.
        at: in the order of the text, none within another.
        to: likewise.
        bare: the value of a span that shares none.
    """
    found, first = [], 0
    for span in to:
        while first < len(at) and at[first].stop <= span.start:
            first += 1
        here = []
        for i in range(first, len(at)):
            if at[i].start >= span.stop:
                break
            here.append(values[i])
        found.append(fmean(here) if here and span.stop > span.start else bare)
    return found
