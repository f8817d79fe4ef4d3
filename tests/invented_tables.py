"""Invented tables' CSV files, published values and claims, for tests of what reads them."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.core.typed import typed
from repro.records.record import Record
from repro.reports.claims.claims import ClaimsSpec
from repro.reports.formats.render import CSV_HEADER
from repro.reports.intervals.samples import Samples
from repro.reports.reference.reference import COLUMNS, PublishedCell
from repro.reports.spec.spec import TableSpec
from repro.reports.tables.build import build
from repro.reports.tables.table import Table

BIBTEX = {"edgellm": "@misc{edgellm}", "repro": "@misc{repro}"}
TEXTS = ("section", "device", "model", "draft_model", "dataset", "condition", "relative_to", "note")


def cell(name: str, low: float | None, high: float | None, unit: str = "x", **texts: str) -> PublishedCell:
    given = dict.fromkeys(TEXTS, "") | {"system": "EdgeLLM", "metric": "per_token_latency_speedup"} | texts
    paper, _, rest = name.partition(".")
    artifact = rest.partition(".")[0]
    return PublishedCell(
        **given, id=name, paper=paper, artifact=artifact, value_low=low, value_high=high, unit=unit
    )


def table_spec(experiment: str, content: Mapping[str, Any]) -> TableSpec:
    """A table of plain content, written out."""
    return typed(TableSpec, {"experiment": experiment, **content}, f"table {experiment!r}")


def column(value: str, **changes: Any) -> dict[str, Any]:
    """A column of a value of the records under its own name."""
    return {"key": value, "heading": value, "value": value, **changes}


def built(
    records: Sequence[Record],
    columns: Sequence[Mapping[str, Any]],
    cells: Mapping[str, PublishedCell] | None = None,
    samples: Samples | None = None,
    **section: Any,
) -> Table:
    """The table of these columns over all records, with a row a method unless its section says otherwise."""
    content = {"title": "T", "rows": {"by": ["method"]}, "columns": columns, **section}
    spec = table_spec(content.pop("experiment", "table"), content)
    return build(spec, records, cells or {}, {record.key for record in records}, samples=samples)


CELLS = {
    c.id: c
    for c in (
        cell("edgellm.text.range", 2.9, 9.3, section="IV-C", device="boards", relative_to="Std"),
        cell("edgellm.text.single", 2.0, 2.0, note="a slip"),
        cell("edgellm.text.up_to", None, 5.0),
        cell("edgellm.text.over", 3.0, None),
        cell("edgellm.text.ms", 900.0, 900.0, "ms"),
        cell("edgellm.fig18.a", 1.5, 1.5),
        cell("edgellm.fig18.b", 1.5, 1.5),
        cell("edgellm.table4.t5.draft", 20.0, 20.0, "%"),
        cell("edgellm.table4.mt5.draft", 20.0, 20.0, "%"),
        cell("lever.text.other", 1.0, 1.0),
    )
}


def cells_csv(*values: Mapping[str, str]) -> str:
    """A file of published values, all other columns empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(values)
    return out.getvalue()


def write_table(folder: Path, name: str, *lines: Mapping[str, Any]) -> None:
    """A table's CSV of these lines, all other columns empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_HEADER, restval="", lineterminator="\n")
    writer.writeheader()
    usual = {"unit": "x", "commit": "c1", "date": "2026-01-01"}
    writer.writerows([{**usual, "row": line.get("id", ""), **line} for line in lines])
    path = folder / name / "table.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(out.getvalue(), encoding="utf-8")


def write_tables(folder: Path) -> None:
    """Two tables: speedups on three workloads, of which one failed, and a time that was fitted."""
    speedup = {"column": "speedup"}
    write_table(
        folder,
        "edgellm/fig15",
        {"id": "t5", "ours": "3.0", "marks": "proxy", **speedup},
        {"id": "mt5", "ours": "10.23", "commit": "c2", "date": "2026-01-03", **speedup},
        {"id": "bart", "failed": "failed", **speedup},
        {"id": "t5", "ours": "12", "column": "tokens", "unit": "tokens"},
        {"column": "aside", "published_low": "1"},
    )
    write_table(
        folder,
        "edgellm/fig20",
        {"id": "t5", "ours": "0.9", "unit": "s", "column": "t", "marks": "fitted off"},
    )


SPEEDUP = {"tables": ["edgellm/fig15"], "columns": ["speedup"]}
CLAIMS = {
    "edgellm.text.range": {**SPEEDUP, "take": "range"},
    "edgellm.text.single": {**SPEEDUP, "rows": ["t5"], "note": "on a board"},
    "edgellm.text.up_to": {**SPEEDUP, "take": "max"},
    "edgellm.text.over": {"absent": "nothing of ours measures it"},
    "edgellm.text.ms": {"tables": ["edgellm/fig20"], "columns": ["t"]},
}


def spec(**changes: Any) -> ClaimsSpec:
    claims = [{"id": name, **claim} for name, claim in (CLAIMS | changes.pop("claims", {})).items() if claim]
    section = {"title": "Claims", "paper": "edgellm", "claims": claims}
    return ClaimsSpec.parse("edgellm/claims", {**section, **changes})
