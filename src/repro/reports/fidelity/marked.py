"""Figures in prose that name the table they are from, held to its CSV file.

A marked figure is a number with a comment behind it, between them at most a unit:

    2.70<!-- lever/fig10_mean :: all :: over_flash_ar -->       our figure: table, row's id, column's key
    12.2%<!-- cell :: lever.fig12.latency_reduction -->         a published value

A third `::` names another field of the CSV line (`low`, `high`, `n`, `published_low`), or after a published
value its upper end (`high`). The number must be the value rounded to the decimals that it has. Owns finding,
checking and rewriting such numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.core.registry import unknown
from repro.reports.files import path_of
from repro.reports.reference.reference import PublishedCell, find

MARK_PATTERN = re.compile(
    r"(?P<number>[-−]?\d[\d,]*(?:\.\d+)?)(?P<unit>[^\d<>\n]{0,12})<!-- (?P<address>[^>]+? :: [^>]+?) -->"
)
PUBLISHED_TABLE, HIGH_END = "cell", "high"
"""The table of published values, and what names the upper end of one."""

COMMENT_PATTERN = re.compile(r"(?<!`)<!-- [^>]+? :: [^>]+? -->")
"""A comment that marks a figure, outside code."""


@dataclass(frozen=True)
class MarkedFigure:
    """A marked figure: as it stands, where it is from, and as it should stand."""

    stands: str
    address: str
    value: float

    @property
    def true_text(self) -> str:
        """The value with the decimals, the separators and the minus sign of what stands."""
        decimals = len(self.stands.partition(".")[2])
        thousands = "," if "," in self.stands else ""
        text = f"{self.value:{thousands}.{decimals}f}"
        return text.replace("-", "−") if "−" in self.stands else text

    @property
    def agrees(self) -> bool:
        """Whether what stands is the value, rounded."""
        return self.true_text == self.stands


@dataclass(frozen=True)
class FigureSources:
    """The tables of a folder of results, and the published values."""

    folder: Path
    cells: Mapping[str, PublishedCell]

    def value(self, address: str) -> float:
        """The number at an address.

        Raises:
            InputError: there is no such table, line, field or published value, or it is no number.
        """
        address_parts = [part.strip() for part in address.split(" :: ")]
        if address_parts[0] == PUBLISHED_TABLE:
            return self._published_value(address, *address_parts[1:])
        if len(address_parts) not in (3, 4):
            raise InputError(f"{address!r} must be `table :: row :: column`, and may name a field after them")
        line = self._line(*address_parts[:3])
        field = address_parts[3] if len(address_parts) == 4 else "ours"
        if field not in line:
            raise InputError(f"{address!r}: {unknown('field', field, line)}")
        try:
            return float(line[field] or line.get(f"{field}_low", ""))
        except ValueError:
            raise InputError(f"{address!r} has no number, but {line[field]!r}") from None

    def _published_value(self, address: str, name: str, *end: str) -> float:
        cell = find(self.cells, name)
        if end not in ((), (HIGH_END,)):
            raise InputError(f"{address!r} may name `{HIGH_END}` after the published value, and nothing else")
        value = cell.value_high if end or cell.value_low is None else cell.value_low
        if value is None:
            raise InputError(f"{address!r} has no number: only a lower bound is printed")
        return value

    def _line(self, table: str, row: str, column: str) -> Mapping[str, str]:
        lines = self._tables.get(table)
        if lines is None:
            path = path_of(self.folder, table, "csv")
            if not path.is_file():
                raise InputError(f"there is no table {table!r} in {self.folder}")
            with csv_reader(path) as reader:
                lines = {(line["id"], line["column"]): line for line in reader}
            self._tables[table] = lines
        if (row, column) not in lines:
            figures = [" :: ".join(key) for key in lines]
            raise InputError(f"in table {table!r} {unknown('figure', f'{row} :: {column}', figures)}")
        return lines[row, column]

    @cached_property
    def _tables(self) -> dict[str, dict[tuple[str, str], dict[str, str]]]:
        return {}


def marked_figures(text: str, sources: FigureSources) -> Iterator[MarkedFigure]:
    """The marked figures of a text in their order.

    Raises:
        InputError: as `FigureSources.value`; or a comment that marks a figure has no number before it.
    """
    ends = {match.end() for match in MARK_PATTERN.finditer(text)}
    if stray := next(
        (comment[0] for comment in COMMENT_PATTERN.finditer(text) if comment.end() not in ends), None
    ):
        raise InputError(f"{stray} has no number before it, with at most a short unit between them")
    for match in MARK_PATTERN.finditer(text):
        yield MarkedFigure(match["number"], match["address"], sources.value(match["address"]))


def correct_figures(text: str, sources: FigureSources) -> str:
    """The text with marked figures as they should stand; errors as `FigureSources.value`."""

    def replacement(match: re.Match[str]) -> str:
        figure = MarkedFigure(match["number"], match["address"], sources.value(match["address"]))
        return figure.true_text + match[0][len(match["number"]) :]

    return MARK_PATTERN.sub(replacement, text)
