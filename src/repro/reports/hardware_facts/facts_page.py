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
from repro.reports.hardware_facts.facts import FACT, FactsSpec, Sources, Statement, read_facts
from repro.reports.spec.spec import ColumnSpec, FigureSpec
from repro.reports.tables.table import Entry, TableRow, legend

ALIGNMENTS = {"fact": "l", "where": "l", "paper": "l", "ours": "l", "ratio": "r", "from": "p", "remark": "p"}
"""Alignment of each column."""
ORIGIN_TEXT = "Nothing is emulated or measured: read from conf/reference and conf/device"


def write_facts(
    spec: FactsSpec, folder: Path, sources: Sources, bibliography: dict[str, str], formats: Collection[str]
) -> tuple[Page, dict[str, Path]]:
    """Compare facts with our device files and write them to a folder, as `files.path_of` names them.

    Returns:
        the page, and its files by format; only a spec with a `picture` has pictures.

    Raises:
        InputError: as `read_facts`, or a paper has no BibTeX entry, or the folder cannot be written to.
    """
    facts = read_facts(spec, sources)
    facts_page, make_csv = page(spec, facts), partial(to_csv, facts)
    draw_picture = partial(draw, spec, facts) if spec.picture else None
    return facts_page, write_page(
        facts_page, make_csv, [spec.paper], folder, bibliography, formats, draw_picture
    )


def page(spec: FactsSpec, facts: Sequence[Statement]) -> Page:
    """The facts as a page with one table; empty columns are left out."""
    lines = [_line(fact) for fact in facts]
    has_text = [any(line[i] != ABSENT for line in lines) for i in range(len(ALIGNMENTS))]
    headings = dict(compress(ALIGNMENTS.items(), has_text))
    grid = Grid.of(headings, (tuple(compress(line, has_text)) for line in lines))
    notes = [*legend(mark for fact in facts for mark in fact.marks), *spec.footnotes]
    notes.append(f"{ORIGIN_TEXT}; made by `python -m repro experiment={spec.experiment}`.")
    return Page(spec.experiment, spec.title, (grid,), tuple(notes))


def to_csv(facts: Sequence[Statement]) -> str:
    """CSV in ten digits, a line per fact: a table's columns, plus published words and our file's entry."""
    headings = (*CSV_HEADER, "published", "basis")
    lines: list[Mapping[str, object]] = []
    for fact in facts:
        number = _number(fact)
        line = {
            "row": fact.spec.fact,
            "id": fact.spec.reference,
            "column": FACT,
            "unit": fact.unit,
            "ours": fact.ours,
            "published_low": number and number.low,
            "published_high": number and number.high,
            "ratio": fact.ratio,
            "marks": " ".join(fact.marks),
            "reference": fact.spec.reference,
            "note": _remark(fact),
            "published": "" if number else fact.published,
            "basis": fact.basis,
        }
        lines.append(line)
    return csv_of(headings, lines)


@default_style
def draw(spec: FactsSpec, facts: Sequence[Statement], format: str = "png") -> bytes:
    """PNG or PDF of our numbers as bars, with the published ones; the same facts give the same bytes."""
    numeric_facts = [fact for fact in facts if isinstance(fact.ours, float)]
    entries = [Entry(ours=fact.ours, published=_number(fact)) for fact in numeric_facts]
    fact_entries = zip(numeric_facts, entries, strict=True)
    rows = [TableRow(fact.spec.reference, fact.spec.fact, (entry,)) for fact, entry in fact_entries]
    column = ColumnSpec(FACT, "size", value=FACT, unit=numeric_facts[0].unit, digits=2)
    figure = FigureSpec((FACT,))
    picture, keys = bars(Content(figure, (column,), rows, [row.entries for row in rows], Palette(spec.paper)))
    frame(picture, artifact_title(spec.title, spec.picture), keys, ORIGIN_TEXT)
    return export(picture, format)


def _line(fact: Statement) -> tuple[str, ...]:
    number = _number(fact)
    published_text = with_unit(ends(number.low, number.high), fact.unit) if number else str(fact.published)
    our_text = fact.ours
    if isinstance(our_text, float):
        our_text = with_unit(f"{our_text:.3g}", fact.unit) + signs(fact.marks)
    ratio = "" if fact.ratio is None else f"{fact.ratio:.2f}"
    cells = (
        fact.spec.fact,
        f"sec. {fact.section}",
        published_text,
        our_text,
        ratio,
        fact.basis,
        _remark(fact),
    )
    return tuple(cell or ABSENT for cell in cells)


def _number(fact: Statement) -> Published | None:
    return fact.published if isinstance(fact.published, Published) else None


def _remark(fact: Statement) -> str:
    return "; ".join(filter(None, (fact.spec.absent, fact.spec.remark, fact.note)))
