"""A folder of results: the records of cells, and the tables that have them.

Must not know what a table shows. The layout and its rules are described in docs/tables.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import from_home
from repro.core.reading import require_no_link
from repro.records.locks import Lock
from repro.records.members import Member, find_tables, read_members, write_members
from repro.records.record import KEY_PATTERN, Record, canonical, remove_left
from repro.records.store import RECORDS_FOLDER, Store

UNTABLED_GROUP = "untabled"
"""The group of cells that are in no table."""


class Results(Store):
    """The records of a folder of results, and its tables. `open_results` also checks the folder's layout."""

    def tables(self) -> list[str]:
        """Names of all tables with cells, sorted."""
        return find_tables(self.root)[0]

    def members(self, table: str) -> list[Member]:
        """The cells of a table; empty if it has none.

        Raises:
            InputError: a line is damaged.
        """
        cells = read_members(self.root / table)
        if cells.damaged:
            raise InputError(cells.damaged[0])
        return list(cells.members)

    def records(self, members: Iterable[Member]) -> list[Record]:
        """The records of a table's cells, with their labels in it; a cell without a record is left out."""
        self.refresh()
        records = {}
        for member in members:
            if cell := self._cells.get(member.key):
                record = cell.record
                has_labels = record.labels == member.labels
                records[member.key, canonical(dict(member.labels))] = (
                    record if has_labels else replace(record, labels=dict(member.labels))
                )
        return list(records.values())

    def read(self, table: str) -> list[Record]:
        """The records of a table, with its labels."""
        return self.records(self.members(table))

    def with_labels(self, labels: Mapping[str, str]) -> list[Record]:
        """The records that have these labels among theirs, or among those that a table gives them."""
        keys = {
            member.key
            for table in self.tables()
            for member in read_members(self.root / table).members
            if labels.items() <= member.labels.items()
        }
        records = self.all()
        return [record for record in records if record.key in keys or labels.items() <= record.labels.items()]

    def problems(self) -> list[str]:
        """One sentence for each file or line that is damaged, newer, a link, or left by a killed writer."""
        tables, links = find_tables(self.root)
        damage = [sentence for table in tables for sentence in read_members(self.root / table).damaged]
        return [*super().problems(), *damage, *(f"{path} is a link, which is not followed" for path in links)]

    def lock(self) -> Lock:
        """The lock of all tables, for who reads, changes and writes one; a process may hold it twice."""
        self.root.mkdir(parents=True, exist_ok=True)
        return Lock(require_no_link(self.root, self.root / ".lock"), is_singleton=True)

    def set_members(self, table: str, members: Sequence[Member]) -> None:
        """Make these cells the table's cells.

        Raises:
            InputError: a member has no record, a line of the table is damaged, or its folder is a link.
            OSError: the disk is full or read-only.
        """
        folder = require_no_link(self.root, self.root / table)
        for member in members:
            if self.get(member.key) is None:
                raise InputError(f"table {table!r} cannot have the cell {member.key[:12]}: it has no record")
        with self.lock():
            if set(map(_identity, self.members(table))) != set(map(_identity, members)):
                remove_left(folder)
                write_members(folder, members)

    def pack(self) -> None:
        """Bring all records together for git: a paper's cells in one file, their details in another.

        A cell in the tables of two papers lies with the first by name. A kill at any moment loses nothing.

        Raises:
            InputError: something is damaged.
            OSError: the disk is full or read-only.
        """
        with self.lock():
            self.refresh()
            groups = {key: UNTABLED_GROUP for key in self._cells}
            for table in reversed(self.tables()):
                remove_left(self.root / table)
                paper = re.split("[/@]", table)[0]  # of `quickstart@temperature=0.5` too
                groups |= {member.key: paper for member in self.members(table)}
            self.pack_groups(groups)


def _identity(member: Member) -> tuple[str, str, tuple[str, ...]]:
    return member.key, canonical(dict(member.labels)), member.overrides


def open_results(root: Path | str) -> Results:
    """The results in a folder, which need not exist yet.

    Raises:
        InputError: the folder has the former layout.
    """
    if has_former_layout(Path(root)):
        raise InputError(
            f"{root} has the former layout of records; convert it once with "
            f"`repro table --convert {shlex.quote(str(root))}`"
        )
    return Results(from_home(str(root)))


def has_former_layout(root: Path) -> bool:
    """Whether a folder has records as they were stored before there were files of lines."""
    record_paths = (root / RECORDS_FOLDER).glob("*.json")
    return (root / "provenance.jsonl.gz").exists() or any(
        KEY_PATTERN.fullmatch(path.stem) for path in record_paths
    )
