"""The cells of one table in two files: `cells.jsonl` and, compressed, their details.

Owns the format of these files. Details are stored by column, and fractions in ten digits, which makes
them a third as long. Must not know which cells belong to a table, nor where else a cell is stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from repro.core.digits import in_ten_digits
from repro.core.errors import InputError
from repro.core.reading import LINES_BYTES, parse_json, read_bytes, require_no_link
from repro.records.blocks import Blocks, read_blocks, split, unzipped, write_zipped
from repro.records.provenance import Provenance
from repro.records.record import KEY, Record, Round, Scalar, canonical, write_atomically

LOOSE = "records"
"""The folder of loose records in the folder of the results."""

CELLS = "cells.jsonl"
PROVENANCE = "provenance.jsonl.gz"
"""The file of all provenance blocks, in the folder of the results."""

BEFORE = '{"key":"'
"""What stands before the key in a line of details."""

ABSENT: dict[str, Any] = {}
"""What stands in a column for a row that has no such entry."""


@dataclass(frozen=True)
class Member:
    """A cell of a table: its key, its labels there, and the overrides of the command that added it."""

    key: str
    labels: Mapping[str, str]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """One line of `cells.jsonl`: a cell as a member of a table, with its record.

    `place` is the line's file and number; `content` the parsed line.
    """

    place: str
    content: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The cell's key."""
        return str(self.content["key"])

    @cached_property
    def member(self) -> Member:
        """The cell as a member of this table."""
        labels = {str(n): str(v) for n, v in self.content["labels"].items()}
        return Member(self.key, labels, tuple(self.content.get("overrides", ())))

    @property
    def block(self) -> str:
        """Name of the block that holds the provenance."""
        return str(self.content["provenance"])

    def record(self, blocks: Blocks) -> Record:
        """The cell's record, as it was stored; made once of the same blocks.

        Raises:
            InputError: a block is missing, or the line is no record.
        """
        known: tuple[Blocks, Record] | None = vars(self).get("_known")
        if known is None or known[0] is not blocks:
            known = vars(self)["_known"] = blocks, self._made(blocks)
        return known[1]

    def _made(self, blocks: Blocks) -> Record:
        about = self.content
        try:
            spreads = about.get("uncertainty", {}).items()
            found = Record(
                key=self.key,
                experiment=about["experiment"],
                labels=about.get("own_labels", about["labels"]),
                status=about["status"],
                values=about["values"],
                provenance=Provenance(**blocks.joined({"$block": self.block})),
                uncertainty={n: tuple(v) if isinstance(v, list) else v for n, v in spreads},
                error=about.get("error"),
            )
            found.require_parts()
            return found
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as wrong:
            raise InputError(f"{self.place}, is damaged: {wrong}") from wrong


@dataclass(frozen=True, eq=False)
class Cells:
    """The lines of one `cells.jsonl`, and a sentence for each damaged line."""

    lines: tuple[Line, ...] = ()
    damaged: tuple[str, ...] = ()

    @cached_property
    def by_key(self) -> dict[str, Line]:
        """The first line of each cell."""
        return {line.key: line for line in reversed(self.lines)}


def read_cells(folder: Path | str) -> Cells:
    """The cells in a table's folder; none without a file."""
    place = os.path.join(folder, CELLS)  # a text, since hundreds of tables are looked at again and again
    try:
        stat = os.lstat(place)
    except FileNotFoundError:
        return Cells()
    return _cells(place, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _cells(file: str, *_: int) -> Cells:
    """The arguments beside the path change with the file, so that the cache keeps nothing old."""
    path = Path(file)
    lines, damaged = [], []
    try:
        content = read_bytes(require_no_link(path.parent, path), LINES_BYTES)
    except (InputError, OSError) as wrong:
        return Cells((), (str(wrong),))
    for number, raw in enumerate(content.split(b"\n"), 1):
        if not raw:
            continue
        place = f"{path}, line {number}"
        try:
            content = parse_json(raw)
            if not (KEY.fullmatch(content["key"]) and content["provenance"] and {**content["labels"]}):
                raise ValueError("it is no cell")
            if not all(isinstance(override, str) for override in content.get("overrides", ())):
                raise ValueError("its overrides are no texts")
            lines.append(Line(place, content))
        except (ValueError, TypeError, KeyError) as wrong:
            damaged.append(f"{place}, is damaged ({wrong}); restore the file, or remove the line")
    return Cells(tuple(lines), tuple(damaged))


def packed_line(member: Member, record: Record, found: dict[str, str]) -> dict[str, Any]:
    """The content of a cell's line; the blocks of its provenance are added to `found` by name."""
    plain = record.to_dict()
    block = split(plain["provenance"], found)
    content: dict[str, Any] = {
        "key": record.key,
        "labels": dict(sorted(member.labels.items())),
        "status": record.status,
        "values": plain["values"],
    }
    optional = {
        "uncertainty": plain["uncertainty"],
        "error": record.error,
        "overrides": list(member.overrides),
        "own_labels": plain["labels"] if plain["labels"] != dict(member.labels) else {},
    }
    content |= {name: value for name, value in optional.items() if value}
    return content | {"experiment": record.experiment, "provenance": block["$block"]}


def write_cells(folder: Path, contents: Iterable[Mapping[str, Any]]) -> None:
    """Write a table's cells, sorted by labels; the same cells give the same bytes."""
    lines = sorted(contents, key=lambda c: (canonical(c["labels"]), c["key"]))
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CELLS, text)


def details_path(folder: Path, kind: str) -> Path:
    """The file with the details of a table's cells."""
    return folder / f"{kind}.jsonl.xz"


def read_details(folder: Path, kind: str) -> Mapping[str, list[dict[str, Scalar]]]:
    """Detail lines of a table's cells by key, of a kind in `store.DETAILS`; each is parsed when read."""
    path = details_path(folder, kind)
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return {}
    return DetailLines(path, kind, *_details(path, stat.st_ino, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=256)
def _details(path: Path, *_: int) -> tuple[dict[str, tuple[int, str]], str]:
    """Number and text of each cell's line, and a sentence if one is damaged or the file is.

    The arguments beside the path change with the file.
    """
    found: dict[str, tuple[int, str]] = {}
    damaged = ""
    try:
        lines = unzipped(path)
    except InputError as wrong:
        return {}, str(wrong)
    for number, line in enumerate(lines, 1):
        key = line[len(BEFORE) :].partition('"')[0]
        if line.startswith(BEFORE) and KEY.fullmatch(key):
            found[key] = number, line
        else:
            damaged = f"{path}, line {number}, is damaged: it names no cell; restore the file"
    return found, damaged


class DetailLines(Mapping[str, list[dict[str, Scalar]]]):
    """Detail lines by key, parsed when they are read.

    If some are damaged, the others can be read by key, but not all be listed: whoever does writes them again.
    """

    def __init__(self, path: Path, kind: str, lines: Mapping[str, tuple[int, str]], damaged: str) -> None:
        self._path = path
        self._kind = kind
        self._lines = lines
        self._damaged = damaged

    def __getitem__(self, key: str) -> list[dict[str, Scalar]]:
        """The lines of a cell; InputError if they are damaged, or may be."""
        if key not in self._lines and self._damaged:
            raise InputError(self._damaged)
        number, line = self._lines[key]
        try:
            return _rows(parse_json(line)[self._kind])
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise InputError(
                f"{self._path}, line {number}, is damaged ({wrong}); restore the file"
            ) from wrong

    def __iter__(self) -> Iterator[str]:
        """The keys; InputError if some are damaged."""
        if self._damaged:
            raise InputError(self._damaged)
        return iter(self._lines)

    def __len__(self) -> int:
        """Number of cells with lines."""
        return len(self._lines)


def write_details(folder: Path, kind: str, details: Mapping[str, Sequence[Round]]) -> None:
    """Write detail lines by key; a file that would be empty is removed, an equal one is left alone."""
    path = details_path(folder, kind)
    kept = [
        f'{BEFORE}{key}","{kind}":{canonical(_columns(details[key]))}}}'
        for key in sorted(details)
        if details[key]
    ]
    if not kept:
        path.unlink(missing_ok=True)
    elif not path.exists() or unzipped(path) != kept:
        folder.mkdir(parents=True, exist_ok=True)
        write_zipped(path, kept)


def _columns(rows: Sequence[Round]) -> dict[str, list[Any]]:
    """Rows as columns of equal length."""
    names = sorted({name for row in rows for name in row})
    return {name: [in_ten_digits(row.get(name, ABSENT)) for row in rows] for name in names}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Scalar]]:
    """The rows of columns; ValueError if their lengths differ."""
    made = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    if not any(ABSENT in column for column in columns.values()):
        return [*made]
    return [{name: value for name, value in row.items() if value != ABSENT} for row in made]


def all_blocks(root: Path) -> Blocks:
    """The provenance blocks of all tables in a folder of results."""
    return read_blocks(root / PROVENANCE)


SETTLED_NS = 2 * 10**9
"""Age of a folder's last change from which a later one has another time, on any file system."""


@dataclass(frozen=True)
class _Walk:
    """The tables of a folder of results, when each folder that was looked through had changed, and links."""

    tables: tuple[str, ...]
    changed_ns: Mapping[str, int]
    links: tuple[str, ...] = ()

    def is_settled(self) -> bool:
        """Whether a change after this walk is seen by its time."""
        return max(self.changed_ns.values(), default=0) < datetime.now(UTC).timestamp() * 1e9 - SETTLED_NS

    def is_current(self) -> bool:
        """Whether no folder has changed since."""
        return all(_changed_ns(folder) == changed for folder, changed in self.changed_ns.items())


_walks: dict[Path, _Walk] = {}


def folders(root: Path) -> list[str]:
    """Names of all tables with cells in a folder of results, sorted; they are sought again after a change."""
    return list(_current_walk(root).tables)


def links(root: Path) -> list[str]:
    """A sentence for each folder in a folder of results that is a link, whose tables are not read."""
    return [f"{path} is a link, which is not followed" for path in _current_walk(root).links]


def _current_walk(root: Path) -> _Walk:
    known = _walks.get(root)
    if known is None or not known.is_current():
        known = _walk(root)
        _walks.pop(root, None)
        if known.is_settled():
            _walks[root] = known
    return known


def _walk(root: Path) -> _Walk:
    tables, changed_ns, found = [], {str(root): _changed_ns(str(root))}, list[str]()
    for folder, names, files in os.walk(root):
        found += [path for name in names if os.path.islink(path := os.path.join(folder, name))]
        names[:] = [name for name in names if name != LOOSE]
        changed_ns[folder] = _changed_ns(folder)
        if CELLS in files or CELLS in names:  # a folder of that name is said to be none
            tables.append(Path(folder).relative_to(root).as_posix())
    return _Walk(tuple(sorted(tables)), changed_ns, tuple(sorted(found)))


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0
