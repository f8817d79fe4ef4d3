"""Colours of systems, one for each name in all figures of a paper, and of series.

The systems of a paper stand in `conf/reference/colours.yaml`. Series that differ in something else have other
colours, from light to dark if they rise with a number. `paint` owns the colours themselves; must not draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_entries
from repro.core.reading import read_mapping
from repro.reports.figures.paint import BASELINE_COLOURS, OUR_COLOUR, colour, ramp
from repro.reports.reference.names import FIELD_OF, load_names
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.table import TableRow, is_number

SYSTEM_LABELS = tuple(label for label, field in FIELD_OF.items() if field == "system")
"""Labels whose values are systems."""


@dataclass(frozen=True)
class Palette:
    """The systems of a paper in the order of their colours, its own first; none without a list."""

    paper: str
    systems: tuple[str, ...] = ()

    @property
    def own_system(self) -> str:
        """Display name of the paper's own system, "" if nothing says which it is."""
        return self.systems[0] if self.systems else ""

    def systems_of(self, labels: Mapping[str, str]) -> list[str]:
        """Display names of the systems that these labels name."""
        names = load_names()
        return [
            names.find(self.paper, label, labels[label]).name for label in SYSTEM_LABELS if label in labels
        ]

    def colours(self, systems: Sequence[str]) -> dict[str, str]:
        """The colour of each of these systems.

        One that the paper's list lacks takes the next colour after the list's last.
        """
        names = [*self.systems, *(system for system in dict.fromkeys(systems) if system not in self.systems)]
        order = names if self.own_system else ["", *names]
        return {system: _shade(order.index(system)) for system in systems}

    def column_systems(self, columns: Sequence[ColumnSpec]) -> list[str]:
        """The system of each column, by its labels or its heading; "" for a column without one.

        Of comparisons it is the one in which they differ. Columns of the same system have none: they differ
        in something else.
        """
        name_lists = [
            [*self.systems_of(column.where), *self.systems_of(column.over)]
            or [column.heading] * (column.heading in self.systems)
            for column in columns
        ]
        common_systems = set.intersection(*map(set, name_lists)) if len(name_lists) > 1 else set()
        systems = [next((name for name in names if name not in common_systems), "") for names in name_lists]
        return [system if systems.count(system) == 1 else "" for system in systems]

    def column_colours(self, columns: Sequence[ColumnSpec]) -> list[str]:
        """The colour of each column, for columns on one axis."""
        systems = self.column_systems(columns)
        if not any(systems):
            return neutral([column.where for column in columns])
        shades, indices = self.colours([system for system in systems if system]), iter(range(len(systems)))
        return [shades[system] if system else colour(next(indices)) for system in systems]

    def row_systems(self, rows: Sequence[TableRow]) -> list[str]:
        """The system of each row, by its labels or its name; "" for a row that names none."""
        return [
            next(iter(self.systems_of(row.labels)), row.name if row.name in self.systems else "")
            for row in rows
        ]

    def bar_colours(self, rows: Sequence[TableRow], column: ColumnSpec) -> list[str]:
        """The colour of each row's bar in a panel of one column."""
        systems = self.row_systems(rows)
        if len(set(systems)) == 1:
            column_systems = [] if column.baseline else self.systems_of(column.where)
            systems = [column_systems[0] if column_systems else ""] * len(rows)
        if not self.own_system:
            return [OUR_COLOUR] * len(rows)
        shades = self.colours(systems)
        return [shades[system] if system else OUR_COLOUR for system in systems]


def neutral(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Colours of series with these labels, which differ in no system."""
    if len(labels) == 1:
        return [OUR_COLOUR]
    for name in {name for series in labels for name in series}:
        values = [series.get(name, "") for series in labels]
        if all(map(is_number, values)) and all(float(a) < float(b) for a, b in pairwise(values)):
            return ramp(len(labels))
    return [colour(i) for i in range(len(labels))]


def _shade(index: int) -> str:
    return BASELINE_COLOURS[(index - 1) % len(BASELINE_COLOURS)] if index else OUR_COLOUR


def load_palette(paper: str, folders: Sequence[Path] | None = None) -> Palette:
    """The palette of a paper, from all `reference/colours.yaml` of these folders; default `conf_folders()`.

    Raises:
        InputError: a file is malformed, or names a system of a paper twice.
    """
    systems_by_paper = conf_entries("reference/colours.yaml", _read, "list of colours", folders)
    return Palette(paper, systems_by_paper.get(paper, ()))


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    by_paper = {}
    for paper, systems in read_mapping(path).items():
        if not isinstance(systems, list):
            raise InputError(f"{path}, {paper}: {systems!r} must be a list of systems")
        names = tuple(map(str, systems))
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{path}, {paper}: {name!r} stands twice")
        by_paper[str(paper)] = names
    return by_paper
