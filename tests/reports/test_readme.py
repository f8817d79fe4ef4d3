"""The READMEs of the project and of a folder of results: what they show and name is there."""

import re
from pathlib import Path

import pytest

from invented_tables import CELLS, write_table
from repro import commands
from repro.core.paths import project_root
from repro.records.results import Results
from repro.reports.fidelity.index import write_index
from repro.reports.marked_block import markers
from scripts import pages


def test_a_page_without_markers_and_results_without_a_table_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pages.main(["--results", str(tmp_path), "--pages", str(tmp_path)]) == 2
    assert "there is no" in (said := capsys.readouterr().err)
    assert "make it with `python -m repro experiment=quickstart results=results`" in said
    start, end = markers("quickstart")
    for text in ("no markers", f"{start} alone", f"{end}{start}", f"{start}{end}" * 2):
        (tmp_path / "README.md").write_text(text, encoding="utf-8")
        assert pages.main(["--pages", str(tmp_path)]) == 2
        assert re.search("exactly one|in order", capsys.readouterr().err), text
        assert (tmp_path / "README.md").read_text(encoding="utf-8") == text


def test_the_quickstarts_table_can_be_made_without_any_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("table", ["quickstart", "--results", str(tmp_path)]) == 0
    assert "No records" in capsys.readouterr().out
    text = (tmp_path / "quickstart" / "table.md").read_text(encoding="utf-8")
    assert "- No records, commit none" in text
    assert "| Flash-AR (not run) | — |" in text
    assert not [*tmp_path.rglob("figure.*")], "there is nothing to show"


PAGES = ("*.md", "docs/*.md", "workshop/**/*.md", "conf/reference/*.md", "results/*.md", "results/real/*.md")
NAMING = ("src/**/*", "conf/**/*", "workshop/**/*", "scripts/*", "tests/**/*.py", "results/**/*.md", "*.toml")


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page is called, as GitHub makes it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_pages_lead_to_files_and_headings_that_are_there() -> None:
    links = [
        (page, link, anchor)
        for pattern in PAGES
        for page in project_root().glob(pattern)
        for link, anchor in re.findall(
            r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")
        )
    ]
    broken = []
    for page, link, anchor in links:
        linked = page.parent / link if link else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(f"{page.relative_to(project_root())}: {link}#{anchor}")
    assert broken == []
    assert len(links) > 150


def test_pages_that_code_and_tables_name_are_there() -> None:
    paths = {path for pattern in NAMING for path in project_root().glob(pattern) if path.is_file()}
    paths -= {*project_root().glob("conf/reference/phones*.csv")}  # they cite other people's pages
    named = {
        (page, path.relative_to(project_root()))
        for path in paths
        if path.suffix in (".py", ".yaml", ".csv", ".md", ".jinja", ".j2", ".toml", ".sh")
        for page in re.findall(r"(?<![\w/])docs/\w+\.(?:md|json)", path.read_text(encoding="utf-8"))
    }
    assert [(page, path) for page, path in named if not (project_root() / page).exists()] == []
    assert len(named) > 50


def test_the_index_of_results_counts_errors_as_the_error_pages_and_lists_real_runs(tmp_path: Path) -> None:
    """Of four figures one is a prediction that can miss: 3 beside 1.5."""
    inside = {"id": "a", "ours": 4, "reference": "edgellm.text.range", "published_low": 2.9}
    off = {"id": "b", "ours": 3, "reference": "edgellm.fig18.a", "published_low": 1.5, "published_high": 1.5}
    aside = [{**off, "id": "c", "marks": "fitted"}, {**off, "id": "d", "certain": "derived"}]
    lines = [{**inside, "published_high": 9.3}, off, *aside]
    write_table(tmp_path, "edgellm/fig18", *({"ratio": 1, "column": "speedup", **line} for line in lines))
    artifacts = tmp_path / "artifacts.csv"
    artifacts.write_text("paper,artifact,what_it_shows\n", encoding="utf-8")

    def index() -> str:
        return write_index(Results(tmp_path), CELLS, artifacts).read_text(encoding="utf-8")

    (row,) = [line for line in index().splitlines() if line.startswith("| [edgellm/fig18]")]
    assert "| 1 | 100.0% |" in row
    assert "real/README.md" not in index()
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "README.md").write_text("# Runs\n", encoding="utf-8")
    assert "- [real](real/README.md)" in index()
