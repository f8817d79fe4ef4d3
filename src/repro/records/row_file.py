"""A file of small computed entries, shared by processes: keyed blobs in SQLite, each with a checksum.

Owns the file, and what happens when it is damaged or not writable. Must not know what the blobs mean. Entries
are written once; a killed process leaves whole entries.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from repro.core.errors import InputError
from repro.records.build_cache import CACHE_VARIABLE

log = logging.getLogger(__name__)

CHECKSUM = 4
"""Bytes of the checksum in front of each blob; it covers the key, so exchanged entries are found."""

Found = TypeVar("Found")


class RowFile:
    """Tables of blobs by key. What is damaged is named, left out and computed again."""

    def __init__(self, path: Path, tables: Sequence[str]) -> None:
        """Open or create the file with these tables.

        Raises:
            InputError: the file cannot be opened for writing.
        """
        self.path = path
        self._tables = tables
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            raise _unwritable(path, wrong) from wrong
        self._file = self._opened()

    def get(self, table: str, key: bytes) -> bytes | None:
        """The blob of a key; None if there is none or it is damaged."""
        ask = f"select value from {table} where key = ?"
        found = self._safely(lambda file: file.execute(ask, (key,)).fetchone())
        if found is None:
            return None
        value = _checked(key, found[0])
        if value is None:
            log.warning("an entry of %s is damaged; it is computed again", self.path)
            self._safely(lambda file: file.execute(f"delete from {table} where key = ?", (key,)))
        return value

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]], replace: bool = False) -> None:
        """Store blobs in one transaction; existing entries are kept, or replaced.

        Raises:
            InputError: the disk is full or read-only.
        """
        rows = [(key, _sum(key, value) + value) for key, value in items]
        other = "replace" if replace else "ignore"

        def store(file: sqlite3.Connection) -> None:
            file.execute("begin immediate")
            file.executemany(f"insert or {other} into {table} values (?, ?)", rows)
            file.execute("commit")

        self._safely(store)

    def each(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All keys and blobs of a table, without damaged ones."""
        for key, stored in self._safely(lambda file: list(file.execute(f"select * from {table}"))):
            value = _checked(key, stored)
            if value is not None:
                yield key, value

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _safely(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        """Do some work; if the file turns out to be damaged, make it again and repeat the work."""
        try:
            return work(self._file)
        except sqlite3.OperationalError as wrong:
            raise _unwritable(self.path, wrong) from wrong
        except sqlite3.DatabaseError as wrong:
            self._file.close()
            self._set_aside(wrong)
            self._file = self._opened()
            return work(self._file)

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.OperationalError as wrong:
            raise _unwritable(self.path, wrong) from wrong
        except sqlite3.DatabaseError as wrong:
            self._set_aside(wrong)
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            file.execute("pragma journal_mode = wal")
            file.execute("pragma synchronous = normal")
            for table in self._tables:
                file.execute(
                    f"create table if not exists {table} (key blob primary key, value blob) without rowid"
                )
        except sqlite3.Error:
            file.close()
            raise
        return file

    def _set_aside(self, wrong: sqlite3.DatabaseError) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged")
        log.warning("%s is damaged (%s); it is kept as %s and made again", self.path, wrong, aside.name)
        self.path.replace(aside)
        for journal in ("-wal", "-shm"):
            self.path.with_name(self.path.name + journal).unlink(missing_ok=True)


def _sum(key: bytes, value: bytes) -> bytes:
    return blake2b(key + value, digest_size=CHECKSUM).digest()


def _checked(key: bytes, stored: object) -> bytes | None:
    """The blob without its checksum; None if it does not match."""
    if not isinstance(stored, bytes) or stored[:CHECKSUM] != _sum(key, stored[CHECKSUM:]):
        return None
    return stored[CHECKSUM:]


def _unwritable(path: Path, wrong: Exception) -> InputError:
    return InputError(
        f"cannot use {path}: {wrong}; set {CACHE_VARIABLE} to a writable folder with free space"
    )
