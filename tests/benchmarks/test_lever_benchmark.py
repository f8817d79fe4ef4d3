"""The benchmarks of real pairs: where time went, ratios with their spread, and whose answers part."""

from __future__ import annotations

from pathlib import Path

import pytest

import lever
import paired
import real_pair
from lever_run import Answer, Run, Time
from repro.device.trace import Span, Trace
from repro.methods.base import Generation, Request, Round
from repro.models.runtime.session import Pass
from repro.reports.reference.reference import find, load_cells


def answer(name: str, tokens: list[int], seconds: float, cycles: int = 1) -> Answer:
    return Answer(name, tokens, seconds, cycles, drafted=4 * cycles)


def run(arm: str, answers: list[Answer], dataset: str = "gsm8k", number: int = 0, **changes: object) -> Run:
    time = Time(resting=0.1, tree=0.05, ops=0.07, verifying=2.0, floor=1.0)
    given = {"lossless": True, "time": time, "resident": 1.0, "budgeted": 0.5, "notes": []}
    return Run(arm, dataset, number, answers=answers, **{**given, **changes})


def generation(*rounds: tuple[float, float]) -> Generation:
    made = [Round(4, 5, 2, 3, 2, "", start, end) for start, end in rounds]
    return Generation(Request("a", (1,), 8), [1, 2, 3], made)


def span(on: str, start: float, end: float) -> Span:
    return Span(on, "layer", "", start, end, 1, 0.0, 0.0, 0.0)


def test_what_overlaps_counts_once_and_what_sticks_out_not_at_all() -> None:
    stretches = [(0.0, 2.0), (1.0, 3.0), (1.5, 1.75), (4.0, 9.0)]
    assert real_pair.covered(stretches, 0.5, 5.0) == 2.5 + 1.0
    assert real_pair.covered([], 0.5, 5.0) == 0.0


def test_the_disk_works_too_unless_it_is_left_out() -> None:
    trace = Trace(spans=[span("cpu", 1, 2), span("flash", 1.5, 4), span("npu", 5, 6)])
    assert real_pair.working(trace, 0, 10) == 4.0
    assert real_pair.working(trace, 0, 10, reading=False) == 2.0


def test_a_cycle_drafts_until_its_verification_begins() -> None:
    """The prefill's pass, before all cycles, verifies none; nor does what an end did without a call."""
    passes = [Pass(9, 0, 1, 0), Pass(5, 4, 6, 0), Pass(5, 6.5, 9, 0)]
    found = list(real_pair.drafting([generation((2, 6), (6, 9), (9, 10))], passes))
    assert found == [(2, 4), (6, 6.5)]


def test_trees_are_built_between_the_drafts_passes() -> None:
    (stretch,) = real_pair.drafting([generation((2, 8))], [Pass(5, 6, 8, 0)])
    drafted = [(2.5, 3.5), (4.0, 5.75)]
    assert stretch[1] - stretch[0] - real_pair.covered(drafted, *stretch) == 4 - 1 - 1.75


def test_each_dataset_counts_alike_however_many_prompts_it_has() -> None:
    assert paired.mean([[[2.0, 8.0]], [[1.0], [1.0], [1.0]]]) == pytest.approx(2.0)


def test_ratios_that_agree_have_no_spread_and_others_lie_within_it() -> None:
    same = paired.spread([[[1.5, 1.5], [1.5, 1.5]]])
    assert same[:5] == pytest.approx((1.5,) * 5)
    assert same.pairs == 4
    found = paired.spread([[[1.0, 1.1], [2.0, 2.2], [1.6, 1.5]]])
    assert found.least == 1.0 <= found.low < found.mean < found.high <= found.most == 2.2


def test_a_ratio_is_of_one_prompt_in_one_round() -> None:
    found = [
        run("flash_ar", [answer("a", [1, 2, 3], 4.0), answer("b", [1], 0.0, cycles=0)]),
        run("lever", [answer("a", [1, 2, 3], 1.0), answer("b", [1], 0.0, cycles=0)]),
        run("flash_ar", [answer("a", [1, 2, 3], 6.0)], number=1),
        run("lever", [answer("a", [1, 2, 3], 2.0)], number=1),
        run("lever", [answer("a", [1, 2, 3], 2.0)], number=2),
    ]
    assert lever.ratios(found, "lever", "flash_ar") == {"gsm8k": [[4.0, 3.0]]}


def test_the_aims_are_the_papers() -> None:
    found = [run(arm, [answer("a", [1, 2, 3], 2.0)]) for arm in lever.METHODS.split(",")]
    aims = [text.split("aim ")[1] for text in lever.speedups(found) if "aim" in text]
    cells = load_cells()
    published = [find(cells, f"{lever.PUBLISHED}.{base}").value_low for base in lever.COMPARED]
    assert aims == [f"{aim:.2f}" for aim in published]


def test_answers_that_part_are_found_and_lossy_ones_may() -> None:
    found = [
        run("flash_ar", [answer("a", [1, 2, 3], 4.0)]),
        run("lever", [answer("a", [1, 2, 4], 1.0)]),
        run("chain_sd", [answer("a", [1, 2, 3], 1.0)]),
        run("bold", [answer("a", [5, 5, 5], 1.0)], lossless=False),
    ]
    assert [(r.arm, a.tokens, own) for r, a, own in lever.differing(found)] == [
        ("lever", [1, 2, 4], [1, 2, 3])
    ]


def test_shares_are_of_all_that_decoding_took() -> None:
    found = [run("lever:depth=4", [answer("a", [1, 2, 3], 5.0)]), run("lever:depth=4", [], dataset="mbpp")]
    assert list(lever.construction(found)) == [
        "lever:depth=4: building trees took 2.00% of all cycles, aim under 2%"
    ]
    assert lever.shares(found[:1], 5.0, 2).split() == ["2.0%", "1.0%", "1.4%", "0.500", "s", "50%", "20%"]


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    found = [run("lever", [answer("a", [1, 2], 1.0)]), run("std", [], time=Time(0.0, None, None, 0.0, None))]
    file = tmp_path / "runs.jsonl"
    assert list(lever.noting(found, file, ["--pair", "smollm2"])) == found
    begun, *lines = map(lever.json.loads, file.read_text().splitlines())
    assert begun == ["--pair", "smollm2"]
    assert [Run.parse(line) for line in lines] == found
