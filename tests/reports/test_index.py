"""The README of a folder of results: its errors are those of the error pages."""

from pathlib import Path

from invented_tables import CELLS, write_table
from repro.records.results import Results
from repro.reports.fidelity.index import write_index


def test_errors_count_as_in_the_error_pages(tmp_path: Path) -> None:
    inside = {"id": "a", "ours": 4, "reference": "edgellm.text.range", "published_low": 2.9}
    off = {"id": "b", "ours": 3, "reference": "edgellm.fig18.a", "published_low": 1.5, "published_high": 1.5}
    fitted = {**off, "id": "c", "marks": "fitted"}
    certain = {**off, "id": "d", "certain": "derived"}
    lines = [{**inside, "published_high": 9.3}, off, fitted, certain]
    write_table(tmp_path, "edgellm/fig18", *({"ratio": 1, "column": "speedup", **line} for line in lines))
    artifacts = tmp_path / "artifacts.csv"
    artifacts.write_text("paper,artifact,what_it_shows\n", encoding="utf-8")
    text = write_index(Results(tmp_path), CELLS, artifacts).read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| [edgellm/fig18]")]
    assert "| 1 | 100.0% |" in row


def test_a_page_of_real_runs_is_listed(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts.csv"
    artifacts.write_text("paper,artifact,what_it_shows\n", encoding="utf-8")
    assert "real/README.md" not in write_index(Results(tmp_path), CELLS, artifacts).read_text(
        encoding="utf-8"
    )
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "README.md").write_text("# Runs\n", encoding="utf-8")
    assert "- [real](real/README.md)" in write_index(Results(tmp_path), CELLS, artifacts).read_text(
        encoding="utf-8"
    )
