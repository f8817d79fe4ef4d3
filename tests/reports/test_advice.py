"""What README and docs/compare.md advise follows from the committed figures, and says where it is open."""

from __future__ import annotations

from pathlib import Path

import pytest

from invented_tables import write_table
from records import record
from repro.core.paths import project_root
from repro.reports.advice import (
    SystemAnswer,
    SystemTable,
    answers_by_agreement,
    moved_by,
    sentences,
    short_table,
)
from repro.reports.marked_block import block
from scripts import advice

RESULTS = project_root() / "results"


@pytest.mark.parametrize("page", advice.PAGES)
def test_the_pages_say_what_the_command_makes(page: str) -> None:
    text = (project_root() / page).read_text(encoding="utf-8")
    assert block(text, advice.BLOCK, page) == advice.PAGES[page](RESULTS), "run python scripts/advice.py"


def row(seconds: float, drawn: tuple[float, ...] = (), **ends: tuple[float, float]) -> SystemAnswer:
    return SystemAnswer(
        "r", "R", seconds, None, {name.replace("_", " "): both for name, both in ends.items()}, drawn
    )


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
    assert moved_by(first, other) == kinds


def test_a_draft_that_is_never_and_always_right_bounds_an_answer() -> None:
    """2 answers of 10 rounds, 3 s for prompts and 5 s of decoding each; 1.5 tokens a round, of 4 at most."""
    values = {"prompts": 2, "prefill_seconds": 6.0, "decode_seconds": 10.0, "acceptance_length": 1.5}
    rounds = [{"rows": 4, "reach": 3}] * 20
    best, worst = answers_by_agreement(record("chain_sd", values), rounds) or (0, 0)
    assert (best, worst) == (pytest.approx(3 + 5 * 1.5 / 4), pytest.approx(3 + 5 * 1.5))
    assert answers_by_agreement(record("std", values), [{"rows": 1, "reach": 0}]) is None


def lines(id: str, name: str, seconds: float, joules: float, marks: str = "proxy") -> list[dict[str, object]]:
    figures = {"answer_64": seconds / 2, "answer_1024": seconds, "memory": 1.25, "needs": "a draft"}
    figures["acceptance"] = "" if id == "elastilm" else 1.5
    figures |= {"answer_joules_64": joules / 2, "answer_joules_1024": joules}
    return [{"id": id, "row": name, "column": c, "ours": ours, "marks": marks} for c, ours in figures.items()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table in which LEVER is first, unless its own engine is right."""
    found = [
        *lines("lever", "LEVER", 4.0, 12.0),
        *lines("lever_own", "LEVER, its own", 9.0, 20.0, "proxy extrapolated"),
    ]
    found += [
        *lines("std", "Plain", 8.0, 10.0),
        *lines("std_cpu", "CPU", 8.0, 10.0),
        *lines("elastilm", "ElastiLM", 3.0, 4.0),
        *lines("edgellm", "EdgeLLM", 30.0, 40.0),
    ]
    found += lines("lever_streamed", "LEVER, from flash", 60.0, 50.0)
    write_table(tmp_path, "compare/phone", *found)
    return tmp_path


def test_the_advice_says_who_is_first_and_by_what_it_is_open(root: Path) -> None:
    said = sentences(SystemTable(root, "compare/phone"))
    assert said[1] == (
        "In memory, behind 1,024 tokens: LEVER answers first, after 4.00 s (9.00 on its own engine); "
        "**open** against Plain (8.00 s; by the engine); behind it in any case: EdgeLLM (30.0 s); "
        "on a smaller model and a shorter prompt: ElastiLM (3.00 s). "
        "Least energy: Plain, 10.0 J."
    )
    assert said[3].startswith(
        "From flash, behind 1,024 tokens: LEVER, from flash answers first, after 60.0 s."
    )


def test_readmes_table_has_seven_columns_and_the_marks(root: Path) -> None:
    table = short_table(SystemTable(root, "compare/phone"))
    assert all(line.count("|") == 8 for line in table if line.startswith("|"))
    assert "| LEVER, its own | 4.50 x | 9.00 x | 10.0 x | 20.0 x | 1.2 x | a draft x |" in table
    assert "| LEVER | 2.00 | 4.00 | 6.00 | 12.0 | 1.2 | a draft |" in table
    assert table[-1].startswith("All figures: computed by a smaller proxy's weights")
    assert "x: passes or layers outside" in table[-1]
