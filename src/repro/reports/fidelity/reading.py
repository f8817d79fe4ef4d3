"""All comparisons that a folder of results holds, read from the tables' CSV files into one frame.

Owns which of several comparisons of one published value counts. Must not know records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repro.core.errors import InputError
from repro.libraries import pd
from repro.reports.claims.claims import CLAIM, Line, ends_in, read_table
from repro.reports.comparison.certain import REPEATED, find_certain
from repro.reports.comparison.comparison import Comparison, Figure, Published
from repro.reports.comparison.frame import group, to_frame
from repro.reports.files import ALTERED_MARK, is_of, path_of, table_names
from repro.reports.reference.reference import PublishedCell


@dataclass(frozen=True)
class Comparisons:
    """What a folder of results compares with published values.

    Attributes:
        frame: one row for each line with a published value; its index has those first that count before
            repetitions.
        nearest: whether there is a figure for another workload beside a published value, by its id.
        commits, dates: by table, of all its lines.
    """

    frame: pd.DataFrame
    nearest: Mapping[str, bool]
    commits: Mapping[str, str]
    dates: Mapping[str, str]

    def of(self, paper: str) -> pd.DataFrame:
        """The comparisons with a paper."""
        return self.frame[self.frame["paper"] == paper]

    def origin(self, paper: str) -> tuple[str, str]:
        """Commits and newest date of the tables that compare something with a paper."""
        names = {*self.of(paper)["table"]}
        commits = sorted({commit for name in names for commit in self.commits[name].split()})
        return " ".join(commits), max((self.dates[name] for name in names), default="")

    def by_id(self) -> dict[str, Comparison]:
        """For each published value the comparison that counts, or else the first one."""
        ranked = self.frame.assign(absent=self.frame["group"] == "absent", place=self.frame.index)
        first_rows = ranked.sort_values(["absent", "place"]).drop_duplicates("id")
        return dict(zip(first_rows["id"], first_rows["compared"], strict=True))


def read_comparisons(folder: Path, cells: Mapping[str, PublishedCell]) -> Comparisons:
    """Every comparison of every table below a folder; tables with changed settings are left out.

    A published value counts once: in the table of its own artifact, else in the first one by name, and in a
    page of claims only if no table has it.

    Raises:
        InputError: no table has a published value, or one is of an older format.
    """
    lines = list(_lines(folder))
    matches = [(name, line) for name, line in lines if line["reference"] in cells]
    if not matches:
        raise InputError(f"no table in {folder} compares a figure with a published value; make tables first")
    if old_table := next(
        (name for name, line in matches if "certain" not in line and line["column"] != "fact"), None
    ):
        raise InputError(f"{old_table} in {folder} has an older format; make it again with repro table")
    comparisons = [c for name, line in matches for c in comparisons_in(name, [line], cells)]
    comparisons.sort(key=_rank)
    return Comparisons(
        frame=to_frame([*_mark_repeats(find_certain(comparisons))]),
        nearest={line["reference"]: bool(line["ours"]) for _, line in matches if line["column"] == "aside"},
        commits=_collect(lines, "commit"),
        dates=_collect(lines, "date"),
    )


def comparisons_in(table: str, lines: Iterable[Line], cells: Mapping[str, PublishedCell]) -> list[Comparison]:
    """The comparisons in lines of a table's CSV file; figures for another workload are none."""
    compared_lines = [line for line in lines if line.get("reference") in cells and line["column"] != "aside"]
    return [_comparison(cells[line["reference"]], table, line) for line in compared_lines]


def _lines(folder: Path) -> Iterator[tuple[str, Line]]:
    for name in table_names(folder):
        if ALTERED_MARK not in name and not name.endswith("/errors"):
            for line in read_table(path_of(folder, name, "csv"), with_asides=True):
                yield name, line


def _collect(lines: Sequence[tuple[str, Line]], field: str) -> dict[str, str]:
    """Commits or newest dates by table: of a page of claims each line has its own."""
    by_table: dict[str, str] = {}
    for name, line in lines:
        values = {*by_table.get(name, "").split(), *line.get(field, "").split()}
        by_table[name] = max(values, default="") if field == "date" else " ".join(sorted(values))
    return by_table


def _rank(comparison: Comparison) -> tuple[bool, bool, bool, bool]:
    """Tables before claims, the own artifact's before others, figures before absent ones."""
    same_artifact = is_of(comparison.table.partition("/")[2], comparison.cell.artifact)
    return comparison.column == CLAIM, not comparison.ours, not same_artifact, "older" in comparison.marks


def _mark_repeats(comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """The comparisons; what stands beside a value that was compared before is a repetition."""
    compared_ids: set[str] = set()
    for comparison in comparisons:
        is_repeat = comparison.cell.id in compared_ids and comparison.ours and not comparison.certain
        yield replace(comparison, certain=REPEATED) if is_repeat else comparison
        if comparison.ours:
            compared_ids.add(comparison.cell.id)


def _comparison(cell: PublishedCell, table: str, line: Line) -> Comparison:
    return Comparison(
        cell=cell,
        published=Published(cell.id, _number(line["published_low"]), _number(line["published_high"])),
        unit=line["unit"],
        ours=_figures(line),
        n=int(line["n"]) if line.get("n") else None,
        marks=tuple(line["marks"].split()),
        table=table,
        row=line["id"],
        column=line["column"],
        cells=tuple(line.get("cell", "").split()),
        baseline=tuple(line.get("baseline", "").split()),
        certain=line.get("certain", ""),
    )


def _figures(line: Line) -> tuple[Figure, ...]:
    """Our figure, or the least and the most of a range, each with interval and band."""
    field_pairs = ("low high", "band_low band_high")
    if (value := _number(line["ours"])) is not None:
        return (Figure(value, *(ends_in(line, *fields.split()) for fields in field_pairs)),)
    if not line.get("ours_low"):
        return ()
    fields_by_end = {
        "ours_low": ("low low_to", "band_low band_low_to"),
        "ours_high": ("high_from high", "band_high_from band_high"),
    }
    return tuple(
        Figure(float(line[name]), *(ends_in(line, *fields.split()) for fields in ends))
        for name, ends in fields_by_end.items()
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


STATUSES = {
    "predicted": "a prediction that can miss stands beside it",
    "certain": "a figure that cannot miss, or one that repeats or follows from others",
    "bound": "only a bound is printed; ours stands beside it",
    "contradicted": "the paper's own numbers exclude it (results/errata.md); ours stands beside it",
    "fitted": "ours was used in a fit or follows from one",
    "elsewhere": "only a figure for another workload or model stands beside it",
    "absent": "a table or page says why there is none",
    "model": "the paper's model is not at hand, nor a stand-in of its size",
    "unnamed": "no table names it",
}
"""What may be the case of a published value, with explanations."""


def coverage(
    cells: Mapping[str, PublishedCell], comparisons: Comparisons, missing_models: Collection[str]
) -> pd.DataFrame:
    """Counts of statuses (columns) by paper (rows, in the order of the cells)."""
    by_id, papers = comparisons.by_id(), [cell.paper for cell in cells.values()]
    statuses = [_status(cell, by_id, comparisons.nearest, missing_models) for cell in cells.values()]
    counts = pd.crosstab(pd.Series(papers), pd.Series(statuses))
    return counts.reindex(index=[*dict.fromkeys(papers)], columns=[*STATUSES], fill_value=0)


def _status(
    cell: PublishedCell,
    by_id: Mapping[str, Comparison],
    nearest: Mapping[str, bool],
    missing_models: Collection[str],
) -> str:
    """The status of a published value, by what stands beside it or the earlier version's same one."""
    comparison = by_id.get(cell.id) or by_id.get(cell.same_as)
    if comparison and comparison.ours:
        if group(comparison) in ("fitted", "contradicted"):
            return group(comparison)
        return "bound" if comparison.published.bound else "certain" if comparison.certain else "predicted"
    if cell.determined:
        return "fitted"
    if cell.metric.startswith("accuracy") and cell.model in missing_models:
        return "model"
    if nearest.get(cell.id) or nearest.get(cell.same_as):
        return "elsewhere"
    return "absent" if comparison or {cell.id, cell.same_as} & nearest.keys() else "unnamed"


def unnamed_values(cells: Mapping[str, PublishedCell], comparisons: Comparisons) -> list[str]:
    """Published values that no table names."""
    named_ids = {*comparisons.frame["id"], *comparisons.nearest}
    return [name for name in cells if name not in named_ids]
