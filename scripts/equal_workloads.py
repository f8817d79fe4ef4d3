"""Finds figures of one workload that differ between tables, and whether a footnote says why.

Two figures are of one workload if method, device, target, dataset, what computes, length of blank prompts
and metric are equal.
Where two tables with such figures share no cell, the two cells whose settings are most alike are compared;
settings that either table varies, and so shows, do not count. A footnote explains a difference if it names
the other table (`lever/fig10`) and has a word for each setting (`WORDS`). The exit code is 1 if one does not.

    python scripts/equal_workloads.py [--results results] [--all]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from repro.core.paths import project_root
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.files import ALTERED_MARK
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import experiment_file, grid_of
from repro.reports.spec.spec import ColumnSpec

WORKLOAD = ("method", "service", "compression", "probe", "device", "target", "dataset", "trace", "weights")
"""Labels that name a workload."""

NAMED = ("draft", "engine", "device", "app.dataset")
"""Sections of a configuration that are compared by their names alone."""

COMPARED = (
    *(
        "prompts",
        "max_tokens",
        "skip",
        "seed",
        "calibrate_draft_to",
        "draft_calibration",
        "sampling",
        "method",
    ),
    *(
        "service",
        "compression",
        "probe",
        "device.main",
        "app.ttft",
        "app.tpot",
        "trace.alpha",
        "trace.requests",
    ),
)
"""Settings, and sections of settings, that are compared by their values."""

WORDS = {"max_tokens": "tokens", "calibrate_draft_to": "agreement"}
"""The word that a footnote must have for a setting; by default the last part of its name."""

NOTHING = "(none that is compared)"

TOLERANCE = 1e-3
"""Relative difference that a table shows."""


@dataclass(frozen=True)
class Figures:
    """A table's figures by workload and metric, each by its cell; what it varies, and its footnotes."""

    values: Mapping[tuple[str, ...], Mapping[str, float]]
    axes: Collection[str]
    notes: Sequence[str]


@dataclass(frozen=True)
class Difference:
    """Figures of one workload that differ between tables.

    Attributes:
        tables: of the one figure, and of the other; tables with the same cell stand together.
        settings: in which the cells differ.
        workload: of the largest difference, with the metric and both figures.
        explained: whether a footnote of one side names a table of the other and all settings.
    """

    tables: tuple[tuple[str, ...], tuple[str, ...]]
    settings: tuple[str, ...]
    workload: str
    explained: bool

    def __str__(self) -> str:
        sides = " and ".join(", ".join(side) for side in self.tables)
        state = "explained" if self.explained else "not explained"
        return f"{state}: {sides} differ in {', '.join(self.settings)}: {self.workload}"


def differences(root: Path) -> list[Difference]:
    """All differences in a folder of results."""
    results, records = open_results(root), dict[str, Record]()
    tables, homes = dict[str, Figures](), defaultdict[str, tuple[str, ...]](tuple)
    for name in results.tables():
        content = experiment_file(name.partition(ALTERED_MARK)[0])
        if section := content.get("table"):
            members = results.records(results.members(name))
            for record in members:
                records[record.key], homes[record.key] = record, (*homes[record.key], name)
            table = expand(content["name"], section, content)
            tables[name] = Figures(_values(table.columns, members), _axes(content), table.footnotes)
    settings = {key: _settings(record.provenance.config) for key, record in records.items()}
    found: dict[tuple[Any, ...], tuple[float, str]] = {}
    for one, other in combinations(tables.values(), 2):
        for workload in one.values.keys() & other.values.keys():
            pair = _nearest(one, other, workload, settings)
            if pair is None:
                continue
            (key, value), (key_b, value_b), differing = pair
            size = abs(value - value_b) / max(abs(value), abs(value_b), 1e-30)
            if size > TOLERANCE:
                sides = tuple(sorted((homes[key], homes[key_b])))
                said = f"{' '.join(filter(None, workload))} {value:.4g} and {value_b:.4g}"
                found[sides, differing] = max(found.get((sides, differing), (0.0, "")), (size, said))
    return [
        Difference(sides, differing, said, _explained(tables, sides, differing))
        for (sides, differing), (_, said) in sorted(found.items())
    ]


def _values(
    columns: Sequence[ColumnSpec], records: Sequence[Record]
) -> dict[tuple[str, ...], dict[str, float]]:
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for record, column in product([r for r in records if r.done], columns):
        if any(record.labels.get(name) != label for name, label in column.where.items()):
            continue
        metric = column.value or f"{column.total} over {column.per}"
        value = record.figure(column.value) if column.value else None
        if column.total and column.per:
            total, per = record.figure(column.total), record.figure(column.per)
            value = float(total) / float(per) if total is not None and per else None
        if isinstance(value, (int, float)):
            blank = record.provenance.config.get("prompt_tokens")
            labels = [record.labels.get(name, "") for name in WORKLOAD]
            source = _named(record.provenance.config, "app.dataset")
            found[(*labels, source, str(blank or ""), metric)][record.key] = value
    return found


def _axes(content: Mapping[str, Any]) -> set[str]:
    """The settings that an experiment's grid varies."""
    return {
        name.lstrip("+").replace("model@", "") for point in grid_of(content).points() or [] for name in point
    }


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _named(config, name) for name in NAMED}
    for name in COMPARED:
        found |= dict(_flat(name, _part(config, name)))
    if _part(config, "compression"):  # scored on the host, whatever the command says of these
        found = {n: v for n, v in found.items() if n.partition(".")[0] not in ("device", "engine", "method")}
    return found


def _part(config: Mapping[str, Any], place: str) -> Any:
    """A part of a configuration, such as `app.dataset`; None if there is none."""
    part: Any = config
    for name in place.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def _named(config: Mapping[str, Any], place: str) -> str:
    """The name of a section of a configuration."""
    section = _part(config, place)
    return str((section.get("name") if isinstance(section, Mapping) else section) or "")


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for part, below in value.items():
            yield from _flat(f"{name}.{part}", below)
    else:
        yield name, str(value)


def _nearest(
    one: Figures, other: Figures, workload: tuple[str, ...], settings: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[str, float], tuple[str, float], tuple[str, ...]] | None:
    """The figures of the two cells that are most alike, and the settings in which they differ.

    None if the tables share a cell, or one varies all in which these differ.
    """
    here, there = one.values[workload], other.values[workload]
    if here.keys() & there.keys():
        return None
    best: tuple[int, float, Any] | None = None
    for own, theirs in product(here.items(), there.items()):
        a, b = settings[own[0]], settings[theirs[0]]
        differing = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
        left = tuple(name for name in differing if not _shown(name, {*one.axes, *other.axes}))
        pair = None if differing and not left else (own, theirs, left or (NOTHING,))
        rank = (len(left), abs(own[1] - theirs[1]))
        if best is None or rank < best[:2]:
            best = (*rank, pair)
    return best[2] if best else None


def _shown(setting: str, axes: Collection[str]) -> bool:
    return any(setting == axis or setting.startswith(f"{axis}.") for axis in axes)


def _explained(
    tables: Mapping[str, Figures], sides: tuple[tuple[str, ...], tuple[str, ...]], settings: Sequence[str]
) -> bool:
    words = [WORDS.get(name, name.rpartition(".")[2]) for name in settings]
    for here, there in (sides, sides[::-1]):
        for note in (note for name in here for note in tables[name].notes):
            names = set(re.findall(r"[\w/]+", note))
            if names & set(there) and all(word in note for word in words):
                return True
    return False


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    parser.add_argument("--all", action="store_true", help="print those that a footnote explains, too")
    given = parser.parse_args()
    found = differences(given.results)
    for difference in found:
        if given.all or not difference.explained:
            print(difference)
    open_ones = [difference for difference in found if not difference.explained]
    print(f"{len(found)} differences, {len(open_ones)} without a footnote")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
