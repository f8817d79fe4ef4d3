"""Records as a data frame, one a row, and as one Parquet or CSV file: labels, values, units, settings.

Owns the columns and their types. Must not know where records are stored.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.libraries import pa, pd
from repro.records.identity import PROSE_KEYS, SOURCE_KEYS
from repro.records.record import Record, Scalar, canonical, write_atomically
from repro.reports.intervals.samples import COUNT_NAMES
from repro.reports.spec.metric import load_metrics
from repro.reports.tables.known import known_values

FIRST_COLUMNS = ("key", "experiment", "status")
"""The first columns."""

INTERVAL_ENDS = ("low", "high")
"""What stands behind a value's name in the columns of its interval."""

CELL_PREFIX = "cell"
"""Stands before a setting that is in no group, since labels and values may have its name."""

RECORD_ENTRIES = frozenset({"name", "labels"})
"""Entries of a configuration that a record has beside it."""

OMITTED_ENTRIES = PROSE_KEYS | SOURCE_KEYS | {"cells"}
"""Entries of a configuration that say where numbers and files come from."""

ORIGIN_FIELDS = ("clock", "weights", "costs", "commit", "finished")
"""Entries of the provenance that say what kind of figures a record has."""

UNITS_KEY = "units"
"""The entry of a frame's `attrs`, and of a file's metadata, with the unit of each column that has one."""

Row = Mapping[str, Any]
Section = tuple[str, int]
"""A section of a configuration: its name and its identity in memory."""


def cell_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Records as a frame: `key`, `experiment`, `status`, labels, `n`, values, settings, provenance.

    A label that has the name of a value gets `_label` behind. A setting's column has its name on the command
    line (`method.length`), with `cell.` before one without a dot (`cell.prompts`). Of what the files of
    `conf/` say in deeper levels there are the names, and what differs between two cells with the same file
    (`device.dram.budget.value`). Lists are JSON. A value with a 95% interval or a standard error in the
    record has its ends behind it, as `NAME_low` and `NAME_high`. A column has numbers, or booleans, or texts;
    where cells differ in that, texts; a value that no cell has is an absent number. `attrs["units"]` has
    units by column.
    """
    values = [_with_ends(record) for record in records]
    settings, units = _settings(records)
    used_names = {*load_metrics(), *(name for figures in values for name in figures)}
    row_groups: list[tuple[str, Sequence[Row]]] = [
        ("str", [{name: getattr(r, name) for name in FIRST_COLUMNS} for r in records]),
        (
            "str",
            [{f"{n}_label" if n in used_names else n: text for n, text in r.labels.items()} for r in records],
        ),
        ("Int64", [{"n": next((v[name] for name in COUNT_NAMES if name in v), None)} for v in values]),
        ("float64", values),
        ("str", settings),
        (
            "str",
            [{f"provenance.{name}": getattr(r.provenance, name) for name in ORIGIN_FIELDS} for r in records],
        ),
    ]
    columns = {name: _column([], "str") for name in FIRST_COLUMNS}
    for dtype, rows in row_groups:
        for name in sorted({name for row in rows for name in row}) if rows is settings else _names(rows):
            columns[name] = _column([row.get(name) for row in rows], dtype)
    frame = pd.DataFrame(columns)
    frame.attrs[UNITS_KEY] = {**_value_units(_names(values)), **units}
    return frame


def _with_ends(record: Record) -> Row:
    """A record's values, each with the ends of its 95% interval behind it."""
    values, ends = known_values(record), ends_of(record)
    end_columns = {
        name: [f"{name}_{end}" for end in INTERVAL_ENDS if f"{name}_{end}" in ends] for name in values
    }
    return {name: {**values, **ends}[name] for value in values for name in (value, *end_columns[value])}


def ends_of(record: Record) -> dict[str, Scalar]:
    """The ends of the 95% intervals of a record's values, as `NAME_low` and `NAME_high`.

    Of a standard error they are 1.96 of it away.
    """
    ends: dict[str, Scalar] = {}
    for name, value in known_values(record).items():
        spread = record.uncertainty.get(name)
        if spread is not None and isinstance(value, (int, float)):
            interval = spread if isinstance(spread, tuple) else (value - 1.96 * spread, value + 1.96 * spread)
            ends |= {f"{name}_{end}": number for end, number in zip(INTERVAL_ENDS, interval, strict=True)}
    return ends


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame of cells as one file: `.parquet`, with the units in its metadata, or `.csv`.

    Raises:
        InputError: the name ends otherwise.
        OSError: the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix == ".csv":
        write_atomically(path, frame.to_csv(index=False, lineterminator="\n"))
        return
    if suffix != ".parquet":
        raise InputError(f"{path} ends in {suffix or 'nothing'}; cells are written as .parquet or .csv")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**table.schema.metadata, UNITS_KEY.encode(): json.dumps(frame.attrs[UNITS_KEY]).encode()}
    from pyarrow import parquet  # a module of its own, that takes a while

    content = BytesIO()
    parquet.write_table(table.replace_schema_metadata(metadata), content, compression="zstd")
    write_atomically(path, content.getvalue())


def _names(rows: Sequence[Row]) -> list[str]:
    """The entries of all rows, in the order in which they come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _column(values: Sequence[Any], dtype: str) -> pd.Series[Any]:
    """Values of one kind: booleans, whole numbers, fractions or texts, and absent ones.

    `absent` is the type of a column without any value.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    if kinds == {int}:
        return pd.Series(values, dtype="Int64")
    if kinds and kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    if not kinds:
        return pd.Series(values, dtype=dtype)
    return pd.Series([v if v is None or isinstance(v, str) else canonical(v) for v in values], dtype="str")


def _value_units(names: Sequence[str]) -> dict[str, str]:
    """Units of values as records have them, by `conf/metric/`."""
    metrics = load_metrics()
    base_names = {f"{name}_{end}": name for name in names for end in INTERVAL_ENDS}
    metric_by_name = {
        name: metrics.of_value(name) or metrics.of_value(base_names.get(name, "")) for name in names
    }
    units = {name: metric.stored_unit for name, metric in metric_by_name.items() if metric}
    return {name: unit for name, unit in units.items() if unit}


def _settings(records: Sequence[Record]) -> tuple[list[Row], dict[str, str]]:
    """The settings of each record by column, and the units of columns."""
    id_lists: list[list[Section]] = []
    sections: dict[Section, Row] = {}  # packed records share their equal sections
    for record in records:
        config = record.provenance.config
        names = [name for name in config if name not in RECORD_ENTRIES]
        id_lists.append([(name, id(config[name])) for name in names])
        for name, section in zip(names, id_lists[-1], strict=True):
            if section not in sections:
                sections[section] = dict(_leaves(config[name], name))
    telling_paths = _telling_paths(sections)
    columns: dict[Section, Row] = {}
    units: dict[str, set[str]] = defaultdict(set)
    for section, leaves in sections.items():
        column_paths = leaves.keys() & telling_paths
        columns[section] = {p if "." in p else f"{CELL_PREFIX}.{p}": leaves[p] for p in column_paths}
        for path in column_paths:
            units[path].add(str(leaves.get(f"{path.removesuffix('.value')}.unit", "")))
    rows: list[Row] = [
        {name: v for section in ids for name, v in columns[section].items()} for ids in id_lists
    ]
    return rows, {path: unit for path, (unit, *other_units) in units.items() if unit and not other_units}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The entries of nested settings by path, without absent ones and those that explain others."""
    if isinstance(value, Mapping):
        for name in value.keys() - OMITTED_ENTRIES:
            yield from _leaves(value[name], f"{path}.{name}")
    elif value is not None:
        yield path, value


def _telling_paths(sections: Mapping[Section, Row]) -> set[str]:
    """Paths of settings of at most two levels, names, and what differs between sections of one name."""
    paths: set[str] = set()
    values_by_component: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for (group, _), leaves in sections.items():
        first_values = values_by_component[group, str(leaves.get(f"{group}.name"))]
        paths.update(
            path
            for path, value in leaves.items()
            if path.count(".") < 2 or path.endswith(".name") or first_values.setdefault(path, value) != value
        )
    return paths
