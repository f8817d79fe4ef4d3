"""Conversion of results in the former layout, in which each table had its cells' records in its own files.

Owns what that layout's files are called. There, a record's large parts lie as blocks in one file, and a
running sweep's records in files of their own, which are newer. Nothing else reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, parse_json, read_bytes, unpack
from repro.records.lines import DETAIL_KINDS
from repro.records.members import Member, write_members
from repro.records.record import KEY_PATTERN, Record, Round
from repro.records.results import Results, has_former_layout
from repro.records.store import RECORDS_FOLDER

BLOCKS_FILE = "provenance.jsonl.gz"
CELLS_FILE = "cells.jsonl"
REFERENCE_KEY = "$block"
"""The one key of a mapping that stands for a block."""
RECORD_NAME = re.compile(r"[0-9a-f]{8,64}(\.[0-9a-f]{16})?\.(json|(rounds|answers)\.jsonl)")
"""The names of a running sweep's records and their details."""


@dataclass(frozen=True)
class Former:
    """A record with its details by kind."""

    record: Record
    details: Mapping[str, Sequence[Round]]


def convert(root: Path, tell: Callable[[str], None] = print) -> Results:
    """Convert a folder of results in place and pack it; `tell` is called with each table's name.

    A conversion that was killed is begun again: former files go after all records are stored. The history of
    records that were replaced stays as it lies.

    Raises:
        InputError: nothing in the folder has the former layout, or a file is damaged.
    """
    if not has_former_layout(root):
        raise InputError(f"{root} has no records of the former layout, so there is nothing to convert")
    results = Results(root)
    for former in former_records(root):
        if results.get(former.record.key) != former.record:  # it was stored with details that may be gone
            results.put(former.record, **former.details)
    for folder in table_folders(root):
        tell(folder.relative_to(root).as_posix())
        write_members(folder, [_member(cell) for cell in _lines(folder / CELLS_FILE)])
    results.pack()
    for folder in table_folders(root):
        for name in (CELLS_FILE, *(f"{kind}.jsonl.xz" for kind in DETAIL_KINDS)):
            (folder / name).unlink(missing_ok=True)
    (root / BLOCKS_FILE).unlink(missing_ok=True)
    for path in [*(root / RECORDS_FOLDER).iterdir()]:
        if RECORD_NAME.fullmatch(path.name) or path.suffix in (".begun", ".lock") or path.name == ".lock":
            path.unlink()
    return results


def table_folders(root: Path) -> list[Path]:
    """The folders of tables, by name."""
    return sorted(path.parent for path in root.rglob(CELLS_FILE))


def former_records(root: Path) -> Iterator[Former]:
    """Each cell's record once, the newest.

    Raises:
        InputError: a file is damaged.
    """
    record_paths = [
        path for path in sorted((root / RECORDS_FOLDER).glob("*.json")) if KEY_PATTERN.fullmatch(path.stem)
    ]
    stored_keys = set()
    for path in record_paths:
        try:
            record = Record.from_json(read_bytes(path, JSON_BYTES).decode())
        except ValueError as wrong:
            raise InputError(f"{path} is damaged ({wrong}); restore it, or move it away") from wrong
        stored_keys.add(record.key)
        yield Former(record, {kind: _loose_details(path, kind) for kind in DETAIL_KINDS})
    resolve = _joiner({block["id"]: block["block"] for block in _lines(root / BLOCKS_FILE)})
    for folder in table_folders(root):
        details = {kind: _table_details(folder, kind) for kind in DETAIL_KINDS}
        for cell in _lines(folder / CELLS_FILE):
            try:
                record = _record(cell, resolve(cell["provenance"]))
            except (ValueError, TypeError, KeyError, RecursionError) as wrong:
                raise InputError(
                    f"{folder / CELLS_FILE} has a damaged cell ({wrong}); restore the file"
                ) from wrong
            if record.key not in stored_keys:
                stored_keys.add(record.key)
                yield Former(record, {kind: details[kind].get(record.key, []) for kind in DETAIL_KINDS})


def _record(cell: Mapping[str, Any], provenance: Mapping[str, Any]) -> Record:
    fields = {name: value for name, value in cell.items() if name not in ("overrides", "own_labels")}
    labels = cell.get("own_labels", cell["labels"])
    return Record.from_dict({**fields, "labels": labels, "provenance": provenance})


def _member(cell: Mapping[str, Any]) -> Member:
    return Member(cell["key"], cell["labels"], tuple(cell.get("overrides", ())))


def _joiner(blocks: Mapping[str, Any]) -> Callable[[str], Any]:
    """What gives a block by name, with the blocks in it."""

    def join(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {REFERENCE_KEY}:
                return block(value[REFERENCE_KEY])
            return {name: join(part) for name, part in value.items()}
        return [join(part) for part in value] if isinstance(value, list) else value

    @cache
    def block(name: str) -> Any:
        if name not in blocks:
            raise InputError(
                f"{BLOCKS_FILE} lacks the block {name}, to which a cell refers; restore the file"
            )
        return join(blocks[name])

    return block


def _table_details(folder: Path, kind: str) -> dict[str, list[Round]]:
    path = folder / f"{kind}.jsonl.xz"
    return {line["key"]: _rows(line[kind]) for line in _lines(path)}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[Round]:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row.items() if value != {}} for row in rows]


def _loose_details(record: Path, kind: str) -> list[Round]:
    """Details are named after the content of their record, or after its key alone."""
    content = hashlib.sha256(record.read_bytes()).hexdigest()[:16]
    names = (f"{record.stem}.{content}.{kind}.jsonl", f"{record.stem}.{kind}.jsonl")
    paths = [path for path in map(record.with_name, names) if path.exists()]
    return _lines(paths[0]) if paths else []


def _lines(path: Path) -> list[Any]:
    """The lines of JSON in a file, which may be compressed or absent; InputError if it is damaged."""
    if not path.exists():
        return []
    content = unpack(path) if path.suffix in (".xz", ".gz") else path.read_bytes()
    try:
        return [parse_json(line) for line in content.decode().splitlines() if line]
    except ValueError as wrong:
        raise InputError(f"{path} is damaged ({wrong}); restore it") from wrong
