"""A file of small computed entries, shared by processes: keyed blobs in SQLite, each with a checksum.

Owns the file, where it lies, and what happens when it is damaged or not writable: a cache is a convenience,
so the run goes on. Must not know what the blobs mean. Entries are written once; a killed process leaves whole
entries.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from repro.core.errors import InputError, warn
from repro.records.build_cache import ADVICE

log = logging.getLogger(__name__)

CHECKSUM_BYTES = 4
"""Bytes of the checksum in front of each blob; it covers the key, so exchanged entries are found."""

SCRATCH_VARIABLE = "REPRO_SCRATCH"

NETWORK_TYPE = re.compile(
    r"nfs|cifs|smb|lustre|gpfs|ceph|beegfs|afs|coda|ncpfs|glusterfs|orangefs|pvfs|ocfs|gfs2|panfs|wekafs|9p"
    r"|virtiofs|fuse(?!blk|\.(fuse-overlayfs|ntfs-3g|exfat|encfs)$)"
)
"""How types of file systems begin that several hosts may write to, most of FUSE among them."""

MOUNTS_PATH = Path("/proc/self/mountinfo")
ESCAPED_BYTE = re.compile(r"\\(\d{3})")

Result = TypeVar("Result")


class RowFile:
    """Tables of blobs by key.

    What is damaged is named, left out and computed again. If the file cannot be used (a read-only or full
    disk, a folder in its place), a warning says so, and entries are kept in memory until the file is closed.
    """

    def __init__(self, path: Path, tables: Sequence[str]) -> None:
        """Open or create the file with these tables; if it is on a network disk, one on this host's."""
        self.path = local_place(path)
        self._tables = tables
        self._file = self._open()

    def get(self, table: str, key: bytes) -> bytes | None:
        """The blob of a key; None if there is none or it is damaged."""
        query = f"select value from {table} where key = ?"
        row = self._safely(lambda file: file.execute(query, (key,)).fetchone())
        if row is None:
            return None
        value = _without_checksum(key, row[0])
        if value is None:
            log.warning("an entry of %s is damaged; it is computed again", self.path)
            self._safely(lambda file: file.execute(f"delete from {table} where key = ?", (key,)))
        return value

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]], replace: bool = False) -> None:
        """Store blobs in one transaction; existing entries are kept, or replaced."""
        rows = [(key, _sum(key, value) + value) for key, value in items]
        conflict_rule = "replace" if replace else "ignore"

        def store(file: sqlite3.Connection) -> None:
            file.execute("begin immediate")
            file.executemany(f"insert or {conflict_rule} into {table} values (?, ?)", rows)
            file.execute("commit")

        self._safely(store)

    def each(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All keys and blobs of a table; of damaged ones a warning says how many are left out."""
        blobs = self._safely(lambda file: list(file.execute(f"select * from {table}")))
        items = [(key, value) for key, blob in blobs if (value := _without_checksum(key, blob)) is not None]
        if len(items) < len(blobs):
            log.warning("%d entries of %s are damaged and left out", len(blobs) - len(items), self.path)
        yield from items

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _safely(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do some work; if the file turns out to be damaged or unusable, repeat it with another one."""
        try:
            return work(self._file)
        except sqlite3.OperationalError as wrong:
            self._file.close()
            self._file = self._in_memory(wrong)
        except sqlite3.DatabaseError as wrong:
            self._file.close()
            self._file = self._recreate(wrong)
        return work(self._file)

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._connect(self.path)
        except (OSError, sqlite3.OperationalError) as wrong:
            return self._in_memory(wrong)
        except sqlite3.DatabaseError as wrong:
            return self._recreate(wrong)

    def _recreate(self, damage: sqlite3.DatabaseError) -> sqlite3.Connection:
        """A new file in place of a damaged one."""
        try:
            self._set_aside(damage)
            return self._connect(self.path)
        except (OSError, sqlite3.OperationalError) as wrong:
            return self._in_memory(wrong)

    def _in_memory(self, wrong: Exception) -> sqlite3.Connection:
        """Tables without a file, since it cannot be used."""
        warn(f"cannot use the cache {self.path} ({wrong}), so its results are computed; {ADVICE}")
        return self._connect(":memory:")

    def _connect(self, path: Path | str) -> sqlite3.Connection:
        if isinstance(path, Path) and not path.exists():
            path.touch()  # by the umask; SQLite alone never lets a group write
        file = sqlite3.connect(path, timeout=60, isolation_level=None)
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
        damaged_path = self.path.with_name(f"{self.path.name}.damaged")
        log.warning(
            "%s is damaged (%s); it is kept as %s and made again", self.path, wrong, damaged_path.name
        )
        self.path.replace(damaged_path)
        for journal in ("-wal", "-shm"):
            self.path.with_name(self.path.name + journal).unlink(missing_ok=True)


def _sum(key: bytes, value: bytes) -> bytes:
    return hashlib.blake2b(key + value, digest_size=CHECKSUM_BYTES).digest()


def _without_checksum(key: bytes, stored_value: object) -> bytes | None:
    """The blob without its checksum; None if it does not match."""
    if not isinstance(stored_value, bytes) or stored_value[:CHECKSUM_BYTES] != _sum(
        key, stored_value[CHECKSUM_BYTES:]
    ):
        return None
    return stored_value[CHECKSUM_BYTES:]


def local_place(path: Path) -> Path:
    """A file's path, or one on this host's own disk if the path is on a network file system.

    SQLite shares memory and locks between the processes of one host; a file that several hosts write to loses
    entries, or is lost. The other place is in $REPRO_SCRATCH, else in the folder of temporary files.

    Raises:
        InputError: $REPRO_SCRATCH is set and is on a network file system itself.
    """
    kind = network_type(path.parent)
    if not kind:
        return path
    scratch = os.environ.get(SCRATCH_VARIABLE)
    folder = Path(scratch or Path(tempfile.gettempdir()) / f"repro-{os.getuid()}").absolute()
    if scratch and (type_of_scratch := network_type(folder)):
        raise InputError(
            f"{SCRATCH_VARIABLE} is {scratch}, on a network file system ({type_of_scratch}), where computed "
            "entries can be lost; set it to a folder on this host's own disk"
        )
    warn(
        f"{path.parent} is on a network file system ({kind}), so computed entries are kept in {folder}, on "
        f"this host; {SCRATCH_VARIABLE} names another folder"
    )
    return folder / hashlib.sha256(str(path.parent.absolute()).encode()).hexdigest()[:12] / path.name


def network_type(folder: Path) -> str:
    """The type of the network file system that a folder is on, or will be; "" if it is on a local one."""
    path = Path(os.path.realpath(folder))
    mounts = (mount for mount in _mounts() if path.is_relative_to(mount[0]))
    type_name = max(mounts, default=("", ""))[1]
    return type_name if NETWORK_TYPE.match(type_name) else ""


def _mounts() -> Iterator[tuple[str, str]]:
    """The folder and the type of each mounted file system; none where the system does not say."""
    with suppress(OSError):
        for line in MOUNTS_PATH.read_text(encoding="utf-8", errors="replace").splitlines():
            mount, _, type_and_options = line.partition(" - ")
            folder = ESCAPED_BYTE.sub(lambda code: chr(int(code[1], 8)), mount.split(" ")[4])
            yield folder, type_and_options.split(" ")[0]
