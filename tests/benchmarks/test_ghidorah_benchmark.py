"""Ghidorah's benchmark: what share of the memory's speed is reached, ratios in pairs, whose answers part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ghidorah
import lever
from ghidorah import Run
from lever_run import Answer


def answer(name: str, tokens: list[int], seconds: float, cycles: int = 2) -> Answer:
    return Answer(name, tokens, seconds, cycles, drafted=3 * cycles)


def run(arm: str, answers: list[Answer], dataset: str = "gsm8k", number: int = 0, **changes: object) -> Run:
    given = {"lossless": True, "passes": 2, "passing": 0.5, "weights": 1e9, "bandwidth": 8e9, "notes": []}
    return Run(arm, dataset, number, answers=answers, **{**given, **changes})


def test_the_floor_is_one_reading_of_the_weights_a_pass() -> None:
    """At 10 GB/s, the best of all runs, a reading takes 100 ms; a pass took 250, a cycle 400."""
    found = [
        run("medusa", [answer("a", [1, 2, 3, 4, 5], 0.8)]),
        run("sequential", [], dataset="mbpp", bandwidth=1e10),
    ]
    memory, _, line, none = ghidorah.by_method(found)
    assert memory == "memory reads 10.0 GB/s at best"
    said = "gsm8k medusa 0.200 5.00 2.00 250.0 ms 100.0 ms 40% 25%"
    assert " ".join(line.split()) == said
    assert "every answer was a single token" in none


def test_ratios_are_of_the_same_prompt_and_round_and_over_the_base_alone() -> None:
    found = [
        run("sequential", [answer("a", [1, 2, 3], 4.0)]),
        run("sequential", [answer("a", [1, 2, 3], 6.0)], number=1),
        run("medusa:width=4", [answer("a", [1, 2, 3], 2.0)]),
        run("medusa:width=4", [answer("a", [1, 2, 3], 3.0)], number=1),
    ]
    _, line, mean = ghidorah.speedups(found)
    assert line.split()[:4] == ["gsm8k", "medusa:width=4", "over", "sequential"]
    assert line.split()[4] == mean.split()[4] == "2.00x"


def test_answers_that_part_are_found_and_lossy_ones_may() -> None:
    found = [
        run("sequential", [answer("a", [1, 2, 3], 4.0)]),
        run("medusa", [answer("a", [1, 2, 4], 1.0)]),
        run("ghidorah", [answer("a", [1, 2, 3], 1.0)]),
        run("bold", [answer("a", [5, 5, 5], 1.0)], lossless=False),
    ]
    assert [(r.arm, a.tokens, own) for r, a, own in ghidorah.differing(found)] == [
        ("medusa", [1, 2, 4], [1, 2, 3])
    ]


def test_without_a_difference_nothing_is_judged() -> None:
    found = [run(arm, [answer("a", [1, 2], 1.0)]) for arm in ("sequential", "medusa")]
    assert ghidorah.lossless(found, []) == (["1 of 1 lossless answers have the tokens of sequential"], True)


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    found = [run("ghidorah:divided=false", [answer("a", [1, 2], 1.0)], notes=["said"])]
    file = tmp_path / "runs.jsonl"
    assert list(lever.noting(found, file, ["--prompts", "1"])) == found
    _, line = map(json.loads, file.read_text().splitlines())
    assert Run.parse(line) == found[0]


def test_the_base_must_be_among_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ghidorah.arguments(["--methods", "medusa"])
    assert "sequential must be among them" in capsys.readouterr().err
