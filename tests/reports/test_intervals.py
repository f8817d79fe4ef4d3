"""Bootstrap intervals: of known distributions, of stored rounds, and paired over prompts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import records
from invented_tables import built, column
from repro.records.record import Round
from repro.records.results import Results
from repro.reports.intervals import bootstrap
from repro.reports.intervals.bootstrap import FEWEST, Total, figure, interval, paired_interval, resample
from repro.reports.intervals.rounds import totals, with_interval
from repro.reports.intervals.samples import LineSource, Samples, distinct


def rounds_of(*prompts: tuple[int, float]) -> list[Round]:
    """Two rounds for each prompt, which emit this many tokens in this many seconds each."""
    return [
        {"request": f"p/{i}", "rows": 4, "drafted": 3, "accepted": emitted - 1, "emitted": emitted}
        | {"start": start, "end": start + seconds}
        for i, (emitted, seconds) in enumerate(prompts)
        for start in (0.0, seconds)
    ]


PROMPTS = ((2, 1.0), (3, 1.0), (4, 2.0), (2, 0.5), (1, 1.0), (3, 1.5))
ROUNDS = rounds_of(*PROMPTS)
EMITTED = 30
VALUES = {"decode_tokens_per_s": EMITTED / 14, "acceptance_length": 15 / 6, "ttft": 1.0}


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    own = {f"{i}": Total(float(i % 10), 1.0) for i in range(200)}
    assert figure(own) == pytest.approx(4.5)
    low, high = interval(own) or (0.0, 0.0)
    error = 1.96 * 2.8723 / 200**0.5
    assert (4.5 - low, high - 4.5) == pytest.approx((error, error), rel=0.1)
    assert interval(own) == (low, high), "the same draws at every call"
    few = dict(list(own.items())[: FEWEST - 1])
    assert interval(few) is None
    assert interval(few | {"more": Total(1.0, 1.0)}) is not None


def test_draws_are_those_of_every_process() -> None:
    """Each prompt is left out of a draw with probability (1 - 1/7) ** 7."""
    prompts = tuple(f"p/{i}" for i in range(7))
    counts = bootstrap._counts("a", prompts)
    bootstrap._counts.cache_clear()
    assert (bootstrap._counts("a", prompts) == counts).all(), "a table can be made again"
    assert counts.shape == (7, bootstrap.RESAMPLES)
    assert (counts.sum(0) == 7).all()
    assert counts.mean(1) == pytest.approx([1.0] * 7, abs=0.05)
    assert (counts == 0).mean() == pytest.approx((6 / 7) ** 7, abs=0.01)
    figures = {prompt: Total(float(i), 1.0) for i, prompt in enumerate(prompts)}
    assert (resample(figures, "a") == resample(figures, "a")).all()  # type: ignore[union-attr]
    assert (resample(figures, "a") != resample(figures, "b")).any()  # type: ignore[union-attr]


def test_pairing_removes_what_prompts_share() -> None:
    """Twice as fast on every prompt is exactly twice as fast, however much prompts differ."""
    slow = {f"{i}": Total(10.0, 1.0 + i) for i in range(8)}
    fast = {name: Total(10.0, total.denominator / 2) for name, total in slow.items()}
    assert paired_interval(fast, slow, "ratio") == pytest.approx((2.0, 2.0))
    low, high = paired_interval(fast, slow, "difference") or (0.0, 0.0)
    assert 0 < low < high
    assert paired_interval(fast, {**slow, "other": Total(1.0, 1.0)}, "ratio") is None, (
        "the prompts are not the same"
    )


REACHED: list[Round] = [{**line, "reach": 3, "possible": 4} for line in ROUNDS]
ANSWERS: list[Round] = [
    {"request": f"p/{i}", "rouge_l": 90.0 + i, "ttft": 1.0 + i, "decode_joules": 2.0 * (i + 1), "text": "a"}
    for i in range(6)
]
EXAMPLES: list[Round] = [{"id": str(i), "right": i % 2, "baseline_right": 1} for i in range(6)]
SERVED: list[Round] = [
    {"id": "a", "ttft": 0.1 * i, "tpot": 0.01, "met": i % 3 > 0, "fell_back": 0, "right": i % 2}
    for i in range(6)
]


@pytest.mark.parametrize(
    ("lines", "answers", "values", "without"),
    [
        (ROUNDS, [], VALUES, {"ttft"}),
        (
            REACHED,
            [],
            {"draft_correctness": 50.0, "useless_calls": 2, "retention": 18 / 48, "error_rate": 10 / 12},
            set(),
        ),
        (
            ROUNDS,
            ANSWERS,
            {"rouge_l": 92.5, "ttft": 3.5, "decode_joules": 42.0, "joules_per_token": 42.0 / EMITTED},
            set(),
        ),
        (
            EXAMPLES,
            [],
            {"accuracy": 50.0, "baseline_accuracy": 100.0, "difference": -50.0},
            {"baseline_accuracy"},
        ),
        (
            SERVED,
            [],
            {"ttft": 0.25, "met": 400 / 6, "accuracy": 50.0, "accuracy_in_time": 100 * 2 / 6},
            set(),
        ),
        (rounds_of(*[(1, 1.0)] * 6), [], {"acceptance_length": 1.0}, {"acceptance_length"}),
        (ROUNDS, [], {"acceptance_length": 2.51}, {"acceptance_length"}),
    ],
    ids=["rounds", "drafts", "answers", "examples", "requests", "all alike", "another value"],
)
def test_lines_give_the_figures_of_their_record(
    lines: list[Round], answers: list[Round], values: dict[str, float], without: set[str]
) -> None:
    found = with_interval(records.record("m", values), lines, answers).uncertainty
    assert set(found) == set(values) - without
    for name, (low, high) in found.items():  # type: ignore[misc]
        assert low < values[name] < high < low + 4 * abs(values[name]), name


def test_on_a_wall_clock_rounds_of_a_prompt_are_resampled_within_it() -> None:
    """Five prompts, each in rounds of 0 and 2: the variance of the mean is that of ten rounds, 1/10."""
    record = records.record("std", VALUES, clock="wall", uncertainty={"decode_tokens_per_s": 0.1})
    bare = replace(record, uncertainty={})
    assert with_interval(record, ROUNDS).uncertainty == with_interval(bare, ROUNDS).uncertainty != {}
    single = [{**line, "request": "gsm8k/0"} for line in ROUNDS]
    assert with_interval(record, single).uncertainty == {}, "six rounds of one prompt are one prompt"
    alike = {f"{i}": Total(2.0, 2.0, ((0.0, 1.0), (2.0, 1.0))) for i in range(5)}
    low, high = interval(alike) or (0.0, 0.0)
    assert (low, high) == pytest.approx((1 - 1.96 * 0.1**0.5, 1 + 1.96 * 0.1**0.5), abs=0.1)


def test_rounds_that_do_not_give_the_record_s_value_make_no_interval(tmp_path: Path) -> None:
    record = records.record("chain_sd", {**VALUES, "acceptance_length": 2.51})
    assert set(totals(record, ROUNDS)) == {"decode_tokens_per_s"}
    failed = records.record("std", {}, status="failed", error="Traceback")
    assert with_interval(failed, []) == failed
    assert Samples(Results(tmp_path)).totals(failed) == {}


@dataclass(frozen=True)
class StoredLines:
    """Rounds and answers by the cell's key."""

    of_rounds: Mapping[str, list[Round]] = field(default_factory=dict)
    of_answers: Mapping[str, list[Round]] = field(default_factory=dict)

    def rounds(self, key: str) -> list[Round]:
        return self.of_rounds.get(key, [])

    def answers(self, key: str) -> list[Round]:
        return self.of_answers.get(key, [])


Cells = Mapping[tuple[str, str], Mapping[str, float]]
"""Seconds to the first token by row, of each cell: its dataset and its device."""


def width(cells: Cells, times: int = 1) -> float:
    """Width of the interval of the mean over cells, whose rows are asked so often."""
    lines, made = {}, []
    for (dataset, device), seconds in cells.items():
        value = {"ttft": sum(seconds.values()) / len(seconds)}
        cell = records.record("elastilm", value, inputs={"dataset": dataset}, labels={"device": device})
        made.append(cell)
        lines[cell.key] = [
            {"id": f"app/{row}/{number}", "met": 1, "ttft": ttft, "tpot": 1.0}
            for number, (row, ttft) in enumerate([*seconds.items()] * times)
        ]
    low, high = interval_of("ttft", made, StoredLines(lines))
    return high - low


def interval_of(value: str, cells: Sequence[records.Record], lines: LineSource) -> tuple[float, float]:
    """The interval of the mean over cells, as the table of one row has it."""
    columns = [column(value, aggregate="mean")]
    table = built(cells, columns, samples=Samples(lines), rows={"by": ["kind"]})
    interval = table.rows[0].entries[0].interval
    assert interval is not None
    return interval


RISING = {str(i): float(i) for i in range(40)}


def test_the_mean_over_independent_cells_is_surer_than_one_by_the_root_of_their_number() -> None:
    alone = width({("a", "0"): RISING})
    assert alone == pytest.approx(2 * 1.96 * math.sqrt((40**2 - 1) / 12 / 40), rel=0.03), "by arithmetic"
    assert width({(name, name): RISING for name in "abcd"}) == pytest.approx(alone / 2, rel=0.05)
    same = width({("a", name): RISING for name in "abcd"})
    assert same == pytest.approx(alone, rel=1e-9), "the same rows are no further evidence"
    assert width({("a", "0"): RISING}, times=2) == pytest.approx(alone, rel=1e-9), "nor is one asked again"


def test_cells_of_a_dataset_that_share_rows_are_drawn_together() -> None:
    """What one gains on a row the other loses; the second was asked ten rows more, all of the mean."""
    falling = {row: 39.0 - value for row, value in RISING.items()}
    assert width({("a", "0"): RISING, ("a", "1"): falling}) == pytest.approx(0.0, abs=1e-9)
    longer = {**falling, **{str(i): 19.5 for i in range(40, 60)}}
    apart = width({("a", "0"): RISING, ("b", "1"): longer})
    assert width({("a", "0"): RISING, ("a", "1"): longer}) < 0.5 * apart


@pytest.mark.parametrize(("seeds", "ends"), [((0, 1, 2), (3.0, 5.0)), ((0, 0, 0), (4.0, 4.0))])
def test_seeds_are_drawn_with_the_prompts(seeds: tuple[int, ...], ends: tuple[float, float]) -> None:
    """Each prompt is as fast as the others, so that only seeds differ: by 3, 4 and 5 tokens a second."""
    cells = [
        records.record("sp", {"decode_tokens_per_s": 3.0 + i}, seed=seed, labels={"run": str(i)})
        for i, seed in enumerate(seeds)
    ]
    lines = StoredLines({cell.key: rounds_of(*[(2, 2 / (3 + i))] * 6) for i, cell in enumerate(cells)})
    assert interval_of("decode_tokens_per_s", cells, lines) == pytest.approx(ends)


def test_a_text_that_several_cells_read_counts_once() -> None:
    def record(method: str, dataset: str, prompts: int, **others: str) -> records.Record:
        inputs = {"dataset": dataset, "target": "t"}
        return records.record(method, {"prompts": prompts}, inputs=inputs, **others)

    cells = [record("sp", "d", 3), record("std", "d", 5), record("sp", "e", 4)]
    assert distinct(cells) == 9
    assert distinct([record("sp", "d", 1, weights="none")]) is None, "no text was computed"
    for hashes, prompts, texts in (("aaaaaa", 6, 1), ("aba", 3, 2), ("", 4, 4)):
        cell = record("sp", hashes, prompts)
        answers: list[Round] = [{"request": f"d/{i}", "row_hash": each} for i, each in enumerate(hashes)]
        assert distinct([cell], Samples(StoredLines(of_answers={cell.key: answers}))) == texts, hashes
