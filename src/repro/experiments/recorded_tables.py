"""The tables of a folder of results, made again from their cells; what `repro table` and `repro errors` do.

Owns which tables a name means and how one is found again from its cells. Must not know how cells are run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import require_choice, unknown
from repro.experiments.pages import write_read, written_out
from repro.experiments.plan import axes, composed, experiment_names, table_section
from repro.experiments.summaries.sweep_table import SweepCommand, own_table
from repro.experiments.tables import Asked, asked_of, fitted_ids, made_table, older_keys, overrides_of
from repro.records.members import Member
from repro.records.results import Results, open_results
from repro.reports.claims.claims import CommittedDraws
from repro.reports.fidelity.errata import read_errata, write_errata
from repro.reports.fidelity.errors_page import Evidence, report, write_report
from repro.reports.fidelity.errors_page import page as errors_page
from repro.reports.fidelity.evidence import read_choices, read_headlines, read_reasons, readings
from repro.reports.fidelity.fidelity_page import write_fidelity
from repro.reports.fidelity.reading import read_comparisons
from repro.reports.fidelity.skill import read_floors, trivial_predictor
from repro.reports.files import (
    PICTURE_FORMATS,
    SWEEPS_FOLDER,
    USUAL_FORMATS,
    table_names,
    write_all,
    write_files,
    write_paper,
)
from repro.reports.formats.layout import Page, page
from repro.reports.formats.render import to_screen
from repro.reports.intervals.samples import Samples
from repro.reports.paper import PaperTable
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import load_names
from repro.reports.reference.reference import load_cells
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.spec import FigureSpec, TableSpec
from repro.reports.tables.bands import draw_counts
from repro.reports.tables.table import Table


class RecordedTable(NamedTuple):
    """A table as its cells state it.

    Attributes:
        asked: the experiment and the settings that its cells share.
        table: with these settings; of a page without cells its `table:` section.
        members: its cells.
    """

    asked: Asked
    table: TableSpec | dict[str, Any]
    members: Sequence[Member]

    @property
    def spec(self) -> TableSpec:
        """The table's specification.

        Raises:
            InputError: it is a page without rows and columns.
        """
        if not isinstance(self.table, TableSpec):
            raise InputError(f"{self.asked.name} is a page without rows and columns to choose")
        return self.table


def recorded_table(name: str, results: Results) -> RecordedTable:
    """A table, or a page without cells, by the name of its folder.

    Raises:
        InputError: there is no such experiment or sweep, or it has no table.
    """
    members = results.members(name)
    if name.startswith(SWEEPS_FOLDER):
        command = SweepCommand.read(name, results.root)
        table_spec = own_table(name, command, results.records(members))
        return RecordedTable(Asked(name), Asked(name).spec(table_spec), members)
    overrides, content = overrides_of(name, members), experiment_file(name)
    if overrides == [f"experiment={name}"] and is_complete(content):
        table, asked = written_out(name, content["table"]), Asked(name)
    else:
        config = composed(*overrides)
        if (section := table_section(config)) is None:
            raise InputError(f"experiment {name!r} has no `table` section")
        table, asked = section, asked_of(name, members, axes(config))
    return RecordedTable(asked, asked.spec(table) if isinstance(table, TableSpec) else table, members)


def is_complete(content: Mapping[str, Any]) -> bool:
    """Whether an experiment's file has its whole table, so that nothing needs to be composed (0.3 s)."""
    return bool(content.get("table")) and "hydra" not in content and "${" not in str(content["table"])


def remake(
    name: str,
    results: Results,
    samples: Samples,
    out: Path,
    formats: Collection[str] | None = None,
    paper: PaperTable | None = None,
    number_lines: NumberLines | None = None,
) -> tuple[Page, dict[str, Path]]:
    """Build one table, or a page that has no cells, and write it. Returns what it shows and its files.

    Args:
        name: of its folder.
        results: have its cells.
        samples: of these results.
        out: the folder that it is written to.
        formats: of its files; the usual ones by default.
        paper: only its files for a paper are written, of these rows and columns.
        number_lines: only its figure is written, as lines.

    Raises:
        InputError: there is no such table, or no lines can be drawn of it.
    """
    recorded = recorded_table(name, results)
    if isinstance(recorded.table, dict) and not (paper or number_lines):
        return write_read(name, recorded.table, results, samples, out, formats or USUAL_FORMATS)
    spec, records = recorded.spec, results.records(recorded.members)
    spec = number_lines.drawn(spec) if number_lines else spec
    table = made_table(recorded.asked, spec, recorded.members, records, samples=samples, root=results.root)
    if number_lines:
        return page(table), number_lines.write(table, out)
    bibliography = load_bibliography()
    if paper:
        return page(paper.select(table)), write_paper(paper, table, out, bibliography)
    table_page = page(table)
    files = write_all(table, out, bibliography, formats or USUAL_FORMATS, table_page)
    if spec.timeline and records:
        from repro.reports.figures.timeline import select_record, write_timeline  # late, with matplotlib

        rounds = results.rounds(select_record(spec.timeline, records).key)
        pictures = [name for name in formats or PICTURE_FORMATS if name in PICTURE_FORMATS]
        files |= write_timeline(table, spec.timeline, records, rounds, out, None, results.root, pictures)
    return table_page, files


@dataclass(frozen=True)
class NumberLines:
    """A figure of lines over the numbers of the label `x`, a line for each value of the label `by`.

    The label that is left names panels; without `by` all labels but `x` name the lines.
    """

    x: str
    by: str | None = None

    def drawn(self, spec: TableSpec) -> TableSpec:
        """A table with this figure, of the columns of its own figure that have one unit.

        Raises:
            InputError: the rows have no such label, or several are left.
        """
        labels, columns = spec.rows.by, {column.key: column for column in spec.columns}
        for option, label in (("--x", self.x), ("--by", self.by or self.x)):
            require_choice(option, label, labels)
        extra_labels = [label for label in labels if self.by and label not in (self.x, self.by)]
        if len(extra_labels) > 1:
            raise InputError(
                f"--by {self.by} leaves {', '.join(extra_labels)}; leave --by out, or name one of them"
            )
        first_key, *other_keys = spec.figure.columns if spec.figure else columns
        lines = FigureSpec(
            columns=(first_key, *(key for key in other_keys if columns[key].unit == columns[first_key].unit)),
            title=(spec.figure and spec.figure.title) or spec.title,
            kind="lines",
            heading=f"{columns[first_key].heading} ({columns[first_key].unit})",
            x=self.x,
            x_heading=self.x,
            panel="".join(extra_labels),
        )
        return replace(spec, figure=lines)

    def write(self, table: Table, folder: Path) -> dict[str, Path]:
        """Draw the figure beside the table in a folder; InputError if a row has no number as its `x`."""
        from repro.reports.figures.figure import draw  # late: matplotlib takes a second

        pictures = {f"over_{self.x}.{format}": draw(table, format) for format in PICTURE_FORMATS}
        return write_files(table.experiment, folder, pictures)


def show(console: Console, page: Page, files: Mapping[str, Path]) -> None:
    """Print a table and the paths of its files."""
    console.print(to_screen(page))
    for file in files.values():
        console.print(f"{file}", style="dim", highlight=False, soft_wrap=True)


def tables_of(names: Sequence[str], results: Results) -> list[str]:
    """Names of the tables to build: the named ones and those of named papers; by default all made before.

    Raises:
        InputError: a name is no experiment, paper or table; or nothing was made yet.
    """
    experiments = experiment_names()
    known_names = [name for name in table_names(results.root) if not name.endswith("/errors")]
    known_names = list(dict.fromkeys([*known_names, *results.tables()]))
    tables: list[str] = []
    for name in names:
        tables_below = [table for table in known_names if table.startswith(f"{name}/")]
        if name not in (*experiments, *known_names) and not tables_below:
            raise InputError(unknown("experiment", name, experiments))
        tables += [name] if name in (*experiments, *known_names) else tables_below
    tables = tables or known_names
    if not tables:
        raise InputError(f"there are no tables in {results.root}; experiments: {', '.join(experiments)}")
    # Claims are compared with the other tables, which come first.
    return sorted(tables, key=lambda name: name.endswith("/claims"))


def write_errors(papers: Sequence[str], results: Path, out: Path) -> Iterator[str]:
    """Write the pages of papers' errors and, for all papers, the pages over them. Yields what they say.

    Args:
        papers: their names; all that have tables by default.
        results: the folder of the tables.
        out: the folder of the pages.

    Raises:
        InputError: there is no such paper, or a file of conf/reference is wrong.
    """
    reference, cells, bibliography = conf_dir() / "reference", load_cells(), load_bibliography()
    comparisons = read_comparisons(results, cells)
    store = open_results(results)
    records = store.all()
    headlines = read_headlines(reference / "headlines.yaml", cells)
    evidence = Evidence(
        reasons=read_reasons(reference / "reasons.yaml", cells),
        floors=read_floors(reference / "contradictions.csv", cells),
        predictor=trivial_predictor(cells, fitted_ids(records), headlines, load_names()),
    )
    table_papers = {*comparisons.frame["paper"]}
    paper_names = [paper for paper in dict.fromkeys(c.paper for c in cells.values()) if paper in table_papers]
    reports = [report(paper, comparisons, cells, evidence) for paper in papers or paper_names]
    for paper_report in reports:
        files = write_report(paper_report, out, bibliography, comparisons.origin(paper_report.paper))
        yield from (*errors_page(paper_report).notes[:-1], f"{files['md']}", "")
    if not papers:
        choices = read_choices(reference / "choices.yaml", cells)
        draws = CommittedDraws(store, Samples(store), lambda table: recorded_table(table, store).spec)
        alternatives = readings(choices, results, cells, draws)
        stale_keys, counts = older_keys(records), draw_counts(results)
        path = write_fidelity(
            reports, comparisons, cells, headlines, choices, alternatives, records, stale_keys, counts, out
        )
        yield f"{path}"
        errata = read_errata(reference / "errata.csv")
        yield f"{write_errata(errata, cells, headlines.systems, out)}"
