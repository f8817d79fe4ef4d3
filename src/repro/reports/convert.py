"""Conversion of a folder of results from the older layout, which had `records/` and `tables/`.

Owns what the older layout's files are called. Nothing is computed or lost; a conversion that was killed
continues where it stood.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from repro.core.errors import InputError
from repro.records.packed import Member
from repro.records.results import OLDER, Results

CELLS = ".cells.json"
ERRORS = "_errors"


def convert(root: Path, tell: Callable[[str], None] = print) -> Results:
    """Convert a folder of results in place; `tell` is called with each table's name.

    Packing compares every record and its rounds with what is read back before the older files are removed.

    Raises:
        InputError: the folder does not have the older layout, or a list of cells is corrupt.
    """
    older, results = root / OLDER, Results(root)
    if not older.is_dir():
        raise InputError(f"{root} has no folder `{OLDER}`, so there is nothing to convert")
    for path in sorted(older.rglob(f"*{CELLS}")):
        name = path.relative_to(older).as_posix().removesuffix(CELLS)
        tell(name)
        results.pack(name, [m for m in _members(path) if results.get(m.key)])
    for path in sorted(older.rglob("*")):
        if path.is_file() and not path.name.endswith(CELLS):
            target = root / _target(path.relative_to(older))
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    shutil.rmtree(older)
    return results


def _members(path: Path) -> list[Member]:
    try:
        return [Member(str(each["key"]), dict(each["labels"])) for each in json.loads(path.read_text())]
    except (ValueError, TypeError, KeyError) as wrong:
        raise InputError(f"{path} is corrupt ({wrong}); restore it") from wrong


def _target(path: Path) -> Path:
    """The new place of an older table's file: `lever/fig4.md` is `lever/fig4/table.md` now."""
    stem, _, suffix = path.name.partition(".")
    kind, _, end = suffix.rpartition(".")
    name = kind or ("figure" if end == "png" else "table")
    if stem.endswith(ERRORS):
        return path.parent / stem.removesuffix(ERRORS) / "errors" / f"{name}.{end}"
    return path.parent / stem / f"{name}.{end}"
