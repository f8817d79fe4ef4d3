"""A table for a paper: one float that fits, with chosen rows and columns, and its citations beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from invented_tables import table_spec
from latex_structure import problems, tabulars
from records import record
from repro.core.errors import InputError
from repro.reports.figures.figure import draw
from repro.reports.files import write_all, write_paper
from repro.reports.paper import TWO_COLUMNS, PaperTable, paper_table
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.spec.spec import FigureSpec
from repro.reports.tables.build import build
from repro.reports.tables.table import Table

KEYS = tuple("abcdefghij")


def made(**columns: object) -> Table:
    """Three methods, ten columns of which `b` is 7 in every row, the last method the fastest."""
    cells = [
        record(name, {key: 7.0 if key == "b" else 100.5 * (i + 1) for key in KEYS})
        for i, name in enumerate(("std", "chain_sd", "edgellm"))
    ]
    section = {
        "title": "Mine",
        "rows": {"by": ["method"], "names": {"std": "Std", "chain_sd": "Chain-SD", "edgellm": "EdgeLLM"}},
        "columns": [
            {"key": key, "heading": f"Acceptance {key}", "value": key, "unit": "tokens", "better": "higher"}
            for key in KEYS
        ],
        "cite": ["lever"],
        "best": True,
    }
    return build(table_spec("mine", section), cells, {}, {cell.key for cell in cells})


def test_a_paper_has_chosen_rows_and_columns_in_their_order(tmp_path: Path) -> None:
    paper = PaperTable(columns=("c", "b"), rows=("EdgeLLM", "std"))
    files = write_paper(paper, made(), tmp_path, load_bibliography())
    text = files["paper.tex"].read_text(encoding="utf-8")
    ((_, rows),) = tabulars(text)
    assert rows[-2:] == [r"EdgeLLM & \bfseries 301.50 & 7.00", "Std & 100.50 & 7.00"]
    assert text.count(r"\begin{table}") == 1
    assert "Bold: best of its column." in text
    bib = files["bib"].read_text(encoding="utf-8")
    assert "@misc{lever," in bib
    assert "@misc{repro," in bib
    assert [line for line in bib.splitlines() if "@" in line.removeprefix("@")] == []


def test_a_float_leaves_out_what_does_not_change_and_is_divided_if_it_is_too_wide() -> None:
    paper = PaperTable(width=TWO_COLUMNS)
    shown = paper.chosen(made())
    assert [column.key for column in shown.columns] == [key for key in KEYS if key != "b"]
    text = paper.latex(made())
    assert "In every row: Acceptance b 7.00 tokens." in text
    assert problems(text) == []
    assert text.count("EdgeLLM &") == text.count(r"\begin{adjustbox}") > 1


@pytest.mark.parametrize(
    ("paper", "wrong"),
    [(PaperTable(columns=("z",)), "no column 'z'"), (PaperTable(rows=("sdt",)), "no row 'sdt'.*std")],
)
def test_an_unknown_row_or_column_is_refused(paper: PaperTable, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        paper.chosen(made())


def test_the_float_is_sound_and_intervals_are_left_out() -> None:
    paper = PaperTable(intervals=False, width=TWO_COLUMNS)
    text = paper.latex(made())
    assert problems(text) == []
    assert "{~[" not in text


def test_any_option_asks_for_a_paper() -> None:
    assert paper_table() is None
    assert paper_table(paper=True) == PaperTable()
    assert paper_table(["a", "b"], two_column=True) == PaperTable(columns=("a", "b"), width=252.0)


def test_a_paper_s_figure_has_the_chosen_columns_and_neither_title_nor_notes(tmp_path: Path) -> None:
    table = replace(made(), figure=FigureSpec(("a", "c")))
    files = write_paper(PaperTable(), table, tmp_path, load_bibliography())
    assert {path.name for path in files.values()} == {f"paper.{end}" for end in ("tex", "bib", "png", "pdf")}
    assert files["paper.pdf"].read_bytes() == draw(table, "pdf", bare=True) != draw(table, "pdf")
    fewer = write_paper(PaperTable(columns=("c",)), table, tmp_path, load_bibliography())
    assert fewer["paper.pdf"].read_bytes() == draw(
        replace(table, figure=FigureSpec(("c",))), "pdf", bare=True
    )
    assert "paper.pdf" not in write_paper(PaperTable(columns=("d",)), table, tmp_path, load_bibliography())


def test_the_bibliographies_of_two_tables_repeat_no_entry(tmp_path: Path) -> None:
    command = "python -m repro -m method=@mine"
    for name in ("one", "two"):
        table = replace(made(), experiment=name, commands=(command,))
        files = write_paper(PaperTable(), table, tmp_path, load_bibliography())
        assert f"% {command}" not in files["bib"].read_text(encoding="utf-8")
        assert problems(files["paper.tex"].read_text(encoding="utf-8")) == []
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.bib")]
    keys = [line for text in texts for line in text.splitlines() if "@" in line]
    assert keys == ["@misc{lever,", "@misc{repro,"]


def test_a_table_that_is_higher_than_a_page_is_divided() -> None:
    table = made()
    many = replace(table, rows=tuple(replace(table.rows[0], id=f"r{i}", name=f"Row {i}") for i in range(120)))
    text = PaperTable(columns=("a", "c"), width=TWO_COLUMNS).latex(many)
    assert text.count(r"\begin{table}") == 3
    assert all(f"Row {i} &" in text for i in range(120))


def test_a_sweep_s_own_table_is_a_float_without_what_does_not_change(tmp_path: Path) -> None:
    table = replace(made(), experiment="sweeps/mine", figure=None)
    text = write_all(table, tmp_path, load_bibliography(), ["tex"])["tex"].read_text(encoding="utf-8")
    assert text.count(r"\begin{table}") == 1
    assert "Acceptance b" not in text.split(r"\midrule")[0]
    assert "In every row: Acceptance b 7.00 tokens." in text
    assert "% @misc{lever," in text


def test_a_sweep_over_methods_and_phones_is_pivoted(tmp_path: Path) -> None:
    """Methods are rows, phones stand below each heading; what the figure does not show is left out."""
    cells = [
        replace(
            record(method, {"a": number * value, "b": 1.0}, key=f"{number}{value:07.0f}"),
            labels={"device": phone, "method": method},
        )
        for number, phone in enumerate(("Oak", "Elm"), 1)
        for method, value in (("std", 10.0), ("lever", 30.0))
    ]
    section = {
        "title": "Mine",
        "rows": {"by": ["device", "method"], "apart": True},
        "columns": [{"key": key, "heading": f"Speed {key}", "value": key} for key in "ab"],
        "figure": {"title": "Mine", "columns": ["a"]},
    }
    table = build(table_spec("sweeps/mine", section), cells, {}, {cell.key for cell in cells})
    text = PaperTable().latex(table)
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert r"\multicolumn{2}{c}{\shortstack{Speed a" in text
    assert "{Elm} & {Oak}" in text
    assert [line.split(" & ") for line in body.replace(r" \\", "").split("\n") if line] == [
        ["LEVER", "60.00", "30.00"],
        ["Std", "20.00", "10.00"],
    ]
    assert "Speed b" not in text.split(r"\midrule")[0]
    assert "In every row: Speed b 1.00" in text
