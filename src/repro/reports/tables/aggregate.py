"""Reduces the records of a row to the one value that a column shows.

Owns totals, means and comparisons with a baseline: one arithmetic for the records' values and, draw by draw,
for resampled ones. Knows neither published values nor layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from repro.core.errors import InputError
from repro.libraries import Array, np
from repro.records.record import Record, Scalar
from repro.reports.intervals.bootstrap import RESAMPLES, weights
from repro.reports.intervals.samples import JointSamples
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.known import known_value

MEAN_AGGREGATES = ("mean", "median", "geomean")

Value: TypeAlias = "Array | str | None"
"""A value and behind it that in each draw; a text alone; `None` if there is none."""


class Incomparable(Exception):
    """Two rows cannot be compared; the message gives the reason, for a footnote."""


def figures(
    column: ColumnSpec,
    records: Sequence[Record],
    baseline: Sequence[Record] = (),
    joint_samples: JointSamples | None = None,
) -> Value:
    """The column's value over a row's finished records, and behind it that value in each draw.

    The draws are of prompts and, of a mean, of seeds; they are no numbers where a part cannot be resampled,
    and none without `draws`. A column with a baseline has the ratio of totals to it, or the mean of ratios,
    on the same prompts. A text stands alone; `None` if a record lacks the value, or there is no baseline.

    Raises:
        InputError: there are several records and the column has no `aggregate`, or a value is not a number.
        Incomparable: the baseline failed, or lacks a counterpart of a record or has other prompts.
    """
    if not records or (column.baseline and not baseline):
        return None
    if not all(base.done for base in baseline):
        raise Incomparable("the baseline failed")
    bases = [base for _, base in _pairs(records, baseline)] if column.baseline else []
    with np.errstate(divide="ignore", invalid="ignore"):
        if column.aggregate in MEAN_AGGREGATES:
            sides = [([record], bases[index : index + 1]) for index, record in enumerate(records)]
            return _mean(column, records, [_compare(column, *side, joint_samples) for side in sides])
        if column.aggregate == "only" and len(records) > 1:
            labels = ", ".join(varying(records)) or "nothing but their keys"
            raise InputError(
                f"column {column.key!r} finds {len(records)} records for one row, which differ in "
                f"{labels}; name that label in rows.by or in `where`, or give the column an `aggregate`"
            )
        return _compare(column, records, bases, joint_samples)


def column_draws(
    column: ColumnSpec, records: Sequence[Record], baseline: Sequence[Record], joint_samples: JointSamples
) -> Array | None:
    """The column's value in each draw of prompts and seeds; `None` if a part cannot be resampled."""
    values = figures(column, records, baseline, joint_samples)
    return None if values is None or isinstance(values, str) or np.isnan(values[1:]).all() else values[1:]


def counterparts(records: Sequence[Record], baseline: Sequence[Record]) -> list[Record]:
    """The records of a baseline that those of a row are compared with; all if nothing can be compared."""
    try:
        pairs = _pairs(records, baseline)
    except Incomparable:
        return list(baseline)
    return list({base.key: base for _, base in pairs}.values()) if pairs else list(baseline)


def varying(records: Sequence[Record]) -> list[str]:
    """Labels in which the records differ, in alphabetical order."""
    names = sorted({name for record in records for name in record.labels})
    return [name for name in names if len({record.labels.get(name) for record in records}) > 1]


def _mean(column: ColumnSpec, records: Sequence[Record], values: Sequence[Value]) -> Value:
    """The mean of the records' values; in the draws their seeds are resampled as well."""
    if any(value is None for value in values):
        return None
    numbers = np.stack([_number(column, value) for value in values])
    if column.aggregate == "median":
        return np.asarray(np.median(numbers, axis=0))
    shares = weights([record.provenance.seed for record in records]) if numbers.shape[1] > 1 else None
    if shares is not None:
        shares = np.column_stack([np.full(len(numbers), 1 / len(numbers)), shares])
    if column.aggregate == "mean":
        return np.asarray(np.average(numbers, axis=0, weights=shares))
    return np.asarray(np.exp(np.average(np.log(numbers), axis=0, weights=shares)))


def _compare(
    column: ColumnSpec, records: Sequence[Record], bases: Sequence[Record], joint_samples: JointSamples | None
) -> Value:
    """One value of records, compared with that of their baseline as the column's `compare` says."""
    our_number = _single(column, records, joint_samples)
    if not bases:
        return our_number
    base = _single(column, bases, joint_samples)
    if our_number is None or base is None:
        return None
    our_number, base_number = _number(column, our_number), _number(column, base)
    if column.compare == "difference":
        return our_number - base_number
    return our_number / base_number if column.compare == "ratio" else 100 * (1 - our_number / base_number)


def _single(column: ColumnSpec, records: Sequence[Record], joint_samples: JointSamples | None) -> Value:
    """A value of the first record, or a ratio of totals over all of them."""
    if column.value is not None:
        value = _read(records[0], column.value, joint_samples)
        return value if value is None or isinstance(value, str) else value * column.scale + 0.0  # never -0.0
    total, per = (
        [_read(record, str(name), joint_samples) for record in records] for name in (column.total, column.per)
    )
    if any(value is None for value in (*total, *per)):
        return None
    over, under = (sum((_number(column, value) for value in values), np.zeros(1)) for values in (total, per))
    return over / under * column.scale


def _read(record: Record, name: str, joint_samples: JointSamples | None) -> Value:
    """A value that the method's own arithmetic computed, and behind it that value in each draw."""
    value: Scalar = known_value(record, name)
    if value is None or isinstance(value, str):
        return value
    if joint_samples is None:
        return np.array([float(value)])
    values = np.full(1 + RESAMPLES, np.nan)
    values[0] = value
    if (resampled := joint_samples.figure_draws(record, name)) is not None:
        values[1:] = resampled
    return values


def _number(column: ColumnSpec, value: Value) -> Array:
    if isinstance(value, str) or value is None:
        raise InputError(f"column {column.key!r} needs a number and finds {value!r}")
    return value


def _pairs(records: Sequence[Record], baseline: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Pair each record with the baseline record that has the same values of the varying labels."""
    names = sorted({*varying(records), *varying(baseline)})
    by_labels = {_label_values(base.labels, names): base for base in baseline}
    pairs = []
    for record in records:
        base = by_labels.get(_label_values(record.labels, names))
        if base is None:
            raise Incomparable(f"the baseline has no record for {dict(record.labels)}")
        if _prompts(record) != _prompts(base):
            raise Incomparable("its prompts are not those of the baseline")
        pairs.append((record, base))
    return pairs


def _label_values(labels: Mapping[str, str], names: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(labels.get(name) for name in names)


def _prompts(record: Record) -> tuple[str | None, Scalar]:
    """What a record's figures rest on: the rows of its dataset, or as many requests of a service."""
    count = record.values.get("requests", record.values.get("prompts"))
    return record.provenance.inputs.get("dataset"), count
