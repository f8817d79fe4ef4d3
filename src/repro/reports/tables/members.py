"""The list of a table's cells and their labels, stored beside the table's files.

Owns that list and the rule by which earlier cells stay in it. Must not know how cells are computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repro.core.errors import InputError
from repro.records.record import Record, Store, write_atomically

TERMS = ("prompts", "max_tokens", "sampling", "seed")
"""Configuration entries that must be equal for cells to share a table, apart from their labels."""


def records(members: Iterable[tuple[str, Mapping[str, str]]], store: Store) -> list[Record]:
    """The records of these keys, with labels replaced by the given ones.

    A key with several sets of labels gives several records; a key without a record is left out.
    """
    found = [(store.get(key), dict(labels)) for key, labels in members]
    labelled = [replace(record, labels=labels) for record, labels in found if record]
    return list({(r.key, tuple(sorted(r.labels.items()))): r for r in labelled}.values())


def require_apart(own: Sequence[Record]) -> None:
    """Check that no two cells of a sweep have the same labels, because a table would hide one of them.

    Raises:
        InputError: two cells have the same labels.
    """
    first: dict[tuple[tuple[str, str], ...], Record] = {}
    for record in own:
        other = first.setdefault(tuple(sorted(record.labels.items())), record)
        if other.key != record.key:
            raise InputError(
                f"two cells have the same labels, {' '.join(record.labels.values())}; name the setting in "
                'which they differ, as in labels: {length: "${method.length}"}'
            )


def join(own: Sequence[Record], earlier: Iterable[Record]) -> list[Record]:
    """A sweep's own records, plus earlier ones with other keys and labels and the same `TERMS`.

    This way a method that is run alone is added to the existing rows.
    """
    labels = [record.labels for record in own]
    keys = {record.key for record in own}
    terms = [_terms(record) for record in own]
    others = (r for r in earlier if r.key not in keys and r.labels not in labels)
    return [*own, *(r for r in others if r.done and _terms(r) in terms)]


def exist(folder: Path, experiment: str) -> bool:
    """Whether the table was written before."""
    return _path(folder, experiment).exists()


def read(folder: Path, experiment: str, store: Store) -> list[Record]:
    """The records of the table as last written, with its labels; empty if it was never written.

    Raises:
        InputError: the list is corrupt.
    """
    path = _path(folder, experiment)
    if not path.exists():
        return []
    try:
        listed = [(str(each["key"]), dict(each["labels"])) for each in json.loads(path.read_text())]
    except (ValueError, TypeError, KeyError) as wrong:
        raise InputError(f"{path} is corrupt ({wrong}); remove it and run the experiment again") from wrong
    return records(listed, store)


def write(folder: Path, experiment: str, records: Iterable[Record]) -> None:
    """Store the keys and labels of a table's cells."""
    path = _path(folder, experiment)
    listed = [{"key": record.key, "labels": dict(record.labels)} for record in records]
    listed.sort(key=lambda each: json.dumps(each, sort_keys=True))
    write_atomically(path, json.dumps(listed, indent=1, sort_keys=True) + "\n")


def _path(folder: Path, experiment: str) -> Path:
    return folder / f"{experiment}.cells.json"


def _terms(record: Record) -> list[object]:
    return [record.provenance.config.get(name) for name in TERMS]
