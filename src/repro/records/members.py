"""Which cells a table has: `members.jsonl` in its folder, a line for each.

Owns these files, and finds them in a folder of results. Must not know what a cell's record says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from repro.core.errors import InputError
from repro.core.reading import LINES_BYTES, parse_json, read_bytes, require_no_link
from repro.records.record import KEY_PATTERN, canonical, write_atomically
from repro.records.store import RECORDS_FOLDER

MEMBERS_FILE = "members.jsonl"


@dataclass(frozen=True)
class Member:
    """A cell of a table: its key, its labels there, and the overrides of the command that added it."""

    key: str
    labels: Mapping[str, str]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Members:
    """The cells of a table, and a sentence for each damaged line."""

    members: tuple[Member, ...] = ()
    damaged: tuple[str, ...] = ()


def read_members(folder: Path | str) -> Members:
    """The cells of the table in a folder; none without a file."""
    path = os.path.join(
        folder, MEMBERS_FILE
    )  # a text, since hundreds of tables are looked at again and again
    try:
        file_stat = os.lstat(path)
    except FileNotFoundError:
        return Members()
    return _members(path, file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)


@lru_cache(maxsize=1024)
def _members(file: str, *_: int) -> Members:
    """The arguments beside the path change with the file, so that the cache keeps nothing old."""
    path = Path(file)
    try:
        content = read_bytes(require_no_link(path.parent, path), LINES_BYTES)
    except (InputError, OSError) as wrong:
        return Members((), (str(wrong),))
    members, problems = [], []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            members.append(_member(line))
        except (ValueError, TypeError, KeyError) as wrong:
            problems.append(
                f"{path}, line {number}, is damaged ({wrong}); restore the file, or remove the line"
            )
    return Members(tuple(members), tuple(problems))


def _member(line: bytes) -> Member:
    """The cell of a line; ValueError, TypeError or KeyError if it is none."""
    content = parse_json(line)
    overrides = content.get("overrides", []) if isinstance(content, dict) else None
    if overrides is None or not KEY_PATTERN.fullmatch(content["key"]):
        raise ValueError("it is no cell")
    if not all(isinstance(override, str) for override in overrides):
        raise ValueError("its overrides are no texts")
    labels = {str(name): str(value) for name, value in {**content["labels"]}.items()}
    return Member(content["key"], labels, tuple(overrides))


def write_members(folder: Path, members: Iterable[Member]) -> None:
    """Write a table's cells, sorted by labels; the same cells give the same bytes."""
    lines = []
    for member in sorted(members, key=lambda member: (canonical(dict(member.labels)), member.key)):
        content = {"key": member.key, "labels": dict(sorted(member.labels.items()))}
        overrides = {"overrides": list(member.overrides)} if member.overrides else {}
        lines.append(json.dumps(content | overrides, ensure_ascii=False) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / MEMBERS_FILE, "".join(lines))


def find_tables(root: Path) -> tuple[list[str], list[str]]:
    """The names of all tables in a folder of results, sorted, and the links in it, which are not followed."""
    tables, links = [], []
    for folder, names, files in os.walk(root):
        links += [path for name in names if os.path.islink(path := os.path.join(folder, name))]
        names[:] = [name for name in names if name != RECORDS_FOLDER]
        if MEMBERS_FILE in files or MEMBERS_FILE in names:  # a folder of that name is said to be none
            tables.append(Path(folder).relative_to(root).as_posix())
    return sorted(tables), sorted(links)
