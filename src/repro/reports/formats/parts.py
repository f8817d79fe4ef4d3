"""A wide table in several parts, each with the columns of names.

Owns how a grid is divided. The formats say what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from repro.reports.formats.layout import Grid, Heading

MOST = 12
"""Columns of a printed table."""


def divided(words: Grid, fits: Callable[[Sequence[int]], bool]) -> list[Grid]:
    """The grid in parts whose columns fit; columns of one heading stay together.

    Each part has the columns of names, and at least one heading beside them. A grid of text alone, whose
    columns may wrap, stays whole.
    """
    ends = list(accumulate(len(heading.parts) for heading in words.headings))
    spans = [range(end - len(h.parts), end) for end, h in zip(ends, words.headings, strict=True)]
    named = sum(words.alignment[span.start] != "r" for span in spans)
    if named == len(spans) or fits(range(len(words.alignment))):
        return [words]
    parts = [list(range(named))]
    for i in range(named, len(spans)):
        columns = [column for place in (*parts[-1], i) for column in spans[place]]
        if len(parts[-1]) > named and not fits(columns):
            parts.append(list(range(named)))
        parts[-1].append(i)
    return [_of(words, [spans[i] for i in part], [words.headings[i] for i in part]) for part in parts]


def _of(words: Grid, spans: Sequence[range], headings: Sequence[Heading]) -> Grid:
    columns = [i for span in spans for i in span]
    lines = tuple(tuple(line[i] for i in columns) for line in words.lines)
    return Grid(tuple(headings), lines, "".join(words.alignment[i] for i in columns))
