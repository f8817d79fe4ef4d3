"""Builds a table from records and published cells.

Owns what is compared with what, and which marks values get. Knows nothing of files, formats or how records
are produced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from repro.device.facts.holds import UNMEASURED
from repro.libraries import np
from repro.records.record import Record, Spread
from repro.reports.comparison.certain import find_certain
from repro.reports.comparison.comparison import Comparison, Ends, Figure, Published, in_unit
from repro.reports.intervals.bootstrap import ends
from repro.reports.intervals.rounds import recorded_uncertainty
from repro.reports.intervals.samples import JointSamples, Samples, distinct
from repro.reports.reference.names import STAND_INS_PREFIX
from repro.reports.reference.reference import PublishedCell, find
from repro.reports.spec.spec import SEPARATOR, AsideSpec, ColumnSpec, TableSpec
from repro.reports.tables.aggregate import Incomparable, column_draws, counterparts, figures
from repro.reports.tables.bands import Band, FigureId, cells_digest
from repro.reports.tables.crossings import SampledCurve, sentences
from repro.reports.tables.how_made import (
    amounts,
    how_made,
    notes_of,
    says_stand_ins,
    stand_ins,
    uncounted_parts,
    words_of,
)
from repro.reports.tables.known import TARGET_COMPARISONS, not_compared, other_arithmetic
from repro.reports.tables.table import MARKS, Aside, Entry, Table, TableRow, with_best

PLAIN_NAME = "plain decoding"
"""What curves of comparisons call their baseline."""

SHORT_LENGTH = 12
"""Characters of a key that tell a table's cells apart."""

Bands = Mapping[FigureId, Band]
"""Ranges over the assumed numbers of a machine, by table, row's id and column's key."""

OutsidePhases = Mapping[str, Collection[str]]
"""Phases outside of their engine's ranges, by a cell's key, in sentences that begin with the phase."""


def build(
    spec: TableSpec,
    records: Sequence[Record],
    cells: Mapping[str, PublishedCell],
    keys: Collection[str] | None = None,
    older_keys: Collection[str] = (),
    samples: Samples | None = None,
    bands: Bands | None = None,
    outside_phases: OutsidePhases | None = None,
) -> Table:
    """The table of a spec.

    Of records with the same labels only the newest counts. With `keys`, exactly these cells are used,
    whichever experiment computed them first. `older` are keys of cells made by an older version of a
    component, `outside` says which of a cell's phases lie outside of the ranges of its engine. With `samples`
    figures have 95% intervals over prompts, with `bands` those of their machines.

    Raises:
        InputError: a published cell is unknown, or its unit cannot be converted to the column's; a row has
            several records where the column wants one.
    """
    candidates = [r for r in records if (r.experiment == spec.experiment if keys is None else r.key in keys)]
    current_records, replaced_count = _newest([r for r in candidates if matches(r, spec.where)])
    table = _Builder(
        spec, current_records, cells, older_keys, samples, bands or {}, outside_phases or {}
    ).table(replaced_count)
    return with_best(table) if spec.best else table


def matches(record: Record, where: Mapping[str, str]) -> bool:
    """Whether a record has all these labels; "" is none of that name."""
    return all(record.labels.get(name, "") == label for name, label in where.items())


def _newest(records: Sequence[Record]) -> tuple[list[Record], int]:
    """For each set of labels the record that finished last, and the number of other records."""
    newest_by_labels: dict[tuple[tuple[str, str], ...], Record] = {}
    for record in sorted(records, key=lambda r: (r.provenance.finished, r.key)):
        newest_by_labels[tuple(sorted(record.labels.items()))] = record
    return list(newest_by_labels.values()), len(records) - len(newest_by_labels)


class _Builder:
    """Builds one table: groups records into rows and collects footnotes."""

    def __init__(
        self,
        spec: TableSpec,
        records: Sequence[Record],
        cells: Mapping[str, PublishedCell],
        older_keys: Collection[str],
        samples: Samples | None,
        bands: Bands,
        outside_phases: OutsidePhases,
    ) -> None:
        self.spec, self.records, self.cells = spec, records, cells
        self.older, self.samples, self.bands, self.outside = older_keys, samples, bands, outside_phases
        self.failures: dict[str, int] = {}
        has_stand_ins = says_stand_ins(records)
        notes = [note for note in spec.footnotes if has_stand_ins or not note.startswith(STAND_INS_PREFIX)]
        self.footnotes = dict.fromkeys(note.removeprefix(STAND_INS_PREFIX) for note in notes)
        by = spec.rows.by
        self.groups: dict[str, list[Record]] = {row: [] for row in spec.rows.names}
        for record in sorted(records, key=lambda r: [_natural(r.labels.get(name, "")) for name in by]):
            row = SEPARATOR.join(record.labels.get(name, "") for name in by)
            self.groups.setdefault(row, []).append(record)
        # Labels of a row without a record are known as far as its id tells them apart.
        self.labels = {
            row: {name: group[0].labels.get(name, "") for name in by}
            if group
            else dict(zip(by, row.split(SEPARATOR, len(by) - 1), strict=False))
            for row, group in self.groups.items()
        }

    def table(self, replaced_count: int) -> Table:
        spec, records = self.spec, self.records
        rows = self._with_certain([self._row(row) for row in self.groups])
        for note in (*self._crossings(rows), *self._uncounted_parts(), *notes_of(records)):
            self.footnotes[note] = None
        if replaced_count:
            self.footnotes[f"Left out: {replaced_count} older record(s) of the same cells."] = None
        return Table(
            experiment=spec.experiment,
            title=spec.title,
            heading=SEPARATOR.join(spec.rows.by),
            columns=spec.columns,
            rows=rows,
            aside=tuple(self._aside(aside, rows) for aside in spec.aside),
            footnotes=(*self.failures, *self.footnotes),
            commits=_commits(records),
            date=max((r.provenance.finished for r in records), default="")[:10],
            papers=self._papers(),
            figure=spec.figure,
            figure_kinds=words_of(records),
            stand_ins=stand_ins(records),
            how_made=how_made(records),
            amounts=amounts(records),
            commands=(spec.command,) if spec.command else (),
            apart=spec.rows.by if spec.rows.apart else (),
        )

    def _row(self, row: str) -> TableRow:
        rows, has_cells = self.spec.rows, bool(self.groups[row])
        name = rows.names.get(row) or rows.printed_names(row, self.spec.experiment)
        entries = tuple(self._entry(row, column) for column in self.spec.columns)
        reason = "" if has_cells else rows.refused.get(row, "")
        refused = self._failure(f"{rows.names[row]}: {reason}") if reason else None
        return TableRow(row, name, entries, self.labels[row], has_cells, refused)

    def _failure(self, text: str) -> int:
        """The number of a footnote that a failed value refers to; these come first."""
        return self.failures.setdefault(text, len(self.failures) + 1)

    # --- which records an entry is made from --------------------------------------------------------------

    def _records_of(self, row: str, where: Mapping[str, str]) -> list[Record]:
        return [record for record in self.groups.get(row, ()) if matches(record, where)]

    def _sides(self, row: str, column: ColumnSpec) -> tuple[list[Record], list[Record]]:
        """The records of an entry, and those that it is compared with."""
        records, base = self._least(self._records_of(row, column.where)), column.relative_to
        if column.over:
            return records, self._records_of(row, {**column.where, **column.over})
        base = base if isinstance(base, str) else self._row_with(row, base)
        return records, self._least(self._records_of(base, column.where)) if base else []

    def _least(self, records: list[Record]) -> list[Record]:
        """Of several cells the one with the least of the figure that the rows name (`RowsSpec.least`)."""
        figures = [(record.figure(self.spec.rows.least), record) for record in records if record.done]
        numbers = [(value, record) for value, record in figures if isinstance(value, (int, float))]
        if not self.spec.rows.least or len(records) < 2 or not numbers:
            return records
        return [min(numbers, key=lambda pair: pair[0])[1]]

    def _row_with(self, row: str, changes: Mapping[str, str]) -> str:
        """The row with these labels and otherwise those of another row, or none at all; "" without one."""
        labels = {**self.labels[row], **changes}
        for other_row, its in self.labels.items():
            if all(text == labels[name] or (not text and name not in changes) for name, text in its.items()):
                return other_row
        return ""

    # --- entries ------------------------------------------------------------------------------------------

    def _entry(self, row: str, column: ColumnSpec) -> Entry:
        name = column.reference.get(row)
        published = in_unit(find(self.cells, name), column.unit, f"column {column.key!r}") if name else None
        records, baseline = self._sides(row, column)
        entry = Entry(published=published, cells=_short(records))
        if failed_records := [record for record in records if not record.done]:
            last_line = str(failed_records[0].error).strip().splitlines()[-1]
            entry = replace(entry, failed=self._failure(f"{row} failed: {last_line}"))
        else:
            baseline = counterparts(records, baseline)
            entry = self._with_ours(replace(entry, baseline=_short(baseline)), row, column, records, baseline)
        return replace(entry, comparison=self._comparison(entry, row, column))

    def _with_ours(
        self,
        entry: Entry,
        row: str,
        column: ColumnSpec,
        records: Sequence[Record],
        baseline: Sequence[Record],
    ) -> Entry:
        """The entry with our figure, its uncertainty and its marks, if there is one."""
        if column.value in TARGET_COMPARISONS:
            for arithmetic in sorted({*filter(None, map(other_arithmetic, records))}):
                self.footnotes[not_compared(row, arithmetic)] = None
        joint_samples = self.samples.together([*records, *baseline]) if self.samples else None
        try:
            values = figures(column, records, baseline, joint_samples)
        except Incomparable as reason:
            note = f"{row} has no {column.heading.lower()} over {column.baseline}: {reason}"
            self.footnotes[note] = None
            return entry
        our_value = values if values is None or isinstance(values, str) else float(values[0])
        if values is None or (isinstance(our_value, float) and not math.isfinite(our_value)):
            return entry
        spread: Spread | None = None if isinstance(values, str) else ends(values[1:])
        if spread is None and len(records) == 1 and column.value and not column.baseline:
            spread = _scale(recorded_uncertainty(records[0]).get(column.value), column.scale)
        entry = replace(entry, ours=our_value)
        marks = reservations(column, records, baseline, entry, self.older, self.outside)
        if entry.published and find(self.cells, entry.published.id).determined:
            marks = tuple(mark for mark in MARKS if mark in {*marks, "fitted"})
        return replace(
            entry,
            spread=spread,
            n=distinct([*records, *baseline], self.samples) if column.sampled else None,
            band=self._band((self.spec.experiment, row, column.key), entry),
            marks=marks,
        )

    def _band(self, figure_id: FigureId, entry: Entry) -> Ends | None:
        """The band of a figure; None without one, or if it is of other cells."""
        band = self.bands.get(figure_id)
        return band.ends if band and band.digest == cells_digest(entry.cells, entry.baseline) else None

    def _comparison(self, entry: Entry, row: str, column: ColumnSpec) -> Comparison | None:
        """The entry beside its published value; None without one, or if ours is a text."""
        if entry.published is None or isinstance(entry.ours, str):
            return None
        ours = () if entry.ours is None else (Figure(float(entry.ours), entry.interval, entry.band),)
        return Comparison(
            cell=find(self.cells, entry.published.id),
            published=entry.published,
            unit=column.unit,
            ours=ours,
            n=entry.n,
            marks=entry.marks,
            table=self.spec.experiment,
            row=row,
            column=column.key,
            cells=entry.cells,
            baseline=entry.baseline,
        )

    def _with_certain(self, rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
        """The rows with what cannot miss said in their comparisons."""
        comparisons = iter(find_certain([e.comparison for row in rows for e in row.entries if e.comparison]))

        def with_certain(entry: Entry) -> Entry:
            return replace(entry, comparison=next(comparisons)) if entry.comparison else entry

        return tuple(replace(row, entries=tuple(map(with_certain, row.entries))) for row in rows)

    # --- beside the rows ----------------------------------------------------------------------------------

    def _crossings(self, rows: Sequence[TableRow]) -> Iterator[str]:
        """Which of the picture's curves is first where, panel by panel; nothing without intervals."""
        figure = self.spec.figure
        if figure is None or figure.kind != "curves" or self.samples is None:
            return
        columns = {column.key: column for column in self.spec.columns}
        points = [row for row in rows if row.is_point(figure.panel)]
        for panel in dict.fromkeys(row.labels.get(figure.panel, "") for row in points):
            row_group = [row for row in points if row.labels.get(figure.panel, "") == panel and row.run]
            sample = self.samples.together(record for row in row_group for record in self.groups[row.id])
            x_index = self.spec.columns.index(columns[figure.x])
            row_group.sort(key=lambda row: row.entries[x_index].number or 0.0)
            by_key = {
                key: self._curve(row_group, columns[key], sample) for key in (figure.x, *figure.columns)
            }
            x_curve = by_key.pop(figure.x)
            curves = {key: curve for key, curve in by_key.items() if curve}
            if x_curve is None or len(curves) < 2 or len(row_group) < 2:
                continue
            pairs = [(curves[a], curves[b]) for a, b in figure.pairs if {a, b} <= curves.keys()]
            rivals = list(curves.values())
            if columns[figure.columns[0]].baseline:
                rivals.append(SampledCurve(PLAIN_NAME, np.ones(len(row_group)), np.ones((len(row_group), 1))))
            clauses = sentences(x_curve, rivals, pairs)
            yield f"{figure.names.get(panel, panel)}: {'; '.join(clauses)}."

    def _curve(
        self, rows: Sequence[TableRow], column: ColumnSpec, joint_samples: JointSamples
    ) -> SampledCurve | None:
        """A column over rows, by rising values of x; `None` if one of them lacks its value or its draws."""
        values = [row.entries[self.spec.columns.index(column)].number for row in rows]
        draws = [column_draws(column, *self._sides(row.id, column), joint_samples) for row in rows]
        numbers = [value for value in values if value is not None]
        arrays = [resampled for resampled in draws if resampled is not None]
        if not len(numbers) == len(arrays) == len(rows):
            return None
        return SampledCurve(column.heading, np.array(numbers), np.stack(arrays))

    def _uncounted_parts(self) -> Iterator[str]:
        """What of a request is in no column, if anything is."""
        row_columns = product(self.groups, self.spec.columns)
        pairs = ((c, record) for row, c in row_columns for side in self._sides(row, c) for record in side)
        if sentence := uncounted_parts(pairs):
            yield sentence

    def _aside(self, aside: AsideSpec, rows: Sequence[TableRow]) -> Aside:
        cell = find(self.cells, aside.id)
        column = next((c for c in self.spec.columns if c.key == aside.column), None)
        row = next((r for r in rows if r.id == aside.row), None)
        our_entry = row.entries[self.spec.columns.index(column)] if row and column else None
        return Aside(
            label=aside.label or f"{cell.system}, {cell.metric.replace('_', ' ')}",
            published=Published(aside.id, cell.value_low, cell.value_high),
            unit=cell.unit,
            artifact=f"{cell.paper}, {cell.artifact}",
            note=aside.note,
            ours=our_entry,
            column=column,
        )

    def _papers(self) -> tuple[str, ...]:
        ids = [name for column in self.spec.columns for name in column.reference.values()]
        ids += [aside.id for aside in self.spec.aside]
        return tuple(sorted({find(self.cells, name).paper for name in ids} | set(self.spec.cite)))


def reservations(
    column: ColumnSpec,
    records: Sequence[Record],
    baseline: Sequence[Record],
    entry: Entry,
    older_keys: Collection[str] = (),
    outside_phases: OutsidePhases | None = None,
) -> tuple[str, ...]:
    """The marks of an entry's value, which is made from these records, in the order of the legend.

    `older` are keys of cells made by an older version of a component; `outside` as of `build`.
    A ratio to a fitted baseline still counts as a prediction; every other mark of the baseline is kept.
    """
    published, ours = entry.published, entry.number
    determined_ids = {column.key, column.value, column.total, column.per, published.id if published else None}
    tests: dict[str, Callable[[Record], bool]] = {
        "proxy": lambda r: r.provenance.weights == "proxy",
        "costs_only": lambda r: r.provenance.weights == "none",
        "dequantized": lambda r: r.provenance.dequantized,
        "matched": lambda r: r.provenance.matched is not None,
        "fitted": lambda r: r in records and _is_fitted(r, column, determined_ids),
        "extrapolated": lambda r: column.timed and _concerns(_sentences(r, outside_phases, False), column),
        "interpolated": lambda r: column.timed and _concerns(_sentences(r, outside_phases, True), column),
        "older": lambda r: r.key in older_keys,
        "wall": lambda r: column.timed and r.provenance.clock == "wall",
    }
    marks = [name for name, is_marked in tests.items() if any(map(is_marked, [*records, *baseline]))]
    ratio = published.ratio(ours) if published and ours is not None else None
    if ratio is not None and column.tolerance is not None and abs(ratio - 1) > column.tolerance:
        marks.append("off")
    return tuple(marks)


DECODING_PREFIXES = ("decode_", "target_", "draft", "provisional_", "time_per_token", "joules_per_token")
PREFILL_PREFIXES = ("prefill_", "ttft")
"""Beginnings of figures of one phase alone."""


def _sentences(record: Record, outside_phases: OutsidePhases | None, of_gaps: bool) -> list[str]:
    """What is said of a cell's rows in gaps, or of what left the ranges of the engine's numbers."""
    return [text for text in (outside_phases or {}).get(record.key, ()) if (UNMEASURED in text) == of_gaps]


def _concerns(phases: Collection[str], column: ColumnSpec) -> bool:
    """Whether a column's figures are of one of the phases that sentences begin with."""
    names = [name for name in (column.value, column.total, column.per) if name]
    other_prefixes = {"prefill": DECODING_PREFIXES, "decode": PREFILL_PREFIXES}
    return any(
        not all(name.startswith(other_prefixes[text.partition(" ")[0]]) for name in names) for text in phases
    )


def _short(records: Sequence[Record]) -> tuple[str, ...]:
    """Beginnings of the records' keys, long enough to find them."""
    return tuple(record.key[:SHORT_LENGTH] for record in records)


def _is_fitted(record: Record, column: ColumnSpec, determined_names: set[str | None]) -> bool:
    is_named = not determined_names.isdisjoint(record.provenance.fitted)
    return is_named or (column.timed and record.provenance.costs == "fitted")


def _commits(records: Sequence[Record]) -> tuple[str, ...]:
    """Abbreviated commits of the records; `+` means that files differed from the commit."""
    commits = {(r.provenance.commit or "unknown")[:10] + ("+" if r.provenance.dirty else "") for r in records}
    return tuple(sorted(commits))


def _natural(label: str) -> tuple[float, str]:
    """Sort key: numbers by size, then other words."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _scale(spread: Spread | None, scale: float) -> Spread | None:
    if isinstance(spread, tuple):
        low, high = sorted(end * scale + 0.0 for end in spread)  # a negative scale swaps the ends
        return low, high
    return None if spread is None else spread * abs(scale)
