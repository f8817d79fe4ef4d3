"""What computes in place of a paper's models, in a phrase for titles.

Must not know what a table shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
    """Display name of the target's checkpoint."""
    name = str(((config.get("target") or {}).get("checkpoint") or {}).get("name") or "")
    return load_names().find(ANY, "checkpoint", name).name


def each_name(names: Iterable[str | None]) -> list[str]:
    """The names that are there, each once, sorted."""
    return sorted({name for name in names if name})
