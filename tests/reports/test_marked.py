"""Marked figures in prose: how they are found, held to tables and rewritten; and those of our own pages."""

from pathlib import Path

import pytest

from invented_tables import CELLS, write_tables
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.reports.fidelity.marked import FigureSources, marked, updated
from repro.reports.reference.reference import load_cells
from scripts.marked_figures import main, pages

WITH_MARKS = ("lever.md", "ghidorah.md", "elastilm.md", "mllm_npu.md", "errata.md")
"""Pages that state what came out."""


@pytest.fixture
def sources(tmp_path: Path) -> FigureSources:
    write_tables(tmp_path)
    return FigureSources(tmp_path, CELLS)


TEXT = (
    "It is 10.2 times<!-- edgellm/fig15 :: mt5 :: speedup --> as fast, "
    "paper 2<!-- cell :: edgellm.text.single -->."
)


def test_a_rounded_figure_agrees(sources: FigureSources) -> None:
    found = list(marked(TEXT, sources))
    assert [(one.stands, one.value, one.agrees) for one in found] == [("10.2", 10.23, True), ("2", 2.0, True)]
    assert updated(TEXT, sources) == TEXT


def test_another_figure_differs_and_is_rewritten(sources: FigureSources) -> None:
    wrong = TEXT.replace("10.2 times", "11.25 times")
    assert [one.agrees for one in marked(wrong, sources)] == [False, True]
    assert updated(wrong, sources) == TEXT.replace("10.2 times", "10.23 times")
    assert updated("1,000<!-- cell :: edgellm.text.ms -->", sources) == "900<!-- cell :: edgellm.text.ms -->"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("edgellm/fig99 :: a :: b", "there is no table 'edgellm/fig99'"),
        ("edgellm/fig15 :: mt6 :: speedup", "no figure 'mt6 :: speedup'. Did you mean mt5 :: speedup"),
        ("edgellm/fig15 :: mt5 :: speedup :: lo", "no field 'lo'. Did you mean low"),
        ("edgellm/fig15 :: bart :: speedup", "has no number"),
        ("cell :: edgellm.text.sinlge", "Did you mean edgellm.text.single"),
        ("cell :: edgellm.text.single :: hihg", "may name `high` after the published value"),
        ("cell :: edgellm.text.over :: high", "only a lower bound is printed"),
    ],
)
def test_a_place_that_does_not_exist(place: str, sentence: str, sources: FigureSources) -> None:
    with pytest.raises(InputError, match=sentence):
        list(marked(f"3<!-- {place} -->", sources))


def test_a_mark_without_a_number_is_named(sources: FigureSources) -> None:
    for text in ("many<!-- cell :: edgellm.text.ms -->", "2 tokens a second<!-- cell :: edgellm.text.ms -->"):
        with pytest.raises(InputError, match="has no number before it"):
            list(marked(text, sources))


def test_the_figures_of_our_pages_are_those_of_the_tables() -> None:
    sources = FigureSources(project_root() / "results", load_cells())
    wrong = {}
    for page in pages(project_root()):
        found = list(marked(page.read_text(encoding="utf-8"), sources))
        wrong |= {f"{page.name}: {one.place}": one.written for one in found if not one.agrees}
        assert found or page.name not in WITH_MARKS, f"{page.name} marks no figure"
    assert wrong == {}, "write them with `python scripts/marked_figures.py --update`"


def test_the_command(sources: FigureSources, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(sources.folder)]) == 2
    assert "error: there is no table" in capsys.readouterr().err
