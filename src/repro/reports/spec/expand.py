"""Writes an experiment's `table:` section out: rows, columns (one for each value of a label, comparisons),
published values, footnotes.

Must not know records.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import unknown
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import PUBLISHED_FIELDS, footnotes, load_names, load_notes
from repro.reports.reference.reference import find, load_cells
from repro.reports.spec.experiment import grid_of
from repro.reports.spec.join import CONDITION, EntryCoordinates, Texts, coordinates, published_ids
from repro.reports.spec.labels import Labels, defaults_of, labels_of
from repro.reports.spec.metric import MetricSpec, load_metrics
from repro.reports.spec.spec import (
    SEPARATOR,
    AsideSpec,
    ColumnSettings,
    ColumnSpec,
    Coordinates,
    FigureSpec,
    TableSpec,
    read_section,
)
from repro.reports.spec.units import factor

COMMA = ", "

VERSUS = "vs"
COMPARISONS = {"over": "ratio", "less": "difference", "below": "reduction", VERSUS: "ratio"}
"""What the words of a pair mean, as in `edgellm over sp`: the column's `compare`.

`vs` is the ratio that is above 1 if the first is better.
"""
PAIR_PATTERN = re.compile(rf"(.+?) ({'|'.join(COMPARISONS)}) (.+)")
OPPOSITES = {"higher": "lower", "lower": "higher", "": ""}


class Column(NamedTuple):
    """A column written out, with the entry of `columns:` and the metric that it is from."""

    spec: ColumnSpec
    settings: ColumnSettings
    metric: MetricSpec


def expand(experiment: str, section: Mapping[str, Any], content: Mapping[str, Any]) -> TableSpec:
    """The table that a section describes.

    Args:
        experiment: its name.
        section: the `table:` section.
        content: the experiment's file: `grid`, `labels`, `defaults`.

    Raises:
        InputError: something in the section or the grid is unknown, or a published value is ambiguous.
    """
    return _Expansion(experiment, section, content).table()


class _Expansion:
    """A section, and what is known of its cells and of published values."""

    def __init__(self, experiment: str, section: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        self.experiment, self.where = experiment, f"table {experiment!r}"
        self.settings = read_section(section, self.where)
        self.published, self.papers = load_cells(), load_bibliography()
        # A folder of one's own is no paper, unless published values or the bibliography say that it is.
        publishers = {*self.papers, *(cell.paper for cell in self.published.values())}
        folder = experiment.rpartition("/")[0]
        paper = self.settings.paper.get("paper", folder)
        if self.settings.paper and paper not in publishers:
            raise InputError(f"{self.where}, paper: {unknown('paper', paper, publishers)}")
        self.paper = str(paper) if paper in publishers else ""
        self._require_artifact(_texts(self._table_paper(), f"{self.where}, paper"), f"{self.where}, paper")
        self.cells = labels_of(grid_of(content).points() or [], defaults_of(content), content, conf_folders())
        labels = dict.fromkeys(label for cell in self.cells for label in cell)
        self.values = {
            label: [*dict.fromkeys(cell[label] for cell in self.cells if label in cell)] for label in labels
        }
        self.rows = self._rows()

    def table(self) -> TableSpec:
        settings = self.settings
        columns = [
            column
            for column_number, entry in enumerate(settings.columns)
            for column in self._columns(entry, f"{self.where}, columns.{column_number}")
        ]
        if settings.rows.least:
            load_metrics().find(settings.rows.least)
        table = TableSpec(
            experiment=self.experiment,
            title=settings.title,
            rows=replace(settings.rows, names=self._row_names()),
            columns=self._with_references(columns),
            aside=tuple(aside for entry in settings.aside for aside in self._asides(entry, columns)),
            footnotes=tuple(footnotes(settings.notes, load_notes())),
            cite=tuple(sorted({*settings.cite, *filter(None, [self.paper])})),
            figure=settings.figure and self._figure(settings.figure, columns),
            timeline=settings.timeline,
            best=settings.best,
        )
        self._require_rows(table)
        self._require_papers(table)
        return table

    # --- rows ---------------------------------------------------------------------------------------------

    def _rows(self) -> dict[str, Labels]:
        """The labels of each row by its id, in the order of the grid's values; none if one cannot be told."""
        by, also = self.settings.rows.by, self.settings.rows.also
        if any(label not in cell for cell in self.cells for label in by):
            return {}
        rows = {tuple(cell[label] for label in by) for cell in self.cells}
        for axis, label in enumerate(by):
            rows |= {(*row[:axis], value, *row[axis + 1 :]) for row in rows for value in also.get(label, ())}
        values = [dict.fromkeys((*self.values.get(label, ()), *also.get(label, ()))) for label in by]
        ranks = [{value: rank for rank, value in enumerate(label_values)} for label_values in values]
        row_tuples = sorted(rows, key=lambda row: [rank[text] for rank, text in zip(ranks, row, strict=True)])
        return {SEPARATOR.join(row): dict(zip(by, row, strict=True)) for row in row_tuples}

    def _row_names(self) -> dict[str, str]:
        """The display names of all rows by id, behind the grid's those that the section alone names."""
        rows = self.settings.rows
        names = {row: self._row_name(row) for row in self.rows}
        values = {value for label_values in self.values.values() for value in label_values}
        names |= {row: name for row, name in rows.names.items() if row not in values}
        return names | {row: rows.names.get(row, self._name(rows.by[-1], row)) for row in rows.refused}

    def _row_name(self, row: str) -> str:
        rows = self.settings.rows
        if row in rows.names:
            return rows.names[row]
        names = {label: self._name(label, value) for label, value in self.rows[row].items()}
        try:
            return rows.name.format(**names) if rows.name else COMMA.join(names.values())
        except (LookupError, ValueError, AttributeError) as wrong:
            raise InputError(
                f"{self.where}, rows.name: {rows.name!r} may name {', '.join(names)} in braces ({wrong!r})"
            ) from wrong

    def _name(self, label: str, value: str) -> str:
        """The display name of a label's value; the table's own names come first."""
        return self.settings.rows.names.get(value) or load_names().find(self.paper, label, value).name

    # --- columns ------------------------------------------------------------------------------------------

    def _columns(self, settings: ColumnSettings, entry: str) -> Iterator[Column]:
        """The columns of an entry; `entry` names it in error messages."""
        metric, each = load_metrics().find(settings.metric), settings.each
        if settings.pairs:
            for key, pair in settings.pairs.items():
                yield self._pair(key, pair, settings, metric, entry)
        elif not each:
            yield _column(settings.key or metric.name, settings.heading, settings, metric, entry)
        else:
            for key, value in self._values_of_each(settings, entry).items():
                heading = (settings.heading or "{}").format(self._name(each, value))
                key = (settings.key or "{}").format(key)
                yield _column(key, heading, settings, metric, entry, where={each: value})

    def _values_of_each(self, settings: ColumnSettings, entry: str) -> Mapping[str, str]:
        """The values of `each` by the key of their column."""
        each, of = settings.each, settings.of
        if isinstance(of, Mapping):
            return of
        if of is None and each not in self.values:
            raise InputError(f"{entry}: the grid does not tell the values of {each!r}; list them in `of`")
        return {value: value for value in (self.values[each] if of is None else of)}

    def _pair(self, key: str, pair: str, settings: ColumnSettings, metric: MetricSpec, entry: str) -> Column:
        each, parts = settings.each, PAIR_PATTERN.fullmatch(pair)
        if not each or parts is None:
            raise InputError(
                f"{entry}: {pair!r} must be two values of the label `each`, such as 'a over b' (ratio), "
                "'a vs b' (how many times better), 'a less b' (difference) or 'a below b' (by how many "
                "percent)"
            )
        first, word, base = parts.groups()
        for value in (first, base):
            if value not in self.values.get(each, (value,)):
                raise InputError(f"{entry}: {unknown(each, value, self.values[each])}")
        text = f"{self._name(each, first)} {'over' if word == VERSUS else word} {self._name(each, base)}"
        heading = settings.heading.format(text) if settings.heading else text
        better = settings.better
        if word == VERSUS:
            better = "higher" if better is None else better
            if metric.better == "lower":
                first, base = base, first
        sides = {"where": {each: first}, "over": {each: base}}
        return _column(
            key, heading, settings, metric, entry, **sides, compare=COMPARISONS[word], better=better
        )

    # --- published values ---------------------------------------------------------------------------------

    def _with_references(self, columns: Sequence[Column]) -> tuple[ColumnSpec, ...]:
        """The columns with the ids of their rows' published values."""
        entries = [
            self._entry(row, column, texts, column.spec.unit)
            for column in columns
            if column.settings.reference is None and (texts := self._texts(column))
            for row in self.rows
        ]
        ids = published_ids(entries, self.published.values(), self.where)
        names = {(entry.column, entry.row): name for entry, name in zip(entries, ids, strict=True)}
        specs = []
        for spec, settings, _ in columns:
            reference = settings.reference
            if reference is None:
                reference = {row: name for row in self.rows if (name := names.get((spec.key, row)))}
            elif isinstance(reference, str):
                reference = dict.fromkeys(self.rows, reference)
            specs.append(replace(spec, reference=reference))
        return tuple(specs)

    def _asides(self, aside: AsideSpec, columns: Sequence[Column]) -> Iterator[AsideSpec]:
        """An aside as it is; one with `paper` and `columns` for every row and column that was published."""
        if aside.id:
            yield aside
            return
        texts = _texts({**self._table_paper(), **aside.paper}, f"{self.where}, aside, paper")
        _require_texts(texts, ("artifact",), f"{self.where}, aside, paper")
        by_key = {column.spec.key: column for column in columns if column.spec.key in aside.columns}
        entries = [self._entry(row, column, texts, None) for row in self.rows for column in by_key.values()]
        ids = published_ids(entries, self.published.values(), self.where)
        for entry, name in zip(entries, ids, strict=True):
            if name:
                label = f"{by_key[entry.column].spec.heading}, {self._row_name(entry.row)}"
                yield AsideSpec(name, aside.note, label, entry.row, entry.column)

    def _entry(self, row: str, column: Column, texts: Texts, unit: str | None) -> EntryCoordinates:
        """An entry with what its cells' labels, the column and the table say of its published value.

        A ratio of times is a speedup of its baseline.
        """
        labels = {**self.rows[row], **column.spec.where}
        cells = [cell for cell in self.cells if labels.items() <= cell.items()]
        constants = {n: v for n, v in cells[0].items() if all(c.get(n) == v for c in cells)} if cells else {}
        by_field = coordinates(load_names(), self.paper, {**constants, **labels})
        if column.spec.over:
            bases = coordinates(load_names(), self.paper, column.spec.over).get("system", ())
            system = by_field.get("system", ())
            if column.spec.compare == "ratio" and column.metric.better == "lower":
                system, bases = bases, system
            by_field |= {name: sides for name, sides in (("system", system), ("relative_to", bases)) if sides}
        conditions = (*by_field.get(CONDITION, ()), *texts.get(CONDITION, ()))
        return EntryCoordinates(row, column.spec.key, {**by_field, **texts, CONDITION: conditions}, unit)

    def _texts(self, column: Column) -> Texts:
        """What a column's published cells must say beside its entries' labels; nothing if it has none."""
        paper, metrics = column.settings.paper, () if column.spec.baseline else column.metric.published
        if paper is False or (paper is None and not (self.settings.paper and metrics)):
            return {}
        where = f"{self.where}, column {column.spec.key!r}, paper"
        texts = _texts({"metric": metrics, **self._table_paper(), **(paper or {})}, where)
        self._require_artifact(texts, where)
        _require_texts(texts, ("artifact", "metric"), where)
        return texts

    def _table_paper(self) -> Coordinates:
        """The section's `paper`, which names one; nothing if the section has none."""
        return {"paper": self.paper, **self.settings.paper} if self.settings.paper else {}

    # --- what a table names -------------------------------------------------------------------------------

    def _figure(self, figure: FigureSpec, columns: Sequence[Column]) -> FigureSpec:
        """The figure with its columns' keys and with the words that a file may leave out."""
        specs = {column.spec.key: column.spec for column in columns}
        keys = [key for pattern in figure.columns or specs for key in _matching(pattern, specs)]
        heading, x_heading, names = figure.heading, figure.x_heading, figure.names
        if figure.kind != "bars" and not heading and keys and keys[0] in specs:
            heading = specs[keys[0]].unit
        if figure.kind == "lines":
            by = self.settings.rows.by
            name_map = {value: self._name(name, value) for name in by for value in self.values.get(name, ())}
            names = {value: name for value, name in name_map.items() if value != name} | dict(names)
            x_heading = x_heading or figure.x
        if figure.kind == "curves" and not x_heading and figure.x in specs:
            x_heading = specs[figure.x].heading
        title = figure.title or self.settings.title
        return replace(
            figure, columns=tuple(keys), title=title, heading=heading, x_heading=x_heading, names=names
        )

    def _require_artifact(self, texts: Texts, where: str) -> None:
        """InputError for a table or figure of which no value was published."""
        papers = texts.get("paper", ())
        artifacts = {cell.artifact for cell in self.published.values() if cell.paper in papers}
        for name in texts.get("artifact", ()):
            if name not in artifacts:
                raise InputError(f"{where}: {unknown('artifact', name, artifacts)}")

    def _require_rows(self, table: TableSpec) -> None:
        """InputError for a row or a label's value that a column or the figure names and the grid lacks."""
        if not self.rows:
            return
        rows = table.rows.names
        for name in table.figure.without if table.figure else ():
            if name not in rows:
                raise InputError(f"{self.where}, figure, without: {unknown('row', name, rows)}")
        for column in table.columns:
            where = f"{self.where}, column {column.key!r}"
            base = [column.relative_to] if isinstance(column.relative_to, str) and column.relative_to else []
            for name in (*base, *column.reference):
                if name not in rows:
                    raise InputError(f"{where}: {unknown('row', name, rows)}")
            for label, value in (*column.where.items(), *column.over.items()):
                values = self.values.get(label, ())
                if values and value and not _is_among(value, values):  # "" is none of that name
                    raise InputError(f"{where}: {unknown(label, value, values)}")

    def _require_papers(self, table: TableSpec) -> None:
        """InputError if a paper that the table cites, or compares with, is not in the bibliography."""
        ids = [name for column in table.columns for name in column.reference.values()]
        papers = {find(self.published, name).paper for name in (*ids, *(a.id for a in table.aside))}
        for paper in sorted({*table.cite, *papers}):
            if paper not in self.papers:
                raise InputError(
                    f"{self.where} cites {paper!r}: {unknown('BibTeX entry', paper, self.papers)}"
                )


def _texts(paper: Coordinates, where: str) -> dict[str, tuple[str, ...]]:
    """Accepted texts by field of a published cell; InputError for an unknown field."""
    for name in paper:
        if name not in PUBLISHED_FIELDS:
            raise InputError(f"{where}: {unknown('field of a published cell', name, PUBLISHED_FIELDS)}")
    return {name: (texts,) if isinstance(texts, str) else texts for name, texts in paper.items()}


def _require_texts(texts: Texts, fields: Sequence[str], where: str) -> None:
    """InputError unless texts are given for these fields of the published values."""
    if not all(texts.get(name) for name in fields):
        raise InputError(f"{where}: say {' and '.join(fields)} of the published values")


def _matching(pattern: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if fnmatchcase(key, pattern)] if "*" in pattern else [pattern]


def _is_among(value: str, values: Collection[str]) -> bool:
    """Whether a label has this value, also if a number is spelt otherwise (4e9)."""
    try:
        return value in values or float(value) in map(float, values)
    except ValueError:
        return False


def _column(
    key: str, heading: str, settings: ColumnSettings, metric: MetricSpec, entry: str, **changes: Any
) -> Column:
    """The column of a metric; `changes` go before the settings, and labels beside theirs."""
    where, over = ({**getattr(settings, side), **changes.get(side, {})} for side in ("where", "over"))
    compare = changes.get("compare", settings.compare)
    is_compared = bool(over or settings.relative_to)
    scale, unit, digits, better = _display(settings, metric, compare or "ratio" if is_compared else "", entry)
    wished_better = changes.get("better", settings.better)
    spec = ColumnSpec(
        key=key,
        heading=heading or metric.heading,
        value=metric.value,
        total=metric.total,
        per=metric.per,
        unit=unit,
        digits=digits if settings.digits is None else settings.digits,
        scale=scale * settings.scale,
        better=better if wished_better is None else wished_better,
        relative_to=settings.relative_to,
        over=over,
        compare=compare or "ratio",
        aggregate=settings.aggregate,
        where=where,
        tolerance=settings.tolerance,
        timed=metric.timed if settings.timed is None else settings.timed,
        sampled=metric.sampled,
        absent=settings.absent,
    )
    return Column(spec, settings, metric)


def _display(
    settings: ColumnSettings, metric: MetricSpec, compare: str, entry: str
) -> tuple[float, str, int, Any]:
    """Scale, unit, digits and direction of the metric, or of a comparison of two of its values."""
    if compare == "ratio":
        return 1.0, "x", 2, metric.better
    if compare == "reduction":
        return 1.0, "%", 1, OPPOSITES[metric.better]
    scale, unit, wished_unit = metric.scale, metric.unit, settings.unit
    difference_unit = "percentage_point" if compare and unit == "%" else unit
    if wished_unit is None or wished_unit == difference_unit:
        return scale, difference_unit, metric.digits, metric.better
    multiplier = factor(unit, wished_unit)
    if multiplier is None:
        raise InputError(f"{entry}: {metric.name} is in {unit!r}, not in {wished_unit!r}")
    wished_unit = "percentage_point" if compare and wished_unit == "%" else wished_unit
    return scale * multiplier, wished_unit, metric.digits, metric.better
