"""Tables as they are printed: LaTeX and screens that fit, texts that stay texts, one float for a paper."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from invented_tables import built, column
from latex_structure import cells, problems, tabulars
from records import record
from repro import commands
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.reports.files import write_all, write_paper
from repro.reports.formats.latex import breakable, latex, to_latex
from repro.reports.formats.layout import (
    MOST_COLUMNS,
    Grid,
    Heading,
    Page,
    decimals,
    fixed_point,
    page,
    value_words,
)
from repro.reports.formats.render import MOST_ROWS, to_markdown, to_screen
from repro.reports.paper import TWO_COLUMNS, PaperTable
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.spec.metric import load_metrics
from repro.reports.tables.table import Table


def grid(columns: int, rows: int, triple: bool = False) -> Grid:
    """Names and so many columns of numbers, or of three each."""
    parts = ("ours", "paper", "ratio") if triple else ("",)
    headings = (Heading("name"), *(Heading(f"Speed of {i} (tokens/s) ↑", parts) for i in range(columns)))
    numbers = [f"{10.25 * i:.2f} §" if i % 2 else "—" for i in range(columns * len(parts))]
    lines = tuple((f"A workload with a name of {j}", *numbers) for j in range(rows))
    return Grid(headings, lines, "l" + "r" * (columns * len(parts)))


CLAIM = ("speed against all_others; a case" * 4, "sec. I", "2–3 ×", "2.5 ×", "inside", "a_b/c_d,e/f" * 3)
CLAIMS = Grid(
    tuple(map(Heading, ("claim", "where", "paper", "ours", "verdict", "from"))), (CLAIM,) * 40, "plrrll"
)


@pytest.mark.parametrize(
    ("words", "divided", "long"),
    [
        (grid(3, 4), False, False),
        (grid(26, 6), True, False),
        (grid(9, 6, triple=True), True, False),
        (grid(4, 120), False, True),
        (grid(26, 60), True, True),
        (CLAIMS, False, True),
    ],
    ids=["small", "wide", "triples", "long", "wide and long", "text"],
)
def test_latex_and_markdown_are_divided_where_they_are_too_wide(
    words: Grid, divided: bool, long: bool
) -> None:
    """Each part names all rows; notes stand after the last one."""
    shown = Page("p/t", "P Table 1: a_b & c", (words,), ("careful: 100% of a/b", "[1] x"))
    text = to_latex(shown, ["@misc{a}"])
    assert problems(text) == []
    parts = tabulars(text)
    assert (len(parts) > 1, "longtable" in text) == (divided, long)
    first = {escaped(line[0]) for line in words.lines for escaped in (latex, breakable)}
    for columns, rows in parts:
        assert len(columns) <= MOST_COLUMNS
        assert sum(cells(row)[0] in first for row in rows) == len(words.lines)
    assert text.count(r"\begin{adjustbox}") + text.count(r"\begin{longtable}") == len(parts)
    assert text.count(r"\label{tab:p-t}") == text.count("careful: 100") == 1
    lines = to_markdown(shown, []).splitlines()
    assert max(line.count("|") - 1 for line in lines if line.startswith("|")) <= MOST_COLUMNS
    rows = sum(line.startswith(f"| {words.lines[0][0][:12]}") for line in lines)
    assert rows == len(words.lines) * sum(line.startswith("| --- |") for line in lines)


SHARE = column("a", unit="%", digits=1, better="higher")


def test_numbers_have_the_digits_that_they_need() -> None:
    """Small ones keep three, a column has those of its smallest value, and nothing is minus zero."""
    numbers = ((-0.04, 1, "0.0"), (-0.06, 1, "-0.1"), (0.0, 0, "0"))
    assert [fixed_point(number, digits) for number, digits, _ in numbers] == [words for *_, words in numbers]
    speed, size, prompts = map(
        load_metrics().find, ("decode_tokens_per_s", "flash_bytes_per_token", "prompts")
    )
    shown = {0.0193: "0.0193", 51.8: "51.80", 0.000123: "0.000123", 1e-9: "1e-09", 0.0: "0.00", None: "—"}
    assert {value: value_words(speed, value) for value in shown} == shown
    assert (decimals(size, [5.6e7, 2e9, None]), decimals(prompts, [2])) == (4, 0), "0.0560 GB"


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
PHONES = {"by": ["device", "method"], "apart": True}


def three_methods() -> Table:
    """Three methods, ten columns of which `b` is 7 in every row, the last method the fastest."""
    records = [
        record(name, {key: 7.0 if key == "b" else 100.5 * (i + 1) for key in KEYS})
        for i, name in enumerate(("std", "chain_sd", "edgellm"))
    ]
    names = {"std": "Std", "chain_sd": "Chain-SD", "edgellm": "EdgeLLM"}
    columns = [
        column(key, heading=f"Acceptance {key}", unit="tokens", better="higher", digits=2) for key in KEYS
    ]
    rows = {"by": ["method"], "names": names}
    return built(records, columns, experiment="mine", rows=rows, cite=["lever"], best=True)


def two_phones(**section: Any) -> Table:
    """Two methods, 10 and 30 on one phone and twice that on the other; in every row `b` is 1."""
    records = [
        record(method, {"a": number * value, "b": 1.0}, labels={"device": phone})
        for number, phone in enumerate(("Oak", "Elm"), 1)
        for method, value in (("std", 10.0), ("lever", 30.0))
    ]
    columns = [column(key, heading=f"Speed of method {key}", unit="tokens/s") for key in "ab"]
    return built(records, columns, rows=PHONES, **section)


def test_a_paper_has_chosen_rows_and_columns_in_their_order(tmp_path: Path) -> None:
    """Two tables of one paper repeat no entry of its bibliography, and an `@` in a command breaks nothing."""
    paper, command = PaperTable(columns=("c", "b"), rows=("EdgeLLM", "std")), "repro -m method=@mine"
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
    for wrong, sentence in (
        ({"columns": ("z",)}, "no column 'z'"),
        ({"rows": ("sdt",)}, "no row 'sdt'.*std"),
    ):
        with pytest.raises(InputError, match=sentence):
            PaperTable(**wrong).select(three_methods())


def test_a_float_leaves_out_what_does_not_change_and_is_divided_if_it_is_too_large(tmp_path: Path) -> None:
    text = PaperTable(width=TWO_COLUMNS, intervals=False).latex(three_methods())
    assert "In every row: Acceptance b 7.00 tokens." in text
    assert "Acceptance b" not in text.split(r"\midrule")[0]
    assert problems(text) == []
    assert text.count("EdgeLLM &") == text.count(r"\begin{adjustbox}") > 1
    table = three_methods()
    many = replace(table, rows=tuple(replace(table.rows[0], id=f"r{i}", name=f"Row {i}") for i in range(120)))
    text = PaperTable(columns=("a", "c"), width=TWO_COLUMNS).latex(many)
    assert text.count(r"\begin{table}") == 3
    assert all(f"Row {i} &" in text for i in range(120))
    sweep = replace(table, experiment="sweeps/mine", figure=None)
    text = write_all(sweep, tmp_path, load_bibliography(), ["tex"])["tex"].read_text(encoding="utf-8")
    assert text.count(r"\begin{table}") == 1
    assert "% @misc{lever," in text


def test_intervals_are_left_out_where_nobody_wants_them() -> None:
    table = built([record("std", {"a": 5.0}, uncertainty={"a": (4.0, 6.0)})], [SHARE])
    for intervals in (True, False):
        assert ("4.0" in PaperTable(intervals=intervals).latex(table).split(r"\bottomrule")[0]) is intervals


def test_a_sweep_over_methods_and_phones_is_pivoted() -> None:
    """Methods are rows, phones stand below each heading; what the figure does not show is left out."""
    text = PaperTable().latex(two_phones(experiment="sweeps/mine", figure={"title": "M", "columns": ["a"]}))
    head, body = text.split(r"\bottomrule")[0].split(r"\midrule")
    assert r"\multicolumn{2}{c}{\shortstack{Speed of" in head
    assert "{Elm} & {Oak}" in head
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if line]
    assert rows == [["LEVER", "60.00", "30.00"], ["Std", "20.00", "10.00"]]
    assert "Speed of method b" not in head
    assert "In every row: Speed of method b 1.00" in text
    assert "% Not shown: b; --columns names columns, --style full has all." in text


def on_screen(table: Table, width: int) -> list[str]:
    text = io.StringIO()
    Console(width=width, file=text, color_system=None).print(to_screen(page(table)))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(("width", "parts"), [(100, 1), (52, 1), (36, 2)])
def test_a_screen_breaks_headings_before_it_divides_a_table(width: int, parts: int) -> None:
    """Each part names its rows, with a column for each label."""
    shown = on_screen(two_phones(), width)
    assert max(map(len, shown)) <= width
    assert sum(line.split()[:2] == ["Oak", "Std"] for line in shown) == parts
    assert sum("60.00" in line for line in shown) == 1
    assert not any("…" in line for line in shown)


def test_of_a_long_table_the_screen_has_the_first_rows() -> None:
    records = [record("std", {"a": 1.0 + n}, labels={"n": f"{n:04}"}) for n in range(MOST_ROWS + 7)]
    shown = on_screen(built(records, [SHARE], rows={"by": ["n"]}), 120)
    rows = [line.split()[0] for line in shown if len(line.split()) == 2 and line.split()[0].isdigit()]
    assert rows == [f"{n:04}" for n in range(MOST_ROWS)]
    assert "and 7 more rows, in the files" in shown
