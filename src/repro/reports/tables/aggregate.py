"""Reduces the records of a row to the one value that a column shows.

Owns totals, means and comparisons with a baseline. The same arithmetic serves the records' values and, draw
by draw, resampled ones. Knows neither published values nor layout.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.core.late import late
from repro.records.record import Record, Scalar
from repro.reports.intervals.bootstrap import Interval, ends, weights
from repro.reports.intervals.samples import JointSamples, Samples
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.known import known_value

if TYPE_CHECKING:
    import numpy as np
else:
    np = late("numpy")

Value = Any
"""A record's value, or an array of it over resamples."""

Read = Callable[[Record, str], Value]
"""Reads a record's value by name; `None` if it has none."""

MEANS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "geomean": statistics.geometric_mean,
}
DRAWN: dict[str, Callable[[Sequence[Value], Value], Value]] = {
    "mean": lambda each, weights: np.average(each, axis=0, weights=weights),
    "median": lambda each, _: np.median(each, axis=0),
    "geomean": lambda each, weights: np.exp(np.average(np.log(each), axis=0, weights=weights)),
}
"""The means of values, and of resampled ones with the weight of each in each draw (a median has none)."""


def as_recorded(record: Record, name: str) -> Value:
    """The value that a record has, if its method's own arithmetic computed it."""
    return known_value(record, name)


class Incomparable(Exception):
    """Two rows cannot be compared; the message gives the reason, for a footnote."""


def figure(column: ColumnSpec, records: Sequence[Record], read: Read = as_recorded) -> Value:
    """The column's value over a row's finished records; `None` if one of them lacks it.

    Raises:
        InputError: there are several records and the column has no `aggregate`, or a value is not a number.
    """
    if not records:
        return None
    if column.aggregate == "only" and len(records) > 1:
        differing = ", ".join(varying(records)) or "nothing but their keys"
        raise InputError(
            f"column {column.key!r} finds {len(records)} records for one row, which differ in {differing}; "
            "name that label in rows.by or in `where`, or give the column an `aggregate`"
        )
    if column.aggregate in MEANS:
        return _mean(column, records, [_single(column, [record], read) for record in records])
    return _single(column, records, read)


def relative(
    column: ColumnSpec, records: Sequence[Record], baseline: Sequence[Record], read: Read = as_recorded
) -> Value:
    """The column's value relative to the baseline's on the same prompts: ratio of totals, or mean of ratios.

    Raises:
        Incomparable: the baseline failed, or lacks a counterpart of a record or has other prompts.
    """
    if not records or not baseline:
        return None
    if not all(base.done for base in baseline):
        raise Incomparable("the baseline failed")
    pairs = _pairs(records, baseline)
    if column.aggregate in MEANS:
        values = [(_single(column, [one], read), _single(column, [base], read)) for one, base in pairs]
        return _mean(column, records, [_against(*both, column) for both in values])
    bases = [base for _, base in pairs]
    return _against(figure(column, records, read), figure(column, bases, read), column)


def counterparts(records: Sequence[Record], baseline: Sequence[Record]) -> list[Record]:
    """The records of a baseline that those of a row are compared with; all if nothing can be compared."""
    try:
        pairs = _pairs(records, baseline)
    except Incomparable:
        return list(baseline)
    return list({base.key: base for _, base in pairs}.values()) if pairs else list(baseline)


def interval(
    column: ColumnSpec, records: Sequence[Record], baseline: Sequence[Record], samples: Samples
) -> Interval | None:
    """The 95% interval of the column's value over prompts and seeds; `None` if a part cannot be resampled."""
    found = drawn(column, records, baseline, samples.together([*records, *baseline]))
    return None if found is None else ends(found)


def drawn(
    column: ColumnSpec, records: Sequence[Record], baseline: Sequence[Record], samples: JointSamples
) -> Value:
    """The column's value in each draw of prompts and seeds; `None` if a part cannot be resampled."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if column.baseline:
            return relative(column, records, baseline, samples.drawn)
        return figure(column, records, samples.drawn)


def varying(records: Sequence[Record]) -> list[str]:
    """Labels in which the records differ, in alphabetical order."""
    names = sorted({name for record in records for name in record.labels})
    return [name for name in names if len({record.labels.get(name) for record in records}) > 1]


def _mean(column: ColumnSpec, records: Sequence[Record], each: Sequence[Value]) -> Value:
    """The mean of the records' values; of resampled ones, their seeds are resampled as well."""
    if any(value is None for value in each):
        return None
    numbers = [_number(column, value) for value in each]
    if all(isinstance(number, (int, float)) for number in numbers):
        return MEANS[column.aggregate](numbers)
    return DRAWN[column.aggregate](numbers, weights([record.provenance.seed for record in records]))


def _single(column: ColumnSpec, records: Sequence[Record], read: Read) -> Value:
    if column.value is not None:
        value = read(records[0], column.value)
        return value if value is None or isinstance(value, str) else value * column.scale + 0.0  # never -0.0
    over, under = _sum(column, str(column.total), records, read), _sum(column, str(column.per), records, read)
    if over is None or under is None or (isinstance(under, (int, float)) and not under):
        return None
    return over / under * column.scale


def _sum(column: ColumnSpec, name: str, records: Sequence[Record], read: Read) -> Value:
    values = [read(record, name) for record in records]
    return None if any(value is None for value in values) else sum(_number(column, value) for value in values)


def _number(column: ColumnSpec, value: Value) -> Value:
    if isinstance(value, str) or value is None:
        raise InputError(f"column {column.key!r} needs a number and finds {value!r}")
    return value


def _against(one: Value, base: Value, column: ColumnSpec) -> Value:
    """One value compared with the baseline's, as the column's `compare` says."""
    if one is None or base is None:
        return None
    ours, its = _number(column, one), _number(column, base)
    if column.compare == "difference":
        return ours - its
    if isinstance(its, (int, float)) and not its:
        return None
    return ours / its if column.compare == "ratio" else 100 * (1 - ours / its)


def _pairs(records: Sequence[Record], baseline: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Pair each record with the baseline record that has the same values of the varying labels."""
    names = sorted({*varying(records), *varying(baseline)})
    counterparts: dict[tuple[str | None, ...], Record] = {_at(base.labels, names): base for base in baseline}
    pairs = []
    for record in records:
        base = counterparts.get(_at(record.labels, names))
        if base is None:
            raise Incomparable(f"the baseline has no record for {dict(record.labels)}")
        if _prompts(record) != _prompts(base):
            raise Incomparable("its prompts are not those of the baseline")
        pairs.append((record, base))
    return pairs


def _at(labels: Mapping[str, str], names: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(labels.get(name) for name in names)


def _prompts(record: Record) -> tuple[str | None, Scalar]:
    """What a record's figures rest on: the rows of its dataset, or as many requests of a service."""
    asked = record.values.get("requests", record.values.get("prompts"))
    return record.provenance.inputs.get("dataset"), asked
