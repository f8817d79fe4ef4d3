"""Loose records: a folder with one JSON file for each cell.

Owns these files, their history and their lock. A running sweep writes here; `results` packs them by table.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from repro.core.errors import InputError
from repro.records.record import KEY, Record, Round, Scalar, canonical, write_atomically

DETAILS = ("rounds", "answers")
"""Kinds of detail lines that may be stored beside a cell's record; each kind has a file of its own."""

OWN = re.compile(rf"[0-9a-f]{{8,64}}(\.\d+)?(\.json|\.({'|'.join(DETAILS)})\.jsonl)")
log = logging.getLogger(__name__)


class Store:
    """A folder of records, one JSON file each; several processes may write to it concurrently.

    `<key>.json` is the cell's record, `<key>.rounds.jsonl` its rounds and `<key>.answers.jsonl` its answers
    (one file for each kind in `DETAILS`); records replaced by a rerun are kept as `<key>.<n>.json`. Files
    appear complete or not at all, even if a writer is killed.
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

    def keys(self) -> list[str]:
        """Keys of all cells with a record, sorted."""
        return [path.stem for path in self._glob("*.json") if KEY.fullmatch(path.stem)]

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
        return self.details(key, "rounds")

    def details(self, key: str, kind: str) -> list[dict[str, Scalar]]:
        """The lines of a kind in `DETAILS` stored with a cell's record; empty if there are none."""
        path = self._path(key, f".{kind}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def put(self, record: Record, rounds: Sequence[Round] = (), answers: Sequence[Round] = ()) -> Path:
        """Store a record durably (with fsync); a record that it replaces moves to the cell's history.

        A failed record never replaces a finished one; it goes to the history itself.

        Raises:
            OSError: the disk is full or read-only; earlier records are unchanged.
        """
        text = record.to_json()
        with self._locked():
            current = self._path(record.key)
            if current.exists():
                if not record.done and self._is_done(current):
                    return _written(self._free(record.key), text)
                self._archive(record.key)
            self._put_details(self._path(record.key), {"rounds": rounds, "answers": answers})
            return _written(current, text)

    def put_answers(self, key: str, answers: Sequence[Round]) -> None:
        """Store the answers of a cell; its record, which may be stored elsewhere, stays as it is.

        Raises:
            OSError: the disk is full or read-only.
        """
        with self._locked():
            self._put_details(self._path(key), {"answers": answers})

    def remember(self, record: Record, details: Mapping[str, Sequence[Round]]) -> None:
        """Add a record with its detail lines to the history of its cell, unless it is there already."""
        with self._locked():
            text, history = record.to_json(), self.folder.glob(f"{record.key}.*.json")
            if any(path.read_text(encoding="utf-8") == text for path in history):
                return
            free = self._free(record.key)
            self._put_details(free, details)
            write_atomically(free, text)

    def forget(self, record: Record) -> None:
        """Remove a cell's record and its detail lines, if the record is still this one."""
        with self._locked():
            if self.get(record.key) == record:
                self._path(record.key).unlink()
                for kind in DETAILS:
                    self._path(record.key, f".{kind}.jsonl").unlink(missing_ok=True)

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

    def _locked(self) -> FileLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / ".lock", is_singleton=True)

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
        for kind in DETAILS:
            lines = self._path(key, f".{kind}.jsonl")
            if lines.exists():
                write_atomically(kept.with_suffix(f".{kind}.jsonl"), lines.read_bytes())
                lines.unlink()
        write_atomically(kept, self._path(key).read_bytes())

    def _put_details(self, record: Path, details: Mapping[str, Sequence[Round]]) -> None:
        """Write the detail lines of a record's file; lines that an interrupted write left are removed."""
        for kind, lines in details.items():
            path = record.with_suffix(f".{kind}.jsonl")
            if lines:
                write_atomically(path, "".join(canonical(dict(line)) + "\n" for line in lines))
            else:
                path.unlink(missing_ok=True)


def _written(path: Path, text: str) -> Path:
    write_atomically(path, text)
    return path
