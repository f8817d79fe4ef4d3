"""Tables as they are printed: at most 12 columns, LaTeX that fits its page, one float for a paper."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from invented_tables import table_spec
from latex_structure import cells, problems, tabulars
from records import record
from repro import commands
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.reports.figures.figure import draw
from repro.reports.files import write_all, write_paper
from repro.reports.formats.latex import breakable, latex, to_latex
from repro.reports.formats.layout import MOST_COLUMNS, Grid, Heading, Page, fixed, page
from repro.reports.formats.render import to_markdown
from repro.reports.paper import TWO_COLUMNS, PaperTable
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.reference import PublishedCell
from repro.reports.spec.spec import FigureSpec
from repro.reports.tables.build import build
from repro.reports.tables.table import Table

NAMES = ("section", "device", "model", "draft_model", "dataset", "condition", "system", "relative_to", "note")


def published(name: str, value: float, unit: str) -> PublishedCell:
    texts = {**dict.fromkeys(NAMES, ""), "id": name, "paper": "lever", "artifact": "t", "metric": "m"}
    return PublishedCell(**texts, value_low=value, value_high=value, unit=unit)


def made(
    rows: dict[str, dict[str, float]], columns: list[dict[str, Any]], given: dict[str, PublishedCell]
) -> Table:
    """A table of methods; a method without values is a row that was not run."""
    names = {name: name.upper() for name in rows}
    section = {"title": "T", "rows": {"by": ["method"], "names": names}, "columns": columns}
    records = [record(name, values) for name, values in rows.items() if values]
    return build(table_spec("table", section), records, given)


def grid(columns: int, rows: int, triple: bool = False) -> Grid:
    """Names and so many columns of numbers, or of three each."""
    parts = ("ours", "paper", "ratio") if triple else ("",)
    headings = (Heading("name"), *(Heading(f"Speed of {i} (tokens/s) ↑", parts) for i in range(columns)))
    numbers = [f"{10.25 * i:.2f} §" if i % 2 else "—" for i in range(columns * len(parts))]
    lines = tuple((f"A workload with a name of {j}", *numbers) for j in range(rows))
    return Grid(headings, lines, "l" + "r" * (columns * len(parts)))


CLAIMS = Grid(
    tuple(map(Heading, ("claim", "where", "paper", "ours", "verdict", "from"))),
    tuple(
        (f"speed against all_others; case {i}" * 4, "sec. I", "2–3 ×", "2.5 ×", "inside", "a_b/c_d,e/f" * 3)
        for i in range(40)
    ),
    "plrrll",
)
GRIDS = {
    "small": grid(3, 4),
    "wide": grid(26, 6),
    "triples": grid(9, 6, triple=True),
    "long": grid(4, 120),
    "wide and long": grid(26, 60),
    "text": CLAIMS,
}


@pytest.mark.parametrize("name", GRIDS)
def test_latex_fits_its_page(name: str) -> None:
    words = GRIDS[name]
    text = to_latex(
        Page("p/t", "P Table 1: a_b & c", (words,), ("careful: 100% of a/b", "[1] x")), ["@misc{a}"]
    )
    assert problems(text) == []
    parts = tabulars(text)
    assert (len(parts) > 1) == (name in ("wide", "triples", "wide and long"))
    first = {escaped(line[0]) for line in words.lines for escaped in (latex, breakable)}
    for columns, rows in parts:
        assert len(columns) <= MOST_COLUMNS
        assert sum(cells(row)[0] in first for row in rows) == len(words.lines)
    assert text.count(r"\begin{adjustbox}") + text.count(r"\begin{longtable}") == len(parts)
    assert ("longtable" in text) == ("long" in name or name == "text")
    assert text.count(r"\label{tab:p-t}") == text.count("careful: 100") == 1, (
        "notes stand after the last part"
    )


def test_numbers_are_aligned_and_long_words_may_be_broken() -> None:
    (columns, rows), *_ = tabulars(to_latex(Page("t", "T", (GRIDS["small"],), ()), []))
    assert columns[2] == r"S[table-format=2.2,table-space-text-post={~\S{}}]"
    assert cells(rows[-1])[1:] == ["---", r"10.25{~\S{}}", "---"]
    assert breakable("a_b/c=d, e") == r"a\_\allowbreak{}b/\allowbreak{}c=\allowbreak{}d, e"


def test_markdown_has_at_most_12_columns_and_each_part_names_the_rows() -> None:
    text = to_markdown(Page("t", "T", (GRIDS["triples"],), ()), [])
    heads = [line for line in text.splitlines() if line.startswith("| name")]
    assert [head.count("|") - 1 for head in heads] == [10, 10, 10]
    assert text.count("A workload with a name of 5") == 3


SHARE = {"key": "a", "heading": "Accuracy", "value": "a", "unit": "%", "digits": 1, "better": "higher"}


def test_shares_are_compared_in_points_and_rows_that_were_not_run_stand_apart() -> None:
    speed = {"key": "s", "heading": "Speed", "value": "s", "unit": "tokens/s"}
    columns = [{**SHARE, "reference": {"std": "p.a", "big": "p.b"}}, {**speed, "reference": {"std": "p.s"}}]
    given = {"p.a": published("p.a", 3.4, "%"), "p.b": published("p.b", 60.0, "%")}
    given["p.s"] = published("p.s", 2.0, "tokens/s")
    ran, apart = page(made({"std": {"a": 91.4, "s": 3.0}, "big": {}}, columns, given)).grids
    assert [heading.parts[2] for heading in ran.headings[1:]] == ["points", "ratio"]
    assert ran.lines == (("STD", "91.4", "3.4", "+88.0", "3.00", "2.00", "1.50"),)
    assert (apart.headings[0].words, apart.lines) == ("published, not run here", (("BIG", "60.0"),))
    (only,) = page(made({"std": {"a": 51.0}, "big": {}}, [SHARE], given)).grids
    assert only.lines[1] == ("BIG (not run)", "—"), "without a published value it says so in its place"


def test_only_footnotes_that_a_value_refers_to_have_a_number() -> None:
    failed = record("bad", {}, status="failed", error="OSError: gone")
    section = {"title": "T", "rows": {"by": ["method"]}, "columns": [SHARE], "footnotes": ["Invented."]}
    shown = page(build(table_spec("table", section), [record("std", {"a": 1.0}), failed], {}))
    assert shown.notes[1:3] == ("[1] bad failed: OSError: gone", "Invented.")
    assert shown.grids[0].lines[0] == ("bad", "failed [1]")


def test_that_no_draft_was_accepted_is_said_only_where_some_were_verified() -> None:
    note = "no draft token was ever accepted: an acceptance length of exactly 1 is rarely a draft's fault"
    for width, said in ((1.0, False), (1.004, False), (8.0, True)):
        one = record("m", {"a": 1.0, "verification_width": width}, notes=(note,))
        spec = table_spec("table", {"title": "T", "rows": {"by": ["method"]}, "columns": [SHARE]})
        assert (note in page(build(spec, [one], {})).notes) is said


@pytest.mark.parametrize(
    ("number", "digits", "words"), [(-0.04, 1, "0.0"), (-0.06, 1, "-0.1"), (0.0, 0, "0")]
)
def test_nothing_is_minus_zero(number: float, digits: int, words: str) -> None:
    assert fixed(number, digits) == words


SLIGHT = 5.0
"""Points that nobody sees."""

COMPILER = shutil.which("pdflatex") or shutil.which("lualatex") or shutil.which("xelatex")


@pytest.mark.slow
def test_every_committed_table_is_sound_latex(tmp_path: Path) -> None:
    """In one document, where there is a LaTeX: without an error and without a line that is too wide."""
    results = str(project_root() / "results")
    assert commands.run("table", ["--results", results, "--format", "tex", "--out", str(tmp_path)]) == 0
    files = sorted(tmp_path.glob("**/table.tex"))
    assert len(files) > 100
    assert {str(file): found for file in files if (found := problems(file.read_text(encoding="utf-8")))} == {}
    if COMPILER is None:
        pytest.skip("no LaTeX: pdflatex, lualatex or xelatex")
    packages = {
        name
        for file in files
        for name in file.read_text(encoding="utf-8").split("{", 1)[1].split("}", 1)[0].split(",")
    }
    body = "\n\\clearpage\n".join(file.read_text(encoding="utf-8") for file in files)
    document = (
        "\\documentclass[a4paper]{article}\n"
        f"\\usepackage{{{','.join(sorted(packages))}}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    )
    (tmp_path / "all.tex").write_text(document, encoding="utf-8")
    command = [str(COMPILER), "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=600, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "all.log").read_text(errors="replace", encoding="utf-8")
    too_wide = re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)
    assert [points for points in too_wide if float(points) > SLIGHT] == []


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "`c` <img src=x onerror=alert(1)>",
    "a lone ` <b>bold</b>",
    "[click](javascript:alert(1))",
    "![seen](http://example.org/x.png)",
    "`c` ![seen](http://example.org/x.png) [a][b]",
    "[b]: http://example.org",
    "\\<img src=x>",
    "\\[click](http://example.org)",
    "*bold* | one | more",
    "a\nb\n\n# heading\n\n<script>alert(1)</script>",
    "&lt;b&gt; &#91;x](y)",
    "<https://example.org>",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_in_markdown_is_text(text: str) -> None:
    """A Markdown parser finds neither HTML, links nor pictures, and the words that were given."""
    grid = Grid((Heading("name"), Heading("ours")), ((text, "1"),), "lr")
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(to_markdown(Page("t", text, (grid,), (text, "[b] and [1.5, 2.5]")), []))
    inline = [child for token in tokens for child in (token.children or [])]
    kinds = {token.type for token in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "strong_open", "em_open"}
    assert [token.type for token in tokens].count("td_open") == 2
    told = [
        "".join(child.content for child in token.children or [])
        for token in tokens
        if token.type == "inline" and token.level in (1, 3)
    ]
    words = " ".join(text.splitlines()).replace("`c`", "c")
    assert told[0].split() == words.split()
    assert "[b] and [1.5, 2.5]" in told


@pytest.mark.parametrize("text", [*HOSTILE, "python -m repro -m method=@mine", "\\input{x} % & $ # _ ~ ^"])
def test_a_text_in_latex_is_text(text: str) -> None:
    """No command, comment, paragraph or column comes of it."""
    grid = Grid((Heading("name"), Heading("ours")), ((text, text),), "lr")
    printed = to_latex(Page("t", text, (grid,), (text,)), [text])
    assert problems(printed) == []
    assert "\\input" not in printed.split("\n% ")[0]
    ((_, rows),) = tabulars(printed)
    assert len(cells(rows[-1])) == 2


KEYS = tuple("abcdefghij")


def three_methods() -> Table:
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
    """Two tables of one paper repeat no entry of its bibliography, and an `@` in a command breaks nothing."""
    paper, command = PaperTable(columns=("c", "b"), rows=("EdgeLLM", "std")), "repro -m method=@mine"
    entries = []
    for name in ("one", "two"):
        table = replace(three_methods(), experiment=name, commands=(command,))
        files = write_paper(paper, table, tmp_path, load_bibliography())
        text, bib = (files[kind].read_text(encoding="utf-8") for kind in ("paper.tex", "bib"))
        ((_, rows),) = tabulars(text)
        assert rows[-2:] == [r"EdgeLLM & \bfseries 301.50 & 7.00", "Std & 100.50 & 7.00"]
        assert problems(text) == []
        assert text.count(r"\begin{table}") == text.count("Bold: best of its column.") == 1
        assert f"% {command}" not in bib
    entries = [line for path in tmp_path.rglob("*.bib") for line in path.read_text("utf-8").splitlines()]
    assert [line for line in entries if "@" in line] == ["@misc{lever,", "@misc{repro,"]


def test_a_float_leaves_out_what_does_not_change_and_is_divided_if_it_is_too_large(tmp_path: Path) -> None:
    paper, table = PaperTable(width=TWO_COLUMNS, intervals=False), three_methods()
    assert [column.key for column in paper.chosen(table).columns] == [key for key in KEYS if key != "b"]
    text = paper.latex(table)
    assert "In every row: Acceptance b 7.00 tokens." in text
    assert problems(text) == []
    assert "{~[" not in text
    assert text.count("EdgeLLM &") == text.count(r"\begin{adjustbox}") > 1
    many = replace(table, rows=tuple(replace(table.rows[0], id=f"r{i}", name=f"Row {i}") for i in range(120)))
    text = PaperTable(columns=("a", "c"), width=TWO_COLUMNS).latex(many)
    assert text.count(r"\begin{table}") == 3
    assert all(f"Row {i} &" in text for i in range(120))
    sweep = replace(table, experiment="sweeps/mine", figure=None)
    text = write_all(sweep, tmp_path, load_bibliography(), ["tex"])["tex"].read_text(encoding="utf-8")
    assert text.count(r"\begin{table}") == 1
    assert "Acceptance b" not in text.split(r"\midrule")[0]
    assert "% @misc{lever," in text


def test_intervals_are_left_out_where_nobody_wants_them() -> None:
    spread = record("std", {"a": 5.0}, uncertainty={"a": (4.0, 6.0)})
    section = {"title": "T", "rows": {"by": ["method"]}, "columns": [SHARE]}
    table = build(table_spec("table", section), [spread], {})
    assert "4.0" in PaperTable().latex(table).split(r"\bottomrule")[0]
    assert "4.0" not in PaperTable(intervals=False).latex(table).split(r"\bottomrule")[0]


@pytest.mark.parametrize(
    ("paper", "wrong"),
    [(PaperTable(columns=("z",)), "no column 'z'"), (PaperTable(rows=("sdt",)), "no row 'sdt'.*std")],
)
def test_an_unknown_row_or_column_is_refused(paper: PaperTable, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        paper.chosen(three_methods())


def test_a_paper_s_figure_has_the_chosen_columns_and_neither_title_nor_notes(tmp_path: Path) -> None:
    table = replace(three_methods(), figure=FigureSpec(("a", "c")))
    files = write_paper(PaperTable(columns=("c",)), table, tmp_path, load_bibliography())
    assert {path.name for path in files.values()} == {f"paper.{end}" for end in ("tex", "bib", "png", "pdf")}
    alone = replace(table, figure=FigureSpec(("c",)))
    assert files["paper.pdf"].read_bytes() == draw(alone, "pdf", bare=True) != draw(alone, "pdf")
    assert "paper.pdf" not in write_paper(PaperTable(columns=("d",)), table, tmp_path, load_bibliography())


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
    assert "% Not shown: b; --columns names columns, --style full has all." in text
