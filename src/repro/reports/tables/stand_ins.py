"""What computes in place of a paper's models, in a phrase for titles.

Must not know what a table shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.records.record import Record
from repro.reports.reference.names import ANY, load_names

FEW = 2
"""Models that are named; more are "the models"."""


def stand_ins(records: Sequence[Record]) -> str:
    """Which checkpoints compute in place of which models, and whether only costs are known; "" if neither.

    Records without weights count only if all are without: a table of both says which in its marks.
    """
    if records and all(record.provenance.weights == "none" for record in records):
        return "costs only, no weights computed"
    proxies = [record for record in records if record.provenance.weights == "proxy"]
    checkpoints = each_name(checkpoint_of(record.provenance.config) for record in proxies)
    if not checkpoints:
        return ""
    models = each_name(record.labels.get("target", "") for record in proxies)
    named = " and ".join(models) if 0 < len(models) <= FEW else "the models"
    return (
        f"{' and '.join(checkpoints)} {'compute' if len(checkpoints) > 1 else 'computes'} in place of {named}"
    )


def checkpoint_of(config: Mapping[str, Any]) -> str:
    """Display name of the target's checkpoint: of the weights that it names, whatever its file is called."""
    checkpoint = (config.get("target") or {}).get("checkpoint") or {}
    name, folder = str(checkpoint.get("name") or ""), checkpoint.get("folder")
    repo = str((checkpoint.get("hub") or {}).get("repo") or "")
    if folder or (repo and repo != _repo(name)):
        return Path(str(folder or repo or name)).name
    return load_names().find(ANY, "checkpoint", name).name


@cache
def _repo(name: str) -> str:
    """The hub's repository in a checkpoint's file; "" without one."""
    path = conf_dir() / "model" / "checkpoint" / f"{name}.yaml"
    hub = read_mapping(path).get("hub") if path.is_file() else None
    return str((hub or {}).get("repo") or "")


def says_stand_ins(records: Sequence[Record]) -> bool:
    """Whether footnotes about stand-ins hold: not where all records have been asked for other weights."""
    return any(r.provenance.config.get("weights", "stand_in") == "stand_in" for r in records) or not records


def each_name(names: Iterable[str | None]) -> list[str]:
    """The names that are there, each once, sorted."""
    return sorted({name for name in names if name})
