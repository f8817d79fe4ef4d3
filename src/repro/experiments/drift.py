"""Committed cells whose settings are not what `conf/` says today.

A record is computed again from its own configuration, which would hide a changed file of `conf/`. A
composition takes a tenth of a second, so cells share them: of each table as many cells are composed as have
each override of its sweep at least once. Each number and word of a record's settings must be among theirs, at
the same place of a section of the same name.
Must not know Hydra, nor how a cell is computed.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments.cell_configs import plain
from repro.experiments.cell_settings import MATCHED, decisive_settings
from repro.experiments.cli import needless, publish
from repro.experiments.compositions import Compositions, composing_in
from repro.experiments.summaries.sweep_table import SWEEPS
from repro.experiments.tables import NAMES
from repro.records.identity import model_asked
from repro.records.members import Member
from repro.records.record import Record, canonical
from repro.records.results import Results
from repro.reports.files import ALTERED

RAISED = ("dataset", "version")
"""The way to a version in a file, which is no drift: a raised one marks its cells as older."""


class SettingPlace(NamedTuple):
    """A place in settings: the name of its section (a device, a method), and the way to it."""

    name: str
    path: tuple[str, ...]


def drifted(
    results: Results, keys: Collection[str] | None = None, conf: Path | None = None
) -> dict[str, str]:
    """What differs between cells' settings and those that today's `conf/` gives them, by key.

    Args:
        results: committed results.
        keys: of the cells; all of them by default.
        conf: a folder like `conf/`.
    """
    publish()
    found: dict[str, str] = {}
    left = {member.key for table in results.tables() for member in results.members(table)}
    left &= left if keys is None else set(keys)
    with composing_in(conf or conf_dir(), needless) as compositions:
        for table in results.tables():
            commands: dict[tuple[str, ...], list[Member]] = defaultdict(list)
            for member in results.members(table):
                if member.key in left and not table.startswith(SWEEPS):
                    commands[member.overrides].append(member)
                    left.remove(member.key)
            for overrides, members in commands.items():
                records = results.records(members)
                found |= _drifted(compositions, _command(table, overrides), records)
    return found


def _command(table: str, overrides: Sequence[str]) -> list[str]:
    named = any(override.partition("=")[0] in NAMES for override in overrides)
    return [*overrides] if named else [f"experiment={table.partition(ALTERED)[0]}", *overrides]


def _drifted(compositions: Compositions, command: Sequence[str], records: Sequence[Record]) -> dict[str, str]:
    known: dict[SettingPlace, set[str]] = defaultdict(set)
    try:
        cells = compositions.cells(command)
        covering = _covering(cells)
        lacking: Sequence[Record] = records
        for some in (covering, [cell for cell in cells if cell not in covering]):
            if lacking:
                for place, value in chain.from_iterable(_today(compositions.config(cell)) for cell in some):
                    known[place].add(value)
                lacking = [record for record in lacking if _changes(record, known)]
    except (InputError, OmegaConfBaseException) as wrong:
        reason = f"`{shlex.join(command)}` composes no cell any more: {' '.join(str(wrong).split())}"
        return {record.key: reason for record in records}
    return {record.key: _sentence(_changes(record, known)) for record in lacking}


def _changes(record: Record, known: Mapping[SettingPlace, Collection[str]]) -> list[str]:
    """The settings of a record that no cell of today has, each with its values today."""
    return [
        f"{'.'.join(place.path)} {value} -> {' or '.join(sorted(known.get(place, ()))[:3]) or 'nothing'}"
        for place, value in _leaves(decisive_settings(record.provenance.config))
        if value not in known.get(place, ()) and place.path[-2:] != RAISED
    ]


def _sentence(changes: Sequence[str]) -> str:
    return ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")


def _covering(cells: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """As many of the cells as have each override of any of them at least once."""
    left = set(chain.from_iterable(map(_choices, cells)))
    chosen = []
    for cell in cells:
        if not left.isdisjoint(_choices(cell)):
            chosen.append(cell)
            left.difference_update(_choices(cell))
    return chosen


def _choices(cell: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A cell's overrides, each together with those that choose its section or that it refers to."""
    sections = {override.partition("=")[0].rpartition("@")[2]: override for override in cell}
    labels = tuple(override for override in cell if override.lstrip("+").startswith("labels."))
    found = []
    for override in cell:
        section = override.lstrip("+~").partition("=")[0].partition(".")[0]
        found.append((override, sections.get(section, ""), *(labels if "${" in override else ())))
    return found


def _today(config: DictConfig) -> Iterator[tuple[SettingPlace, str]]:
    """The leaves of a cell's settings, its drafts and their match included, which not every method reads."""
    whole = plain(config, "labels")
    drafts = {n: v for n, v in whole.items() if n.startswith("draft") and isinstance(v, Mapping)}
    more = {name: model_asked(draft) for name, draft in drafts.items()}
    more |= {setting: whole[setting] for settings in MATCHED.values() for setting in settings}
    return _leaves(more | decisive_settings(whole))


def _leaves(settings: Mapping[str, Any]) -> Iterator[tuple[SettingPlace, str]]:
    """The numbers and words of settings, each with its place."""
    for entry, value in settings.items():
        name = str(value.get("name", "")) if isinstance(value, Mapping) else ""
        yield from ((SettingPlace(name, path), leaf) for path, leaf in _below((entry,), value))


def _below(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _below((*path, str(name)), below)
    elif isinstance(value, list | tuple):
        yield from _below(path, {str(i): below for i, below in enumerate(value)})
    else:
        yield path, canonical(value)
