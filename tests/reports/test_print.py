"""Tables as they are printed: at most 12 columns, LaTeX that fits its page, what is compared and said."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from invented_tables import table_spec
from latex_structure import cells, problems, tabulars
from records import record
from repro import commands
from repro.core.paths import project_root
from repro.reports.formats.latex import breakable, latex, to_latex
from repro.reports.formats.layout import MOST_COLUMNS, Grid, Heading, Page, fixed, page
from repro.reports.formats.render import to_markdown
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.build import build
from repro.reports.tables.table import Table

NAMES = ("section", "device", "model", "draft_model", "dataset", "condition", "system", "relative_to", "note")


def published(name: str, value: float, unit: str) -> PublishedCell:
    texts = {**dict.fromkeys(NAMES, ""), "id": name, "paper": "lever", "artifact": "t", "metric": "m"}
    return PublishedCell(**texts, value_low=value, value_high=value, unit=unit)


def made(
    rows: dict[str, dict[str, float]],
    columns: list[dict[str, Any]],
    given: dict[str, PublishedCell],
    **rest: Any,
) -> Table:
    """A table of methods; a method without values is a row that was not run."""
    names = {name: name.upper() for name in rows}
    section = {
        "title": "LEVER Table 9: T",
        "rows": {"by": ["method"], "names": names},
        "columns": columns,
        **rest,
    }
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
    assert text.count(r"\label{tab:p-t}") == 1
    assert text.count("careful: 100") == 1, "notes stand after the last part"


def test_numbers_are_aligned_and_words_are_not() -> None:
    (columns, rows), *_ = tabulars(to_latex(Page("t", "T", (GRIDS["small"],), ()), []))
    assert columns[2] == r"S[table-format=2.2,table-space-text-post={~\S{}}]"
    assert cells(rows[-1])[1:] == ["---", r"10.25{~\S{}}", "---"]


def test_long_words_may_be_broken() -> None:
    assert breakable("a_b/c=d, e") == r"a\_\allowbreak{}b/\allowbreak{}c=\allowbreak{}d, e"
    assert breakable("lever.fig18.4gb is 1.25") == r"lever.\allowbreak{}fig18.\allowbreak{}4gb is 1.25"


def test_markdown_has_at_most_12_columns_and_each_part_names_the_rows() -> None:
    text = to_markdown(Page("t", "T", (GRIDS["triples"],), ()), [])
    heads = [line for line in text.splitlines() if line.startswith("| name")]
    assert [head.count("|") - 1 for head in heads] == [10, 10, 10]
    assert text.count("A workload with a name of 5") == 3


SHARE = {"key": "a", "heading": "Accuracy", "value": "a", "unit": "%", "digits": 1, "better": "higher"}


def test_shares_are_compared_in_points_and_speeds_by_a_ratio() -> None:
    speed = {"key": "s", "heading": "Speed", "value": "s", "unit": "tokens/s"}
    columns = [{**SHARE, "reference": {"std": "p.a"}}, {**speed, "reference": {"std": "p.s"}}]
    given = {"p.a": published("p.a", 3.4, "%"), "p.s": published("p.s", 2.0, "tokens/s")}
    (words, *_) = page(made({"std": {"a": 91.4, "s": 3.0}}, columns, given)).grids
    assert [heading.parts for heading in words.headings[1:]] == [
        ("ours", "paper", "points"),
        ("ours", "paper", "ratio"),
    ]
    assert words.lines == (("STD", "91.4", "3.4", "+88.0", "3.00", "2.00", "1.50"),)


def test_rows_that_were_not_run_stand_apart_with_what_the_paper_says() -> None:
    columns = [
        {**SHARE, "reference": {"std": "p.a", "big": "p.b"}},
        {**SHARE, "key": "b", "heading": "Other"},
    ]
    given = {"p.a": published("p.a", 50.0, "%"), "p.b": published("p.b", 60.0, "%")}
    first, second = page(made({"std": {"a": 51.0, "b": 1.0}, "big": {}}, columns, given)).grids
    assert [line[0] for line in first.lines] == ["STD"]
    assert [heading.words for heading in second.headings] == ["published, not run here", "Accuracy (%) ↑"]
    assert second.lines == (("BIG", "60.0"),)
    (only,) = page(made({"std": {"a": 51.0, "b": 1.0}, "big": {}}, [SHARE], given)).grids
    assert only.lines[1] == ("BIG (not run)", "—"), "without a published value it says so in its place"


def test_what_does_not_vary_is_said() -> None:
    columns = [{**SHARE, "key": key, "heading": key.upper(), "value": key} for key in "abcd"]
    rows = {f"m{i}": {"a": 50.01, "b": float(i), "c": float(i), "d": 2.0 * i} for i in range(3)}
    notes = page(made(rows, columns, {})).notes
    assert "The same in every row: A." in notes
    assert "The same figures in all rows: B; C." in notes
    few = page(made(dict(list(rows.items())[:2]), columns, {})).notes
    assert not any(note.startswith("The same in every row") for note in few)


def test_only_footnotes_that_a_value_refers_to_have_a_number() -> None:
    table = made({"std": {"a": 1.0}}, [SHARE], {}, footnotes=["Invented."])
    assert "Invented." in page(table).notes
    failed = record("bad", {}, status="failed", error="OSError: gone")
    spec = table_spec(
        "table", {"title": "T", "rows": {"by": ["method"]}, "columns": [SHARE], "footnotes": ["Invented."]}
    )
    table = build(spec, [record("std", {"a": 1.0}), failed], {})
    assert page(table).notes[1:3] == ("[1] bad failed: OSError: gone", "Invented.")
    assert page(table).grids[0].lines[0] == ("bad", "failed [1]")


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


@pytest.fixture(scope="module")
def every_table(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The committed tables in LaTeX."""
    out = tmp_path_factory.mktemp("tables")
    results = str(project_root() / "results")
    assert commands.run("table", ["--results", results, "--format", "tex", "--out", str(out)]) == 0
    files = sorted(out.glob("**/table.tex"))
    assert len(files) > 100
    return files


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no LaTeX: pdflatex, lualatex or xelatex")
def test_a_real_latex_compiles_every_table(every_table: list[Path], tmp_path: Path) -> None:
    """The tables in one document, without an error and without a line that is too wide."""
    files = every_table
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


@pytest.mark.slow
def test_the_structure_of_every_committed_table_is_sound(every_table: list[Path]) -> None:
    files = every_table
    assert {str(file): found for file in files if (found := problems(file.read_text(encoding="utf-8")))} == {}


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
