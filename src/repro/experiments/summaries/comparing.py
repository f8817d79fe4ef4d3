"""Two records, or two tables of results, figure by figure.

Owns what is compared with what, and when two figures are equal. Must not know how records or tables are made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from repro.core.digits import same_number
from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.experiments.summaries.cell_screen import described_as, order_of
from repro.records.record import Record, Round, Scalar
from repro.reports.intervals.bootstrap import Interval, paired
from repro.reports.intervals.rounds import totals, with_interval
from repro.reports.spec.metric import MetricSpec
from repro.reports.tables.known import known_values

State = Literal["equal", "different", "gone", "fresh"]
Line = tuple[str, str, str]
"""Artifact, row and column of a table's figure."""


@dataclass(frozen=True)
class FigurePair:
    """One figure on both sides.

    Attributes:
        name: what it is: the metric's name, or the artifact, row and column.
        ours: the figure of the first side; `None` if that has none.
        other: of the second.
        metric: what describes it; `None` for a table's figure.
        better: the better direction, "" if none is known.
        spread: the first side's own 95% interval, if it has one.
        how: whether `change` is the second over the first, or the second less the first.
        change: that ratio or difference; `None` if there is none.
        interval: its 95% interval over prompts, if both sides have the same prompts.
    """

    name: str
    ours: Scalar
    other: Scalar
    metric: MetricSpec | None = None
    better: str = ""
    spread: Interval | None = None
    how: Literal["ratio", "difference"] = "ratio"
    change: float | None = None
    interval: Interval | None = None

    @property
    def state(self) -> State:
        """Equal, different, or only on one side: `gone` from the second, or `fresh` in it."""
        if self.ours is None or self.other is None:
            return "equal" if self.ours is self.other else "fresh" if self.ours is None else "gone"
        return "equal" if equal(self.ours, self.other) else "different"

    def is_worse(self, share: float) -> bool:
        """Whether the second figure is worse than the first by more than a share of it, and not by chance.

        A change whose interval has no change in it, or a figure within the first side's interval, may be
        chance. A number that became a text, such as a failure, is worse.
        """
        if not self.better or self.state != "different" or not isinstance(self.ours, (int, float)):
            return False
        if not isinstance(self.other, (int, float)):
            return True
        loss = self.ours - self.other if self.better == "higher" else self.other - self.ours
        low, high = self.interval or self.spread or (math.nan, math.nan)
        unchanged = self.other if not self.interval else 1.0 if self.how == "ratio" else 0.0
        return loss > share * abs(self.ours) and not low <= unchanged <= high


def equal(ours: Scalar, other: Scalar) -> bool:
    """Whether two figures are the same, numbers within `TOLERANCE`."""
    if isinstance(ours, (int, float)) and isinstance(other, (int, float)):
        return same_number(ours, other)
    return ours == other


def compare_records(
    ours: Record, other: Record, rounds: tuple[Sequence[Round], Sequence[Round]]
) -> list[FigurePair]:
    """All figures of two records, in the order in which a cell's are printed.

    Args:
        ours: the first record.
        other: the second record.
        rounds: the stored lines of detail of both.
    """
    sides = (known_values(ours), known_values(other))
    lines = (totals(ours, rounds[0]), totals(other, rounds[1]))
    spreads = with_interval(ours, rounds[0]).uncertainty
    described = {name: described_as(name) for name in {*sides[0], *sides[1]}}
    found = []
    for name, metric in sorted(described.items(), key=lambda item: order_of(item[1])):
        how: Literal["ratio", "difference"] = (
            "difference" if metric.unit in ("%", "share", "percentage_point") else "ratio"
        )
        one, two = (values.get(name) for values in sides)
        both = (lines[1].get(name), lines[0].get(name))
        interval = paired(both[0], both[1], how) if both[0] and both[1] else None
        spread = spreads.get(name)
        own = spread if isinstance(spread, tuple) else None
        change = _change(one, two, how)
        found.append(FigurePair(name, one, two, metric, metric.better, own, how, change, interval))
    return found


def differing_settings(ours: Record, other: Record) -> list[str]:
    """The settings in which two cells differ, each with both values; of two components only their names."""
    one, two = (record.provenance.config for record in (ours, other))
    return [f"{path} ({a}, {b})" for path, a, b in _differences(one, two, "")]


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


def _change(ours: Scalar, other: Scalar, how: Literal["ratio", "difference"]) -> float | None:
    if not isinstance(ours, (int, float)) or not isinstance(other, (int, float)):
        return None
    if how == "difference":
        return other - ours
    return other / ours if ours else None


def compare_tables(ours: Path, other: Path) -> list[FigurePair]:
    """All figures of two tables' CSV files, or of all tables of two folders.

    Raises:
        InputError: there is no such file or folder, or it holds no table.
    """
    one, two = _figures(ours), _figures(other)
    found = []
    for line in dict.fromkeys([*one, *two]):
        first, second = one.get(line, _ABSENT), two.get(line, _ABSENT)
        if first.ours is not None or second.ours is not None:
            name, change = ", ".join(filter(None, line)), _change(first.ours, second.ours, "ratio")
            better = first.better or second.better
            found.append(
                FigurePair(name, first.ours, second.ours, better=better, spread=first.spread, change=change)
            )
    return found


def counts(compared: Sequence[FigurePair]) -> str:
    """How many figures are equal, different, only in the first (gone) and only in the second (fresh)."""
    found = Counter(one.state for one in compared)
    return ", ".join(f"{found[state]} {state}" for state in get_args(State))


@dataclass(frozen=True)
class _Written:
    """A figure of a table's file, with the better direction and the interval that stand beside it."""

    ours: Scalar
    better: str = ""
    spread: Interval | None = None


_ABSENT = _Written(None)


def _figures(path: Path) -> dict[Line, _Written]:
    """Our figures and the published ones of a table or a folder of tables, by artifact, row and column."""
    files = [path] if path.is_file() else sorted(path.rglob("*.csv"))
    found: dict[Line, _Written] = {}
    for file in files:
        artifact = "" if path.is_file() else _artifact(file.relative_to(path))
        with csv_reader(file) as reader:
            if not {"row", "column", "ours"} <= {*(reader.fieldnames or ())}:
                continue
            for line in reader:
                row, column = line.get("id") or line["row"], line["column"]
                low, high = _scalar(line.get("low")), _scalar(line.get("high"))
                spread = (low, high) if isinstance(low, float) and isinstance(high, float) else None
                found[artifact, row, column] = _Written(_scalar(line["ours"]), line.get("better", ""), spread)
                for end in ("low", "high"):
                    published = _Written(_scalar(line[f"published_{end}"]))
                    found[artifact, row, f"{column}, published {end} end"] = published
    if not found:
        raise InputError(
            f"{path} holds no table; give a table's CSV, a folder of results, or keys of records"
        )
    return found


def _artifact(file: Path) -> str:
    """The name of a table by its place in a folder of results: `tables/lever/fig4.csv` is `lever/fig4`."""
    parts = [part for part in file.with_suffix("").parts if part not in ("tables", "table")]
    return "/".join(parts)


def _scalar(text: str | None) -> Scalar:
    try:
        return float(text or "")
    except ValueError:
        return text or None
