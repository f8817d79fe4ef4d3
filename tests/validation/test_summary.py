"""docs/emulator.md begins with the numbers of the validations' tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.reports.marked_block import block
from repro.validation.__main__ import main
from repro.validation.papers import HEADINGS as PAPER_HEADINGS
from repro.validation.phones.page import HEADINGS as PHONE_HEADINGS
from repro.validation.summary import BLOCK, PAGE, accuracy, write_accuracy
from repro.validation.this_machine.page import HEADINGS as HERE_HEADINGS

LINES = {
    "phones": (
        PHONE_HEADINGS,
        [
            ["held-out rows (headline)", "decode", "90", "5.8", "40.4", "0.98", "7.6", "13.3", "0.2", "0.6"],
            ["fitted rows (residuals)", "decode", "8", "1.0", "2.0", "1.00", "7.6", "13.3", "0.2", "0.6"],
        ],
    ),
    "papers": (
        PAPER_HEADINGS,
        [["EdgeLLM", "40", "8.2", "15.3", "nearest", "2.0", "93.1", "-3.1", "5.2", "1"]],
    ),
    "this_machine": (
        HERE_HEADINGS,
        [
            ["all", "72", "18.0", "30.0", "4.0", "9.0", "1.02", "60.0"],
            ["few", "19", "5.0", "30.0", "4.0", "9.0", "1.02", "60.0"],
            ["1 row", "20", "19.5", "30.0", "4.0", "9.0", "1.02", "60.0"],
        ],
    ),
}


def write(folder: Path, *names: str) -> None:
    for name in names:
        headings, lines = LINES[name]
        (folder / name).mkdir()
        with (folder / name / "table.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([headings, *lines])


def test_the_page_says_what_the_tables_say() -> None:
    page = (project_root() / PAGE).read_text(encoding="utf-8")
    results = project_root() / "results" / "validation"
    assert block(page, BLOCK, PAGE.name) == accuracy(results), "run python -m repro.validation summary"


def test_a_line_is_right_if_its_error_is_small_and_the_rule_s_is_larger(tmp_path: Path) -> None:
    write(tmp_path, *LINES)
    lines = [line for line in accuracy(tmp_path).splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[-1].removesuffix(" |") for line in lines] == [
        "right",
        "no better than the rule",
        "right",
        "few values",
        "wrong",
    ]
    assert lines[0] == ("| phones and boards | decode: held-out rows | 90 | 5.8% | 40.4% | 7.6% |  | right |")
    assert accuracy(tmp_path).startswith(
        "Of 5 sets of predictions that no fit saw: 2 right, 1 no better than the rule, 1 wrong, 1 few values"
    )


def test_tables_that_are_not_there_are_named_with_their_command(tmp_path: Path) -> None:
    write(tmp_path, "phones")
    text = accuracy(tmp_path)
    absent = "`results/validation/this_machine` is not there, or of an older form"
    assert f"{absent}; `python -m repro.validation this_machine` makes it." in text
    assert "`results/validation/phones`, made by" in text
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "table.csv").write_text("fit,numbers\na,1\n", encoding="utf-8")
    assert accuracy(tmp_path) == text, "columns of an older version"


def test_the_command_fills_the_block_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "phones")
    page = tmp_path / "emulator.md"
    page.write_text("before\n<!-- accuracy -->\nold\n<!-- /accuracy -->\nafter\n", encoding="utf-8")
    write_accuracy(tmp_path, page)
    text = page.read_text(encoding="utf-8")
    assert block(text, BLOCK, "emulator.md") == accuracy(tmp_path)
    assert text.startswith("before\n<!-- accuracy -->\nOf 1 sets")
    assert text.endswith("<!-- /accuracy -->\nafter\n")
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(InputError, match="exactly one"):
        write_accuracy(tmp_path, page)
    monkeypatch.setattr("repro.validation.summary.PAGE", page)
    assert main(["summary", "--results", str(tmp_path)]) == 2
    assert "exactly one" in capsys.readouterr().err
