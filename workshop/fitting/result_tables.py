"""What a fit found, as tables for a terminal."""

from __future__ import annotations

from rich.table import Table

from repro.core.reading import read_mapping
from workshop.fitting.device_fit import FitResult
from workshop.fitting.errors import errors
from workshop.fitting.specification import conf_file, leaf, number_at


def numbers_table(name: str, result: FitResult) -> Table:
    """The fitted numbers beside those of the files."""
    table = Table(title=f"{name}: numbers", title_justify="left")
    for heading in ("place", "fit", "in the file", "unit"):
        table.add_column(heading)
    for number in result.specification.numbers:
        content = read_mapping(conf_file(number.file))
        found, written = result.solution.values[number.name], number_at(content, number.at)
        bound = " (at its bound)" if number.name in result.solution.at_bound else ""
        unit = str(leaf(content, number.at)[0].get("unit", ""))
        table.add_row(number.name, f"{found:.4g}{bound}", f"{written:.4g}", unit)
    return table


def cells_table(name: str, result: FitResult) -> Table:
    """Each fitted cell: published, ours, from a fit that did not see it."""
    table = Table(title=f"{name}: cells", title_justify="left")
    for heading in ("cell (s, J, or as printed)", "published", "fitted", "left out"):
        table.add_column(heading)
    fitted = result.fitted
    for cell in result.specification.cells:
        theirs = result.aims[cell.id]
        columns = [fitted.get(cell.id), result.left_out.get(cell.id)]
        shown = ["-" if one is None else f"{one:.4g} ({one / theirs - 1:+.0%})" for one in columns]
        table.add_row(cell.id, f"{theirs:.4g}", *shown)
    return table


def sentence(result: FitResult) -> str:
    """The errors on one line, and what gave the files' numbers if not the fit."""
    ids = [cell.id for cell in result.specification.cells]
    truth = result.aims
    parts = []
    for what, values in (
        ("fitted", result.fitted),
        ("left out", result.left_out),
    ):
        found = errors(values, truth, ids)
        parts.append(
            f"{what}: {found.median:.1%} median, {found.p90:.1%} p90 (n={found.n})"
            if found.n
            else f"{what}: none"
        )
    if result.specification.origin:
        parts.append(f"the files' numbers are of {result.specification.origin}")
    return "; ".join(parts)
