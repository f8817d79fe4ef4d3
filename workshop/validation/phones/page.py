"""The comparison as a table, as rows, and as a page in Markdown, all from one frame of quantities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from repro.core.digits import csv_text
from repro.records.record import write_atomically
from repro.reports.formats.render import markdown_table
from workshop.validation.phones.chips import sheets
from workshop.validation.phones.comparison import DRAWS, GIVEN, WITHIN, Comparison
from workshop.validation.phones.quantities import QUANTITIES, UNITS
from workshop.validation.phones.rows import DEFAULTS, FIT, PREDICT
from workshop.validation.phones.trivial import RULES

COMMAND = "python -m workshop.validation phones"
NAMES = {"decode": "decode", "prefill": "prefill", "first_token": "time to first token"}
MACHINES = {"android": "Android phones", "iphone": "iPhones", "board": "boards and laptops"}
"""Kinds of machines, which the table never mixes."""

NOBODY = "a chip that nobody measured"
BLIND = "_without_chip"
"""Ends the columns of rules that saw no row of the chip."""

BY_MACHINE = {
    NOBODY: ("apart == ''", "without_chip"),
    f"{GIVEN} rows of the chip": (f"role == '{PREDICT}'", "two_rows"),
    "held-out rows of fitted groups": (f"role == '{PREDICT}'", "predicted"),
}
VIEWS = {
    **{
        f"{name}, {plural}": (f"{rows} and machine == '{kind}'", predicted)
        for name, (rows, predicted) in BY_MACHINE.items()
        for kind, plural in MACHINES.items()
    },
    "small groups, from class defaults": (f"role == '{DEFAULTS}'", "predicted"),
    "fitted rows, each left out with its source and model": (f"role == '{FIT}'", "left_out"),
    "fitted rows (residuals)": (f"role == '{FIT}'", "predicted"),
    "other architectures (apart)": ("apart != ''", "predicted"),
}
"""The table's lines: which rows, and the column that predicts them."""

HEADINGS = (
    *("rows", "of", "n", "median error, %", "p90, %", "predicted / measured"),
    *("bytes: median, %", "operations: median, %", "skill vs bytes", "skill vs operations"),
)
OF_CLASSES = ("class", *HEADINGS[1:6])

ROW_COLUMNS = (
    *("id", "soc", "engine_class", "processor", "model", "of", "role", "unit", "measured", "predicted"),
    *("error", "band_low", "band_high", "two_rows", "without_chip", "left_out", "bytes_rule", "flops_rule"),
    *("sheet_assumed", "source"),
)
"""Of the frame, which rows.csv has."""

PREFACE = f"""\
# The emulator against public measurements of phones and boards

Made by `{COMMAND}`; errors by row are in `rows.csv`.
An error is |predicted / measured - 1|. Skill is 1 minus our median error over that of a rule
that scales the nearest fitted row by bytes (and the data sheets' bandwidths) or by operations (and
their peaks). The fit sees only rows with the role `fit` of `conf/reference/phone_split.csv`,
which was committed before the first prediction of them. Rows of a chip that nobody measured are
all rows, each predicted by a fit that saw none of its chip.
"""
BANDS = f"""\
## Bands

`rows.csv` gives each prediction the 95% range over {DRAWS} draws in which every assumed fact
of the data sheets is off by up to {100 * WITHIN:.0f}% and the fit is repeated. Where rows of the
chip were fitted, they absorb most of such an error. Bands cover doubts about data sheets, not
differences between versions of an engine:
{{inside}} of {{held}} held-out values lie inside theirs.
{{assumed:.0f}}% of them are of chips whose sheet is from memory.
"""


def framed(found: Comparison) -> pd.DataFrame:
    """Every quantity with its predictions, a row each; what is not predicted is NaN."""
    rows = [quantity.row for quantity in found.quantities]
    ids = [quantity.id for quantity in found.quantities]
    frame = pd.DataFrame(
        {
            "id": [row.id for row in rows],
            "soc": [row.soc for row in rows],
            "machine": [sheets()[row.soc]["kind"] for row in rows],
            "engine_class": [row.engine for row in rows],
            "processor": [row.processor for row in rows],
            "model": [row.model for row in rows],
            "of": [quantity.kind for quantity in found.quantities],
            "role": [found.roles.get(row.id) or f"apart: {row.apart}" for row in rows],
            "apart": [row.apart for row in rows],
            "unit": [UNITS[quantity.kind] for quantity in found.quantities],
            "measured": [quantity.measured for quantity in found.quantities],
            "source": [row.source for row in rows],
        },
        index=ids,
    )
    predictions = {
        "predicted": found.predicted,
        "two_rows": found.two_rows,
        "without_chip": found.without_chip,
        "left_out": found.left_out,
        "sheet_assumed": found.assumed,
        "band_low": {id: low for id, (low, _) in found.band.items()},
        "band_high": {id: high for id, (_, high) in found.band.items()},
        **{f"{rule}_rule": found.rules[rule] for rule in RULES},
        **{f"{rule}_rule{BLIND}": found.rules_without_chip[rule] for rule in RULES},
    }
    for name, values in predictions.items():
        frame[name] = [values.get(id, np.nan) for id in ids]
    return frame.assign(error=(frame["predicted"] / frame["measured"] - 1).abs())


def errors(rows: pd.DataFrame, column: str) -> tuple[int, float, float, float]:
    """n, median and 90th percentile of |predicted / measured - 1|, geometric mean of the quotient."""
    ratios = (rows[column] / rows["measured"]).dropna()
    sizes = (ratios - 1).abs()
    return len(ratios), sizes.median(), sizes.quantile(0.9), float(np.exp(np.log(ratios).mean()))


def lines(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The table's lines as they are shown: first a chip that nobody measured, then with rows of it."""
    shown = []
    for name, (chosen, column) in VIEWS.items():
        blind = BLIND if column == "without_chip" else ""
        for kind in QUANTITIES:
            rows = frame.query(f"({chosen}) and of == '{kind}'")
            n, median, p90, signed = errors(rows, column)
            rules = [errors(rows, f"{rule}_rule{blind}")[1] for rule in RULES]
            skills = [1 - median / wrong if wrong else np.nan for wrong in rules]
            figures = (*map(_percent, (median, p90)), _plain(signed), *map(_percent, rules))
            if n:
                shown.append((name, NAMES[kind], str(n), *figures, *map(_plain, skills)))
    return shown


def classes(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """Held-out errors by class of engines and quantity, as they are shown."""
    held = frame.assign(place=frame["of"].map(QUANTITIES.index)).query(f"role == '{PREDICT}'")
    shown: list[tuple[str, ...]] = []
    for (engine, _), rows in held.groupby(["engine_class", "place"]):
        n, median, p90, signed = errors(rows, "predicted")
        figures = (_percent(median), _percent(p90), _plain(signed))
        shown.append((str(engine), NAMES[rows["of"].iloc[0]], str(n), *figures))
    return shown


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.1f}"


def _plain(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"


def markdown(frame: pd.DataFrame) -> str:
    """The page."""
    held = frame.query(f"role == '{PREDICT}'")
    inside = held.query("band_low <= measured <= band_high")
    assumed = 100 * held["sheet_assumed"].sum() / max(1, len(held))
    parts = [
        PREFACE,
        markdown_table(HEADINGS, lines(frame)),
        "\n## Held-out rows by class of engines\n",
        markdown_table(OF_CLASSES, classes(frame)) + "\n",
        BANDS.format(inside=len(inside), held=len(held), assumed=assumed),
    ]
    return "\n".join(parts)


def write_page(folder: Path, frame: pd.DataFrame) -> None:
    """Write `table.md`, `table.csv` and `rows.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(frame), encoding="utf-8")
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *lines(frame)]))
    rows = frame[[*ROW_COLUMNS]].assign(error=frame["error"].map("{:.3f}".format))
    numbers = rows.select_dtypes("number").columns
    rows[numbers] = rows[numbers].map(lambda value: "" if value != value else f"{value:.4g}").astype(object)
    write_atomically(folder / "rows.csv", csv_text([ROW_COLUMNS, *rows.itertuples(index=False, name=None)]))
