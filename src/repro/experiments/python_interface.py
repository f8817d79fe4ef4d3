"""What the command does, from Python: cells as records, sweeps, records and tables as pandas frames.

Owns the translation of arguments into overrides and of records into frames. Cells are composed, keyed and
stored by the same code as the command's, so each finds what the other has computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.core.registry import unknown
from repro.experiments.cli import quiet
from repro.experiments.plan import cell_config, cell_configs
from repro.experiments.sweep import Sweep
from repro.experiments.unread import UnreadWords
from repro.libraries import pd
from repro.records.record import Record
from repro.records.results import Results, open_results
from repro.reports.cell_frame import cell_frame
from repro.reports.files import SWEEPS_FOLDER, path_of
from repro.reports.intervals.rounds import with_interval

MODEL_KEYS = {"target": "model@target", "draft": "model@draft"}
"""Arguments that choose a model by name."""


MOST_RESAMPLED = 500
"""Records whose figures are resampled over their prompts; of thousands that takes minutes."""


def run(overrides: Mapping[str, Any] | None = None, /, **settings: Any) -> Record:
    """The record of one cell, computed unless it is stored already.

    Args:
        overrides: settings whose names are no Python names, such as `{"method.length": 4}`.
        settings: choices and settings by name, as on the command line: `method="chain_sd"`, `prompts=2`,
            `results="..."`. `target` and `draft` choose models.

    Raises:
        InputError: a setting is unknown or invalid, or the cell failed; its traceback is in its record.
    """
    quiet()
    words = [*_overrides({**(overrides or {}), **settings})]
    config, unread_words = cell_config(*words), UnreadWords(words)
    unread_words.see(config)
    unread_words.require_none()
    sweep = Sweep(config)
    note = sweep.cell(config)
    record = sweep.store.get(note.key)
    if note.state == "failed" or record is None:
        raise InputError(note.error or f"the cell has no record: {note.state}")
    return record


def sweep(
    axes: Mapping[str, Sequence[Any]], overrides: Mapping[str, Any] | None = None, /, **settings: Any
) -> pd.DataFrame:
    """All combinations of some settings, as a frame like that of `cells`, in their order.

    Of an experiment with a grid, each combination has the grid's cells.

    The axes' columns come first; if a label, value or setting has an axis's name, it shows that. A cell that
    fails keeps its row, with the message in `error`.

    Args:
        axes: the values of each setting that varies: `{"method": ["std", "chain_sd"], "prompts": [2, 10]}`.
        overrides: settings of all cells whose names are no Python names.
        settings: settings of all cells, as in `run`.

    Raises:
        InputError: an axis is no list of values, or no cell reads a setting.
    """
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"axis {name} is {values!r}; it must be a list of values")
    quiet()
    points, records = [], dict[str, Record]()
    shared_settings = {**(overrides or {}), **settings}
    cells = [
        (point, config)
        for values in product(*axes.values())
        for point in [dict(zip(axes, values, strict=True))]
        for config in _configs({**shared_settings, **point})
    ]
    unread_words = UnreadWords(
        _overrides(shared_settings | {name: values[0] for name, values in axes.items()})
    )
    for _, config in cells:
        unread_words.see(config if isinstance(config, Mapping) else {})
    unread_words.require_none()
    for point, config in cells:
        record, error = _compute(config)
        if record:
            records[record.key] = record
        points.append({**point, "key": record.key if record else None, "error": error})
    grid = pd.DataFrame(points)
    frame = cell_frame([*records.values()]).set_index("key").reindex(grid["key"]).reset_index()
    frame["status"] = frame["status"].fillna("failed")
    for name in reversed([*axes]):
        column = frame.pop(name) if name in frame else grid[name]
        frame.insert(0, name, column.where(column.notna(), grid[name]))
    return frame.assign(error=grid["error"])


def cells(results: str | Path = "outputs/results", experiment: str | None = None) -> pd.DataFrame:
    """All records of a folder of results, or those of an experiment, a table or a paper, one a row.

    Columns are those of `cell_frame`: labels, values with their intervals over prompts, settings, and the
    units of columns in `attrs["units"]`. Of more than `MOST_RESAMPLED` records there are only the intervals
    that they state themselves. `repro cells` writes the frame as a Parquet file.

    Args:
        results: a folder of results.
        experiment: `lever/fig10`, `lever`, or a sweep's own table, with or without `sweeps/`; cells of a
            table have the labels that it gives them.

    Raises:
        InputError: nothing in the folder has that name.
    """
    store = open_results(results)
    records = store.all() if experiment is None else _records_of(store, experiment)
    if len(records) <= MOST_RESAMPLED:
        records = [_with_intervals(record, store) for record in records]
    return cell_frame(records)


def _records_of(store: Results, name: str) -> list[Record]:
    """The records that an experiment made, and those of the tables of that name or of that paper, by key."""
    all_records = store.all()
    tables = [table for table in store.tables() if _is_of(table, name)]
    experiment_records = {record.key: record for record in all_records if _is_of(record.experiment, name)}
    table_records = {record.key: record for table in tables for record in store.records(store.members(table))}
    if not experiment_records and not table_records:
        names = {*store.tables(), *(record.experiment for record in all_records)}
        raise InputError(
            f"{store.root}: {unknown('experiment or table', name, names)}; choose --results FOLDER"
        )
    return [record for _, record in sorted({**experiment_records, **table_records}.items())]


def _is_of(table: str, name: str) -> bool:
    """Whether a table or an experiment has a name, lies in the folder of that name, or is that sweep's."""
    return table in (name, f"{SWEEPS_FOLDER}{name}") or table.startswith(f"{name.rstrip('/')}/")


def _with_intervals(record: Record, store: Results) -> Record:
    return with_interval(record, store.rounds(record.key), store.answers(record.key))


def table(experiment: str, results: str | Path = "outputs/results") -> pd.DataFrame:
    """A table as last written, one of its values a row: ours, its spread, the published one, their ratio.

    Raises:
        InputError: the folder has no such table.
    """
    path = path_of(Path(results), experiment, "csv")
    if not path.exists():
        raise InputError(f"there is no {path}; `python -m repro experiment={experiment}` makes it")
    return pd.read_csv(path)


def _configs(settings: Mapping[str, Any]) -> list[dict[str, Any] | InputError]:
    """The configurations of the cells of these settings, or what is wrong with them."""
    try:
        return [*cell_configs(*_overrides(settings))]
    except InputError as wrong:
        return [wrong]


def _compute(config: Mapping[str, Any] | InputError) -> tuple[Record | None, str]:
    """The record of a cell with its intervals, and what went wrong."""
    try:
        if isinstance(config, InputError):
            raise config
        sweep = Sweep(config)
        note = sweep.cell(config)
    except InputError as wrong:
        return None, str(wrong)
    record = sweep.store.get(note.key)
    return record and _with_intervals(record, sweep.store), note.error


def _overrides(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        key = MODEL_KEYS.get(name, name) if isinstance(value, str) else name
        yield override(key, value)
