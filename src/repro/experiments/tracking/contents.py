"""What wandb runs contain: figures under sections, curves of rounds, tables of numbers, pictures and files.

A workspace of wandb draws a panel for each logged key, in the section that its part before "/" names. Must
not know how runs are opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.records.record import Record, Round, Scalar
from repro.reports.cell_frame import cell_frame, ends_of
from repro.reports.formats.layout import notes
from repro.reports.spec.metric import load_metrics
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.known import known_values
from repro.reports.tables.table import Table

if TYPE_CHECKING:
    from wandb import Artifact, Run

HISTOGRAM_SUFFIX = "_histogram"
"""How the names of values end that are counts, as text."""

OTHER_SECTION = "other"
"""Section of the values that no file of `conf/metric` describes."""

IDENTITY_FIELDS = ("request", "round", "start", "end")
"""What of a round is no curve: the table of rounds has it."""


def by_section(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Values under `section/name`, without absent ones. A section is the file that describes a value."""
    metrics, sections = load_metrics(), dict[str, Scalar]()
    for name, value in values.items():
        metric = metrics.of_value(name.removesuffix("_low").removesuffix("_high"))
        if value is not None:
            sections[f"{metric.group if metric else OTHER_SECTION}/{name}"] = value
    return sections


def settings_of(record: Record) -> dict[str, Any]:
    """What is known of a cell before it runs, flat: labels, settings and kind of figures, by column."""
    figures = {name for value in record.values for name in (value, f"{value}_low", f"{value}_high")}
    frame = cell_frame([record]).drop(columns=["n", "status", *figures], errors="ignore")
    return dict(frame.iloc[0].dropna())


def log_progress(run: Run, record: Record, states: Sequence[str]) -> None:
    """Log to a sweep's run how many of its cells have ended, and the figures of the last one."""
    counts = {f"cells/{state}": states.count(state) for state in ("done", "failed")}
    run.log(counts | _numbers(by_section(known_values(record))))


def _numbers(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


def fill_cell(
    run: Run,
    record: Record,
    rounds: Sequence[Round],
    answers: Sequence[Mapping[str, Scalar]],
    trace: Path | None,
) -> None:
    """Log a cell: a panel for each figure, intervals and state in the summary, rounds, answers, timeline."""
    figures = by_section(known_values(record))
    texts = {name: value for name, value in figures.items() if isinstance(value, str)}
    bars = {
        f"{name}/bars": _histogram(text) for name, text in texts.items() if name.endswith(HISTOGRAM_SUFFIX)
    }
    run.log(_numbers(figures) | bars)
    run.summary.update({**texts, **by_section(ends_of(record)), "status": record.status, "key": record.key})
    if record.error:
        run.summary["error"] = record.error
    run.define_metric("round/index", hidden=True)
    run.define_metric("round/*", step_metric="round/index")
    for index, line in enumerate(rounds):
        curves = _numbers({name: value for name, value in line.items() if name not in IDENTITY_FIELDS})
        start, end = line.get("start"), line.get("end")
        if isinstance(start, (int, float)) and isinstance(end, (int, float)):
            curves["seconds"] = end - start
        run.log({"round/index": index, **{f"round/{name}": value for name, value in curves.items()}})
    for key, lines in (("rounds", rounds), ("answers", answers)):
        names = list(dict.fromkeys(name for line in lines for name in line))
        if lines:
            _log_table(run, key, names, [[line.get(name) for name in names] for line in lines])
    if trace is not None:
        _log_files(run, f"timeline-{record.key[:12]}", "timeline", [trace])


def _histogram(text: str) -> Any:
    """Counts of 0, 1, ... as wandb's histogram."""
    import numpy as np
    import wandb

    counts = np.array([int(count) for count in text.split()])
    return wandb.Histogram(np_histogram=(counts, np.arange(len(counts) + 1) - 0.5))


def fill_sweep(run: Run, table: Table, files: Sequence[Path], records: Sequence[Record]) -> None:
    """Log a sweep's table as numbers, its main column as a bar chart, a row for each cell, all files."""
    import wandb

    run.name = f"{table.experiment} table"
    run.config.update({"command": table.command, "commits": list(table.commits)})  # type: ignore[no-untyped-call]
    run.tags = (*(run.tags or ()), *table.papers)
    run.summary["notes"] = "\n".join(notes(table))
    _log_table(run, "table", *numbers(table))
    key_column = main_column(table)
    index = table.columns.index(key_column)
    row_figures = [(row.name, row.entries[index].ours) for row in table.rows]
    number_figures = [pair for pair in row_figures if isinstance(pair[1], (int, float))]
    bars = _bind_table(run, "bars", [table.heading, title(key_column)], number_figures)
    run.log({"bars": wandb.plot.bar(bars, table.heading, title(key_column), title=table.title)})
    if records:
        frame = cell_frame(records).dropna(axis="columns", how="all")
        rows = frame.astype(object).where(frame.notna(), None)
        _log_table(run, "cells", [*frame], rows.values.tolist())
    run.log({path.stem: wandb.Image(str(path)) for path in files if path.suffix == ".png"})
    name = re.sub(r"[^\w.-]+", "-", f"table-{table.experiment}")  # what wandb allows in a name
    _log_files(run, name, "table", files)


def numbers(table: Table) -> tuple[list[str], list[tuple[Scalar, ...]]]:
    """Names of columns, and rows of numbers: our value, and a published one with the ratio to it.

    A published range has two columns; a bound has one of them.
    """
    columns: list[tuple[str, list[Scalar]]] = [(table.heading, [row.name for row in table.rows])]
    for index, column in enumerate(table.columns):
        name, entries = title(column), [row.entries[index] for row in table.rows]
        columns.append((name, [entry.ours for entry in entries]))
        if not any(entry.published for entry in entries):
            continue
        low, high = ([getattr(entry.published, end, None) for entry in entries] for end in ("low", "high"))
        if low == high:
            columns.append((f"{name} paper", low))
        else:
            columns += [(f"{name} paper, from", low), (f"{name} paper, to", high)]
        columns.append((f"{name} ratio", [entry.ratio for entry in entries]))
    return [name for name, _ in columns], [*zip(*(values for _, values in columns), strict=True)]


def main_column(table: Table) -> ColumnSpec:
    """The first column of the table's figure, or else the first one that has a better direction."""
    keys = table.figure.columns if table.figure else ()
    figure_columns = [column for key in keys for column in table.columns if column.key == key]
    directed_columns = [column for column in table.columns if column.better]
    return next(iter((*figure_columns, *directed_columns, *table.columns)))


def title(column: ColumnSpec) -> str:
    """A column's heading with its unit."""
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def _log_files(run: Run, name: str, kind: str, paths: Sequence[Path]) -> None:
    """Log files as an artifact without copying them; by default wandb copies them to its staging folder."""
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for path in paths:
        artifact.add_file(str(path), policy="immutable")
    _log_artifact(run, artifact)


def _log_table(run: Run, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    run.log({key: _bind_table(run, key, columns, rows)})


def _bind_table(run: Run, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
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
