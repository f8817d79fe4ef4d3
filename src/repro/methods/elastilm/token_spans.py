"""Character spans of tokens, to map per-token values from one tokenizer to another.

Owns the spans and the mapping of values between them. Must not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

Decode = Callable[[Sequence[int]], str]

BROKEN = "\ufffd"
"""What an incomplete UTF-8 character decodes to."""
LONGEST = 8
"""Most tokens that may share one character; after that many, a broken character is taken literally."""


class TextSpan(NamedTuple):
    """The half-open character range `start` to `stop` of a text; may be empty."""

    start: int
    stop: int


def located(tokens: Sequence[int], decode: Decode) -> tuple[str, list[TextSpan]]:
    """The text of tokens and the span of each; tokens that form one character together share its span.

    Each token is decoded after the previous one, since some tokenizers drop a leading space.
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
    """For each span of `to`, the mean value of the spans of `at` that overlap it.

    Args:
        values: one per span of `at`.
        at: spans in text order, not nested.
        to: spans in text order, not nested.
        bare: the value for spans without overlap.
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
