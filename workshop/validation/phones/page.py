"""The comparison as a table, as rows, and as a page in Markdown, all from one frame of values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from repro.core.digits import csv_text
from repro.core.paths import conf_dir
from repro.device.engines.bands import NOMINAL
from repro.records.record import write_atomically
from repro.reports.formats.render import markdown_table
from workshop.validation.phones.bands import COLUMNS as BAND_COLUMNS
from workshop.validation.phones.bands import bands, holds
from workshop.validation.phones.comparison import COLUMNS as PREDICTIONS
from workshop.validation.phones.comparison import FITTED, NINE, TWO, WITHOUT, blind_errors, rule_column
from workshop.validation.phones.quantities import QUANTITIES
from workshop.validation.phones.trivial import RULES

COMMAND = "python -m workshop.validation phones"
NAMES = {"decode": "decode", "prefill": "prefill", "first_token": "time to first token"}
MACHINES = {"android": "Android phones", "iphone": "iPhones", "board": "boards and laptops"}
"""Kinds of machines, which the table never mixes."""

NOBODY = "a chip that nobody measured"
RESIDUALS = "fitted rows (residuals)"

ON_OTHER_CHIPS = "known == 'class'"
BY_MACHINE = {
    NOBODY: (ON_OTHER_CHIPS, WITHOUT),
    "a format or class of no other chip": ("known == 'nothing'", WITHOUT),
    "2 rows of the chip": (ON_OTHER_CHIPS, TWO),
    "9 rows of the chip": ("apart == ''", NINE),
}
VIEWS = {
    **{
        f"{name}, {plural}": (f"apart == '' and {rows} and machine == '{kind}'", column)
        for name, (rows, column) in BY_MACHINE.items()
        for kind, plural in MACHINES.items()
    },
    RESIDUALS: ("apart == ''", FITTED),
    "other architectures (apart)": ("apart != ''", WITHOUT),
}
"""The table's lines: which rows, and the column that predicts them."""

HEADINGS = (
    *("rows", "of", "n", "median error, %", "p90, %", "predicted / measured"),
    *("bytes: median, %", "operations: median, %", "skill vs bytes", "skill vs operations"),
)
OF_FORMATS = (
    *("processor", "phase", "format", "n", "no row: median, %", "p90, %"),
    *("2 rows: n", "median, %", "p90, %", "9 rows: n", "median, %", "p90, %"),
)
OF_BANDS = (
    *("processor", "phase", "known", "values", "chips"),
    *(f"{100 * share:.0f}%: factor" for share in NOMINAL),
    *(f"{100 * share:.0f}%: seen" for share in NOMINAL),
)

ROW_COLUMNS = (
    *(
        "id",
        "soc",
        "engine_class",
        "processor",
        "format",
        "model",
        "of",
        "apart",
        "known",
        "unit",
        "measured",
    ),
    *PREDICTIONS,
    *(rule_column(rule, WITHOUT) for rule in RULES),
    "source",
)
"""Of the frame, which rows.csv has."""

BANDS_FILE = "bands.csv"
"""The table of bands, which `conf/engine/` has too, for the command to print."""

PREFACE = f"""\
# The emulator against public measurements of phones and boards

Made by `{COMMAND}`; predictions by row are in `rows.csv`.
An error is |predicted / measured - 1|. Each value is predicted by a fit to the rows of all other chips and,
where the line says so, to two or nine rows of its own chip, class and processor, evenly spread over their
names. Skill is 1 minus our median error over that of a rule that saw the same rows and scales the nearest by
bytes (and the data sheets' bandwidths) or by operations (and their peaks). The first lines, and those of two
rows, have values whose class others measured in the format. Forms and widths of the fit were chosen by these
errors.
"""
FORMATS = """\
## By processor, phase and format

The processor is the one that computes: where an engine has no kernel for a format, the CPU. A format that no
other chip has (most of one Galaxy S23) is predicted as 4 bits without rows of the chip.
"""
BANDS = """\
## Bands

A band is a factor: of values like these, the share in the heading lay at most so far above or below the
prediction. Known of a value's class was its format on another chip (`class`), two rows of the chip besides
(`rows`), or neither (`nothing`). The share seen is of values within the band that the errors of the other
chips give. A group of fewer than 30 values, or whose shares do not hold, has the band of all processors;
where that does not hold either there is none, and the command says so.
"""
MARK = "`!`: the 95% interval of the share seen, were values independent, lacks the nominal one.\n"


def errors(rows: pd.DataFrame, column: str) -> tuple[int, float, float, float]:
    """n, median and 90th percentile of |predicted / measured - 1|, geometric mean of the quotient."""
    ratios = (rows[column] / rows["measured"]).dropna()
    sizes = (ratios - 1).abs()
    return len(ratios), sizes.median(), sizes.quantile(0.9), float(np.exp(np.log(ratios).mean()))


def lines(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The table's lines as they are shown: first a chip that nobody measured, then with rows of it."""
    shown = []
    for name, (chosen, column) in VIEWS.items():
        for kind in QUANTITIES:
            rows = frame.query(f"({chosen}) and of == '{kind}'")
            n, median, p90, signed = errors(rows, column)
            rules = [errors(rows, rule_column(rule, column))[1] for rule in RULES]
            skills = [1 - median / wrong if wrong else np.nan for wrong in rules]
            figures = (*map(_percent, (median, p90)), _plain(signed), *map(_percent, rules))
            if n:
                shown.append((name, NAMES[kind], str(n), *figures, *map(_plain, skills)))
    return shown


def by_format(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """Errors by processor, phase and format, as they are shown."""
    shown: list[tuple[str, ...]] = []
    used = frame[frame["apart"] == ""]
    whole = used.assign(format="all")
    for key, rows in pd.concat([used, whole]).groupby(["processor", "phase", "format"]):
        figures: list[str] = []
        for column in (WITHOUT, TWO, NINE):
            n, median, p90, _ = errors(rows, column)
            figures += [str(n), _percent(median), _percent(p90)]
        shown.append((*map(str, key), *figures))
    return shown


def of_bands(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """The bands as they are shown; a share whose interval lacks the nominal one has a `!`."""
    shown: list[tuple[str, ...]] = []
    for line in table[[*BAND_COLUMNS]].itertuples(index=False, name=None):
        group, values, factors, seen = line[:3], line[3], line[5:8], line[8:11]
        marks = ["" if holds(s, share, values) else " !" for s, share in zip(NOMINAL, seen, strict=True)]
        shares = [f"{100 * share:.0f}%{mark}" for share, mark in zip(seen, marks, strict=True)]
        shown.append((*group, str(values), str(line[4]), *map("{:.2f}".format, factors), *shares))
    return shown


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.1f}"


def _plain(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"


def markdown(frame: pd.DataFrame, table: pd.DataFrame) -> str:
    """The page."""
    parts = [
        PREFACE,
        markdown_table(HEADINGS, lines(frame)),
        "\n" + FORMATS,
        markdown_table(OF_FORMATS, by_format(frame)),
        "\n" + BANDS,
        markdown_table(OF_BANDS, of_bands(table)),
        MARK,
    ]
    return "\n".join(parts)


def write_page(folder: Path, frame: pd.DataFrame) -> None:
    """Write `table.md`, `table.csv`, `rows.csv` and the bands of the frame into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = bands(blind_errors(frame))
    (folder / "table.md").write_text(markdown(frame, table), encoding="utf-8")
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *lines(frame)]))
    rows = frame[[*ROW_COLUMNS]].copy()
    numbers = rows.select_dtypes("number").columns
    rows[numbers] = rows[numbers].map(lambda value: "" if value != value else f"{value:.4g}").astype(object)
    write_atomically(folder / "rows.csv", csv_text([ROW_COLUMNS, *rows.itertuples(index=False, name=None)]))
    write_atomically(folder / BANDS_FILE, table.to_csv(index=False, float_format="%.3f", lineterminator="\n"))


def keep_bands(folder: Path) -> Path:
    """Put the bands of a folder where the command reads them; return the path."""
    path = conf_dir() / "engine" / BANDS_FILE
    write_atomically(path, (folder / BANDS_FILE).read_text(encoding="utf-8"))
    return path
