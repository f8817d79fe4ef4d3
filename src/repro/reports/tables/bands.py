"""Bands of emulated machines, by the figure that they belong to.

Owns the reading of `validation/bands/` of a folder of results. Must not know how bands are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.libraries import Array, np
from repro.records.record import content_hash
from repro.reports.comparison.comparison import Ends

BANDS_PATH = Path("validation") / "bands" / "table.csv"
ID_COLUMNS = ("table", "row", "column")
"""The columns of artifact, row's id and column's key."""

DIGEST_COLUMN = "digest"
"""The column of bands that says of which cells they are (`cells_digest`): of others they are no bands."""

DRAWS_PATH = Path("validation") / "bands" / "draws.csv"
DRAW_COLUMNS = (*ID_COLUMNS, "drawn")
"""The figure on each drawn machine, in the order of the draws."""

MANY_DRAWS = 40
"""Draws from which on 2.5% of them are one."""

FigureId = tuple[str, str, str]
"""Table, row's id and column's key."""


class Band(NamedTuple):
    """A band, and the digest of the cells that it is of."""

    ends: Ends
    digest: str


def cells_digest(cells: Iterable[str], baseline: Iterable[str] = ()) -> str:
    """What tells apart the cells that a figure is made from, and those that it is compared with.

    Both are beginnings of their keys, as a table has them.
    """
    return content_hash([sorted(cells), sorted(baseline)])[:12]


def read_bands(root: Path) -> dict[FigureId, Band]:
    """Bands by place; none if the folder of results has no such file.

    Raises:
        InputError: the file lacks a column, or an end is no number.
    """
    path = root / BANDS_PATH
    lines = _lines(path, ("band_low", "band_high", DIGEST_COLUMN))
    return {
        figure: Band((_number(path, figure, low), _number(path, figure, high)), digest)
        for figure, (low, high, digest) in lines.items()
    }


def read_draws(root: Path) -> dict[FigureId, tuple[float, ...]]:
    """Figures on drawn machines by place, so that those of several figures can be taken draw by draw.

    Raises:
        InputError: as `read_bands`.
    """
    path = root / DRAWS_PATH
    lines = _lines(path, DRAW_COLUMNS[3:]).items()
    return {
        figure: tuple(_number(path, figure, text) for text in draws_text.split(" "))
        for figure, (draws_text,) in lines
    }


def draw_counts(root: Path) -> dict[str, int]:
    """How many machines were drawn for the bands of each table; errors as `read_bands`."""
    lines = _lines(root / BANDS_PATH, ("draws",)).items()
    return {figure[0]: int(_number(root / BANDS_PATH, figure, column)) for figure, (column,) in lines}


def band_range(figures: Array | Sequence[float], value: float) -> Ends:
    """The range that 95% of many draws leave; of fewer than `MANY_DRAWS` the least and the most of all.

    It has `value`, the figure on the machine as it is, which is one of the machines.
    """
    low, high = np.quantile(figures, (0.025, 0.975) if len(figures) >= MANY_DRAWS else (0.0, 1.0))
    return min(float(low), value), max(float(high), value)


def draws_words(draws: int) -> str:
    """What a band over so many draws is."""
    return f"95% of {draws} draws" if draws >= MANY_DRAWS else f"the range over {draws} draws, run in full"


def _lines(path: Path, columns: tuple[str, ...]) -> dict[FigureId, tuple[str, ...]]:
    """These columns of each line by its place; none if there is no such file."""
    return _read(path, columns, path.stat().st_mtime_ns) if path.is_file() else {}


@cache
def _read(path: Path, columns: tuple[str, ...], changed_ns: int) -> dict[FigureId, tuple[str, ...]]:
    with csv_reader(path) as reader:
        if missing_columns := [
            name for name in (*ID_COLUMNS, *columns) if name not in (reader.fieldnames or ())
        ]:
            raise InputError(f"{path} has no column {missing_columns[0]!r}; make it again")
        return {
            (line["table"], line["row"], line["column"]): tuple(line[name] or "" for name in columns)
            for line in reader
        }


def _number(path: Path, figure: FigureId, text: str) -> float:
    try:
        return float(text)
    except ValueError as wrong:
        raise InputError(f"{path} is damaged at {', '.join(figure)} ({wrong}); make it again") from wrong
