"""Records of cells, and the folder that stores them.

Owns record files, atomic writing and history. Must not know what the values mean or how they are shown.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from filelock import FileLock

from repro.core.errors import InputError
from repro.records.provenance import Provenance

Scalar = float | int | str | None
Spread = float | tuple[float, float]
Round = Mapping[str, Scalar]

KEY = re.compile(r"[0-9a-f]{8,64}")
OWN = re.compile(r"[0-9a-f]{8,64}(\.\d+)?(\.json|\.rounds\.jsonl)")
log = logging.getLogger(__name__)


def canonical(value: object) -> str:
    """Canonical JSON of plain data: sorted keys, no spaces, ASCII.

    Raises:
        TypeError: it contains something other than plain data.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def content_hash(value: object) -> str:
    """SHA-256 in hexadecimal of the canonical JSON of plain data."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """One cell of a sweep, done or failed.

    `labels` are short names by which tables select and show cells (method, device, dataset, model). `values`
    are finite numbers, strings or `None`; `uncertainty` has a standard error or a (low, high) interval for
    some of them. `error` is the traceback of a failed cell.

    Raises:
        InputError: a key that is not hexadecimal, an unknown status, a failure without a traceback, a value
            that is not finite or not plain.
    """

    key: str
    experiment: str
    labels: Mapping[str, str]
    status: Literal["done", "failed"]
    values: Mapping[str, Scalar]
    provenance: Provenance
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    error: str | None = None

    def __post_init__(self) -> None:
        if not KEY.fullmatch(self.key):
            raise InputError(f"key {self.key!r} is not 8 to 64 hexadecimal digits")
        if self.status not in ("done", "failed"):
            raise InputError(f"status is {self.status!r}; choices: done, failed")
        if (self.status == "failed") != bool(self.error):
            raise InputError(f"a record that is {self.status} cannot have error={self.error!r}")
        for name, value in self.values.items():
            _check_value(name, value)

    @property
    def done(self) -> bool:
        """Whether the cell was computed successfully."""
        return self.status == "done"

    def to_json(self) -> str:
        """Readable JSON; equal records give equal text."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["provenance"] = self.provenance.to_dict()
        return json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Parse the output of `to_json`.

        Raises:
            InputError: the text is not a record.
        """
        try:
            plain = json.loads(text)
            plain["provenance"] = Provenance(**plain["provenance"])
            spreads = plain.get("uncertainty", {}).items()
            plain["uncertainty"] = {n: tuple(v) if isinstance(v, list) else v for n, v in spreads}
            return cls(**plain)
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise InputError(f"not a record: {wrong}") from wrong


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, (float, int, str, type(None))):
        raise InputError(
            f"value {name!r} is a {type(value).__name__}; a record holds numbers, strings and None"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(
            f"value {name!r} is {value}; a record holds finite numbers, or None for an absent one"
        )


class Store:
    """A folder of records, one JSON file each; several processes may write to it concurrently.

    `<key>.json` is the cell's record and `<key>.rounds.jsonl` its rounds; records replaced by a rerun are
    kept as `<key>.<n>.json`. Files appear complete or not at all, even if a writer is killed.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> Record | None:
        """The cell's record; `None` if there is none.

        Raises:
            InputError: its file is corrupt or belongs to another cell.
        """
        path = self._path(key)
        return self._read(path) if path.exists() else None

    def all(self, experiment: str | None = None) -> list[Record]:
        """All records, optionally of one experiment, sorted by key. Invalid files are logged."""
        records, wrong = self._scan()
        for sentence in wrong:
            log.warning("%s", sentence)
        return [r for r in records if experiment is None or r.experiment == experiment]

    def problems(self) -> list[str]:
        """One sentence for each file that is corrupt, foreign, or left behind by a killed writer."""
        left = [
            f"{path} was left by a writer that was killed or still writes" for path in self._glob("*.tmp")
        ]
        return self._scan()[1] + left

    def rounds(self, key: str) -> list[dict[str, Scalar]]:
        """The rounds stored with a cell's record; empty if there are none."""
        path = self._path(key, ".rounds.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def put(self, record: Record, rounds: Sequence[Round] = ()) -> Path:
        """Store a record durably (with fsync); a record that it replaces moves to the cell's history.

        A failed record never replaces a finished one; it goes to the history itself.

        Raises:
            OSError: the disk is full or read-only; earlier records are unchanged.
        """
        text = record.to_json()
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            current = self._path(record.key)
            if current.exists():
                if not record.done and self._is_done(current):
                    return self._write(self._free(record.key), text)
                self._archive(record.key)
            if rounds:
                lines = "".join(canonical(dict(r)) + "\n" for r in rounds)
                self._write(self._path(record.key, ".rounds.jsonl"), lines)
            return self._write(current, text)

    def check_writable(self, min_bytes: int = 0) -> None:
        """Check before the run that its results can be stored.

        Raises:
            InputError: the folder cannot be created or written, or has less than `min_bytes` free.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
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
            except InputError as reason:
                wrong.append(str(reason))
        return records, wrong

    def _read(self, path: Path) -> Record:
        try:
            record = Record.from_json(path.read_text(encoding="utf-8"))
        except (InputError, UnicodeDecodeError) as wrong:
            raise InputError(
                f"{path} is corrupt ({wrong}); move it away and its cell will run again"
            ) from wrong
        if record.key != path.stem:
            raise InputError(f"{path} holds the record of another cell, {record.key}; move it away")
        return record

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
        """Copy a cell's files to its history.

        The record is copied rather than moved, so that the cell always has one; Android forbids hard links.
        """
        kept = self._free(key)
        rounds = self._path(key, ".rounds.jsonl")
        if rounds.exists():
            self._write(kept.with_suffix(".rounds.jsonl"), rounds.read_bytes())
            rounds.unlink()
        self._write(kept, self._path(key).read_bytes())

    def _write(self, path: Path, content: str | bytes) -> Path:
        write_atomically(path, content)
        return path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content atomically: temporary file, fsync, rename, fsync of the folder.

    Raises:
        OSError: it cannot be written; the temporary file is removed.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
