"""The lines that a record keeps of its answers: what was said, and to which example.

Owns their fields. Must not hold anything of a dataset: an example is named by its index and its hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from repro.data.template import Row
from repro.methods.base import Generation
from repro.records.record import Scalar, content_hash

Line = dict[str, Scalar]


def row_hash(row: Row) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of an example's columns in use."""
    return content_hash(dict(row))[:16]


def lines(
    generations: Sequence[Generation],
    texts: Sequence[str],
    own: Sequence[Sequence[int]] | None,
    target_texts: Sequence[str] | None,
    rows: Sequence[Row],
    skipped: int = 0,
) -> list[Line]:
    """One line per answer.

    Args:
        generations: a method's answers.
        texts: their texts.
        own: token ids of the target's own answers; None if there are none.
        target_texts: their texts.
        rows: the example of each answer.
        skipped: number of examples before the first one in use.

    Returns:
        `request`, `row` (index among the dataset's selected examples) and `row_hash`; `text`, `tokens` (ids,
        separated by spaces) and `cut` (1 if the answer reached `max_tokens` before its end, else 0);
        `target_text` and `target_tokens`, `None` if the target's own text is not known.
    """
    found: list[Line] = []
    for i, (one, text, row) in enumerate(zip(generations, texts, rows, strict=True)):
        found.append(
            {
                "request": one.request.id,
                "row": skipped + i,
                "row_hash": row_hash(row),
                "text": text,
                "tokens": ids(one.tokens),
                "cut": int(is_cut(one)),
                "target_text": None if target_texts is None else target_texts[i],
                "target_tokens": None if own is None else ids(own[i]),
            }
        )
    return found


def is_cut(one: Generation) -> bool:
    """Whether an answer reached `max_tokens` before its end."""
    request = one.request
    return len(one.tokens) >= request.max_tokens and one.tokens[-1] not in request.stop


def ids(tokens: Sequence[int]) -> str:
    """Token ids as a text, separated by spaces."""
    return " ".join(map(str, tokens))


def first_difference(one: str, other: str) -> int | None:
    """The position of the first token that differs between two texts of token ids; None if they are equal."""
    pairs = zip_longest(one.split(), other.split())
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)
