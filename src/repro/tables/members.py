"""Which cells a table consists of, remembered beside its files.

Owns that list and the rule by which an earlier cell stays in it. Must not know how cells are computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.record import Record, Store, write_atomically

TERMS = ("prompts", "max_tokens", "sampling", "seed")
"""What of a configuration must agree for two cells to stand in one table, beside what their labels say."""


def join(own: Sequence[Record], earlier: Iterable[Record]) -> list[Record]:
    """A sweep's own records, and earlier ones of other labels that were asked the same.

    So a method that is run alone joins the rows that are there already.
    """
    labels = [record.labels for record in own]
    terms = [_terms(record) for record in own]
    stay = [r for r in earlier if r.done and r.labels not in labels and _terms(r) in terms]
    return [*own, *stay]


def read(folder: Path, experiment: str, store: Store) -> list[Record]:
    """The records of the table that was last written; none if there was none.

    Raises:
        InputError: the list is corrupt.
    """
    path = _path(folder, experiment)
    if not path.exists():
        return []
    try:
        keys = [str(key) for key in json.loads(path.read_text())]
    except ValueError as wrong:
        raise InputError(f"{path} is corrupt ({wrong}); remove it and run the experiment again") from wrong
    return [record for record in map(store.get, keys) if record]


def write(folder: Path, experiment: str, records: Iterable[Record]) -> None:
    """Remember the cells of a table."""
    path = _path(folder, experiment)
    write_atomically(path, json.dumps(sorted(record.key for record in records), indent=1) + "\n")


def _path(folder: Path, experiment: str) -> Path:
    return folder / f"{experiment}.cells.json"


def _terms(record: Record) -> list[object]:
    return [record.provenance.config.get(name) for name in TERMS]
