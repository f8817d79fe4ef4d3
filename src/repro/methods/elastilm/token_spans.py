"""Character spans of tokens, to map per-token values from one tokenizer to another.

Owns the spans and the mapping of values between them. Must not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

Decode = Callable[[Sequence[int]], str]

BROKEN_CHARACTER = "\ufffd"
"""What an incomplete UTF-8 character decodes to."""
MOST_TOKENS = 8
"""Most tokens that may share one character; after that many, a broken character is taken literally."""


class TextSpan(NamedTuple):
    """The half-open character range `start` to `stop` of a text; may be empty."""

    start: int
    stop: int


def locate_tokens(tokens: Sequence[int], decode: Decode) -> tuple[str, list[TextSpan]]:
    """The text of tokens and the span of each; tokens that form one character together share its span.

    Each token is decoded after the previous one, since some tokenizers drop a leading space.
    """
    text, spans, buffer = "", [], list[int]()
    context: list[int] = []
    for i, token in enumerate(tokens):
        buffer.append(token)
        piece = decode([*context, *buffer])[len(decode(context)) if context else 0 :]
        if piece.endswith(BROKEN_CHARACTER) and len(buffer) < MOST_TOKENS and i + 1 < len(tokens):
            continue
        spans += [TextSpan(len(text), len(text) + len(piece))] * len(buffer)
        text += piece
        context, buffer = buffer[-1:] if BROKEN_CHARACTER not in decode(buffer[-1:]) else buffer, []
    return text, spans


def carry_over(
    values: Sequence[float], spans: Sequence[TextSpan], targets: Sequence[TextSpan], fallback: float
) -> list[float]:
    """For each target, the mean value of the spans that overlap it.

    Args:
        values: one per span.
        spans: spans in text order, not nested.
        targets: spans in text order, not nested.
        fallback: the value for spans without overlap.
    """
    means, span_index = [], 0
    for span in targets:
        while span_index < len(spans) and spans[span_index].stop <= span.start:
            span_index += 1
        overlap = []
        for i in range(span_index, len(spans)):
            if spans[i].start >= span.stop:
                break
            overlap.append(values[i])
        means.append(fmean(overlap) if overlap and span.stop > span.start else fallback)
    return means
