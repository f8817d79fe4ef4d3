"""Leave-one-out over the baselines of the papers: every fit of `conf/fit/`, cell by cell.

Must not fit anything itself, nor know which numbers a fit has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from repro.core.digits import csv_text
from repro.records.record import write_atomically
from repro.reports.fidelity.skill import RULES, TrivialPredictor, plain_name
from repro.reports.figures.paint import GREY, canvas, colour, default_style, export, tidy
from repro.reports.formats.render import markdown_table
from repro.reports.reference.reference import PublishedCell, find, load_cells
from workshop.fitting.device_fit import FitResult, fit_device, print_of
from workshop.fitting.errors import ErrorSummary, errors, skill
from workshop.fitting.measures import weight_bytes
from workshop.fitting.specification import FittedCell, specification, specifications

COMMAND = "python -m workshop.validation papers"
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
        trivial: by trivial rule (`reports/fidelity/skill.py`), its value from the other cells.
    """

    fit: str
    numbers: int
    by_default: bool
    id: str
    published: float
    fitted: float
    left_out: float | None
    trivial: Mapping[str, float] = field(default_factory=dict)

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
        given, fitted, aims, trivial = (
            result.specification,
            result.fitted,
            result.aims,
            trivial_values(result),
        )
        for cell in given.cells:
            values = fitted[cell.id], result.left_out.get(cell.id), trivial[cell.id]
            yield BaselineCell(name, len(given.numbers), given.by_default, cell.id, aims[cell.id], *values)


def trivial_values(result: FitResult) -> dict[str, dict[str, float]]:
    """By cell and trivial rule its value from the fit's cells that print another number, in its unit."""
    cells, aims = result.specification.cells, result.aims
    measured = {cell.id: _as_measured(cell, aims[cell.id]) for cell in cells}
    weights = {plain_name(measured[cell.id].model): weight_bytes(cell.given) for cell in cells}
    by_cell: dict[str, dict[str, float]] = {}
    for cell in cells:
        others = [measured[other.id] for other in cells if print_of(other) != print_of(cell)]
        predictor = TrivialPredictor(fitted=others, weights=weights)
        values = {rule: predictor.value(measured[cell.id], rule) for rule in RULES}
        first = next((value for value in values.values() if value is not None), None)
        if first is not None:
            by_cell[cell.id] = {rule: first if value is None else value for rule, value in values.items()}
    return {cell.id: by_cell.get(cell.id, {}) for cell in cells}


def _as_measured(cell: FittedCell, aim: float) -> PublishedCell:
    """A published cell with the value that is fitted and the model whose pass is measured."""
    published, given = find(load_cells(), cell.id), cell.given
    models = given.get("models") or [given.get("model") or f"{given['inputs']} by {given['outputs']}"]
    unit = "s" if published.unit == "ms" else published.unit
    return replace(published, value_low=aim, value_high=aim, unit=unit, model=" and ".join(models))


def best_rule(cells: Sequence[BaselineCell]) -> str:
    """The trivial rule with the smallest median error over cells that were left out."""
    left = [cell for cell in cells if cell.left_out is not None and cell.trivial]
    truth, ids = {cell.key: cell.published for cell in left}, [cell.key for cell in left]
    known = [rule for rule in RULES if any(rule in cell.trivial for cell in left)]
    medians = {rule: errors(_by_rule(left, rule), truth, ids).median for rule in known}
    return min(medians, key=lambda rule: medians[rule]) if known else next(iter(RULES))


def _by_rule(cells: Sequence[BaselineCell], rule: str) -> dict[str, float]:
    return {cell.key: cell.trivial[rule] for cell in cells if rule in cell.trivial}


HEADINGS = (
    "cells",
    "n",
    "median error, %",
    "p90, %",
    "trivial rule",
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
    return [_line(name, some) for name, some in _sets(cells).items()]


def _sets(cells: Sequence[BaselineCell]) -> dict[str, list[BaselineCell]]:
    sets = {"all papers": [cell for cell in cells if cell.by_default]}
    by_paper = {name: [c for c in sets["all papers"] if c.paper == paper] for paper, name in PAPERS.items()}
    sets |= {name: some for name, some in by_paper.items() if some}
    return sets | {"forms that no setup takes": [cell for cell in cells if not cell.by_default]}


def _line(name: str, cells: Sequence[BaselineCell]) -> list[str]:
    truth = {cell.key: cell.published for cell in cells}
    left = {cell.key: cell.left_out for cell in cells if cell.left_out is not None}
    rule, ids = best_rule(cells), sorted(left)
    ours, trivial = errors(left, truth, ids), errors(_by_rule(cells, rule), truth, ids)
    fitted = errors({cell.key: cell.fitted for cell in cells}, truth, ids)
    gain = skill(ours, trivial)
    return [
        name,
        str(ours.n),
        *_shown(ours),
        rule if trivial.n else "",
        *_shown(trivial),
        "" if gain != gain else f"{gain:.2f}",
        _shown(fitted)[0],
        str(len(cells) - len(left)),
    ]


def _shown(one: ErrorSummary) -> tuple[str, str]:
    return (f"{100 * one.median:.1f}", f"{100 * one.p90:.1f}") if one.n else ("", "")


ROW_HEADINGS = ("fit", "numbers", "by_default", "cell", "published", "fitted", "left_out", "rule", "trivial")


def _rows(cells: Sequence[BaselineCell]) -> list[list[str]]:
    """A line for each cell, with the best trivial rule of its paper, or of the forms that no setup takes."""
    rules = {name: best_rule(some) for name, some in _sets(cells).items()}
    lines = []
    for cell in cells:
        rule = rules[PAPERS[cell.paper] if cell.by_default else "forms that no setup takes"]
        values = [_short(value) for value in (cell.published, cell.fitted, cell.left_out)]
        trivial = (rule, _short(cell.trivial[rule])) if cell.trivial else ("", "")
        by_default = "yes" if cell.by_default else "no"
        lines.append([cell.fit, str(cell.numbers), by_default, cell.id, *values, *trivial])
    return lines


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def markdown(cells: Sequence[BaselineCell]) -> str:
    """The page."""
    text = [
        "# Fits to the papers' baselines, each cell left out",
        "",
        f"Made by `{COMMAND}`; every cell is in `rows.csv`, times in seconds. An error is",
        "|predicted / published - 1| of a cell that is predicted by a fit to the other cells of its",
        "specification (`conf/fit/`). `trivial` is the trivial rule with the smallest median error on the",
        "same cells, from the other cells of their fit; a rule without a figure takes that of the first",
        "rule that has one. `fitted` are residuals on the same cells. Cells that are `not determined` cannot",
        "be left out: the others do not determine the numbers. Skill is 1 minus our median error over the",
        "trivial rule's.",
        "",
        *(f"- {rule}: {words}." for rule, words in RULES.items()),
        "",
        markdown_table(HEADINGS, summary(cells)),
        "",
        *WITHOUT,
        "",
        markdown_table(ROW_HEADINGS, _rows(cells)),
        "",
    ]
    return "\n".join(text)


def write_papers(folder: Path, cells: Sequence[BaselineCell]) -> None:
    """Write `table.md`, `table.csv`, `rows.csv`, `figure.png` and `figure.pdf`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(cells), encoding="utf-8")
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *summary(cells)]))
    write_atomically(folder / "rows.csv", csv_text([ROW_HEADINGS, *_rows(cells)]))
    for format in ("png", "pdf"):
        (folder / f"figure.{format}").write_bytes(draw_papers(cells, format))


@default_style
def draw_papers(cells: Sequence[BaselineCell], format: str = "png") -> bytes:
    """Predicted over published of each cell left out, and the trivial rule's; a row of points for a fit."""
    shown = [cell for cell in cells if cell.left_out is not None]
    fits = list(dict.fromkeys(cell.fit for cell in shown))
    rules = {name: best_rule([cell for cell in shown if cell.fit == name]) for name in fits}
    picture = canvas(7.0, 0.7 + 0.28 * max(2, len(fits)))
    panel = picture.subplots()
    for values, label, marker, shade, lift in (
        ([cell.trivial.get(rules[cell.fit]) for cell in shown], "trivial rule", "x", GREY, 0.18),
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
    return export(picture, format)


def _name(fit: str, cells: Sequence[BaselineCell]) -> str:
    default = next(cell.by_default for cell in cells if cell.fit == fit)
    return fit if default else f"{fit} *"
