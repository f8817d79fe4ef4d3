"""What wandb runs contain: figures under sections, curves of rounds, tables of numbers, pictures and files.

A workspace of wandb draws a panel for each logged key, in the section that its part before "/" names. Must
not know how runs are opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.records.record import Record, Round, Scalar
from repro.reports.cell_frame import cell_frame, ends_of
from repro.reports.formats.layout import aside_grid, notes
from repro.reports.spec.metric import load_metrics
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.known import known_values
from repro.reports.tables.table import Table

if TYPE_CHECKING:
    from wandb import Artifact, Run

HISTOGRAM = "_histogram"
"""How the names of values end that are counts, as text."""

OTHER = "other"
"""Section of the values that no file of `conf/metric` describes."""

IDENTITY = ("request", "round", "start", "end")
"""What of a round is no curve: the table of rounds has it."""

Rows = Sequence[Sequence[Scalar]]


def section_of(name: str) -> str:
    """The section of a value or of an end of its interval: the file in `conf/metric` that describes it."""
    metric = load_metrics().of_value(name.removesuffix("_low").removesuffix("_high"))
    return metric.group if metric else OTHER


def by_section(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Values under `section/name`, without absent ones."""
    return {f"{section_of(name)}/{name}": value for name, value in values.items() if value is not None}


def settings_of(record: Record) -> dict[str, Any]:
    """What is known of a cell before it runs, flat: labels, settings and kind of figures, by column."""
    figures = {name for value in record.values for name in (value, f"{value}_low", f"{value}_high")}
    (row,) = cell_frame([record]).drop(columns=["n", "status"]).to_dict("records")
    return {
        name: value
        for name, value in row.items()
        if name not in figures and value is not None and value == value
    }


def log_values(run: Run, record: Record) -> None:
    """Log a record's figures, so that each has a panel; its summary has intervals, state and key."""
    figures = by_section(known_values(record))
    words = {name: value for name, value in figures.items() if isinstance(value, str)}
    run.log({name: value for name, value in figures.items() if name not in words} | _histograms(words))
    run.summary.update({**words, **by_section(ends_of(record)), "status": record.status, "key": record.key})
    if record.error:
        run.summary["error"] = record.error


def _histograms(words: Mapping[str, Scalar]) -> dict[str, Any]:
    """The figures that are counts of 0, 1, ... as wandb's histograms."""
    import numpy as np
    import wandb

    counts = {
        name: np.array([int(n) for n in str(text).split()])
        for name, text in words.items()
        if name.endswith(HISTOGRAM)
    }
    return {
        f"{name}/bars": wandb.Histogram(np_histogram=(count, np.arange(len(count) + 1) - 0.5))
        for name, count in counts.items()
    }


def log_progress(run: Run, record: Record, states: Sequence[str]) -> None:
    """Log to a sweep's run how many of its cells have ended, and the figures of the last one."""
    figures = by_section(known_values(record))
    numbers = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
    counts = {f"cells/{state}": states.count(state) for state in ("done", "failed")}
    run.log(counts | numbers)


def log_rounds(run: Run, rounds: Sequence[Round]) -> None:
    """Log rounds as a table, and their numbers as curves over the round's index."""
    if not rounds:
        return
    run.define_metric("round/index", hidden=True)
    run.define_metric("round/*", step_metric="round/index")
    for index, each in enumerate(rounds):
        curves = {f"round/{name}": value for name, value in each.items() if name not in IDENTITY}
        numbers = {name: value for name, value in curves.items() if isinstance(value, (int, float))}
        run.log({"round/index": index, **numbers, **_duration(each)})
    log_rows(run, "rounds", rounds)


def _duration(each: Round) -> dict[str, float]:
    start, end = each.get("start"), each.get("end")
    if isinstance(start, (int, float)) and isinstance(end, (int, float)):
        return {"round/seconds": end - start}
    return {}


def log_rows(run: Run, key: str, rows: Sequence[Mapping[str, Scalar]]) -> None:
    """Log mappings as a table with a column for each name; nothing without rows."""
    if rows:
        names = list(dict.fromkeys(name for each in rows for name in each))
        _log(run, key, names, [[each.get(name) for name in names] for each in rows])


def log_cells(run: Run, records: Sequence[Record]) -> None:
    """Log one row for each cell: labels, settings, figures, the ends of their intervals."""
    if records:
        frame = cell_frame(records).dropna(axis="columns", how="all")
        rows = frame.astype(object).where(frame.notna(), None)
        _log(run, "cells", [*frame], rows.values.tolist())


def log_table(run: Run, table: Table) -> None:
    """Log the table as numbers, its main column as a bar chart, its aside values and notes as text."""
    import wandb

    columns, rows = numbers(table)
    _log(run, "table", columns, rows)
    main = main_column(table)
    place = table.columns.index(main)
    bars = [(row.name, row.entries[place].ours) for row in table.rows]
    chart = _bound(
        run, "bars", [table.heading, title(main)], [b for b in bars if isinstance(b[1], (int, float))]
    )
    run.log({"bars": wandb.plot.bar(chart, table.heading, title(main), title=table.title)})
    if table.aside:
        grid = aside_grid(table)
        _log(
            run, "aside", [f"{h.words} {part}".strip() for h in grid.headings for part in h.parts], grid.lines
        )
    run.summary["notes"] = "\n".join(notes(table))


def numbers(table: Table) -> tuple[list[str], Rows]:
    """Names of columns, and rows of numbers: our value, and a published one with the ratio to it.

    A published range has two columns; a bound has one of them.
    """
    names = [table.heading]
    rows: list[list[Scalar]] = [[row.name] for row in table.rows]
    for place, column in enumerate(table.columns):
        entries = [row.entries[place] for row in table.rows]
        parts: dict[str, list[Scalar]] = {"": [entry.ours for entry in entries]}
        if any(entry.published for entry in entries):
            low: list[Scalar] = [entry.published.low if entry.published else None for entry in entries]
            high: list[Scalar] = [entry.published.high if entry.published else None for entry in entries]
            ends = {"paper": low} if low == high else {"paper, from": low, "paper, to": high}
            parts |= {**ends, "ratio": [entry.ratio for entry in entries]}
        for part, values in parts.items():
            names.append(f"{title(column)} {part}".strip())
            for row, value in zip(rows, values, strict=True):
                row.append(value)
    return names, rows


def main_column(table: Table) -> ColumnSpec:
    """The first column of the table's figure, or else the first one that has a better direction."""
    drawn = table.figure.columns if table.figure else ()
    shown = [column for key in drawn for column in table.columns if column.key == key]
    directed = [column for column in table.columns if column.better]
    return next(iter((*shown, *directed, *table.columns)))


def title(column: ColumnSpec) -> str:
    """A column's heading with its unit."""
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def log_pictures(run: Run, paths: Sequence[Path]) -> None:
    """Log the PNG files among these."""
    import wandb

    for path in paths:
        if path.suffix == ".png":
            run.log({path.stem: wandb.Image(str(path))})


def log_files(run: Run, name: str, kind: str, paths: Sequence[Path]) -> None:
    """Log files as an artifact without copying them; by default wandb copies them to its staging folder."""
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for path in paths:
        artifact.add_file(str(path), policy="immutable")
    _log_artifact(run, artifact)


def _log(run: Run, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    run.log({key: _bound(run, key, columns, rows)})


def _bound(run: Run, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A table with its artifact logged, as `run.log` would do, but without absolute paths."""
    import wandb

    table = wandb.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)
    artifact = wandb.Artifact(f"{key}-{run.id}", type="data")
    artifact.add(table, key)
    _log_artifact(run, artifact)
    table.bind_to_run(run, key, run.step)  # type: ignore[no-untyped-call]
    return table


def _log_artifact(run: Run, artifact: Artifact) -> None:
    """Log an artifact whose files are named relative to the working folder, from which `wandb sync` runs."""
    for entry in artifact.manifest.entries.values():
        if entry.local_path:
            entry.local_path = os.path.relpath(entry.local_path)
    run.log_artifact(artifact)
