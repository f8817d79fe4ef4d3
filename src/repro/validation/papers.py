"""Leave-one-out over the baselines of the papers: every fit of `conf/fit/`, cell by cell.

Must not fit anything itself, nor know which numbers a fit has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.core.digits import csv_text
from repro.fitting.device_fit import FitResult, fit_device
from repro.fitting.errors import ErrorSummary, errors, skill
from repro.fitting.specification import specification, specifications
from repro.records.record import write_atomically
from repro.reports.figures.paint import GREY, canvas, colour, exported, tidy

COMMAND = "python -m repro.validation papers"
PAPERS = {"edgellm": "EdgeLLM", "lever": "LEVER", "mllm_npu": "mllm-NPU"}
"""Papers with fits, as they are named in pages."""

WITHOUT = (
    "Ghidorah's board is fitted by arithmetic to three statements, none of which the others determine;",
    "of ElastiLM's phones nothing of their own is fitted.",
)
WITHIN = 0.25


@dataclass(frozen=True)
class BaselineCell:
    """A cell of a baseline in one fit, in seconds, joules or as printed.

    Attributes:
        fit: name of the specification.
        numbers: how many numbers the fit has.
        by_default: whether the paper's setups take them.
        id: the cell's.
        published: what it was fitted to.
        fitted: its value under the fitted numbers.
        left_out: its value from a fit that did not see it; None where the others do not determine it.
        trivial: the nearest other cell of the same measure, times and energies scaled by weights.
    """

    fit: str
    numbers: int
    by_default: bool
    id: str
    published: float
    fitted: float
    left_out: float | None
    trivial: float | None

    @property
    def paper(self) -> str:
        """The paper, whichever version prints the cell."""
        return self.id.partition(".")[0].removesuffix("_v2")

    @property
    def key(self) -> str:
        """Fit and cell, since two engines may be fitted to one cell."""
        return f"{self.fit} {self.id}"


def fit_all() -> dict[str, FitResult]:
    """Every fit, by the name of its specification."""
    return {name: fit_device(specification(name)) for name in specifications()}


def baseline_cells(found: Mapping[str, FitResult]) -> Iterator[BaselineCell]:
    """Each fitted cell of each fit."""
    for name, result in found.items():
        given, fitted, aims, trivial = result.specification, result.fitted, result.aims, result.trivial
        for cell in given.cells:
            values = fitted[cell.id], result.left_out.get(cell.id), trivial.get(cell.id)
            yield BaselineCell(name, len(given.numbers), given.by_default, cell.id, aims[cell.id], *values)


HEADINGS = (
    "cells",
    "n",
    "median error, %",
    "p90, %",
    "trivial: median, %",
    "trivial: p90, %",
    "skill vs trivial",
    "fitted: median, %",
    "not determined",
)


def summary(cells: Sequence[BaselineCell]) -> list[list[str]]:
    """The table's lines: errors of cells that were left out, the trivial rule's and the fit's on the same.

    `not determined` counts the cells that cannot be left out.
    """
    sets = {"all papers": [cell for cell in cells if cell.by_default]}
    sets |= {
        name: own
        for paper, name in PAPERS.items()
        if (own := [cell for cell in sets["all papers"] if cell.paper == paper])
    }
    sets["forms that no setup takes"] = [cell for cell in cells if not cell.by_default]
    return [_line(name, own) for name, own in sets.items()]


def _line(name: str, cells: Sequence[BaselineCell]) -> list[str]:
    truth = {cell.key: cell.published for cell in cells}
    left = {cell.key: cell.left_out for cell in cells if cell.left_out is not None}
    rule = {cell.key: cell.trivial for cell in cells if cell.trivial is not None}
    ids = sorted(left)
    ours, trivial = errors(left, truth, ids), errors(rule, truth, ids)
    fitted = errors({cell.key: cell.fitted for cell in cells}, truth, ids)
    gain = skill(ours, trivial)
    return [
        name,
        str(ours.n),
        *_shown(ours),
        *_shown(trivial),
        "" if gain != gain else f"{gain:.2f}",
        _shown(fitted)[0],
        str(len(cells) - len(left)),
    ]


def _shown(one: ErrorSummary) -> tuple[str, str]:
    return (f"{100 * one.median:.1f}", f"{100 * one.p90:.1f}") if one.n else ("", "")


ROW_HEADINGS = ("fit", "numbers", "by_default", "cell", "published", "fitted", "left_out", "trivial")


def _row(cell: BaselineCell) -> list[str]:
    values = [
        "" if value is None else f"{value:.4g}"
        for value in (cell.published, cell.fitted, cell.left_out, cell.trivial)
    ]
    return [cell.fit, str(cell.numbers), "yes" if cell.by_default else "no", cell.id, *values]


def markdown(cells: Sequence[BaselineCell]) -> str:
    """The page."""
    text = [
        "# Fits to the papers' baselines, each cell left out",
        "",
        f"Made by `{COMMAND}`; every cell is in `rows.csv`, times in seconds. An error is",
        "|predicted / published - 1| of a cell that is predicted by a fit to the other cells of its",
        "specification (`conf/fit/`). `trivial` is the nearest other cell of the same measure; times and",
        "energies are scaled by bytes of weights. `fitted` are residuals on the same cells. Cells that are",
        "`not determined` cannot be left out: the others do not determine the numbers. Skill is 1 minus our",
        "median error over the trivial rule's.",
        "",
        *_table(HEADINGS, summary(cells)),
        "",
        *WITHOUT,
        "",
        *_table(ROW_HEADINGS, [_row(cell) for cell in cells]),
        "",
    ]
    return "\n".join(text)


def write_papers(folder: Path, cells: Sequence[BaselineCell]) -> None:
    """Write `table.md`, `table.csv`, `rows.csv`, `figure.png` and `figure.pdf`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(cells), encoding="utf-8")
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *summary(cells)]))
    write_atomically(folder / "rows.csv", csv_text([ROW_HEADINGS, *map(_row, cells)]))
    for format in ("png", "pdf"):
        (folder / f"figure.{format}").write_bytes(draw_papers(cells, format))


def draw_papers(cells: Sequence[BaselineCell], format: str = "png") -> bytes:
    """Predicted over published of each cell left out, and the trivial rule's; a row of points for a fit."""
    shown = [cell for cell in cells if cell.left_out is not None]
    fits = list(dict.fromkeys(cell.fit for cell in shown))
    picture = canvas(7.0, 0.7 + 0.28 * max(2, len(fits)))
    panel = picture.subplots()
    for values, label, marker, shade, lift in (
        ([cell.trivial for cell in shown], "trivial rule", "x", GREY, 0.18),
        ([cell.left_out for cell in shown], "left out of the fit", "o", colour(0), -0.1),
    ):
        pairs = [(cell, value) for cell, value in zip(shown, values, strict=True) if value is not None]
        ratios = [value / cell.published for cell, value in pairs]
        panel.scatter(
            ratios,
            [fits.index(cell.fit) + lift for cell, _ in pairs],
            s=18,
            color=shade,
            marker=marker,
            linewidths=0.8,
            label=label,
        )
    for at, style in ((1.0, "-"), (1 + WITHIN, ":"), (1 / (1 + WITHIN), ":")):
        panel.axvline(at, color=GREY, linewidth=0.7, linestyle=style)
    panel.set_xscale("log")
    panel.set_yticks(range(len(fits)), [_name(name, shown) for name in fits], fontsize=7.5)
    panel.invert_yaxis()
    panel.set_xlabel("predicted over published (dotted: 25% off; * no setup takes this form)", fontsize=8)
    panel.legend(frameon=False, fontsize=8, loc="best")
    tidy(panel, "x")
    return exported(picture, format)


def _name(fit: str, cells: Sequence[BaselineCell]) -> str:
    default = next(cell.by_default for cell in cells if cell.fit == fit)
    return fit if default else f"{fit} *"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    made = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return [made[0], "|" + "---|" * len(headings), *made[1:]]
