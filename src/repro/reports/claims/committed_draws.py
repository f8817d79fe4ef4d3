"""Figures of committed tables over common draws, for claims over several of them.

Owns how a line of a table is traced to its cells. `aggregate` does the arithmetic, `validation/bands` draws
the machines. Must not know claims, nor how a table's specification is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property

from repro.core.libraries import Array, np
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.claims.claims import Line
from repro.reports.intervals.samples import Samples
from repro.reports.spec.spec import ColumnSpec, TableSpec
from repro.reports.tables.aggregate import drawn
from repro.reports.tables.bands import Place, read_draws
from repro.reports.tables.build import SHORT


class CommittedDraws:
    """Figures of a folder's tables over draws that they have in common: `claims.Draws`."""

    def __init__(self, results: Results, samples: Samples, spec_of: Callable[[str], TableSpec]) -> None:
        """`samples` have read the cells' details of these results; `spec_of` specifies a table by name."""
        self.results = results
        self.samples = samples
        self.spec_of = spec_of
        self._records_of = cache(self._records)
        self._columns_of = cache(self._columns)

    def sampled(self, lines: Sequence[Line]) -> list[Array | None]:
        """Each line's figure in each draw of all prompts and seeds behind them; None if it is not known."""
        sides = [(self._cells(line, "cell"), self._cells(line, "baseline")) for line in lines]
        together = self.samples.together([record for side in sides for records in side for record in records])
        return [
            drawn(self._columns_of(line["table"])[line["column"]], records, baseline, together)
            if records
            else None
            for line, (records, baseline) in zip(lines, sides, strict=True)
        ]

    def banded(self, lines: Sequence[Line]) -> list[Array | None]:
        """Each line's figure on each drawn machine; None if its table has no band of its cells."""
        places = [(line["table"], line["id"], line["column"]) for line in lines]
        return [
            np.array(self._drawn[place]) if line.get("band_low") and place in self._drawn else None
            for line, place in zip(lines, places, strict=True)
        ]

    @cached_property
    def _drawn(self) -> Mapping[Place, tuple[float, ...]]:
        return read_draws(self.results.root)

    def _cells(self, line: Line, field: str) -> list[Record]:
        """The records of a line's cells, or of those that it is compared with; none if one is not there."""
        keys, records = line.get(field, "").split(), self._records_of(line["table"])
        return [records[key] for key in keys] if all(key in records for key in keys) else []

    def _records(self, table: str) -> dict[str, Record]:
        """A table's records by the beginnings of their keys."""
        members = self.results.members(table)
        return {record.key[:SHORT]: record for record in self.results.records(members)}

    def _columns(self, table: str) -> dict[str, ColumnSpec]:
        return {column.key: column for column in self.spec_of(table).columns}
