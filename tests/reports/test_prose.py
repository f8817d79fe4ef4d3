"""Figures in prose: marked ones are held to tables and rewritten, and advice follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from invented_tables import CELLS, write_tables
from records import record
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.reports.advice import SystemAnswer, answers_by_agreement, what_reorders
from repro.reports.fidelity.marked import FigureSources, correct_figures, marked_figures
from repro.reports.marked_block import block
from repro.reports.reference.reference import load_cells
from scripts.marked_figures import pages
from scripts.pages import blocks

RESULTS = project_root() / "results"
WITH_MARKS = ("lever.md", "ghidorah.md", "elastilm.md", "mllm_npu.md")
"""Pages that state what came out."""


@pytest.fixture
def sources(tmp_path: Path) -> FigureSources:
    write_tables(tmp_path)
    return FigureSources(tmp_path, CELLS)


TEXT = (
    "It is 10.2 times<!-- edgellm/fig15 :: mt5 :: speedup --> as fast, "
    "paper 2<!-- cell :: edgellm.text.single -->."
)


def test_a_rounded_figure_agrees_and_another_is_rewritten(sources: FigureSources) -> None:
    found = list(marked_figures(TEXT, sources))
    assert [(one.stands, one.value, one.agrees) for one in found] == [("10.2", 10.23, True), ("2", 2.0, True)]
    assert correct_figures(TEXT, sources) == TEXT
    wrong = TEXT.replace("10.2 times", "11.25 times")
    assert [one.agrees for one in marked_figures(wrong, sources)] == [False, True]
    assert correct_figures(wrong, sources) == TEXT.replace("10.2 times", "10.23 times")
    assert (
        correct_figures("1,000<!-- cell :: edgellm.text.ms -->", sources)
        == "900<!-- cell :: edgellm.text.ms -->"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("3<!-- edgellm/fig99 :: a :: b -->", "there is no table 'edgellm/fig99'"),
        ("3<!-- edgellm/fig15 :: mt6 :: speedup -->", "no figure 'mt6 :: speedup'. Did you mean mt5 :: sp"),
        ("3<!-- edgellm/fig15 :: mt5 :: speedup :: lo -->", "no field 'lo'. Did you mean low"),
        ("3<!-- edgellm/fig15 :: bart :: speedup -->", "has no number"),
        ("3<!-- cell :: edgellm.text.sinlge -->", "Did you mean edgellm.text.single"),
        ("3<!-- cell :: edgellm.text.single :: hihg -->", "may name `high` after the published value"),
        ("3<!-- cell :: edgellm.text.over :: high -->", "only a lower bound is printed"),
        ("many<!-- cell :: edgellm.text.ms -->", "has no number before it"),
        ("2 tokens a second<!-- cell :: edgellm.text.ms -->", "has no number before it"),
    ],
)
def test_a_mark_without_number_or_place_is_named(text: str, sentence: str, sources: FigureSources) -> None:
    with pytest.raises(InputError, match=sentence):
        list(marked_figures(text, sources))


def test_the_figures_of_our_pages_are_those_of_the_tables() -> None:
    sources = FigureSources(RESULTS, load_cells())
    wrong = {}
    for page in pages(project_root()):
        found = list(marked_figures(page.read_text(encoding="utf-8"), sources))
        wrong |= {f"{page.name}: {one.address}": one.true_text for one in found if not one.agrees}
        assert found or page.name not in WITH_MARKS, f"{page.name} marks no figure"
    assert wrong == {}, "write them with `python scripts/marked_figures.py --update`"


def test_the_pages_show_what_the_command_writes() -> None:
    wrong = [
        f"{page}: {name}"
        for page, name, content in blocks(RESULTS)
        if block((project_root() / page).read_text(encoding="utf-8"), name, page) != content.strip()
    ]
    assert wrong == [], "run `python scripts/pages.py`"


def row(seconds: float, drawn: tuple[float, ...] = (), **ends: tuple[float, float]) -> SystemAnswer:
    named = {name.replace("_", " "): both for name, both in ends.items()}
    return SystemAnswer("r", "R", seconds, None, named, drawn)


@pytest.mark.parametrize(
    ("first", "other", "kinds"),
    [
        (row(4.0), row(5.0), []),
        (row(4.0, the_engine=(4.0, 17.0)), row(5.0), ["the engine"]),
        (row(4.0, the_prompts=(3.5, 4.6)), row(5.0, the_prompts=(4.5, 5.5)), ["the prompts"]),
        (row(4.0, the_prompts=(3.5, 4.4)), row(5.0, the_prompts=(4.5, 5.5)), []),
        (row(4.0, (4.0, 6.0)), row(5.0, (5.0, 7.5)), []),  # both slower on the second machine
        (row(4.0, (4.0, 6.0)), row(5.0, (5.0, 5.9)), ["assumed numbers"]),
        (row(4.0, the_prompts=(3.5, 4.6)), row(5.0, the_engine=(4.5, 5.0)), ["the prompts and the engine"]),
    ],
)
def test_two_systems_are_open_where_their_seconds_cross(
    first: SystemAnswer, other: SystemAnswer, kinds: list[str]
) -> None:
    assert what_reorders(first, other) == kinds


def test_a_draft_that_is_never_and_always_right_bounds_an_answer() -> None:
    """2 answers of 10 rounds, 3 s for prompts and 5 s of decoding each; 1.5 tokens a round, of 4 at most."""
    values = {"prompts": 2, "prefill_seconds": 6.0, "decode_seconds": 10.0, "acceptance_length": 1.5}
    rounds = [{"rows": 4, "reach": 3}] * 20
    best, worst = answers_by_agreement(record("chain_sd", values), rounds) or (0, 0)
    assert (best, worst) == (pytest.approx(3 + 5 * 1.5 / 4), pytest.approx(3 + 5 * 1.5))
    assert answers_by_agreement(record("std", values), [{"rows": 1, "reach": 0}]) is None
