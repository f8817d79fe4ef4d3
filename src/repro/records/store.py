"""A store of records: files of lines in `records/`, of which each writer has one of its own.

Owns these files. Nobody writes to another's file, so nobody locks; what a killed writer left unfinished
counts as not written. Of a cell's records a finished one counts before a failed one, then the latest.
`pack_groups` brings the files together for git. Must not know tables, nor what values mean.
"""

from __future__ import annotations

import errno
import lzma
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from time import time_ns
from typing import Any

from repro.core.errors import InputError, warn
from repro.core.reading import LINES_BYTES, read_bytes, require_no_link, unpack
from repro.records.lines import (
    DETAIL_KINDS,
    LINE_FORM,
    Line,
    NewerForm,
    details_content,
    is_key,
    part_content,
    part_names,
    read_details,
    read_line,
    read_record,
    record_contents,
    record_name,
    write_line,
)
from repro.records.record import Record, Round, Scalar, flush, remove_left, write_atomically

RECORDS_FOLDER = "records"
"""The folder of the files in a folder of results."""

WRITER_NAME = re.compile(r"\.?\d{20}-\d+-[0-9a-f]{8}\.jsonl")
"""The names of writers' files (start, process, random), hidden while `pack` removes them."""

MOST_WRITER_BYTES = 256 << 20
"""Bytes of a writer's file after which it begins another: what is larger than `LINES_BYTES` is not read."""

PACKED_CELLS, PACKED_DETAILS = ".cells.jsonl", ".details.xz"
"""How the names of a group's files end, behind the group, which may have dots."""

XZ_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 16 << 20}]
"""Fast, and finds what cells far apart in a file have in common, as answers that are equal."""


@dataclass(eq=False)
class StoredCell:
    """A cell's line, with the file that has it."""

    file: LinesFile
    key: str
    content: Mapping[str, Any]

    @cached_property
    def record(self) -> Record:
        """The record; InputError if it is damaged."""
        try:
            return read_record(self.key, self.content, self.file.parts)
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise InputError(
                f"{self.file.path}: the cell {self.key[:12]} is damaged ({wrong}); restore the file"
            ) from wrong

    @property
    def is_done(self) -> bool:
        """Whether the cell was computed successfully."""
        return self.content.get("status") == "done"

    @property
    def details(self) -> str:
        """The name of its details."""
        return str(self.content.get("details"))

    def over(self, other_cell: StoredCell | None) -> StoredCell:
        """This one or another, read before: a finished one, then the latest."""
        if other_cell is None or self._rank() >= other_cell._rank():
            return self
        return other_cell

    def _rank(self) -> tuple[bool, str]:
        provenance = self.content.get("provenance")
        finished = provenance.get("finished") if isinstance(provenance, Mapping) else ""
        return self.is_done, str(finished)


@dataclass(eq=False)
class LinesFile:
    """A file of lines, as far as it was read. A cell's parts are in its own file.

    Attributes:
        end: where the lines end that were read; what comes after was not whole.
        details: where lines of details begin, and their lengths, by kind and name.
        damaged: a sentence for each line that is damaged, and one for lines of a newer form.
    """

    path: Path
    stat: os.stat_result | None = None
    end: int = 0
    count: int = 0
    parts: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, StoredCell] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    details: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    @property
    def is_writers(self) -> bool:
        """Whether a writer may still add to it."""
        return WRITER_NAME.fullmatch(self.path.name) is not None

    @property
    def group(self) -> str:
        """The group whose cells it has, of a packed file."""
        return self.path.name.removesuffix(PACKED_CELLS)

    def goes_on(self, file_stat: os.stat_result) -> bool:
        """Whether the file is the one that was read, perhaps with more lines."""
        if self.stat is None or file_stat.st_ino != self.stat.st_ino:
            return self.stat is None
        is_same = file_stat.st_size == self.stat.st_size and file_stat.st_mtime_ns == self.stat.st_mtime_ns
        return is_same or (self.is_writers and file_stat.st_size > self.stat.st_size)

    def read_more(self, file_stat: os.stat_result) -> list[StoredCell]:
        """Read what was added; the cells in it. A line that is not whole waits for its end."""
        if self.stat is not None and file_stat.st_size == self.stat.st_size:
            return []
        self.stat = file_stat
        try:
            new_bytes = self._read_added(file_stat.st_size)
        except FileNotFoundError:  # packed meanwhile
            return []
        except (InputError, OSError) as wrong:
            self.damaged.append(f"{wrong}")
            return []
        cells = []
        for raw in new_bytes.splitlines(keepends=True):
            self.count += 1
            if (cell := self._take(raw)) is not None:
                cells.append(cell)
            self.end += len(raw)
        return cells

    def _read_added(self, file_size: int) -> bytes:
        """The whole lines behind `end`."""
        require_no_link(self.path.parent, self.path)
        if not self.end:
            content = read_bytes(self.path, LINES_BYTES)[:file_size]
        else:
            with self.path.open("rb") as file:
                file.seek(self.end)
                content = file.read(file_size - self.end)
        return content if not self.is_writers else content[: content.rfind(b"\n") + 1]

    def _take(self, raw: bytes) -> StoredCell | None:
        """Note what a line says. Returns its cell, if it has one."""
        line = parse_line(raw, f"{self.path}, line {self.count}", self.damaged)
        if line is None:
            return None
        try:
            if line.kind in DETAIL_KINDS:
                self.details[line.kind, line.name] = self.end, len(raw)
            elif line.kind == "part":
                self.parts[line.name] = line.content()["value"]
            elif line.kind == "begun":
                self.begun.add(line.name)
            elif line.kind == "cell" and is_key(line.name):
                cell = StoredCell(self, line.name, line.content()).over(self.cells.get(line.name))
                self.cells[line.name] = cell
                return cell
            else:
                raise ValueError("it is no line of records")
        except (ValueError, KeyError) as wrong:
            self.damaged.append(_damage_sentence(f"{self.path}, line {self.count}", wrong))
        return None


def parse_line(raw: bytes, location: str, problems: list[str]) -> Line | None:
    """A line of a file; `None` if it is damaged or newer, with a sentence added to `problems`."""
    try:
        return read_line(raw.removesuffix(b"\n").decode(errors="replace"))
    except NewerForm as newer:
        path = location.rpartition(", line ")[0]
        sentence = (
            f"{path} was written by a newer version of repro (its lines have the form {newer}, and this "
            f"version reads up to {LINE_FORM}); its newer lines are left alone"
        )
        if sentence not in problems:
            problems.append(sentence)
    except ValueError as wrong:
        problems.append(_damage_sentence(location, wrong))
    return None


def _damage_sentence(location: str, wrong: Exception) -> str:
    return f"{location}, is damaged ({wrong}); the others are read; restore the file, or remove the line"


class Store:
    """The records in a folder; any number of processes may write to it, also of several hosts."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.folder = self.root / RECORDS_FOLDER
        self._files: dict[str, LinesFile] = {}
        self._cells: dict[str, StoredCell] = {}
        self._writer = Writer(self.folder)

    # --- reading --------------------------------------------------------------------------------------------

    def get(self, key: str) -> Record | None:
        """The record of a cell; `None` if there is none, InputError if it is damaged."""
        cell = self._cell(key)
        return cell.record if cell else None

    def finished_keys(self) -> frozenset[str]:
        """The keys of all finished records."""
        self.refresh()
        return frozenset(key for key, cell in self._cells.items() if cell.is_done)

    def all(self, experiment: str | None = None) -> list[Record]:
        """All records, optionally of one experiment, sorted by key. What cannot be read is logged."""
        self.refresh()
        records = []
        for key in sorted(self._cells):
            try:
                records.append(self._cells[key].record)
            except InputError as wrong:
                warn(str(wrong))
        return [record for record in records if experiment in (None, record.experiment)]

    def rounds(self, key: str) -> list[dict[str, Scalar]]:
        """The rounds of a cell; empty if there are none."""
        return self.details(key, "rounds")

    def answers(self, key: str) -> list[dict[str, Scalar]]:
        """The answers of a cell, one line for each prompt; empty if there are none."""
        return self.details(key, "answers")

    def details(self, key: str, kind: str) -> list[dict[str, Scalar]]:
        """The detail lines of a cell, of a kind in `DETAIL_KINDS`; empty if there are none.

        Raises:
            InputError: they are damaged.
        """
        cell = self._cell(key)
        line = self._details_line(cell, kind) if cell else None
        try:
            return read_details(line) if line else []
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise InputError(
                f"the {kind} of the cell {key[:12]} in {self.folder} are damaged ({wrong}); restore the file"
            ) from wrong

    def place(self, key: str) -> Path:
        """The file that holds a cell's record; the folder of records if there is none."""
        cell = self._cell(key)
        return cell.file.path if cell else self.folder

    def has_begun(self, key: str) -> bool:
        """Whether a cell began to be computed and has no record: it was interrupted, or lost."""
        self.refresh()
        return key not in self._cells and any(key in file.begun for file in self._files.values())

    def problems(self) -> list[str]:
        """One sentence for each line or file that is damaged, newer, a link, or left by a killed writer."""
        self.refresh()
        problems = [sentence for file in self._sorted_files() for sentence in file.damaged]
        for cell in self._cells.values():
            try:
                cell.record  # noqa: B018
            except InputError as wrong:
                problems.append(str(wrong))
        for path in sorted(self.folder.glob(f"*{PACKED_DETAILS}")):
            try:
                problems += _packed_details(path, *_stamp(path))[1]
            except InputError as wrong:
                problems.append(str(wrong))
        strays = (path for path in sorted(self.folder.glob("*.tmp")) if not path.name.startswith("."))
        return problems + [f"{path} was left by a writer that was killed or still writes" for path in strays]

    def refresh(self) -> None:
        """Read what was written since; a file that was replaced is read again."""
        stats = dict(self._stats())
        files = self._files.items()
        replaced_names = [name for name, file in files if not (name in stats and file.goes_on(stats[name]))]
        for name in replaced_names:
            del self._files[name]
        if replaced_names:
            self._cells = {}
            self._add(cell for file in self._sorted_files() for cell in file.cells.values())
        for name in sorted(stats, key=_order):
            file = self._files.setdefault(name, LinesFile(self.folder / name))
            count = len(file.damaged)
            self._add(file.read_more(stats[name]))
            for sentence in file.damaged[count:]:
                warn(sentence)

    def _add(self, cells: Iterable[StoredCell]) -> None:
        for cell in cells:
            self._cells[cell.key] = cell.over(self._cells.get(cell.key))

    def _stats(self) -> Iterator[tuple[str, os.stat_result]]:
        names = os.listdir(self.folder) if self.folder.is_dir() and not self.folder.is_symlink() else []
        for name in names:
            if WRITER_NAME.fullmatch(name) or name.endswith(PACKED_CELLS):
                with suppress(FileNotFoundError):  # packed meanwhile
                    yield name, os.lstat(self.folder / name)

    def _unlinked_folder(self) -> Path:
        return require_no_link(self.root, self.folder)

    def _sorted_files(self) -> list[LinesFile]:
        return [self._files[name] for name in sorted(self._files, key=_order)]

    def _cell(self, key: str) -> StoredCell | None:
        self.refresh()
        return self._cells.get(key)

    def _details_line(self, cell: StoredCell, kind: str) -> Line | None:
        for file in reversed(self._sorted_files()):  # answers may be newer than their record
            if extent := file.details.get((kind, cell.details)):
                with file.path.open("rb") as lines:
                    lines.seek(extent[0])
                    return read_line(lines.read(extent[1]).decode().removesuffix("\n"))
        path = self.folder / f"{cell.file.group}{PACKED_DETAILS}"
        if cell.file.is_writers or not path.exists():
            return None
        lines_by_name, damaged = _packed_details(path, *_stamp(path))
        line = lines_by_name.get((kind, cell.details))
        if line is None and damaged:
            raise InputError(damaged[0])
        return line

    # --- writing --------------------------------------------------------------------------------------------

    def begin(self, key: str) -> None:
        """Note that a cell begins to be computed."""
        self._writer.append({"begun": key}, is_durable=False)

    def put(self, record: Record, rounds: Sequence[Round] = (), answers: Sequence[Round] = ()) -> None:
        """Store a record durably. One that it replaces stays on the disk until `pack`.

        Raises:
            OSError: the disk is full or read-only; earlier records are unchanged.
        """
        self._writer.put(record, {"rounds": rounds, "answers": answers})

    def put_answers(self, key: str, answers: Sequence[Round]) -> None:
        """Store the answers of a cell beside its record, which stays as it is.

        Raises:
            OSError: the disk is full or read-only.
        """
        if record := self.get(key):
            self._writer.append(details_content("answers", record_name(record), answers))

    def check_writable(self, min_bytes: int = 0) -> None:
        """Check before the run that its results can be stored.

        Raises:
            InputError: the folder cannot be created or written, is a link, or has less than `min_bytes` free.
        """
        try:
            self._unlinked_folder().mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".probe.", suffix=".tmp") as probe:
                probe.write(b"\0" * 4096)
                probe.flush()
                os.fsync(probe.fileno())
            free_bytes = shutil.disk_usage(self.folder).free
        except OSError as wrong:
            reason = "the disk is full" if wrong.errno == errno.ENOSPC else wrong.strerror
            raise InputError(
                f"results cannot be written to {self.folder}: {reason}; choose another folder"
            ) from wrong
        if free_bytes < min_bytes:
            need_mb, free_mb = min_bytes / 1e6, free_bytes / 1e6
            raise InputError(
                f"{self.folder} has {free_mb:.1f} MB free and the run needs {need_mb:.1f} MB; free some space"
            )

    def pack_groups(self, groups: Mapping[str, str]) -> None:
        """Bring all files together: one of cells and one of details for each group, the same bytes again.

        The new files are whole before the old ones go, so a kill at any moment loses nothing; writers may
        go on meanwhile. Only one process may pack.

        Args:
            groups: the group of each cell, by key.

        Raises:
            InputError: a line is damaged or newer, so that it would be lost.
            OSError: the disk is full or read-only; all records are whole.
        """
        remove_left(self._unlinked_folder())
        if problems := self.problems():
            raise InputError(problems[0])
        for key, cell in [*self._cells.items()]:  # what changes its group must be elsewhere before it goes
            if not cell.file.is_writers and cell.file.group != groups[key]:
                self.put(cell.record, self.rounds(key), self.answers(key))
        self.refresh()
        old_files = self._sorted_files()
        keys_by_group: dict[str, list[str]] = {}
        for key in sorted(self._cells):
            keys_by_group.setdefault(groups[key], []).append(key)
        for group, keys in sorted(keys_by_group.items()):
            self._write_group(group, keys)
        for file in old_files:
            if file.is_writers:
                _remove_as_read(file)
            elif file.group not in keys_by_group:
                (self.folder / f"{file.group}{PACKED_DETAILS}").unlink(missing_ok=True)
                file.path.unlink()

    def _write_group(self, group: str, keys: Sequence[str]) -> None:
        """Write the cells of a group and, before them, their details."""
        cells, details, part_lines = list[str](), list[str](), set[str]()
        for cell in map(self._cells.__getitem__, keys):
            names = dict.fromkeys(name for name in part_names(cell.content) if name not in part_lines)
            part_lines |= names.keys()
            cells += [write_line(part_content(name, cell.file.parts[name])) for name in names]
            cells.append(write_line(cell.content))
            lines = (self._details_line(cell, kind) for kind in DETAIL_KINDS)
            details += [line.stored_form() for line in lines if line]
        details_bytes = lzma.compress("".join(details).encode(), filters=XZ_FILTERS)
        if details:
            write_changed(self.folder / f"{group}{PACKED_DETAILS}", details_bytes)
        write_changed(self.folder / f"{group}{PACKED_CELLS}", "".join(cells).encode())


class Writer:
    """A process's own file of lines, made when it writes first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path: Path | None = None
        self._process = 0
        self._parts: set[str] = set()

    def put(self, record: Record, details: Mapping[str, Sequence[Round]]) -> None:
        """Write a record with its details at once; OSError if they are not on the disk."""
        parts, contents = record_contents(record, details)
        while True:  # again if `pack` took the file meanwhile
            path = self._own_file()
            part_lines = [part_content(name, part) for name, part in parts.items() if name not in self._parts]
            if self._is_written(path, [*part_lines, *contents]):
                self._parts |= parts.keys()
                return

    def append(self, content: Mapping[str, Any], is_durable: bool = True) -> None:
        """Write a line; OSError if it is not written, or not on the disk where that is asked for."""
        while not self._is_written(self._own_file(), [content], is_durable):
            pass

    def _own_file(self) -> Path:
        if self._path is None or self._process != os.getpid():
            require_no_link(self.folder.parent, self.folder).mkdir(parents=True, exist_ok=True)
            name = f"{time_ns():020}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
            (self.folder / name).touch(exist_ok=False)
            flush(self.folder)
            self._path, self._process, self._parts = self.folder / name, os.getpid(), set()
        return self._path

    def _is_written(self, path: Path, contents: Iterable[Mapping[str, Any]], is_durable: bool = True) -> bool:
        """Write lines in one go. False if the file is gone.

        After an error, or when it is large, the next lines go to another.
        """
        data = "".join(map(write_line, contents)).encode()
        current_path, self._path = self._path, None
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return False
        try:
            if os.write(handle, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if is_durable:
                os.fsync(handle)
            if not path.exists():
                return False
            self._path = current_path if os.fstat(handle).st_size < MOST_WRITER_BYTES else None
            return True
        finally:
            os.close(handle)


def write_changed(path: Path, content: bytes) -> None:
    """Write a file, unless it has this content."""
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)


def _remove_as_read(file: LinesFile) -> None:
    """Remove a writer's file if nothing was added since it was read.

    Under another name it gets no more lines: a writer sees that its file is gone, and writes its lines again.
    """
    hidden_path = file.path.with_name(f".{file.path.name.removeprefix('.')}")
    file.path.rename(hidden_path)
    if file.stat is not None and hidden_path.stat().st_size == file.stat.st_size:
        hidden_path.unlink()
    else:
        hidden_path.rename(file.path)


@lru_cache(maxsize=16)
def _packed_details(path: Path, *_: int) -> tuple[dict[tuple[str, str], Line], list[str]]:
    """Lines of details by kind and name, and sentences for what is damaged.

    The arguments beside the path change with the file.
    """
    problems: list[str] = []
    lines = {}
    for number, raw in enumerate(unpack(path).splitlines(), 1):
        if line := parse_line(raw, f"{path}, line {number}", problems):
            lines[line.kind, line.name] = line
    return lines, problems


def _stamp(path: Path) -> tuple[int, int, int]:
    file_stat = path.lstat()
    return file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size


def _order(name: str) -> tuple[bool, str]:
    """Packed files are older than writers' files, of which the names begin with their start."""
    return WRITER_NAME.fullmatch(name) is not None, name
