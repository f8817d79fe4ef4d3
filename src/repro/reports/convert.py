"""Conversion of results whose details lie by row in gzip files, once beside every table of a cell.

Owns what the older layout's files are called. A conversion that was killed continues where it stood.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repro.core.errors import InputError
from repro.core.reading import parse_json
from repro.records.blocks import unzipped
from repro.records.packed import folders, read_details, write_details
from repro.records.results import Results, older_details
from repro.records.store import DETAILS


def convert(root: Path, tell: Callable[[str], None] = print) -> Results:
    """Convert a folder of results in place; `tell` is called with each table's name.

    Raises:
        InputError: nothing in the folder has the older layout, or a file is damaged.
    """
    if not any(older_details(root)):
        raise InputError(f"{root} has no details of the older layout, so there is nothing to convert")
    told = set()
    for name in folders(root):  # the first table that has a cell keeps its details
        for kind in DETAILS:
            path = root / name / f"{kind}.jsonl.gz"
            if not path.exists():
                continue
            tell(name)
            texts = unzipped(path)
            try:
                lines = [parse_json(line) for line in texts]
                new = {one["key"]: one[kind] for one in lines if (kind, one["key"]) not in told}
            except (ValueError, KeyError, TypeError) as wrong:
                raise InputError(f"{path} is damaged ({wrong}); restore it") from wrong
            told |= {(kind, key) for key in new}
            write_details(root / name, kind, {**read_details(root / name, kind), **new})
    for path in older_details(root):
        path.unlink()
    return Results(root)
