"""Bands of emulated machines, by the figure that they belong to.

Owns the reading of `validation/bands/table.csv` of a folder of results. Must not know how bands are computed.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from repro.core.errors import InputError
from repro.reports.comparison.comparison import Ends

BANDS = Path("validation") / "bands" / "table.csv"
COLUMNS = ("table", "row", "column", "band_low", "band_high")
"""Artifact, row's id, column's key, and the range of the figure in the column's unit."""


def read_bands(root: Path) -> dict[tuple[str, str, str], Ends]:
    """Bands by table, row's id and column's key; none if the folder of results has no such file.

    Raises:
        InputError: the file lacks a column, or an end is no number.
    """
    path = root / BANDS
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else {}


@cache
def _read(path: Path, changed: int) -> dict[tuple[str, str, str], Ends]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if lacking := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise InputError(f"{path} has no column {lacking[0]!r}; it must have {', '.join(COLUMNS)}")
        found = {}
        for line in reader:
            try:
                ends = float(line["band_low"]), float(line["band_high"])
            except (TypeError, ValueError) as wrong:
                raise InputError(
                    f"{path}, line {reader.line_num}, is damaged ({wrong}); make it again"
                ) from wrong
            found[line["table"], line["row"], line["column"]] = ends
        return found
