"""Two records, or two tables of results, as one frame with a figure a row; and what is printed of it.

The columns of a frame, whose index is the figures' names:
    ours, other           both sides, absent where a side has none
    better, how           the better direction; whether `change` is a ratio or a difference
    low, high             the 95% interval of ours
    change                the second over the first, or the second less the first
    change_low, change_high   its 95% interval over prompts, if both sides have the same prompts
    state                 one of `FIGURE_STATES`
    metric                of two records: what describes the figure

Owns what is compared with what, and when two figures are equal. Must not know how records or tables are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from repro.core.digits import same_number
from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.experiments.summaries.cell_screen import described_as, headline, order_of
from repro.records.record import FEWEST, Record, Round, Scalar
from repro.records.results import Results
from repro.reports.formats.layout import decimals, unit_words, value_words
from repro.reports.intervals.bootstrap import paired_interval
from repro.reports.intervals.rounds import totals, with_interval
from repro.reports.tables.known import known_values

FIGURE_STATES = ("equal", "different", "gone", "fresh")
"""Of a figure: on both sides; only in the first, gone from the second; only in the second."""

FRAME_COLUMNS = ("ours", "other", "better", "how", "low", "high", "change_low", "change_high", "metric")
NO_INTERVAL = (None, None)
PERCENTAGE_PATTERN = re.compile(r"\d+(\.\d+)?%")
KEY_BEGINNING = re.compile(r"[0-9a-f]{4,64}")
MOST_FIGURES = 60
"""Figures of tables that are printed unless all are asked for."""


def compare_records(
    our_record: Record, other_record: Record, rounds: tuple[Sequence[Round], Sequence[Round]]
) -> pd.DataFrame:
    """All figures of two records, in the order in which a cell's are printed.

    Args:
        our_record: the first record.
        other_record: the second record.
        rounds: the stored lines of detail of both.
    """
    sides = known_values(our_record), known_values(other_record)
    sums = totals(our_record, rounds[0]), totals(other_record, rounds[1])
    spreads = with_interval(our_record, rounds[0]).uncertainty
    metrics = {name: described_as(name) for name in {*sides[0], *sides[1]}}
    figures = {}
    for name, metric in sorted(metrics.items(), key=lambda item: order_of(item[1])):
        is_share = metric.unit in ("%", "share", "percentage_point")
        change_kind: Literal["difference", "ratio"] = "difference" if is_share else "ratio"
        has_both = all(name in side for side in sums)
        change = (
            (paired_interval(sums[1][name], sums[0][name], change_kind) or NO_INTERVAL)
            if has_both
            else NO_INTERVAL
        )
        spread = spreads.get(name)
        ends = spread if isinstance(spread, tuple) else NO_INTERVAL
        values = sides[0].get(name), sides[1].get(name)
        figures[name] = (*values, metric.better, change_kind, *ends, *change, metric)
    return _judge(pd.DataFrame.from_dict(figures, orient="index", columns=FRAME_COLUMNS, dtype=object))


def compare_tables(our_folder: Path, other_folder: Path) -> pd.DataFrame:
    """All figures of two tables' CSV files, or of all tables of two folders.

    Raises:
        InputError: there is no such file or folder, or it holds no table.
    """
    figures, other_figures = _figures(our_folder), _figures(other_folder).add_suffix("_other")
    frame = figures.join(other_figures, how="outer").reindex(
        figures.index.append(other_figures.index).unique()
    )
    frame["other"] = frame.pop("ours_other")
    frame["better"] = frame["better"].where(frame["better"].fillna("") != "", frame["better_other"])
    return _judge(frame.assign(how="ratio").reindex(columns=FRAME_COLUMNS))


def _judge(frame: pd.DataFrame) -> pd.DataFrame:
    """The figures that a side has, with numbers as such, their change and their state."""
    frame = frame[frame[["ours", "other"]].notna().any(axis=1)].copy()
    for name in ("low", "high", "change_low", "change_high"):
        frame[name] = pd.to_numeric(frame[name])
    our_numbers, other_numbers = numbers(frame, "ours"), numbers(frame, "other")
    frame["change"] = (other_numbers / our_numbers.where(our_numbers != 0)).where(
        frame["how"] == "ratio", other_numbers - our_numbers
    )
    are_equal = [equal(*pair) for pair in zip(frame["ours"], frame["other"], strict=True)]
    conditions = [frame["ours"].isna(), frame["other"].isna(), pd.Series(are_equal, frame.index, dtype=bool)]
    frame["state"] = np.select(conditions, ["fresh", "gone", "equal"], "different")
    frame["better"] = frame["better"].fillna("")
    return frame


def numbers(frame: pd.DataFrame, side: str) -> pd.Series[float]:
    """The figures of a side that are numbers; absent ones otherwise."""
    return frame[side].map(lambda value: value if isinstance(value, (int, float)) else math.nan).astype(float)


def equal(our_value: Scalar, other_value: Scalar) -> bool:
    """Whether two figures are the same, numbers within `TOLERANCE`."""
    if isinstance(our_value, (int, float)) and isinstance(other_value, (int, float)):
        return same_number(our_value, other_value)
    return our_value == other_value


def worse_than(frame: pd.DataFrame, share: float) -> pd.DataFrame:
    """The figures that are worse on the second side by more than a share of the first, and not by chance.

    A change whose interval has no change in it, or a figure within the first side's interval, may be
    chance. A number that became a text, such as a failure, is worse.
    """
    our_numbers, other_numbers = numbers(frame, "ours"), numbers(frame, "other")
    loss = (our_numbers - other_numbers).where(frame["better"] == "higher", other_numbers - our_numbers)
    is_paired = frame["change_low"].notna()
    tested = other_numbers.mask(is_paired, (frame["how"] == "ratio").astype(float))
    low, high = (frame[end].where(~is_paired, frame[f"change_{end}"]) for end in ("low", "high"))
    is_worse = other_numbers.isna() | ((loss > share * our_numbers.abs()) & ~tested.between(low, high))
    return frame[our_numbers.notna() & (frame["better"] != "") & (frame["state"] == "different") & is_worse]


def counts(frame: pd.DataFrame) -> str:
    """How many figures are in each state."""
    return ", ".join(f"{(frame['state'] == state).sum()} {state}" for state in FIGURE_STATES)


def _figures(path: Path) -> pd.DataFrame:
    """Our figures and the published ones of a table or a folder of tables, by artifact, row and column."""
    files = [path] if path.is_file() else sorted(path.rglob("*.csv"))
    figures: dict[str, tuple[Scalar, str, Scalar, Scalar]] = {}
    for file in files:
        artifact = "" if path.is_file() else _artifact(file.relative_to(path))
        with csv_reader(file) as reader:
            if {"row", "column", "ours"} <= {*(reader.fieldnames or ())}:
                for line in reader:
                    figures |= _of_line(line, artifact)
    if not figures:
        raise InputError(
            f"{path} holds no table; give a table's CSV, a folder of results, or keys of records"
        )
    columns = ["ours", "better", "low", "high"]
    return pd.DataFrame.from_dict(figures, orient="index", columns=columns, dtype=object)


def _of_line(line: Mapping[str, str], artifact: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The figures of a line of a table, by name: ours, and both ends of the published one."""
    name = ", ".join(filter(None, (artifact, line.get("id") or line["row"], line["column"])))
    low, high = _scalar(line.get("low")), _scalar(line.get("high"))
    ends = (low, high) if isinstance(low, float) and isinstance(high, float) else NO_INTERVAL
    yield name, (_scalar(line["ours"]), line.get("better", ""), *ends)
    for end in ("low", "high"):
        yield f"{name}, published {end} end", (_scalar(line.get(f"published_{end}")), "", *NO_INTERVAL)


def _artifact(file: Path) -> str:
    """The name of a table by its place in a folder of results: `tables/lever/fig4.csv` is `lever/fig4`."""
    folder_names = [part for part in file.with_suffix("").parts if part not in ("tables", "table")]
    return "/".join(folder_names)


def _scalar(text: str | None) -> Scalar:
    try:
        return float(text or "")
    except ValueError:
        return text or None


def differing_settings(our_record: Record, other_record: Record) -> list[str]:
    """The settings in which two cells differ, each with both values; of two components only their names."""
    our_config, other_config = (record.provenance.config for record in (our_record, other_record))
    return [f"{path} ({a}, {b})" for path, a, b in _differences(our_config, other_config, "")]


def _differences(ours: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if not (isinstance(ours, Mapping) and isinstance(other, Mapping)):
        if ours != other:
            yield path, ours, other
    elif path and ours.get("name") != other.get("name"):
        yield path, ours.get("name"), other.get("name")
    else:
        for name in dict.fromkeys([*ours, *other]):
            if path or name not in ("name", "labels"):
                yield from _differences(ours.get(name), other.get(name), f"{path}.{name}".lstrip("."))


# --- on the terminal ----------------------------------------------------------------------------------------


def show_records(console: Console, store: Results, keys: tuple[str, str]) -> pd.DataFrame:
    """Print all figures of two records side by side; return them.

    Raises:
        InputError: a key is no beginning of exactly one record's, or a cell failed.
    """
    our_record, other_record = (record_of(store, key) for key in keys)
    for name, record in zip("AB", (our_record, other_record), strict=True):
        console.print(Text(f"{name}  {record.key[:12]}  {headline(record)}"), soft_wrap=True)
    if changes := differing_settings(our_record, other_record):
        console.print(f"They differ in {'; '.join(changes)}.", highlight=False, soft_wrap=True)
    frame = compare_records(
        our_record, other_record, (store.rounds(our_record.key), store.rounds(other_record.key))
    )
    grid = _grid("", "A", "B", "B over A, or B - A", "95% interval", "unit")
    for figure in frame.itertuples():
        if not (isinstance(figure.ours, str) or isinstance(figure.other, str)):
            grid.add_row(*map(Text, _words(figure)), style="dim" if figure.state == "equal" else "")
    console.print(grid, counts(frame), sep="\n", highlight=False)
    if frame["change_low"].isna().all():
        console.print(
            f"No intervals: they need the same {FEWEST} or more prompts on both sides.", style="dim"
        )
    return frame


def record_of(store: Results, beginning: str) -> Record:
    """The finished record whose key begins so.

    Raises:
        InputError: there is none, there are several, or its cell failed.
    """
    if not KEY_BEGINNING.fullmatch(beginning):
        raise InputError(
            f"{beginning!r} is neither an existing file or folder, nor the beginning of a record's key (4 or "
            "more hexadecimal digits)"
        )
    records = [record for record in store.all() if record.key.startswith(beginning)]
    if not records:
        raise InputError(
            f"{store.root} has no record whose key begins with {beginning}; choose --results=FOLDER"
        )
    if len(records) > 1:
        listing = ", ".join(record.key[:12] for record in records[:5])
        raise InputError(f"{len(records)} keys begin with {beginning}: {listing}; give more digits")
    if not records[0].done:
        raise InputError(f"the cell {records[0].key[:12]} failed, so it has no figures to compare")
    return records[0]


def show_tables(console: Console, frame: pd.DataFrame, show_all: bool) -> None:
    """Print the figures of two tables or folders that are not equal, or all of them, and the counts."""
    rows = frame if show_all else frame[frame["state"] != "equal"]
    grid = _grid("figure", "A", "B", "B over A", "state")
    for figure in rows.head(len(rows) if show_all else MOST_FIGURES).itertuples():
        change = "" if math.isnan(figure.change) else f"{figure.change:.4g}"
        cells = figure.Index, figure_text(figure.ours), figure_text(figure.other), change, figure.state
        grid.add_row(*map(Text, cells))
    if len(rows):
        console.print(grid)
    if len(rows) > MOST_FIGURES and not show_all:
        console.print(f"... and {len(rows) - MOST_FIGURES} more; --all prints them", style="dim")
    console.print(counts(frame), highlight=False)


def show_worse(console: Console, frame: pd.DataFrame, share: float) -> int:
    """Print which figures are worse by more than a share; return 1 if there are any, or some are gone.

    Raises:
        InputError: no figure has a better direction.
    """
    directions = frame["better"][numbers(frame, "ours").notna()]
    undirected = (directions == "").sum()
    if len(directions) and undirected == len(directions):
        raise InputError(
            "no figure says in which direction it is better: the tables' CSV files have no column `better`; "
            "make them again with `repro table`"
        )
    worse, gone_count = worse_than(frame, share), (frame["state"] == "gone").sum()
    for figure in worse.head(MOST_FIGURES).itertuples():
        change = f"{figure_text(figure.ours)} to {figure_text(figure.other)} ({figure.better} is better)"
        console.print(f"worse: {figure.Index}, {change}", highlight=False, soft_wrap=True)
    console.print(
        f"{len(worse)} worse by more than {100 * share:g}%, {gone_count} gone"
        f"{f'; {undirected} have no better direction, as published values' if undirected else ''}",
        highlight=False,
        soft_wrap=True,
    )
    return 1 if len(worse) or gone_count else 0


def share_of(percentage: str) -> float:
    """The share that a text such as `5%` or `0%` names; InputError for another one."""
    if not PERCENTAGE_PATTERN.fullmatch(percentage):
        raise InputError(f"--worse-than {percentage}: give a percentage of A's figure, such as 5% or 0.5%")
    return float(percentage.removesuffix("%")) / 100


def figure_text(value: Any) -> str:
    """A figure with six digits; "" without one."""
    return value if isinstance(value, str) else "" if pd.isna(value) else f"{value:.6g}"


def _grid(*headings: str) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD)
    for heading in headings:
        grid.add_column(heading, justify="right" if heading.startswith(("A", "B")) else "left")
    return grid


def _words(figure: Any) -> Iterable[str]:
    """A line of two records' figures."""
    metric, change, interval = figure.metric, figure.state, ""
    if figure.state == "equal":
        change = "="
    elif not math.isnan(figure.change):
        is_ratio = figure.how == "ratio"
        scale, digits = (1.0, 2) if is_ratio else (metric.scale, decimals(metric, [figure.change]))
        change = f"{figure.change * scale:{'' if is_ratio else '+'}.{digits}f}{' ×' if is_ratio else ''}"
        if not math.isnan(figure.change_low):
            ends = (f"{end * scale:.{digits}f}" for end in (figure.change_low, figure.change_high))
            interval = f"[{', '.join(ends)}]"
    sides = (value_words(metric, None if pd.isna(value) else value) for value in (figure.ours, figure.other))
    return metric.heading, *sides, change, interval, unit_words(metric)
