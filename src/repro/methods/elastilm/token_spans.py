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


def locate_tokens(tokens: Sequence[int], decode: Decode) -> tuple[str, list[TextSpan]]:
    """The text of tokens and the span of each; tokens that form one character together share its span.

    Each token is decoded after the previous one, since some tokenizers drop a leading space.
    """
    text, spans, pending = "", [], list[int]()
    previous: list[int] = []
    for i, token in enumerate(tokens):
        pending.append(token)
        piece = decode([*previous, *pending])[len(decode(previous)) if previous else 0 :]
        if piece.endswith(BROKEN) and len(pending) < LONGEST and i + 1 < len(tokens):
            continue
        spans += [TextSpan(len(text), len(text) + len(piece))] * len(pending)
        text += piece
        previous, pending = pending[-1:] if BROKEN not in decode(pending[-1:]) else pending, []
    return text, spans


def carry_over(
    values: Sequence[float], spans: Sequence[TextSpan], targets: Sequence[TextSpan], default: float
) -> list[float]:
    """For each target, the mean value of the spans that overlap it.

    Args:
        values: one per span.
        spans: spans in text order, not nested.
        targets: spans in text order, not nested.
        default: the value for spans without overlap.
    """
    means, first = [], 0
    for span in targets:
        while first < len(spans) and spans[first].stop <= span.start:
            first += 1
        overlapping = []
        for i in range(first, len(spans)):
            if spans[i].start >= span.stop:
                break
            overlapping.append(values[i])
        means.append(fmean(overlapping) if overlapping and span.stop > span.start else default)
    return means
