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
from repro.experiments.tables import NAME_KEYS
from repro.records.members import Member
from repro.records.record import Record, canonical
from repro.records.results import Results
from repro.reports.files import ALTERED_MARK, SWEEPS_FOLDER

VERSION_PATH = ("dataset", "version")
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
    drifts: dict[str, str] = {}
    pending_keys = {member.key for table in results.tables() for member in results.members(table)}
    pending_keys &= pending_keys if keys is None else set(keys)
    with planning(conf or conf_dir()) as plan:
        for table in results.tables():
            commands: dict[tuple[str, ...], list[Member]] = defaultdict(list)
            for member in results.members(table):
                if member.key in pending_keys and not table.startswith(SWEEPS_FOLDER):
                    commands[member.overrides].append(member)
                    pending_keys.remove(member.key)
            for overrides, members in commands.items():
                drifts |= _command_drift(plan, _command(table, overrides), results.records(members))
    return drifts


def _command(table: str, overrides: Sequence[str]) -> list[str]:
    has_name = any(override.partition("=")[0] in NAME_KEYS for override in overrides)
    return [*overrides] if has_name else [f"experiment={table.partition(ALTERED_MARK)[0]}", *overrides]


def _command_drift(plan: CellPlan, command: Sequence[str], records: Sequence[Record]) -> dict[str, str]:
    """What differs in the records of a command, by key."""
    settings: list[Leaves] = []
    try:
        cells = plan.jobs(command)
        drifted = {record.key: _leaves(record.provenance.config) for record in records}
        for cell in cells:
            settings.append(_leaves(plan.cell(cell)))
            drifted = {
                key: leaves for key, leaves in drifted.items() if not leaves.items() <= settings[-1].items()
            }
            if not drifted:
                break
    except (InputError, OmegaConfBaseException) as wrong:
        reason = f"`{shlex.join(command)}` composes no cell any more: {' '.join(str(wrong).split())}"
        return {record.key: reason for record in records}
    return {
        key: _sentence(min((_changes(leaves, cell_leaves) for cell_leaves in settings), key=len))
        for key, leaves in drifted.items()
    }


def _leaves(config: Mapping[str, Any]) -> Leaves:
    """The settings of a configuration that can change an outcome."""
    settings = _below((), decisive_settings(config))
    return {path: canonical(value) for path, value in settings if path[-2:] != VERSION_PATH}


def _below(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _below((*path, str(name)), inner)
    elif isinstance(value, list | tuple) and value:
        yield from _below(path, {str(i): inner for i, inner in enumerate(value)})
    else:
        yield path, value


def _changes(leaves: Leaves, current: Leaves) -> list[str]:
    """The settings that differ, each as it was and as it is; one that came later is no change."""
    return [
        f"{'.'.join(path)} {value} -> {current.get(path, 'nothing')}"
        for path, value in leaves.items()
        if value != current.get(path)
    ]


def _sentence(changes: Sequence[str]) -> str:
    return ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
