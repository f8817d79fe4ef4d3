"""Loose records: a folder with one JSON file for each cell.

Owns these files, their history and their lock. A running sweep writes here; `results` packs them by table.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, LINES_BYTES, is_settled, parse_json, read_bytes, require_no_link
from repro.core.remembered import remembered
from repro.records.build_cache import locked
from repro.records.locks import Lock
from repro.records.record import KEY, Record, Round, Scalar, canonical, remove_left, write_atomically

DETAILS = ("rounds", "answers")
"""Kinds of detail lines that may be stored beside a cell's record; each kind has a file of its own."""

OWN = re.compile(rf"[0-9a-f]{{8,64}}(\.\d+)?(\.json|\.({'|'.join(DETAILS)})\.jsonl)")
BEGUN = ".begun"
"""What a note of a cell that has begun is called, behind its key."""
NAMED = 16
"""Hexadecimal digits of a record's hash in the names of its details."""
_OF_RECORD = re.compile(rf"[0-9a-f]+(\.[0-9a-f]{{{NAMED}}})?\.({'|'.join(DETAILS)})\.jsonl")
"""The names of the details of a cell's record; those of its history have a number instead."""

KEPT = 20_000
"""Records that are kept parsed; they share what is equal, so that each takes some kilobytes."""

log = logging.getLogger(__name__)

_kept: dict[str, _Kept] = {}
"""Records by path, as they were read or written last."""


@dataclass
class _Kept:
    """A record that need not be parsed again.

    Attributes:
        record: shares what is equal with others.
        digest: SHA-256 of its file's content.
        stamp: what tells its file from another one; `None` while that may not show.
    """

    record: Record
    digest: bytes
    stamp: tuple[int, int, int] | None = None


def _shared(part: Any) -> Any:
    """One object for equal plain data."""
    if isinstance(part, str):
        return sys.intern(part)
    return _equal(part) if isinstance(part, (dict, list)) else part


@remembered(4096)
def _equal(part: Any) -> Any:
    return part


class Store:
    """A folder of records, one JSON file each; several processes may write to it concurrently.

    `<key>.json` is the cell's record, `<key>.<hash>.rounds.jsonl` its rounds and `<key>.<hash>.answers.jsonl`
    its answers (one file for each kind in `DETAILS`); the hash is the record's, so that a record never has
    another one's details. Records replaced by a rerun are kept as `<key>.<n>.json`, with details named alike.
    Files appear complete or not at all, even if a writer is killed.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> Record | None:
        """The cell's record; `None` if there is none.

        Raises:
            InputError: its file is corrupt or belongs to another cell.
        """
        try:
            return self._read(self._path(key))
        except FileNotFoundError:
            return None

    def has(self, key: str) -> bool:
        """Whether a cell has a record here, or what should be one."""
        return self._path(key).exists()

    def keys(self) -> list[str]:
        """Keys of all cells with a record, sorted."""
        return [path.stem for path in self._glob("*.json") if KEY.fullmatch(path.stem)]

    def all(self, experiment: str | None = None) -> list[Record]:
        """All records, optionally of one experiment, sorted by key. Invalid files are logged."""
        records, wrong = self._scan()
        for sentence in wrong:
            log.warning("%s", sentence)
        return [r for r in records if experiment is None or r.experiment == experiment]

    def finished(self) -> list[str]:
        """The keys of all finished records; what is invalid is left out."""
        return [record.key for record in self._scan()[0] if record.done]

    def problems(self) -> list[str]:
        """One sentence for each file that is corrupt, foreign, or left behind by a killed writer."""
        left = [
            f"{path} was left by a writer that was killed or still writes" for path in self._glob("*.tmp")
        ]
        return self._scan()[1] + left

    def rounds(self, key: str) -> list[dict[str, Scalar]]:
        """The rounds stored with a cell's record; empty if there are none."""
        return self.details(key, "rounds")

    def details(self, key: str, kind: str) -> list[dict[str, Scalar]]:
        """The lines of a kind in `DETAILS` stored with a cell's record; empty if there are none.

        Raises:
            InputError: they are damaged.
        """
        try:
            return _parsed(self._stored(key, kind).decode())
        except ValueError as wrong:
            raise InputError(
                f"the {kind} of the cell {key[:12]} in {self.folder} are damaged ({wrong}); restore them, or "
                "move its files away and it will run again"
            ) from wrong

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Hold the lock of a cell: other processes that compute it wait here until the block ends."""
        require_no_link(self.folder.parent, self.folder).mkdir(parents=True, exist_ok=True)
        path = require_no_link(self.folder, self._path(key, ".lock"))
        with locked(path, f"the cell {key[:12]}"):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)  # those who wait for this file then open a new one

    def begin(self, key: str) -> None:
        """Note that a cell begins to be computed; the note goes when its record comes.

        One that stays is of a cell that was interrupted, or lost with its worker.
        """
        require_no_link(self.folder.parent, self.folder).mkdir(parents=True, exist_ok=True)
        require_no_link(self.folder, self._path(key, BEGUN)).touch()

    def has_begun(self, key: str) -> bool:
        """Whether a cell began to be computed and has left no record since."""
        return self._path(key, BEGUN).exists()

    def put(self, record: Record, rounds: Sequence[Round] = (), answers: Sequence[Round] = ()) -> Path:
        """Store a record durably (with fsync); a record that it replaces is kept in the cell's history.

        A failed record never replaces a finished one; it goes to the history itself.

        Raises:
            InputError: a number is not finite; nothing is written.
            OSError: the disk is full or read-only; earlier records are unchanged.
        """
        text = record.to_json().encode()
        details = {kind: _lines(found) for kind, found in (("rounds", rounds), ("answers", answers))}
        with self._locked():
            self._path(record.key, BEGUN).unlink(missing_ok=True)
            current = self._path(record.key)
            before = current.exists()
            if before:
                if not record.done and self._is_done(current):
                    return self._keep(record.key, text, details)
                self._archive(record.key)
            own = {kind: self._named(record.key, text, kind) for kind in DETAILS}
            for kind, path in own.items():
                if details[kind] or self._path(record.key, f".{kind}.jsonl").exists():
                    write_atomically(path, details[kind])
            write_atomically(current, text)
            _keep_parsed(current, record, hashlib.sha256(text).digest())
            if before:
                self._remove_details(record.key, without=own.values())
            return current

    def put_answers(self, key: str, answers: Sequence[Round]) -> None:
        """Store the answers of a cell; its record, which may be stored elsewhere, stays as it is.

        Raises:
            OSError: the disk is full or read-only.
        """
        with self._locked():
            path = self._own_details(key, "answers") or self._path(key, ".answers.jsonl")
            write_atomically(path, _lines(answers))

    def remember(self, record: Record, details: Mapping[str, Sequence[Round]]) -> None:
        """Add a record with its detail lines to the history of its cell, unless it is there already."""
        with self._locked():
            lines = {kind: _lines(details.get(kind, ())) for kind in DETAILS}
            self._keep(record.key, record.to_json().encode(), lines)

    def forget(self, records: Iterable[Record]) -> None:
        """Remove the records of cells and their detail lines, each if it is still this one."""
        with self._locked():
            names: dict[str, list[str]] = {}
            for name in os.listdir(self.folder) if self.folder.exists() else ():
                names.setdefault(name.partition(".")[0], []).append(name)
            for record in records:
                key = record.key
                if f"{key}.json" in names.get(key, ()) and self.get(key) == record:
                    self._path(key).unlink()
                    for name in filter(_OF_RECORD.fullmatch, names[key]):
                        (self.folder / name).unlink(missing_ok=True)

    def remove_left(self) -> None:
        """Remove what writers left that were killed: all who write here hold the lock."""
        with self._locked():
            remove_left(self.folder)

    def check_writable(self, min_bytes: int = 0) -> None:
        """Check before the run that its results can be stored.

        Raises:
            InputError: the folder cannot be created or written, is a link, or has less than `min_bytes` free.
        """
        try:
            require_no_link(self.folder.parent, self.folder).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".probe.", suffix=".tmp") as probe:
                probe.write(b"\0" * 4096)
                probe.flush()
                os.fsync(probe.fileno())
            free = shutil.disk_usage(self.folder).free
        except OSError as wrong:
            reason = "the disk is full" if wrong.errno == errno.ENOSPC else wrong.strerror
            raise InputError(
                f"results cannot be written to {self.folder}: {reason}; choose another folder"
            ) from wrong
        if free < min_bytes:
            need, have = min_bytes / 1e6, free / 1e6
            raise InputError(
                f"{self.folder} has {have:.1f} MB free and the run needs {need:.1f} MB; free some space"
            )

    def _locked(self) -> Lock:
        require_no_link(self.folder.parent, self.folder).mkdir(parents=True, exist_ok=True)
        require_no_link(self.folder, self.folder / ".lock")
        return self._lock

    @cached_property
    def _lock(self) -> Lock:
        return Lock(self.folder / ".lock", is_singleton=True)

    def _path(self, key: str, suffix: str = ".json") -> Path:
        return self.folder / f"{key}{suffix}"

    def _glob(self, pattern: str) -> Iterable[Path]:
        return sorted(path for path in self.folder.glob(pattern) if not path.name.startswith(".probe."))

    def _scan(self) -> tuple[list[Record], list[str]]:
        """Valid records, and a sentence for each invalid file."""
        records: list[Record] = []
        wrong: list[str] = []
        for path in self._glob("*.json"):
            try:
                if KEY.fullmatch(path.stem):
                    records.append(self._read(path))
                elif not OWN.fullmatch(path.name):
                    wrong.append(f"{path} is no record: its name is not a cell's key")
            except FileNotFoundError:  # packed by another process meanwhile
                continue
            except InputError as reason:
                wrong.append(str(reason))
        return records, wrong

    def _read(self, path: Path) -> Record:
        """The record in a file, which is read again only when the file is another one."""
        stat = path.lstat()
        stamp = stat.st_ino, stat.st_ctime_ns, stat.st_size  # a time of modification can be set back
        known = _kept.get(str(path))
        if known is not None and known.stamp == stamp:
            return known.record
        record = self._parsed_or_known(path)
        if is_settled(stat):
            _kept[str(path)].stamp = stamp
        return record

    def _parsed_or_known(self, path: Path) -> Record:
        """The record that a file has now."""
        try:
            content = read_bytes(require_no_link(self.folder.parent, path), JSON_BYTES)
            digest = hashlib.sha256(content).digest()
            known = _kept.get(str(path))
            if known is not None and known.digest == digest:
                return known.record
            record = Record.from_json(content.decode())
        except FileNotFoundError:
            raise
        except (InputError, OSError, UnicodeDecodeError) as wrong:
            raise InputError(
                f"{path} is corrupt ({wrong}); move it away and its cell will run again"
            ) from wrong
        if record.key != path.stem:
            raise InputError(f"{path} holds the record of another cell, {record.key}; move it away")
        return _keep_parsed(path, record, digest)

    def _is_done(self, path: Path) -> bool:
        try:
            return self._read(path).done
        except InputError:
            return False

    def _free(self, key: str) -> Path:
        """The first unused name in a cell's history."""
        n = 1
        while self._path(key, f".{n}.json").exists():
            n += 1
        return self._path(key, f".{n}.json")

    def _archive(self, key: str) -> None:
        """Copy a cell's record with its details to its history.

        They are copied rather than moved, so that the cell always has them; Android forbids hard links.
        """
        details = {kind: self._stored(key, kind) for kind in DETAILS}
        self._keep(key, self._path(key).read_bytes(), details)

    def _keep(self, key: str, record: bytes, details: Mapping[str, bytes]) -> Path:
        """Write a record and its details under a new name in its cell's history, unless it is there already.

        The record comes last, since it makes the details count; those of an interrupted write are removed.
        """
        for path in self.folder.glob(f"{key}.*.json"):
            if path.read_bytes() == record:
                return path
        free = self._free(key)
        for kind, lines in details.items():
            place = free.with_suffix(f".{kind}.jsonl")
            if lines:
                write_atomically(place, lines)
            else:
                place.unlink(missing_ok=True)
        write_atomically(free, record)
        return free

    def _stored(self, key: str, kind: str) -> bytes:
        """The details of a cell's record, or of one that is stored elsewhere; empty if there are none."""
        for path in (self._own_details(key, kind), self._path(key, f".{kind}.jsonl")):
            if path and path.exists():
                return read_bytes(require_no_link(self.folder.parent, path), LINES_BYTES)
        return b""

    def _own_details(self, key: str, kind: str) -> Path | None:
        """Where the details of a cell's record lie; None without a record."""
        try:
            return self._named(key, self._path(key).read_bytes(), kind)
        except FileNotFoundError:
            return None

    def _named(self, key: str, record: bytes, kind: str) -> Path:
        """Where the details of a record with this content lie."""
        return self._path(key, f".{hashlib.sha256(record).hexdigest()[:NAMED]}.{kind}.jsonl")

    def _remove_details(self, key: str, without: Collection[Path] = ()) -> None:
        """Remove the details of a cell's record, those of earlier records included; the history keeps its."""
        for kind in DETAILS:
            hashed = self.folder.glob(f"{key}.{'[0-9a-f]' * NAMED}.{kind}.jsonl")
            for path in {*hashed, self._path(key, f".{kind}.jsonl")}.difference(without):
                path.unlink(missing_ok=True)


def _keep_parsed(path: Path, record: Record, digest: bytes) -> Record:
    """Keep what a file with this digest holds. Returns the record as it is kept."""
    if len(_kept) >= KEPT:
        _kept.clear()
    kept = _kept[str(path)] = _Kept(record.sharing(_shared), digest)
    return kept.record


def _lines(details: Sequence[Round]) -> bytes:
    """Details as lines of JSON."""
    return "".join(canonical(dict(line)) + "\n" for line in details).encode()


def _parsed(lines: str) -> list[dict[str, Scalar]]:
    """Details from what `_lines` wrote; ValueError if they are cut or no objects."""
    if lines and not lines.endswith("\n"):
        raise ValueError("the last line is cut")
    details = [parse_json(line) for line in lines.split("\n")[:-1]]
    for number, line in enumerate(details, 1):
        if not isinstance(line, dict):
            raise ValueError(f"line {number} is no object")
    return details
