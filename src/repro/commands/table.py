"""Rebuild tables and figures from their cells, without running anything.

repro table                           all tables of outputs/results
repro table quickstart lever/fig10    these
repro table --results results         all tables of results, the committed ones
repro table lever --results results   those of a paper
repro table quickstart --format tex --out paper/
repro table NAME --x length --by device    lines over a number, as over_length.png beside the table
repro table quickstart --two-column --no-intervals --columns speedup over_edgellm   for a paper
repro table --convert FOLDER          bring a folder of the older layout to the present one
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from repro.core.errors import InputError
from repro.core.registry import require_choice, unknown
from repro.experiments.cli import axes, composed, experiment_names, screen, table_section
from repro.experiments.pages import computes_nothing, write_read
from repro.experiments.summaries.sweep_table import SWEEPS, recorded_section
from repro.experiments.tables import Asked, asked_of, made_table, overrides_of, update_index
from repro.records.results import Results, open_results
from repro.reports.convert import convert
from repro.reports.figures.timeline import chosen, write_timeline
from repro.reports.files import FORMATS, PICTURES, write_all, write_files, written
from repro.reports.formats.layout import Page, page
from repro.reports.formats.render import to_screen
from repro.reports.intervals.samples import Samples
from repro.reports.paper import PaperTable, add_options, paper_table
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.tables.table import Table


def regenerate(
    name: str,
    results: Results,
    samples: Samples,
    out: Path,
    formats: Sequence[str],
    console: Console,
    paper: PaperTable | None = None,
    over: NumberLines | None = None,
) -> None:
    """Build one table, or a page that has no cells; show it and write it, or `paper.tex` and `paper.bib`.

    With `over` only its figure is written, as lines.

    Raises:
        InputError: there is no such experiment, or it has no table, or no lines can be drawn of it.
    """
    members = results.members(name)
    if name.startswith(SWEEPS):
        of_sweep = recorded_section(name, results.root)
        of_sweep = over.drawn(of_sweep) if over else of_sweep
        table = made_table(Asked(name), of_sweep, members, results.records(members), samples=samples)
        if over:
            return show(console, page(table), over.write(table, out))
        paper = paper or PaperTable()
        return show(console, page(paper.chosen(table)), paper.write(table, out, load_bibliography()))
    config = composed(*overrides_of(name, members))
    section = table_section(config)
    if section is None:
        raise InputError(f"experiment {name!r} has no `table` section")
    if computes_nothing(section):
        if paper or over:
            raise InputError(f"{name} is a page without rows and columns to choose")
        return show(console, *write_read(name, section, results, samples, out, formats))
    bibliography = load_bibliography()
    asked = asked_of(name, members, axes(config))
    records = results.records(members)
    section = over.drawn(section) if over else section
    table = made_table(asked, section, members, records, samples=samples, root=results.root)
    if over:
        return show(console, page(table), over.write(table, out))
    if paper:
        return show(console, page(paper.chosen(table)), paper.write(table, out, bibliography))
    files = write_all(table, out, bibliography, formats)
    spec = asked.spec(section)
    if spec.timeline and records:
        rounds = results.rounds(chosen(spec.timeline, records).key)
        files |= write_timeline(table, spec.timeline, records, rounds, out)
    return show(console, page(table), files)


@dataclass(frozen=True)
class NumberLines:
    """A figure of lines over the numbers of the label `x`, a line for each value of the label `by`.

    The label that is left names panels; without `by` all labels but `x` name the lines.
    """

    x: str
    by: str | None = None

    def drawn(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """A table's section with this figure, of the columns of its own figure that have one unit.

        Raises:
            InputError: the rows have no such label, or several are left.
        """
        labels, figure = section["rows"]["by"], section.get("figure") or {}
        for option, label in (("--x", self.x), ("--by", self.by or self.x)):
            require_choice(option, label, labels)
        left = [label for label in labels if self.by and label not in (self.x, self.by)]
        if len(left) > 1:
            raise InputError(f"--by {self.by} leaves {', '.join(left)}; leave --by out, or name one of them")
        units = {column["key"]: column["unit"] for column in section["columns"]}
        keys = figure.get("columns") or [*units]
        same = [key for key in keys if units[key] == units[keys[0]]]
        lines = {"kind": "lines", "columns": same, "x": self.x, "panel": "".join(left), "x_heading": self.x}
        heading = next(column["heading"] for column in section["columns"] if column["key"] == same[0])
        title = {"title": figure.get("title") or section["title"]}
        return {**section, "figure": {**title, **lines, "heading": f"{heading} ({units[same[0]]})"}}

    def write(self, table: Table, folder: Path) -> dict[str, Path]:
        """Draw the figure beside the table in a folder; InputError if a row has no number as its `x`."""
        from repro.reports.figures.figure import draw  # late: matplotlib takes a second

        pictures = {f"over_{self.x}.{format}": draw(table, format) for format in PICTURES}
        return write_files(table.experiment, folder, pictures)


def show(console: Console, shown: Page, files: Mapping[str, Path]) -> None:
    """Print a table and the paths of its files."""
    console.print(to_screen(shown))
    for file in files.values():
        console.print(f"{file}", style="dim", highlight=False, soft_wrap=True)


def wanted(names: Sequence[str], results: Results) -> list[str]:
    """Tables to build: the named ones and those of named papers; by default all that were made before.

    Raises:
        InputError: a name is no experiment, paper or table; or nothing was made yet.
    """
    known = experiment_names()
    made = [name for name in written(results.root) if not name.endswith("/errors")]
    made = list(dict.fromkeys([*made, *results.tables()]))
    # A table under sweeps/ has no experiment: its own command makes it again, for a paper it is built here.
    made = [name for name in made if not name.startswith(SWEEPS) or name in names]
    found: list[str] = []
    for name in names:
        own = [one for one in made if one.startswith(f"{name}/")]
        if name not in (*known, *made) and not own:
            raise InputError(unknown("experiment", name, known))
        found += [name] if name in (*known, *made) else own
    found = found or made
    if not found:
        raise InputError(f"there are no tables in {results.root}; experiments: {', '.join(known)}")
    # Claims are compared with the other tables, which come first.
    return sorted(found, key=lambda name: name.endswith("/claims"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "repro table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="all that were made when none is given")
    parser.add_argument("--format", nargs="+", choices=list(FORMATS), default=list(FORMATS), dest="formats")
    parser.add_argument("--results", type=Path, default=Path("outputs/results"), help="a folder of results")
    parser.add_argument("--out", type=Path, help="folder for the tables; that of the results by default")
    parser.add_argument("--convert", type=Path, metavar="FOLDER", help="a folder of the older layout")
    parser.add_argument("--x", metavar="LABEL", help="draw lines over the numbers of this label of the rows")
    parser.add_argument("--by", metavar="LABEL", help="with --x: the label that names the lines")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.by and not options.x:
        parser.error("--by goes with --x")
    over = NumberLines(options.x, options.by) if options.x else None
    try:
        if options.convert:
            update_index(convert(options.convert))
            return 0
        results = open_results(options.results)
        samples = Samples(results)
        errors = []
        for name in wanted(options.tables, results):
            try:
                with nullcontext() if options.out else results.locked():
                    out, paper = options.out or results.root, paper_table(options)
                    regenerate(name, results, samples, out, options.formats, screen(), paper, over)
            except InputError as wrong:  # the other tables do not need this one
                errors.append(str(wrong))
        if not errors and paper_table(options) is None and over is None:
            update_index(results)
    except InputError as wrong:
        errors = [str(wrong)]
    for error in dict.fromkeys(errors):
        print(f"error: {error}", file=sys.stderr)
    return 2 if errors else 0
