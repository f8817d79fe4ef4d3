"""A table as text: formatted values, headings and notes, the same for every format; single values of records.

Knows no format: escaping, and what fits a page, belong to the formats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap

from repro.records.record import Scalar
from repro.reports.comparison.comparison import Published
from repro.reports.comparison.frame import sentences, to_frame
from repro.reports.intervals.bootstrap import RESAMPLES
from repro.reports.intervals.rounds import narrow
from repro.reports.reference.names import ANY_PAPER, load_names
from repro.reports.spec.metric import MetricSpec
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.bands import draws_words
from repro.reports.tables.how_made import EMULATED
from repro.reports.tables.table import MARKS, Aside, Entry, Table, TableRow

ABSENT = "—"
NOT_RUN = "not run"
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
POINT_UNITS = ("%", "percentage_point")
"""Units whose values are compared with published ones by their difference: a ratio of shares says little."""
UNVARIED_ROWS = 3
"""Rows from which on a column of equal values is named below the table."""
MOST_COLUMNS = 12
"""Columns of a printed table."""
UNITS = {"x": "×", "percentage_point": "points", "billion_params": "billion parameters", "": ""}


@dataclass(frozen=True)
class Heading:
    """A heading that spans its `parts`, which are printed below it if there are several."""

    text: str
    parts: tuple[str, ...] = ("",)

    @property
    def flat(self) -> tuple[str, ...]:
        """One heading per column: the words over the first column, the parts over the others."""
        return (self.text, *self.parts[1:])

    def wrap(self, letters: int) -> list[str]:
        """Its words in lines of so many characters, or of a longer word; the unit on a line of its own."""
        name, bracket, unit = self.text.partition(" (")
        lines = wrap(name, max(letters, 1), break_long_words=False, break_on_hyphens=False) or [""]
        return [*lines, f"({unit}"] if bracket else lines


@dataclass(frozen=True)
class Grid:
    """A table as text; `alignment` has one letter per column: l, r, or p for text that may wrap."""

    headings: tuple[Heading, ...]
    lines: tuple[tuple[str, ...], ...]
    alignment: str

    @classmethod
    def of(cls, headings: Mapping[str, str], lines: Iterable[tuple[str, ...]]) -> Grid:
        """A table of plain columns; `headings` have their alignments."""
        return cls(tuple(map(Heading, headings)), tuple(lines), "".join(headings.values()))

    def divide(self, fits: Callable[[Grid], bool]) -> list[Grid]:
        """The grid in parts that fit, each with the columns of names and at least one heading beside them.

        Columns of one heading stay together. A grid of text alone, whose columns may wrap, stays whole.
        """
        name_count = len(self.alignment) - len(self.alignment.lstrip("lp"))
        if name_count == len(self.alignment) or fits(self):
            return [self]
        column_parts = [list(range(name_count))]
        for i in range(name_count, len(self.headings)):
            if len(column_parts[-1]) > name_count and not fits(self._of([*column_parts[-1], i])):
                column_parts.append(list(range(name_count)))
            column_parts[-1].append(i)
        return [self._of(part) for part in column_parts]

    def _of(self, headings: Sequence[int]) -> Grid:
        """The grid with some of its headings."""
        ends = list(accumulate(len(heading.parts) for heading in self.headings))
        columns = [k for i in headings for k in range(ends[i] - len(self.headings[i].parts), ends[i])]
        return Grid(
            tuple(self.headings[i] for i in headings),
            tuple(tuple(line[k] for k in columns) for line in self.lines),
            "".join(self.alignment[k] for k in columns),
        )


@dataclass(frozen=True)
class Page:
    """Tables with a title above and notes below, ready for any format; `experiment` names the files.

    `made_by_table` says whether `repro table` makes the page.
    """

    experiment: str
    title: str
    grids: tuple[Grid, ...]
    notes: tuple[str, ...]
    made_by_table: bool = True


def page(table: Table) -> Page:
    """The table; after it one of published values of rows that were not run, and one of the aside values."""
    grids = [grid(table)]
    grids += [unrun_grid(table)] if _unrun(table) else []
    grids += [aside_grid(table)] if table.aside else []
    return Page(table.experiment, table.caption, tuple(grids), tuple(notes(table)))


def grid(table: Table) -> Grid:
    """Rows by columns; a column with published values becomes three: ours, paper, and how they compare.

    Rows that were not run and have published values are in `unrun_grid`.
    """
    rows = [row for row in table.rows if row not in _unrun(table)]
    are_compared = [any(row.entries[i].published for row in rows) for i in range(len(table.columns))]
    headings = [Heading(name) for name in table.apart or (table.heading,)]
    name_count = len(headings)
    for column, has_paper in zip(table.columns, are_compared, strict=True):
        headings.append(Heading(heading(column), ("ours", "paper", against(column)) if has_paper else ("",)))
    shared_marks = table.shared_marks
    lines = [
        (*_names(row, table.apart), *_line(row, table.columns, are_compared, shared_marks)) for row in rows
    ]
    alignment = "l" * name_count + "r" * sum(len(h.parts) for h in headings[name_count:])
    return Grid(tuple(headings), tuple(lines), alignment)


def against(column: ColumnSpec) -> str:
    """How a column is compared with published values: by a ratio, or by a difference in points."""
    return "points" if column.unit in POINT_UNITS else "ratio"


def _unrun(table: Table) -> list[TableRow]:
    """Rows that were not run, beside others that were, and that the paper has values of."""
    if not any(row.run for row in table.rows):
        return []
    return [row for row in table.rows if not row.run and any(e.published for e in row.entries)]


def unrun_grid(table: Table) -> Grid:
    """The published values of rows that were not run, without columns that have none."""
    rows = _unrun(table)
    indices = [i for i in range(len(table.columns)) if any(row.entries[i].published for row in rows)]
    columns = [table.columns[i] for i in indices]
    lines = [
        (
            *(_names(row, table.apart) if table.apart else [row.name]),
            *(published_words(row.entries[i].published, table.columns[i].digits) for i in indices),
        )
        for row in rows
    ]
    names = table.apart or (f"published, {NOT_RUN} here",)
    headings = (*map(Heading, names), *(Heading(heading(column)) for column in columns))
    return Grid(headings, tuple(lines), "l" * len(names) + "r" * len(columns))


def _names(row: TableRow, apart: Sequence[str]) -> list[str]:
    return [printed_label(name, row.labels.get(name, "")) for name in apart] or [_row_name(row)]


def printed_label(name: str, value: str) -> str:
    """A label's value as tables print it."""
    return load_names().find(ANY_PAPER, name, value).name


def _row_name(row: TableRow) -> str:
    """The row's name; of a row without a cell also that it was not run, or cannot be."""
    if row.run:
        return row.name
    return f"{row.name} ({NOT_RUN})" if row.refused is None else f"{row.name} (refused [{row.refused}])"


def _line(
    row: TableRow, columns: Sequence[ColumnSpec], are_compared: Sequence[bool], shared_marks: Sequence[str]
) -> list[str]:
    cells: list[str] = []
    for column, has_paper, entry in zip(columns, are_compared, row.entries, strict=True):
        absent_text = row.run and entry.ours is None and entry.failed is None and column.absent
        cells.append(absent_text or entry_text(entry, column, shared_marks))
        if has_paper:
            cells += [published_words(entry.published, column.digits), compared_words(entry, column)]
    return cells


def heading(column: ColumnSpec) -> str:
    """A column's heading with its unit, and an arrow in the direction of better values."""
    unit = UNITS.get(column.unit, column.unit)
    return column.heading + (f" ({unit})" if unit else "") + ARROWS[column.better]


def entry_text(entry: Entry, column: ColumnSpec, shared_marks: Sequence[str] = ()) -> str:
    """Our value with its uncertainty and its marks, except marks shared by the whole table."""
    if entry.failed is not None:
        return f"failed [{entry.failed}]"
    if entry.ours is None:
        return ABSENT
    if isinstance(entry.ours, str):
        return entry.ours + signs(entry.marks, shared_marks)
    text = fixed_point(entry.ours, column.digits)
    if isinstance(entry.spread, float):
        text += f" ± {fixed_point(entry.spread, column.digits)}"
    elif entry.interval and not narrow(entry.interval):
        text += f" [{', '.join(fixed_point(end, column.digits) for end in entry.interval)}]"
    if entry.band and not narrow(entry.band):
        text += f" {{{', '.join(fixed_point(end, column.digits) for end in entry.band)}}}"
    return text + signs(entry.marks, shared_marks)


def published_words(published: Published | None, digits: int) -> str:
    """A published value, range or bound, formatted."""
    if published is None:
        return ABSENT
    return range_words(published.low, published.high, lambda end: fixed_point(end, digits))


def range_words(
    low: float | None, high: float | None, to_text: Callable[[float], str], negative_joiner: str = " to "
) -> str:
    """A value, a range, or a bound, each end in words; what stands between ends of which one is negative."""
    low_text, high_text = (None if end is None else to_text(end) for end in (low, high))
    if low_text is None or high_text is None:
        return f"≤ {high_text}" if low_text is None else f"≥ {low_text}"
    if low_text == high_text:
        return low_text
    return (negative_joiner if "-" in (low_text[:1], high_text[:1]) else "–").join((low_text, high_text))


def three_digits(value: float) -> str:
    """The value with three significant digits, trailing zeros dropped."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def with_unit(text: str, unit: str) -> str:
    """A value's words with the unit as it is printed."""
    return f"{text} {UNITS.get(unit, unit)}".strip()


def compared_words(entry: Entry, column: ColumnSpec) -> str:
    """Our value against the published one: their ratio, or the difference of shares in points."""
    if column.unit not in POINT_UNITS:
        return ABSENT if entry.ratio is None else f"{entry.ratio:.2f}"
    our_number = entry.number
    nearest_value = (
        entry.published.nearest(our_number) if entry.published and our_number is not None else None
    )
    if nearest_value is None or our_number is None:
        return ABSENT
    difference = our_number - nearest_value
    text = fixed_point(difference, column.digits)
    return f"+{text}" if difference > 0 and float(text) else text


def fixed_point(number: float, digits: int) -> str:
    """The number with so many decimals; never "-0"."""
    text = f"{number:.{digits}f}"
    return text.lstrip("-") if not float(text) else text


def signs(marks: Sequence[str], shared_marks: Sequence[str] = ()) -> str:
    """The signs of the marks that are not shared."""
    symbols = dict.fromkeys(MARKS[mark][0] for mark in marks if mark not in shared_marks)
    return f" {' '.join(symbols)}" if symbols else ""


def notes(table: Table) -> list[str]:
    """Notes below the table, one sentence each: how it was made, legend, footnotes, errors, source."""
    lines = [table.how_made + _bandless(table)] if table.how_made else []
    lines += [f"All our figures: {MARKS[mark][1]}." for mark in table.shared_marks]
    lines += table.legend
    last_number = max([0, *(e.failed or 0 for e in table.entries), *(row.refused or 0 for row in table.rows)])
    lines += number_footnotes(table.footnotes, last_number)
    lines += [*_equal_figures(table), *sentences(to_frame(table.comparisons)), *_interval_lines(table)]
    lines += [table.amounts] if table.amounts else []
    commits = ", ".join(table.commits) or "none"
    commands = ", ".join(f"`{command}`" for command in table.commands or (table.command,))
    lines.append(f"{table.date or 'No records'}, commit {commits}, made by {commands}.")
    if any(commit.endswith("+") for commit in table.commits):
        lines.append(
            "A commit with +: code or configuration had uncommitted changes when a cell was computed."
        )
    return lines


def _bandless(table: Table) -> str:
    """That nobody has varied the assumed numbers of the table's machines."""
    has_costs = any(column.timed for column in table.columns) and EMULATED in table.figure_kinds
    has_bands = any(entry.band for entry in table.entries)
    return " No band: the assumed numbers were not varied." if has_costs and not has_bands else ""


def number_footnotes(footnotes: Sequence[str], numbered_count: int) -> list[str]:
    """Footnotes as lines; only the first ones, which values refer to, have numbers."""
    return [f"[{i}] {text}" if i <= numbered_count else text for i, text in enumerate(footnotes, 1)]


def _equal_figures(table: Table) -> Iterator[str]:
    """What does not change where one would expect it: a column over its rows, two columns over all rows."""
    constant_headings: list[str] = []
    headings_by_figures: dict[tuple[str, ...], list[str]] = {}
    rows = [row for row in table.rows if row.run]
    for i, column in enumerate(table.columns):
        entries = [row.entries[i] for row in rows if row.entries[i].ours is not None]
        texts = [entry_text(entry, column, tuple(MARKS)) for entry in entries]
        if len(texts) >= UNVARIED_ROWS and len(set(texts)) == 1:
            constant_headings.append(column.heading)
        elif len(texts) == len(rows) > 1 and not column.baseline:
            headings_by_figures.setdefault((column.unit, *texts), []).append(column.heading)
    if constant_headings:
        yield f"The same in every row: {'; '.join(constant_headings)}."
    for names in headings_by_figures.values():
        if len(names) > 1:
            yield f"The same figures in all rows: {'; '.join(names)}."


def interval_line(table: Table) -> list[str]:
    """What brackets mean, if there are any."""
    entries = [e for e in table.entries if isinstance(e.spread, tuple) and not narrow(e.spread)]
    lines = []
    if any(entry.n != 1 for entry in entries):
        lines.append(
            "[low, high] is a 95% interval over prompts, rows or requests (percentile bootstrap, paired in "
            f"comparisons, {RESAMPLES} resamples); figures that rest on fewer than five have none."
        )
    if any(entry.n == 1 for entry in entries):
        lines.append("[low, high] of a figure of one prompt has its rounds but for a tenth at either end.")
    return lines


def _interval_lines(table: Table) -> list[str]:
    """What brackets and braces mean, if there are any, and how many distinct texts figures rest on."""
    lines = interval_line(table)
    if any(entry.band and not narrow(entry.band) for entry in table.entries):
        lines.append(
            "{low, high} is the machine's band: its assumed numbers varied together by 30%, "
            f"{draws_words(table.draw_count)}."
        )
    if counts := [entry.n for entry in table.entries if entry.n]:
        span = " to ".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
        lines.append(
            f"A figure rests on {span} distinct texts, rows or requests; cells that read the same text count "
            "once."
        )
    return lines


def aside_grid(table: Table) -> Grid:
    """Published values for another workload, with our nearest value."""
    headings = ("published, for another workload", "paper", "nearest of ours", "where")
    return Grid.of({**dict.fromkeys(headings, "l"), "difference": "p"}, map(_aside_line, table.aside))


def _aside_line(aside: Aside) -> tuple[str, ...]:
    value = range_words(aside.published.low, aside.published.high, lambda end: f"{end + 0.0:.10g}")
    our_text = ABSENT
    if aside.ours and aside.column and (aside.ours.ours is not None or aside.ours.failed):
        our_text = with_unit(entry_text(aside.ours, aside.column, tuple(MARKS)), aside.column.unit)
    return aside.label, with_unit(value, aside.unit), our_text, aside.artifact, aside.note


SIGNIFICANT_DIGITS = 3
"""Digits that the smallest of the values keeps, also if its metric has fewer decimals."""

MOST_DECIMALS = 6
"""Decimals that no value exceeds."""


def decimals(metric: MetricSpec, values: Iterable[Scalar]) -> int:
    """Decimals for these values of records: the metric's, or more if a small value would lose its digits."""
    numbers = [abs(value * metric.scale) for value in values if isinstance(value, (int, float)) and value]
    if not numbers or metric.digits == 0:
        return metric.digits
    leading_exponent = math.floor(math.log10(min(numbers)))
    return max(metric.digits, min(MOST_DECIMALS, SIGNIFICANT_DIGITS - 1 - leading_exponent))


def value_words(metric: MetricSpec, value: Scalar) -> str:
    """A record's value in the metric's unit, without the unit; a string as it is."""
    if value is None or isinstance(value, str):
        return ABSENT if value is None else value
    number = value * metric.scale + 0.0  # never -0.0
    digits = decimals(metric, [value])
    return f"{number:.{SIGNIFICANT_DIGITS}g}" if 0 < abs(number) < 10**-digits else f"{number:.{digits}f}"


def unit_words(metric: MetricSpec) -> str:
    """The metric's unit as it is printed; "" if it has none."""
    return UNITS.get(metric.unit, metric.unit)
