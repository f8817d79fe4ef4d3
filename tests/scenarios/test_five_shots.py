"""ElastiLM's tasks in five shots, and choices among names that are the same for every row."""

from __future__ import annotations

import os

import pytest

from invented_rows import INVENTED
from repro.core.registry import discover
from repro.data import Continuation, Prompt, load_rows, read_config
from repro.data.config import builder_of
from repro.models.analysis.likelihood import Likelihood
from repro.scenarios.accuracy import findings

SHOWN = {
    "arc_easy_5shot": ("question", "arc_easy"),
    "llamatouch_5shot": ("description", "llamatouch"),
    "octopus_5shot": ("query", "octopus"),
    "openbookqa_5shot": ("question_stem", "openbookqa"),
    "piqa_5shot": ("goal", "piqa"),
    "sciq_5shot": ("question", "sciq"),
}
"""The column that is asked, and the dataset whose rows these are."""


def examples(name: str) -> list[tuple[str, str]]:
    """What the worked examples ask, and their answers; each has the form of the question."""
    config = read_config(name)
    blocks = builder_of(config).opening(INVENTED[name].row).split("\n\n")
    before, after = config.prompt["template"].split("{" + SHOWN[name][0] + "}")
    shown = [block for block in blocks if block.startswith(before)]
    assert all(after + " " in block for block in shown)
    pairs = [block.removeprefix(before).split(after + " ") for block in shown]
    return [(asked, answer) for asked, answer in pairs]


@pytest.mark.parametrize("name", SHOWN)
def test_five_examples_differ_and_end_where_the_question_begins(name: str) -> None:
    found = examples(name)
    assert len(found) == len(set(found)) == 5
    assert len({asked for asked, _ in found}) == 5
    config = read_config(name)
    assert builder_of(config).opening(INVENTED[name].row).endswith(found[-1][1])


@pytest.mark.parametrize("name", SHOWN)
def test_no_example_is_a_row(name: str) -> None:
    if not os.environ.get("REPRO_DATA"):
        pytest.skip("REPRO_DATA names no folder of real rows")
    asked = {str(row[SHOWN[name][0]]).strip().lower() for row in load_rows(read_config(name)).rows}
    assert not asked & {one.lower() for one, _ in examples(name)}


@pytest.mark.parametrize(
    ("name", "listed", "count"), [("octopus_5shot", "functions", 21), ("llamatouch_5shot", "items", 77)]
)
def test_the_choices_are_what_the_prompt_lists_and_hold_every_example_s_answer(
    name: str, listed: str, count: int
) -> None:
    config = read_config(name)
    choices = config.scoring["choices"]
    assert choices == list(config.prompt[listed])
    assert len(set(choices)) == count
    assert {answer for _, answer in examples(name)} <= set(choices)


def test_the_right_one_may_be_among_several() -> None:
    """Of equals the first count; `acc` stays that of the likeliest."""
    discover("repro.metrics")
    choices = tuple(Continuation((1,), (2,), text) for text in ("a", "b", "cc", "d"))
    rows = [Prompt("p", (1,), "", "", choices, answer) for answer in (0, 1, 2, 3)]
    said = [[Likelihood(nats, False) for nats in (-1.0, -2.0, -3.0, -2.0)]] * 4
    for metric, best, right in (
        ("acc", 1, [1, 0, 0, 0]),
        ("acc", 2, [1, 1, 0, 0]),
        ("acc", 3, [1, 1, 0, 1]),
        ("acc_norm", 2, [1, 0, 1, 0]),
    ):
        found = findings(rows, said, said, metric, best)
        assert [one["right"] for one in found.rounds] == right
        assert found.values["accuracy"] == 25.0 * sum(right)
        assert (found.values["acc"], found.values["acc_norm"]) == (25.0, 25.0)
        assert found.values["chance"] == 25.0 * best
