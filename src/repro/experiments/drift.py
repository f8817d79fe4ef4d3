"""Committed cells whose settings are not what `conf/` says today.

A record is computed again from its own configuration, which would hide a changed file of `conf/`. So the
commands that made the cells are planned again, and each of a record's settings must be that of one of their
cells.
Must not know Hydra, nor how a cell is computed.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments.cell_settings import decisive_settings
from repro.experiments.composing import publish
from repro.experiments.plan import CellPlan, planning
from repro.experiments.tables import NAMES
from repro.records.members import Member
from repro.records.record import Record, canonical
from repro.records.results import Results
from repro.reports.files import ALTERED, SWEEPS

RAISED = ("dataset", "version")
"""The end of the way to a dataset's version, which is no drift: a raised one marks its cells as older."""

Leaves = dict[tuple[str, ...], str]
"""The numbers and words of settings by the way to each."""


def find_drift(
    results: Results, keys: Collection[str] | None = None, conf: Path | None = None
) -> dict[str, str]:
    """What differs between cells' settings and those that today's `conf/` gives them, by key.

    Args:
        results: committed results.
        keys: of the cells; all of them by default.
        conf: a folder like `conf/`.
    """
    publish()
    differences: dict[str, str] = {}
    pending = {member.key for table in results.tables() for member in results.members(table)}
    pending &= pending if keys is None else set(keys)
    with planning(conf or conf_dir()) as plan:
        for table in results.tables():
            commands: dict[tuple[str, ...], list[Member]] = defaultdict(list)
            for member in results.members(table):
                if member.key in pending and not table.startswith(SWEEPS):
                    commands[member.overrides].append(member)
                    pending.remove(member.key)
            for overrides, members in commands.items():
                differences |= _command_drift(plan, _command(table, overrides), results.records(members))
    return differences


def _command(table: str, overrides: Sequence[str]) -> list[str]:
    has_name = any(override.partition("=")[0] in NAMES for override in overrides)
    return [*overrides] if has_name else [f"experiment={table.partition(ALTERED)[0]}", *overrides]


def _command_drift(plan: CellPlan, command: Sequence[str], records: Sequence[Record]) -> dict[str, str]:
    """What differs in the records of a command, by key."""
    today: list[Leaves] = []
    try:
        cells = plan.jobs(command)
        rest = {record.key: _leaves(record.provenance.config) for record in records}
        for cell in cells:
            today.append(_leaves(plan.cell(cell)))
            rest = {key: leaves for key, leaves in rest.items() if not leaves.items() <= today[-1].items()}
            if not rest:
                break
    except (InputError, OmegaConfBaseException) as wrong:
        reason = f"`{shlex.join(command)}` composes no cell any more: {' '.join(str(wrong).split())}"
        return {record.key: reason for record in records}
    return {
        key: _sentence(min((_changes(leaves, other) for other in today), key=len))
        for key, leaves in rest.items()
    }


def _leaves(config: Mapping[str, Any]) -> Leaves:
    """The settings of a configuration that can change an outcome."""
    settings = _below((), decisive_settings(config))
    return {path: canonical(value) for path, value in settings if path[-2:] != RAISED}


def _below(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _below((*path, str(name)), below)
    elif isinstance(value, list | tuple) and value:
        yield from _below(path, {str(i): below for i, below in enumerate(value)})
    else:
        yield path, value


def _changes(leaves: Leaves, today: Leaves) -> list[str]:
    """The settings that differ, each as it was and as it is; one that came later is no change."""
    return [
        f"{'.'.join(path)} {value} -> {today.get(path, 'nothing')}"
        for path, value in leaves.items()
        if value != today.get(path)
    ]


def _sentence(changes: Sequence[str]) -> str:
    return ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
