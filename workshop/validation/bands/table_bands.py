"""The bands of a committed table's figures: the table built again from cells of drawn machines.

Owns what a band is relative to, and which conclusion it may change. Must not know how cells are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from repro.core.errors import InputError
from repro.device.engines.engine_file import device_in_use
from repro.device.engines.evidence import sources
from repro.experiments.recorded_tables import recorded_table
from repro.experiments.tables import Asked, made_table, with_current_conf
from repro.records.members import Member
from repro.records.record import Record, canonical, content_hash
from repro.records.results import Results
from repro.reports.comparison.comparison import Ends
from repro.reports.spec.spec import ColumnSpec, TableSpec
from repro.reports.tables.bands import band_range, cells_digest
from repro.reports.tables.table import Entry, Table
from workshop.validation.bands.replay import Figures, Replayed, reads_texts

Place = tuple[str, str]
"""Id of a row and key of a column."""

Run = Callable[[Record, Replayed], Figures]


@dataclass(frozen=True)
class CommittedTable:
    """A table of the results with the records of its cells."""

    asked: Asked
    spec: TableSpec
    members: Sequence[Member]
    records: Sequence[Record]

    @classmethod
    def read(cls, results: Results, name: str) -> CommittedTable:
        """A table by name.

        Raises:
            InputError: it has no cells, or none of an emulated machine.
        """
        recorded = recorded_table(name, results)
        records = [with_current_conf(record) for record in results.records(recorded.members) if record.done]
        if not any(record.provenance.clock == "virtual" for record in records):
            raise InputError(f"{name} has no cells of an emulated machine in {results.root}")
        return cls(recorded.asked, recorded.spec, recorded.members, records)

    def built(self, figures: Mapping[str, Figures] | None = None) -> Table:
        """The table, from the cells' figures by key in place of the records' own if they are given."""
        records = self.records
        if figures is not None:
            records = [
                replace(one, values={**one.values, **figures[one.key]}, uncertainty={}) for one in records
            ]
        return made_table(self.asked, self.spec, self.members, records, older_record_keys=())

    def sampled(self, configurations: int) -> CommittedTable:
        """The table with at most so many configurations a row, a fixed choice by the hash of their labels.

        A configuration is what several methods have in common; a table whose rows are single ones stays
        whole.
        """
        by = self.spec.rows.by

        def row(record: Record) -> str:
            return canonical([record.labels.get(name, "") for name in by])

        def configuration(record: Record) -> str:
            return content_hash({n: v for n, v in record.labels.items() if n not in ("method", "agreement")})

        known: dict[str, set[str]] = {}
        for one in self.records:
            known.setdefault(row(one), set()).add(configuration(one))
        kept = {name: sorted(own)[:configurations] for name, own in known.items()}
        return replace(self, records=[one for one in self.records if configuration(one) in kept[row(one)]])


@dataclass(frozen=True)
class Band:
    """A figure and its range over the draws.

    Attributes:
        row: id of its row.
        column: its column.
        value: as committed.
        replayed: by the replay of the machine as it is, on the replay's prompts.
        drawn: the figure in each draw, carried over to the committed value.
        digest: of the cells that it is made from and compared with.
    """

    row: str
    column: ColumnSpec
    value: float
    replayed: float
    drawn: tuple[float, ...]
    digest: str

    @cached_property
    def ends(self) -> Ends:
        """The range over the draws, which has the machine as it is."""
        return band_range(self.drawn, self.value)

    @property
    def conclusion(self) -> str:
        """For a comparison: the side of even on which value and band lie, `either` if on both; else empty.

        The baseline's own row compares nothing.
        """
        column = self.column
        if not column.baseline or column.relative_to == self.row:
            return ""
        even = 1.0 if column.compare == "ratio" else 0.0
        sides = {figure > even for figure in (*self.ends, self.value)}
        return "either" if len(sides) > 1 else "above" if sides.pop() else "below"


@dataclass(frozen=True)
class TableBands:
    """The bands of a table.

    Attributes:
        table: its name.
        bands: of all figures that depend on clock or costs.
        draws: how many machines were drawn.
        prompts: the most prompts that a cell replayed; 0 if no cell reads prompts.
        cells: how many cells were replayed in each draw.
        sources: how many of the machines' numbers come from each source.
    """

    table: str
    bands: tuple[Band, ...]
    draws: int
    prompts: int
    cells: int
    sources: Counter[str]


def figures_of(table: Table) -> dict[Place, float]:
    """The numbers of a table that depend on clock or costs."""
    return {
        (row.id, column.key): float(entry.ours)
        for row in table.rows
        for column, entry in zip(table.columns, row.entries, strict=True)
        if column.timed and isinstance(entry.ours, int | float)
    }


def table_bands(name: str, table: CommittedTable, plan: ReplayPlan, run: Run) -> TableBands:
    """The bands of a table.

    Args:
        name: the table's.
        table: with its records.
        plan: how often cells are replayed, and on how many prompts.
        run: gives a cell's figures in a replay.
    """
    texts = any(map(reads_texts, table.records))
    draws, chosen = plan.draws_of(texts), table.sampled(plan.configurations) if texts else table

    def replayed(draw: int | None) -> dict[Place, float]:
        how = Replayed(draw, plan.prompts, plan.data_dir)
        return figures_of(chosen.built({one.key: run(one, how) for one in chosen.records}))

    committed = table.built()
    columns = {column.key: column for column in committed.columns}
    own, base = figures_of(committed), replayed(None)
    drawn = [replayed(draw) for draw in range(draws)]
    bands = tuple(
        _band(
            place,
            columns[place[1]],
            value,
            base[place],
            [one[place] for one in drawn if place in one],
            _digest(committed.entry(*place)),
        )
        for place, value in own.items()
        if place in base
    )
    known = sources(device_in_use(one.provenance.config) for one in table.records)
    return TableBands(name, bands, draws, plan.prompts if texts else 0, len(chosen.records), known)


@dataclass(frozen=True)
class ReplayPlan:
    """How cells are replayed.

    Attributes:
        draws: of tables whose cells read no prompts.
        text_draws: of tables whose cells do; their decisions may depend on costs and are made anew.
        prompts: at most so many of a cell's.
        configurations: at most so many of those that a row of such a table is the mean of.
        data_dir: a folder of datasets, or None.
    """

    draws: int
    text_draws: int
    prompts: int
    configurations: int
    data_dir: str | None = None

    def draws_of(self, texts: bool) -> int:
        """The number of draws for a table."""
        return min(self.draws, self.text_draws) if texts else self.draws


def _digest(entry: Entry) -> str:
    return cells_digest(entry.cells, entry.baseline)


def _band(
    place: Place, column: ColumnSpec, value: float, base: float, drawn: Sequence[float], digest: str
) -> Band:
    """A band; of a difference it is carried over by adding, of any other figure by multiplying."""
    multiplied = column.compare == "ratio" and base
    carried = [value * figure / base if multiplied else value + figure - base for figure in drawn or [base]]
    return Band(place[0], column, value, base, tuple(carried), digest)
