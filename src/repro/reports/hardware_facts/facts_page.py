"""A page of hardware facts: wording, files and a bar chart, in the format of tables.

Owns how a fact is worded. `facts` decides what is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path

from repro.core.digits import csv_of
from repro.reports.claims.claims_page import ends
from repro.reports.comparison.comparison import Published
from repro.reports.figures.charts import bars
from repro.reports.figures.figure import frame
from repro.reports.figures.paint import default_style, export
from repro.reports.figures.palette import Palette
from repro.reports.figures.shown import Content, artifact_title
from repro.reports.files import write_page
from repro.reports.formats.layout import ABSENT, Grid, Page, signs, with_unit
from repro.reports.formats.render import CSV_HEADER
from repro.reports.hardware_facts.facts import FACT, FactsSpec, Sources, Stated, read_facts
from repro.reports.spec.spec import ColumnSpec, FigureSpec
from repro.reports.tables.table import Entry, TableRow, legend

HEADINGS = {"fact": "l", "where": "l", "paper": "l", "ours": "l", "ratio": "r", "from": "p", "remark": "p"}
"""Alignment of each column."""
ORIGIN = "Nothing is emulated or measured: read from conf/reference and conf/device"


def write_facts(
    spec: FactsSpec, folder: Path, sources: Sources, bibliography: dict[str, str], formats: Collection[str]
) -> tuple[Page, dict[str, Path]]:
    """Compare facts with our device files and write them to a folder, as `files.path_of` names them.

    Returns:
        the page, and its files by format; only a spec with a `picture` has pictures.

    Raises:
        InputError: as `read_facts`, or a paper has no BibTeX entry, or the folder cannot be written to.
    """
    stated = read_facts(spec, sources)
    shown, csv = page(spec, stated), partial(to_csv, stated)
    picture = partial(draw, spec, stated) if spec.picture else None
    return shown, write_page(shown, csv, [spec.paper], folder, bibliography, formats, picture)


def page(spec: FactsSpec, stated: Sequence[Stated]) -> Page:
    """The facts as a page with one table; empty columns are left out."""
    lines = [_line(one) for one in stated]
    shown = [any(line[i] != ABSENT for line in lines) for i in range(len(HEADINGS))]
    headings = dict(compress(HEADINGS.items(), shown))
    grid = Grid.of(headings, (tuple(compress(line, shown)) for line in lines))
    notes = [*legend(mark for one in stated for mark in one.marks), *spec.footnotes]
    notes.append(f"{ORIGIN}; made by `python -m repro experiment={spec.experiment}`.")
    return Page(spec.experiment, spec.title, (grid,), tuple(notes))


def to_csv(stated: Sequence[Stated]) -> str:
    """CSV in ten digits, a line per fact: a table's columns, plus published words and our file's entry."""
    headings = (*CSV_HEADER, "published", "basis")
    lines: list[Mapping[str, object]] = []
    for one in stated:
        number = _number(one)
        line = {
            "row": one.spec.fact,
            "id": one.spec.reference,
            "column": FACT,
            "unit": one.unit,
            "ours": one.ours,
            "published_low": number and number.low,
            "published_high": number and number.high,
            "ratio": one.ratio,
            "marks": " ".join(one.marks),
            "reference": one.spec.reference,
            "note": _remark(one),
            "published": "" if number else one.published,
            "basis": one.basis,
        }
        lines.append(line)
    return csv_of(headings, lines)


@default_style
def draw(spec: FactsSpec, stated: Sequence[Stated], format: str = "png") -> bytes:
    """PNG or PDF of our numbers as bars, with the published ones; the same facts give the same bytes."""
    drawn = [one for one in stated if isinstance(one.ours, float)]
    entries = [Entry(ours=one.ours, published=_number(one)) for one in drawn]
    rows = [
        TableRow(o.spec.reference, o.spec.fact, (entry,)) for o, entry in zip(drawn, entries, strict=True)
    ]
    column = ColumnSpec(FACT, "size", value=FACT, unit=drawn[0].unit, digits=2)
    figure = FigureSpec((FACT,))
    picture, keys = bars(Content(figure, (column,), rows, [row.entries for row in rows], Palette(spec.paper)))
    frame(picture, artifact_title(spec.title, spec.picture), keys, ORIGIN)
    return export(picture, format)


def _line(one: Stated) -> tuple[str, ...]:
    number = _number(one)
    published = with_unit(ends(number.low, number.high), one.unit) if number else str(one.published)
    ours = one.ours
    if isinstance(ours, float):
        ours = with_unit(f"{ours:.3g}", one.unit) + signs(one.marks)
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
    words = (one.spec.fact, f"sec. {one.section}", published, ours, ratio, one.basis, _remark(one))
    return tuple(word or ABSENT for word in words)


def _number(one: Stated) -> Published | None:
    return one.published if isinstance(one.published, Published) else None


def _remark(one: Stated) -> str:
    return "; ".join(filter(None, (one.spec.absent, one.spec.remark, one.note)))
