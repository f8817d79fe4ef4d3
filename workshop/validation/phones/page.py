"""The comparison as a table, as rows, and as a page in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.core.digits import csv_text
from repro.records.record import write_atomically
from workshop.fitting.errors import ErrorSummary, errors, skill
from workshop.validation.phones.chips import sheets
from workshop.validation.phones.comparison import DRAWS, GIVEN, WITHIN, Comparison
from workshop.validation.phones.quantities import QUANTITIES, UNITS, Quantity
from workshop.validation.phones.rows import DEFAULTS, FIT, PREDICT
from workshop.validation.phones.trivial import BYTES, FLOPS

COMMAND = "python -m workshop.validation phones"
NAMES = {"decode": "decode", "prefill": "prefill", "first_token": "time to first token"}
MACHINES = {"android": "Android phones", "iphone": "iPhones", "board": "boards and laptops"}
"""Kinds of machines, which the table never mixes."""

NOBODY = "a chip that nobody measured"


@dataclass(frozen=True)
class ComparisonLine:
    """One line of the table: a set of rows, and the errors of three predictions of them.

    Attributes:
        rows: which rows, and what the prediction saw.
        kind: what is predicted.
        ours: the emulator's errors.
        bytes: the errors of the rule that seconds scale with bytes.
        flops: the errors of the rule that seconds scale with operations.
    """

    rows: str
    kind: str
    ours: ErrorSummary
    bytes: ErrorSummary
    flops: ErrorSummary


def lines(found: Comparison) -> Iterator[ComparisonLine]:
    """The table's lines: first what of a chip nobody measured, by kind of machine, then with rows of it."""

    def role(name: str) -> Callable[[Quantity], bool]:
        return lambda q: found.roles.get(q.row.id) == name

    def divided(q: Quantity) -> bool:
        return q.row.id in found.roles

    own = found.predicted
    whole = [
        (NOBODY, divided, found.without_chip, found.rules_without_chip),
        (f"{GIVEN} rows of the chip", role(PREDICT), found.two_rows, found.rules),
        ("held-out rows of fitted groups", role(PREDICT), own, found.rules),
    ]
    views: list[
        tuple[str, Callable[[Quantity], bool], Mapping[str, float], Mapping[str, Mapping[str, float]]]
    ] = [
        (f"{name}, {plural}", of_kind(chosen, kind), predicted, rules)
        for name, chosen, predicted, rules in whole
        for kind, plural in MACHINES.items()
    ]
    views += [
        ("small groups, from class defaults", role(DEFAULTS), own, found.rules),
        ("fitted rows, each left out with its source and model", role(FIT), found.left_out, found.rules),
        ("fitted rows (residuals)", role(FIT), own, found.rules),
        ("other architectures (apart)", lambda q: bool(q.row.apart), own, found.rules),
    ]
    for name, chosen, predicted, rules in views:
        for kind in QUANTITIES:
            ids = [q.id for q in found.quantities if q.kind == kind and chosen(q)]
            yield ComparisonLine(
                name,
                kind,
                *(errors(values, found.measured, ids) for values in (predicted, rules[BYTES], rules[FLOPS])),
            )


def of_kind(chosen: Callable[[Quantity], bool], kind: str) -> Callable[[Quantity], bool]:
    """Whether a quantity is chosen and of a kind of machine."""
    return lambda q: chosen(q) and sheets()[q.row.soc]["kind"] == kind


def classes(found: Comparison) -> Iterator[tuple[str, str, ErrorSummary]]:
    """Held-out errors by class of engines and kind."""
    for engine in sorted({q.row.engine for q in found.quantities}):
        for kind in QUANTITIES:
            ids = [
                q.id
                for q in found.quantities
                if q.row.engine == engine and q.kind == kind and found.roles.get(q.row.id) == PREDICT
            ]
            if ids:
                yield engine, kind, errors(found.predicted, found.measured, ids)


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.1f}"


def _plain(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"


HEADINGS = (
    "rows",
    "of",
    "n",
    "median error, %",
    "p90, %",
    "predicted / measured",
    "bytes: median, %",
    "operations: median, %",
    "skill vs bytes",
    "skill vs operations",
)


def cells_of(line: ComparisonLine) -> list[str]:
    """A line as it is shown."""
    return [
        line.rows,
        NAMES[line.kind],
        str(line.ours.n),
        _percent(line.ours.median),
        _percent(line.ours.p90),
        _plain(line.ours.signed),
        _percent(line.bytes.median),
        _percent(line.flops.median),
        _plain(skill(line.ours, line.bytes)),
        _plain(skill(line.ours, line.flops)),
    ]


def markdown(found: Comparison) -> str:
    """The page."""
    shown = [line for line in lines(found) if line.ours.n]
    held = [q for q in found.quantities if found.roles.get(q.row.id) == PREDICT]
    inside = [q for q in held if found.band.get(q.id) and _inside(q, found)]
    assumed = sum(found.assumed[q.id] for q in held) / max(1, len(held))
    text = [
        "# The emulator against public measurements of phones and boards",
        "",
        f"Made by `{COMMAND}`; errors by row are in `rows.csv`.",
        "An error is |predicted / measured - 1|. Skill is 1 minus our median error over that of a rule",
        "that scales the nearest fitted row by bytes (and the data sheets' bandwidths) or by operations (and",
        "their peaks). The fit sees only rows with the role `fit` of `conf/reference/phone_split.csv`,",
        "which was committed before the first prediction of them. Rows of a chip that nobody measured are",
        "all rows, each predicted by a fit that saw none of its chip.",
        "",
        *_table(HEADINGS, [cells_of(line) for line in shown]),
        "",
        "## Held-out rows by class of engines",
        "",
        *_table(
            ("class", "of", "n", "median error, %", "p90, %", "predicted / measured"),
            [
                [
                    engine,
                    NAMES[kind],
                    str(own.n),
                    _percent(own.median),
                    _percent(own.p90),
                    _plain(own.signed),
                ]
                for engine, kind, own in classes(found)
            ],
        ),
        "",
        "## Bands",
        "",
        f"`rows.csv` gives each prediction the 95% range over {DRAWS} draws in which every assumed fact",
        f"of the data sheets is off by up to {100 * WITHIN:.0f}% and the fit is repeated. Where rows of the",
        "chip were fitted, they absorb most of such an error. Bands cover doubts about data sheets, not",
        "differences between versions of an engine:",
        f"{len(inside)} of {len(held)} held-out values lie inside theirs.",
        f"{100 * assumed:.0f}% of them are of chips whose sheet is from memory.",
        "",
    ]
    return "\n".join(text)


def _inside(quantity: Quantity, found: Comparison) -> bool:
    low, high = found.band[quantity.id]
    return low <= quantity.measured <= high


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [row(headings), "|" + "---|" * len(headings), *(row(cells) for cells in rows)]


ROW_HEADINGS = (
    "id",
    "soc",
    "engine_class",
    "processor",
    "model",
    "of",
    "role",
    "unit",
    "measured",
    "predicted",
    "error",
    "band_low",
    "band_high",
    "two_rows",
    "without_chip",
    "left_out",
    "bytes_rule",
    "flops_rule",
    "sheet_assumed",
    "source",
)


def row_values(quantity: Quantity, found: Comparison) -> list[str]:
    """A measured value and its predictions, as in `rows.csv`."""
    row, one = quantity.row, quantity.id

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    low, high = found.band.get(one, (None, None))
    predicted = found.predicted[one]
    return [
        row.id,
        row.soc,
        row.engine,
        row.processor,
        row.model,
        quantity.kind,
        found.roles.get(row.id) or f"apart: {row.apart}",
        UNITS[quantity.kind],
        number(quantity.measured),
        number(predicted),
        f"{abs(predicted / quantity.measured - 1):.3f}",
        number(low),
        number(high),
        number(found.two_rows.get(one)),
        number(found.without_chip.get(one)),
        number(found.left_out.get(one)),
        number(found.rules[BYTES].get(one)),
        number(found.rules[FLOPS].get(one)),
        number(found.assumed[one]),
        row.source,
    ]


def write_page(folder: Path, found: Comparison) -> None:
    """Write `table.md`, `table.csv` and `rows.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(found), encoding="utf-8")
    counted = [cells_of(line) for line in lines(found) if line.ours.n]
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *counted]))
    rows = [row_values(q, found) for q in found.quantities]
    write_atomically(folder / "rows.csv", csv_text([ROW_HEADINGS, *rows]))
