"""What a `table:` section may say: its keys, their types and meanings; docs/tables.md has examples.

Owns the section's settings, its short forms and the keys that are no more. Must not know cells, metrics or
published values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.reports.spec.experiment import experiment_file, experiments
from repro.reports.spec.spec import (
    AsideSpec,
    Coordinates,
    Digits,
    FigureSpec,
    Labels,
    RowsSpec,
    TimelineSpec,
    Word,
)

OF_METRICS = "`value`, `total` and `per` stand in conf/metric/; name a `metric`"
WITHDRAWN = {"footnotes": "write `notes`", "metric": "name the metric in each column"}
WITHDRAWN_OF_COLUMNS = {
    "against": "write `relative_to` with labels, such as {method: std}",
    **dict.fromkeys(("value", "total", "per"), OF_METRICS),
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

    The other fields are those of a column (`ColumnSpec`); they go before what the metric says.
    """

    metric: str
    key: str = ""
    heading: str = ""
    each: str = ""
    of: Labels | tuple[Word, ...] | None = None
    pairs: Labels = field(default_factory=dict)
    paper: Coordinates | Literal[False] | None = None
    reference: Word | Labels | None = None
    unit: str | None = None
    digits: Digits | None = None
    scale: float = 1.0
    better: Literal["higher", "lower", ""] | None = None
    timed: bool | None = None
    compare: Literal["ratio", "difference", "reduction"] | None = None
    relative_to: Word | Labels = ""
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
        aside, cite, figure, timeline, best: see `TableSpec`.
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
    content = _inherited(section, where)
    require_present(content, WITHDRAWN, where)
    rows, columns = content.get("rows"), content.get("columns")
    rows = dict(rows) if isinstance(rows, Mapping) else {"by": rows}
    if isinstance(rows.get("by"), str):
        rows["by"] = [rows["by"]]
    if isinstance(columns, list):
        entries = [entry for part in columns for entry in (part if isinstance(part, list) else [part])]
        columns = [{"metric": entry} if isinstance(entry, str) else entry for entry in entries]
        for number, column in enumerate(columns):
            require_present(column, WITHDRAWN_OF_COLUMNS, f"{where}, columns.{number}")
    return typed(TableSettings, {**content, "rows": rows, "columns": columns}, where)


def require_present(content: object, withdrawn: Mapping[str, str], where: str) -> None:
    """InputError, which says what to write instead, for a key that is no more."""
    for key, instead in withdrawn.items():
        if isinstance(content, Mapping) and key in content:
            raise InputError(f"{where} has the key {key!r}, which is no more: {instead}")


def _inherited(section: Mapping[str, Any], where: str) -> dict[str, Any]:
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
