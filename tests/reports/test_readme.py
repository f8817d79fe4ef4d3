"""The README: its table is the one that the run wrote, and what it names is there."""

import re
from pathlib import Path

import pytest

from repro import commands
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.reports.marked_block import block, filled, markers
from scripts import readme_table

README = project_root() / "README.md"
TABLE = project_root() / readme_table.TABLE
MARKDOWN = "## Speeds\n\n| a |\n| --- |\n| 1 |\n\n- a note\n\n```bibtex\n@misc{x}\n```\n"
START, END = markers(readme_table.BLOCK)
EMPTY = f"# repro\n\n{START}\n{END}\n\nThe rest.\n"


def test_the_readme_shows_the_table_as_the_run_wrote_it() -> None:
    inside = block(README.read_text(encoding="utf-8"), readme_table.BLOCK, "README.md")
    if not TABLE.is_file():
        assert inside == "", "the README shows a table that no file holds"
        pytest.skip("no quickstart has been run into results/ yet")
    assert inside == readme_table.shown(TABLE.read_text(encoding="utf-8"))


def test_the_script_fills_the_block_and_nothing_else(tmp_path: Path) -> None:
    readme, table = tmp_path / "README.md", tmp_path / "quickstart.md"
    readme.write_text(EMPTY, encoding="utf-8")
    table.write_text(MARKDOWN, encoding="utf-8")
    assert readme_table.main(["--readme", str(readme), "--table", str(table)]) == 0
    text = readme.read_text(encoding="utf-8")
    assert block(text, readme_table.BLOCK, "README.md") == "## Speeds\n\n| a |\n| --- |\n| 1 |\n\n- a note"
    assert text.startswith("# repro\n\n<!-- quickstart -->\n## Speeds")
    assert text.endswith("- a note\n<!-- /quickstart -->\n\nThe rest.\n")
    assert filled(text, readme_table.BLOCK, readme_table.shown(MARKDOWN), "README.md") == text


def test_a_missing_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.md"
    assert readme_table.main(["--table", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err


@pytest.mark.parametrize(
    "readme",
    ["no markers", f"{START} alone", f"{END}{START}", EMPTY + EMPTY],
)
def test_a_readme_without_its_two_markers_is_an_error(readme: str) -> None:
    with pytest.raises(InputError, match=r"exactly one|in order"):
        filled(readme, readme_table.BLOCK, MARKDOWN, "README.md")


def test_the_quickstarts_table_can_be_made_again_from_records_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("table", ["quickstart", "--results", str(tmp_path)]) == 0
    assert "No records" in capsys.readouterr().out
    text = (tmp_path / "quickstart" / "table.md").read_text(encoding="utf-8")
    assert "No records" in text
    assert "| Flash-AR (not run) | — |" in text


def test_files_that_the_readme_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    made_by_the_run = {"results/quickstart/figure.png"}
    named = set(links) - made_by_the_run
    assert len(named) >= 8
    assert [name for name in sorted(named) if not (project_root() / name).exists()] == []
