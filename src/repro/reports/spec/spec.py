"""What a `table:` section may say, and what a table is that it is written out to (`expand`): rows, columns,
published values, pictures. docs/tables.md has examples.

Owns the section's settings, its short forms and the keys that are no more. Knows neither records, cells and
published values, nor how a table looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Interval, MinLen
from pydantic import BeforeValidator

from repro.core.bounds import Part
from repro.core.errors import InputError
from repro.core.registry import require_choice, unknown
from repro.core.typed import typed
from repro.reports.reference.names import load_names
from repro.reports.spec.experiment import experiment_file, experiments


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(_text)]
"""A text, which a file may write as a number."""

Labels = Mapping[str, Text]
"""Texts by label."""

Coordinates = Mapping[str, Text | tuple[Text, ...]]
"""Fields of a published cell, each with the texts that it may have."""

Digits = Annotated[int, Interval(ge=0, le=15)]
"""Decimals that a column may have; a number has no more of its own."""

SEPARATOR = " / "
"""Separator of the labels in a row's id."""


@dataclass(frozen=True)
class RowsSpec:
    """How records are grouped into rows: records with equal labels share a row, whose id joins them by " / ".

    Rows that `names` does not name follow, sorted by their labels, so a user's own method appears without a
    change to the table.

    Attributes:
        by: the labels.
        names: display names by row's id, or by value of a label, which also give the order.
        name: a pattern for the other rows, such as `{length} tokens`.
        also: values of labels that no cell has.
        apart: each label has a column instead of one column of names.
        refused: why no cell can run in a row that has none, by row's id.
        least: a figure, such as `answer_seconds`: where a column finds several cells of a row, such as a
            method on each processor, the one that has the least of it counts.
    """

    by: Annotated[tuple[str, ...], MinLen(1)]
    names: Labels = field(default_factory=dict)
    name: str = ""
    also: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)
    apart: bool = False
    refused: Labels = field(default_factory=dict)
    least: str = ""

    def __post_init__(self) -> None:
        for label in self.also:
            require_choice("label in rows.also", label, self.by)

    def printed_names(self, row: str, experiment: str) -> str:
        """The printed names of a row's labels, those of the experiment's paper first."""
        names, paper = load_names(), experiment.partition("/")[0]
        labels = zip(self.by, row.split(SEPARATOR, len(self.by) - 1), strict=False)
        return SEPARATOR.join(names.find(paper, label, value).name for label, value in labels)


@dataclass(frozen=True)
class ColumnSpec:
    """One column, that is, one value of each row.

    Either `value`, a value of the records as it is, or `total` over `per`, two values that are first summed
    over the row's records. It is multiplied by `scale` and shown in `unit` with `digits` decimals.

    `where` selects records by labels. `aggregate` reduces several records to one value; `only` requires a
    single record. `reference` maps row ids to published cells, `tolerance` is the relative difference from
    them that still counts as agreement. `timed` is false for values that need neither clock nor costs
    (accuracy, acceptance), `sampled` for those that are no statistic over prompts (a peak). `absent` is
    printed where a row with cells has no value; default a dash.

    A value may be compared with a baseline over the same prompts: `relative_to` is the id of a row, or labels
    of a row that otherwise has this row's labels or lacks them; `over` are labels of the same row's records,
    which otherwise have those of `where`. `compare` is `ratio` to it, `difference` from it, or `reduction`
    below it in percent.
    """

    key: str
    heading: str
    value: str | None = None
    total: str | None = None
    per: str | None = None
    unit: str = ""
    digits: Digits = 2
    scale: float = 1.0
    better: Literal["higher", "lower", ""] = ""
    relative_to: Text | Labels = ""
    over: Labels = field(default_factory=dict)
    compare: Literal["ratio", "difference", "reduction"] = "ratio"
    aggregate: Literal["only", "mean", "median", "geomean", "total"] = "only"
    where: Labels = field(default_factory=dict)
    reference: Labels = field(default_factory=dict)
    tolerance: float | None = None
    timed: bool = True
    sampled: bool = True
    absent: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.total is None) or (self.total is None) != (self.per is None):
            raise InputError(f"column {self.key!r} needs either `value`, or `total` and `per`")
        if self.aggregate == "total" and self.total is None:
            raise InputError(
                f"column {self.key!r} aggregates totals: give `total` and `per` instead of `value`"
            )
        if not self.scale:
            raise InputError(f"column {self.key!r} has the scale 0, which leaves nothing of its values")
        if self.relative_to and self.over:
            raise InputError(f"column {self.key!r} has two baselines; give one of `relative_to` and `over`")
        if self.compare != "ratio" and not self.baseline:
            raise InputError(f"column {self.key!r} has no baseline: give `relative_to` or `over`")

    @property
    def baseline(self) -> str:
        """The baseline in words; "" if the column has none."""
        labels = self.relative_to or self.over
        return labels if isinstance(labels, str) else " ".join(labels.values())


@dataclass(frozen=True)
class AsideSpec:
    """A published value shown in a table of its own because its workload differs.

    Attributes:
        id: the published value.
        note: how its workload differs.
        label: what it is called; by default its system and metric.
        row: our nearest value's row, shown beside it without a ratio.
        column: that value's column.
        paper: in place of `id`, where published values of `columns` are found in every row.
        columns: keys of columns, with `paper`.
    """

    id: str = ""
    note: str = ""
    label: str = ""
    row: Text | None = None
    column: str | None = None
    paper: Coordinates = field(default_factory=dict)
    columns: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.id) == bool(self.paper):
            raise InputError("an aside needs either `id`, or `paper` and `columns`")


@dataclass(frozen=True)
class FigureSpec:
    """The figure of a table.

    `bars` has a panel per column and a bar per row. The other kinds show columns of one unit on one axis:
    `grouped` as a group of bars per row, `stacked` as one stacked bar per row, `dots` as a line of dots per
    row, `lines` as lines over the numeric label `x`, one for each column and value of the labels that are
    neither `x` nor `panel`. `curves` are lines over the column `x`: rows that are named by numbers beside
    their `panel` are joined, others are marked points, and below the table stands which curve is first where.

    Attributes:
        columns: keys of columns, with `*` for any text; by default all.
        title: stands above it.
        without: ids of rows to leave out.
        kind: how it is drawn.
        heading: of the value axis.
        x: a label (`lines`) or a column's key (`curves`).
        x_heading: of its axis.
        log: the axis of `x`, or the value axis of `grouped` and `dots`, is logarithmic.
        panel: a label; each of its values has a panel.
        level: a column that is drawn as a dashed line, such as chance.
        names: display names of labels' values.
        uprights: published x by name, as numbers or ids (`curves`).
        pairs: pairs of columns of which is said who is ahead where (`curves`).
    """

    columns: tuple[Text, ...] = ()
    title: str = ""
    without: tuple[Text, ...] = ()
    kind: Literal["bars", "grouped", "stacked", "dots", "lines", "curves"] = "bars"
    heading: str = ""
    x: str = ""
    x_heading: str = ""
    log: bool = False
    panel: str = ""
    level: str = ""
    names: Labels = field(default_factory=dict)
    uprights: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LaneSpec:
    """A lane of a timeline.

    Attributes:
        name: what it is called.
        spans: beginnings of the names of its spans; one that an earlier lane shows is not shown again.
        during: a lane; spans that begin after its first one, in the same round, get another shade.
    """

    name: str
    spans: tuple[str, ...]
    during: str = ""


@dataclass(frozen=True)
class WindowSpec:
    """A window of a timeline, in rounds of the first request.

    Attributes:
        first: its first round, counted from 0; -1 is the prefill.
        last: its last round.
        title: stands above it.
        part: share of it that is shown.
        typical: in place of `first` and `last`, a number of rounds: the stretch that drafts and accepts most
            nearly as many tokens as the request's mean.
    """

    first: int = 0
    last: int = 0
    title: str = ""
    part: Part = 1.0
    typical: Annotated[int, Interval(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.typical and (self.first or self.last):
            raise InputError("a window has either rounds `first` to `last`, or a number of `typical` rounds")


@dataclass(frozen=True)
class TimelineSpec:
    """The timeline of one cell: a panel per window, a row per lane.

    Attributes:
        lanes: rows of spans.
        windows: panels.
        where: labels of the cell.
        title: stands above it.
    """

    lanes: Annotated[tuple[LaneSpec, ...], MinLen(1)]
    windows: Annotated[tuple[WindowSpec, ...], MinLen(1)]
    where: Labels = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        names = [lane.name for lane in self.lanes]
        for lane in self.lanes:
            if lane.during and lane.during not in names:
                raise InputError(f"in lane {lane.name!r} {unknown('lane', lane.during, names)}")


@dataclass(frozen=True)
class TableSpec:
    """A whole table; `experiment` is the name of its file.

    `cite` adds papers to those of the published cells. With `best` the best value of each column is marked.
    `command` is what makes the table if it is not the experiment.
    """

    experiment: str
    title: str
    rows: RowsSpec
    columns: tuple[ColumnSpec, ...]
    where: Labels = field(default_factory=dict)
    aside: tuple[AsideSpec, ...] = ()
    footnotes: tuple[str, ...] = ()
    cite: tuple[str, ...] = ()
    figure: FigureSpec | None = None
    timeline: TimelineSpec | None = None
    best: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        keys = [column.key for column in self.columns]
        if not keys:
            raise InputError(f"table {self.experiment!r} has no columns; name a metric for each")
        for key in keys:
            if keys.count(key) > 1:
                raise InputError(f"table {self.experiment!r} has two columns with the key {key!r}")
        keys_used = [a.column for a in self.aside if a.column]
        if self.figure:
            keys_used += [key for key in (*self.figure.columns, self.figure.level) if key]
            keys_used += [key for pair in self.figure.pairs for key in pair]
            keys_used += [self.figure.x] if self.figure.kind == "curves" else []
        for key in keys_used:
            if key not in keys:
                raise InputError(f"in table {self.experiment!r} {unknown('column', key, keys)}")
        if self.figure:
            self._check(self.figure)

    def _check(self, figure: FigureSpec) -> None:
        """Check that columns on one axis have one unit, and that axes are labels of the rows."""
        units = {column.unit for column in self.columns if column.key in (*figure.columns, figure.level)}
        if figure.kind != "bars" and len(units) > 1:
            raise InputError(
                f"the picture of table {self.experiment!r} has {', '.join(sorted(map(repr, units)))} on one "
                "axis; choose columns of one unit, or kind: bars"
            )
        if figure.log and figure.kind not in ("grouped", "dots", "lines"):
            raise InputError(f"the picture of table {self.experiment!r} has no logarithmic {figure.kind}")
        if figure.level and figure.kind not in ("grouped", "lines"):
            raise InputError(f"the picture of table {self.experiment!r}: {figure.kind} have no `level`")
        if figure.kind != "curves" and (figure.uprights or figure.pairs):
            raise InputError(
                f"the picture of table {self.experiment!r}: {figure.kind} have no `uprights` or `pairs`"
            )
        if figure.kind in ("lines", "curves"):
            for name in (*([figure.x] * (figure.kind == "lines")), *([figure.panel] * bool(figure.panel))):
                if name not in self.rows.by:
                    raise InputError(
                        f"in the picture of table {self.experiment!r} {unknown('label', name, self.rows.by)}"
                    )


METRIC_HINT = "`value`, `total` and `per` stand in conf/metric/; name a `metric`"
WITHDRAWN_KEYS = {"footnotes": "write `notes`", "metric": "name the metric in each column"}
WITHDRAWN_COLUMN_KEYS = {
    "against": "write `relative_to` with labels, such as {method: std}",
    **dict.fromkeys(("value", "total", "per"), METRIC_HINT),
}
"""Keys that a section or one of its columns does not have any more, and what to write instead."""


@dataclass(frozen=True)
class ColumnSettings:
    """An entry of `columns:`, which becomes one column or several.

    Attributes:
        metric: what is shown (`conf/metric/`).
        key: the column's name; `{}` stands for the value of `each`. Default: that value, or the metric.
        heading: display name; `{}` stands for the display name of the value of `each`.
        each: a label; there is one column for each of its values.
        of: the values of that label, in this order: a list, or a mapping from keys. Default: the grid's.
        pairs: comparisons of two values of `each` by key, such as `{gain: edgellm less draft}`.
        paper: fields of the published cells to compare with; false for none.
        reference: ids of published cells by row, or one id for all rows; then nothing is looked up.
        unit: another unit for the metric.
        digits: decimals, in place of the metric's.
        scale: a factor on the metric's values.
        better: the better direction, in place of the metric's.
        timed: whether the values need a clock or costs, in place of what the metric says.
        compare: how the column is compared with its baseline: `ratio` to it, `difference` from it, or
            `reduction` below it in percent.
        relative_to: the baseline's row: its id, or labels, such as `{method: std}`, in which it differs.
        over: the baseline's labels among the same row's cells, in which they differ from `where`.
        where: labels of the cells to take.
        aggregate: how several cells of a row become a value; `only` expects one. Of a mean over seeds the
            interval is over seeds and prompts.
        tolerance: relative difference from a published value that still counts as agreement.
        absent: printed where a row with cells has no value, such as `not measured here`; default a dash.
    """

    metric: str
    key: str = ""
    heading: str = ""
    each: str = ""
    of: Labels | tuple[Text, ...] | None = None
    pairs: Labels = field(default_factory=dict)
    paper: Coordinates | Literal[False] | None = None
    reference: Text | Labels | None = None
    unit: str | None = None
    digits: Digits | None = None
    scale: float = 1.0
    better: Literal["higher", "lower", ""] | None = None
    timed: bool | None = None
    compare: Literal["ratio", "difference", "reduction"] | None = None
    relative_to: Text | Labels = ""
    over: Labels = field(default_factory=dict)
    where: Labels = field(default_factory=dict)
    aggregate: Literal["only", "mean", "median", "geomean", "total"] = "only"
    tolerance: float | None = None
    absent: str = ""


@dataclass(frozen=True)
class TableSettings:
    """A section as a file writes it.

    Attributes:
        title: stands above the table.
        rows: the labels that name rows; a label or a list of labels stands for `by`.
        columns: entries; a metric's name stands for a column of it, a list for its entries.
        paper: where the published values are.
        notes: footnotes; a single word is the name of a shared one (`conf/reference/notes.yaml`).
        aside: published values whose workload differs, in a table of their own.
        cite: papers to cite beside those of the published values.
        figure: a picture of the table.
        timeline: a picture of a part of one cell's trace.
        best: mark the best value of each column that has a direction.
    """

    title: str
    rows: RowsSpec
    columns: tuple[ColumnSettings, ...]
    paper: Coordinates = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    aside: tuple[AsideSpec, ...] = ()
    cite: tuple[str, ...] = ()
    figure: FigureSpec | None = None
    timeline: TimelineSpec | None = None
    best: bool = False


def read_section(section: Mapping[str, Any], where: str) -> TableSettings:
    """The settings of a `table:` section of plain content.

    Args:
        section: its keys; what it lacks is taken from the table of the experiment `like`.
        where: the table, for error messages.

    Raises:
        InputError: a key is unknown, withdrawn, missing or not what its type says.
    """
    content = _inherit(section, where)
    require_present(content, WITHDRAWN_KEYS, where)
    rows, columns = content.get("rows"), content.get("columns")
    rows = dict(rows) if isinstance(rows, Mapping) else {"by": rows}
    if isinstance(rows.get("by"), str):
        rows["by"] = [rows["by"]]
    if isinstance(columns, list):
        entries = [entry for part in columns for entry in (part if isinstance(part, list) else [part])]
        columns = [{"metric": entry} if isinstance(entry, str) else entry for entry in entries]
        for column_number, column in enumerate(columns):
            require_present(column, WITHDRAWN_COLUMN_KEYS, f"{where}, columns.{column_number}")
    return typed(TableSettings, {**content, "rows": rows, "columns": columns}, where)


def require_present(content: object, withdrawn: Mapping[str, str], where: str) -> None:
    """InputError, which says what to write instead, for a key that is no more."""
    for key, hint in withdrawn.items():
        if isinstance(content, Mapping) and key in content:
            raise InputError(f"{where} has the key {key!r}, which is no more: {hint}")


def _inherit(section: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A section with what it takes from the table of the experiment `like`; null leaves a part out.

    Raises:
        InputError: there is no such experiment, or its table takes from another one too.
    """
    content = dict(section)
    like = content.pop("like", None)
    if like is None:
        return content
    if like not in experiments():
        raise InputError(f"{where}, like: {unknown('experiment', str(like), experiments())}")
    base = experiment_file(str(like)).get("table") or {}
    if "like" in base:
        raise InputError(f"{where}, like: the table of {like!r} is like another one; name that one")
    return {name: value for name, value in {**base, **content}.items() if value is not None}
