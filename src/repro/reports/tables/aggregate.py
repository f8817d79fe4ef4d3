"""Reduces the records of a row to the one value that a column shows.

Owns totals, means and comparisons with a baseline. Knows neither published values nor layout.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from repro.core.errors import InputError
from repro.records.record import Record, Scalar
from repro.reports.spec.spec import ColumnSpec

MEANS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "geomean": statistics.geometric_mean,
}


class Incomparable(Exception):
    """Two rows cannot be compared; the message gives the reason, for a footnote."""


def figure(column: ColumnSpec, records: Sequence[Record]) -> Scalar:
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
        each = [_single(column, [record]) for record in records]
        numbers = [_number(column, value) for value in each if value is not None]
        return MEANS[column.aggregate](numbers) if len(numbers) == len(each) else None
    return _single(column, records)


def relative(column: ColumnSpec, records: Sequence[Record], baseline: Sequence[Record]) -> Scalar:
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
        each = [_against(_single(column, [one]), _single(column, [base]), column) for one, base in pairs]
        numbers = [number for number in each if number is not None]
        return MEANS[column.aggregate](numbers) if len(numbers) == len(each) else None
    bases = [base for _, base in pairs]
    return _against(figure(column, records), figure(column, bases), column)


def varying(records: Sequence[Record]) -> list[str]:
    """Labels in which the records differ, in alphabetical order."""
    names = sorted({name for record in records for name in record.labels})
    return [name for name in names if len({record.labels.get(name) for record in records}) > 1]


def _single(column: ColumnSpec, records: Sequence[Record]) -> Scalar:
    if column.value is not None:
        value = records[0].figure(column.value)
        return value if value is None or isinstance(value, str) else value * column.scale + 0.0  # never -0.0
    over, under = _sum(column, str(column.total), records), _sum(column, str(column.per), records)
    return None if over is None or not under else over / under * column.scale


def _sum(column: ColumnSpec, name: str, records: Sequence[Record]) -> float | None:
    values = [record.values.get(name) for record in records]
    return None if None in values else sum(_number(column, value) for value in values)


def _number(column: ColumnSpec, value: Scalar) -> float:
    if isinstance(value, str) or value is None:
        raise InputError(f"column {column.key!r} needs a number and finds {value!r}")
    return value


def _against(one: Scalar, base: Scalar, column: ColumnSpec) -> float | None:
    """One value compared with the baseline's, as the column's `compare` says."""
    if one is None or base is None:
        return None
    ours, its = _number(column, one), _number(column, base)
    if column.compare == "difference":
        return ours - its
    if not its:
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
    return record.provenance.inputs.get("dataset"), record.values.get("prompts")
