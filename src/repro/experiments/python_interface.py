"""What the command does, from Python: cells as records, sweeps, records and tables as pandas frames.

Owns the translation of arguments into overrides and of records into frames. Cells are composed, keyed and
stored by the same code as the command's, so each finds what the other has computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.core.late import late
from repro.core.overrides import override
from repro.experiments.cli import cell_config, quiet
from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.cell_frame import cell_frame
from repro.reports.files import path_of

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = late("pandas")

SHORT = {"target": "model@target", "draft": "model@draft"}
"""Arguments that choose a model by name."""


def run(overrides: Mapping[str, Any] | None = None, /, **settings: Any) -> Record:
    """The record of one cell, computed unless it is stored already.

    Args:
        overrides: settings whose names are no Python names, such as `{"method.length": 4}`.
        settings: choices and settings by name, as on the command line: `method="chain_sd"`, `prompts=2`,
            `results="..."`. `target` and `draft` choose models.

    Raises:
        InputError: a setting is unknown or invalid, or the cell failed; its traceback is in its record.
    """
    sweep, note = _cell({**(overrides or {}), **settings})
    record = sweep.store.get(note.key)
    if note.state == "failed" or record is None:
        raise InputError(note.error or f"the cell has no record: {note.state}")
    return record


def sweep(
    axes: Mapping[str, Sequence[Any]], overrides: Mapping[str, Any] | None = None, /, **settings: Any
) -> pd.DataFrame:
    """All combinations of some settings, as a frame like that of `cells`, in their order.

    The axes' columns come first; if a label, value or setting has an axis's name, it shows that. A cell that
    fails keeps its row, with the message in `error`.

    Args:
        axes: the values of each setting that varies: `{"method": ["std", "chain_sd"], "prompts": [2, 10]}`.
        overrides: settings of all cells whose names are no Python names.
        settings: settings of all cells, as in `run`.

    Raises:
        InputError: an axis is no list of values.
    """
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"axis {name} is {values!r}; it must be a list of values")
    points, records = [], dict[str, Record]()
    for chosen in product(*axes.values()):
        point = dict(zip(axes, chosen, strict=True))
        try:
            made, note = _cell({**(overrides or {}), **settings, **point})
            record, error = made.store.get(note.key), note.error
        except InputError as wrong:
            record, error = None, str(wrong)
        if record:
            records[record.key] = record
        points.append({**point, "key": record.key if record else None, "error": error})
    asked = pd.DataFrame(points)
    frame = cell_frame([*records.values()]).set_index("key").reindex(asked["key"]).reset_index()
    frame["status"] = frame["status"].fillna("failed")
    for name in reversed([*axes]):
        column = frame.pop(name) if name in frame else asked[name]
        frame.insert(0, name, column.where(column.notna(), asked[name]))
    return frame.assign(error=asked["error"])


def cells(results: str | Path = "outputs/results", experiment: str | None = None) -> pd.DataFrame:
    """All records of a folder of results, or those of one experiment, one a row.

    Columns are those of `cell_frame`: labels, values, settings, and the units of columns in
    `attrs["units"]`. `repro cells` writes them as a Parquet file.
    """
    return cell_frame(open_results(results).all(experiment))


def table(experiment: str, results: str | Path = "outputs/results") -> pd.DataFrame:
    """A table as last written, one of its values a row: ours, its spread, the published one, their ratio.

    Raises:
        InputError: the folder has no such table.
    """
    path = path_of(Path(results), experiment, "csv")
    if not path.exists():
        raise InputError(f"there is no {path}; `python -m repro experiment={experiment}` makes it")
    return pd.read_csv(path)


def _cell(settings: Mapping[str, Any]) -> tuple[Sweep, Note]:
    quiet()
    config = cell_config(*_overrides(settings))
    made = Sweep(config)
    return made, made.cell(config)


def _overrides(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        key = SHORT.get(name, name) if isinstance(value, str) else name
        yield override(key, value)
