"""docs/emulator.md and the page beside the validations' tables say what these do."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

import pytest

from repro.core.paths import project_root
from repro.reports.marked_block import block
from workshop.validation.__main__ import main
from workshop.validation.papers import HEADINGS as PAPER_HEADINGS
from workshop.validation.phones.page import HEADINGS as PHONE_HEADINGS
from workshop.validation.phones.page import MACHINES
from workshop.validation.summary import (
    ALL_SETS,
    BLOCK,
    PAGE,
    README,
    all_sets,
    in_short,
    main_sets,
    write_accuracy,
)
from workshop.validation.this_machine.page import HEADINGS as HERE_HEADINGS

LINES = {
    "phones": (
        PHONE_HEADINGS,
        [
            [f"{view}, {kind}", "decode", "90", "5.8", "40.4", "0.98", "7.6", "13.3", "0.2", "0.6"]
            for view, kind in product(("a chip that nobody measured", "held-out rows"), MACHINES.values())
        ]
        + [["fitted rows (residuals)", "decode", "8", "1.0", "2.0", "1.00", "7.6", "13.3", "0.2", "0.6"]],
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


def test_the_pages_say_what_the_tables_say() -> None:
    results = project_root() / "results" / "validation"
    for page, text in ((PAGE, main_sets), (README, in_short)):
        written = block((project_root() / page).read_text(encoding="utf-8"), BLOCK, page.name)
        assert written == text(results), "run python -m workshop.validation summary"
    assert (results / ALL_SETS).read_text(encoding="utf-8") == all_sets(results)


def test_readme_says_how_far_off_chips_are_that_nobody_measured() -> None:
    """Before its figures are read: the medians of the first lines of the phones' table."""
    with (project_root() / "results" / "validation" / "phones" / "table.csv").open(encoding="utf-8") as file:
        first = [line for line in csv.DictReader(file) if line["of"] == "decode"][:3]
        lines = [line for line in first if int(line["n"]) >= 20]
    assert lines
    readme = " ".join((project_root() / README).read_text(encoding="utf-8").split())
    for line in lines:
        kind = line["rows"].removeprefix("a chip that nobody measured, ")
        assert f"{float(line['median error, %']):.0f}% on {kind} ({line['n']} rates" in readme


def test_a_line_is_right_if_its_error_is_small_and_the_rule_s_is_larger(tmp_path: Path) -> None:
    write(tmp_path, *LINES)
    lines = [line for line in all_sets(tmp_path).splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[-1].removesuffix(" |") for line in lines] == [
        *["right"] * 7,
        "few values",
        "wrong",
        "no better than the rule",
    ]
    cells = "decode: a chip that nobody measured, Android phones"
    assert lines[0] == f"| phones and boards | {cells} | 90 | 5.8% | 40.4% | 7.6% |  | right |"
    said = "sets of predictions that no fit saw: 7 right, 1 no better than the rule, 1 wrong, 1 few values"
    assert said in all_sets(tmp_path)
    assert main_sets(tmp_path).startswith(f"Of 10 {said}")
    assert main_sets(tmp_path).count("| right |") == 4, "chips that nobody measured, and this machine"


def test_tables_that_are_not_there_are_named_with_their_command(tmp_path: Path) -> None:
    write(tmp_path, "phones")
    text = all_sets(tmp_path)
    absent = "`results/validation/this_machine` is not there, or of an older form"
    assert f"{absent}; `python -m workshop.validation this_machine` makes it." in text
    assert "`results/validation/phones`, made by" in text
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "table.csv").write_text("fit,numbers\na,1\n", encoding="utf-8")
    assert all_sets(tmp_path) == text, "columns of an older version"


def test_the_command_fills_the_blocks_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "phones")
    (tmp_path / "docs").mkdir()
    for page in (PAGE, README):
        (tmp_path / page).write_text(
            "before\n<!-- accuracy -->\nold\n<!-- /accuracy -->\nafter\n", encoding="utf-8"
        )
    write_accuracy(tmp_path, tmp_path)
    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert block(text, BLOCK, "emulator.md") == main_sets(tmp_path)
    assert text.startswith("before\n<!-- accuracy -->\nOf 6 sets")
    assert text.endswith("<!-- /accuracy -->\nafter\n")
    assert (tmp_path / ALL_SETS).read_text(encoding="utf-8") == all_sets(tmp_path)
    assert "6% on iPhones (90 rates" in (tmp_path / README).read_text(encoding="utf-8")
    (tmp_path / PAGE).write_text("no markers", encoding="utf-8")
    monkeypatch.setattr("workshop.validation.__main__.project_root", lambda: tmp_path)
    assert main(["summary", "--results", str(tmp_path)]) == 2
    assert "exactly one" in capsys.readouterr().err
