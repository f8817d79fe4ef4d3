"""Bootstrap intervals: of known distributions, of stored rounds, and paired over prompts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import records
from repro.records.record import Round
from repro.records.results import Results
from repro.reports.intervals.bootstrap import FEWEST, Total, drawn, ends, figure, interval, paired
from repro.reports.intervals.rounds import totals, with_interval
from repro.reports.intervals.samples import LineSource, Samples, distinct
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables import aggregate


def rounds_of(*prompts: tuple[int, float]) -> list[Round]:
    """Two rounds for each prompt, which emit this many tokens in this many seconds each."""
    lines: list[Round] = []
    for i, (emitted, seconds) in enumerate(prompts):
        lines += [
            {"request": f"p/{i}", "rows": 4, "drafted": 3, "accepted": emitted - 1, "emitted": emitted}
            | {"start": start, "end": start + seconds}
            for start in (0.0, seconds)
        ]
    return lines


PROMPTS = ((2, 1.0), (3, 1.0), (4, 2.0), (2, 0.5), (1, 1.0), (3, 1.5))
VALUES = {"decode_tokens_per_s": 30 / 14, "acceptance_length": 15 / 6, "ttft": 1.0}


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    own = {f"{i}": Total(float(i % 10), 1.0) for i in range(200)}
    assert figure(own) == pytest.approx(4.5)
    low, high = interval(own) or (0.0, 0.0)
    error = 1.96 * 2.8723 / 200**0.5
    assert (4.5 - low, high - 4.5) == pytest.approx((error, error), rel=0.1)
    assert interval(own) == (low, high), "the same draws at every call"


def test_long_prompts_weigh_more_in_a_ratio_of_totals() -> None:
    own = {"a": Total(10.0, 1.0), "b": Total(10.0, 9.0)}
    assert figure(own) == 2.0
    assert figure({"a": Total(1.0, 0.0)}) is None


def test_few_prompts_have_no_interval() -> None:
    own = {f"{i}": Total(float(i), 1.0) for i in range(FEWEST - 1)}
    assert interval(own) is None
    assert interval(own | {"more": Total(1.0, 1.0)}) is not None


def test_pairing_removes_what_prompts_share() -> None:
    """Twice as fast on every prompt is exactly twice as fast, however much prompts differ."""
    slow = {f"{i}": Total(10.0, 1.0 + i) for i in range(8)}
    fast = {name: Total(10.0, total.below / 2) for name, total in slow.items()}
    assert paired(fast, slow, "ratio") == pytest.approx((2.0, 2.0))
    low, high = paired(fast, slow, "difference") or (0.0, 0.0)
    assert 0 < low < high
    assert paired(fast, {**slow, "other": Total(1.0, 1.0)}, "ratio") is None, "the prompts are not the same"


def test_rounds_give_the_figures_of_their_record() -> None:
    record = records.record("chain_sd", VALUES)
    found = with_interval(record, rounds_of(*PROMPTS))
    assert set(found.uncertainty) == {"decode_tokens_per_s", "acceptance_length"}
    low, high = found.uncertainty["acceptance_length"]  # type: ignore[misc]
    assert 1 < low < 2.5 < high < 4


def test_rounds_that_do_not_give_the_record_s_value_make_no_interval() -> None:
    record = records.record("chain_sd", {**VALUES, "acceptance_length": 2.51})
    assert set(totals(record, rounds_of(*PROMPTS))) == {"decode_tokens_per_s"}
    assert with_interval(replace(record, values={}), rounds_of(*PROMPTS)).uncertainty == {}


def test_a_figure_that_is_the_same_on_all_prompts_has_no_interval() -> None:
    record = records.record("std", {"acceptance_length": 1.0, "decode_tokens_per_s": 1.0})
    assert with_interval(record, rounds_of(*[(1, 1.0)] * 6)).uncertainty == {}


def test_on_a_wall_clock_rounds_of_a_prompt_are_resampled_within_it() -> None:
    record = records.record("std", VALUES, clock="wall", uncertainty={"decode_tokens_per_s": 0.1})
    once = with_interval(record, rounds_of(*PROMPTS)).uncertainty["decode_tokens_per_s"]
    assert (
        once
        == with_interval(replace(record, uncertainty={}), rounds_of(*PROMPTS)).uncertainty[
            "decode_tokens_per_s"
        ]
    )
    one = [{**line, "request": "gsm8k/0"} for line in rounds_of(*PROMPTS)]
    assert with_interval(record, one).uncertainty == {}, "six rounds of one prompt are one prompt"
    # Five prompts that are alike, each in rounds of 0 and 2: the mean's variance is that of ten rounds, 1/10.
    alike = {f"{i}": Total(2.0, 2.0, ((0.0, 1.0), (2.0, 1.0))) for i in range(5)}
    low, high = interval(alike) or (0.0, 0.0)
    assert (low, high) == pytest.approx((1 - 1.96 * 0.1**0.5, 1 + 1.96 * 0.1**0.5), abs=0.1)


def test_a_failed_cell_has_no_interval(tmp_path: Path) -> None:
    failed = records.record("std", {}, status="failed", error="Traceback")
    assert with_interval(failed, []) == failed
    assert Samples(Results(tmp_path)).totals(failed) == {}


def test_answers_give_what_rounds_do_not() -> None:
    """Energy, similarity and latency by prompt; sums have intervals as ratios have."""
    answers: list[Round] = [
        {
            "request": f"p/{i}",
            "rouge_l": 90.0 + i,
            "ttft": 1.0 + i,
            "decode_joules": 2.0 * (i + 1),
            "text": "a",
        }
        for i in range(6)
    ]
    emitted = 2 * sum(tokens for tokens, _ in PROMPTS)
    values = {"rouge_l": 92.5, "ttft": 3.5, "decode_joules": 42.0, "joules_per_token": 42.0 / emitted}
    found = totals(records.record("bld", values), rounds_of(*PROMPTS), answers)
    assert set(found) == set(values)
    assert figure(found["decode_joules"]) == pytest.approx(42.0)
    low, high = interval(found["decode_joules"]) or (0.0, 0.0)
    assert 20 < low < 42 < high < 64


def test_drafts_that_were_right_and_verifications_without_an_error_have_intervals() -> None:
    lines = [{**line, "reach": 3, "possible": 4} for line in rounds_of(*PROMPTS)]
    values = {"draft_correctness": 50.0, "useless_calls": 2, "retention": 18 / 48, "error_rate": 10 / 12}
    found = with_interval(records.record("corrected", values), lines)
    assert set(found.uncertainty) == set(values)
    low, high = found.uncertainty["draft_correctness"]  # type: ignore[misc]
    assert 20 < low < 50 < high < 80


def test_records_of_the_same_prompts_get_the_same_draws() -> None:
    one = {f"p/{i}": Total(float(i), 1.0) for i in range(6)}
    assert (drawn(one, "a") == drawn(one, "a")).all()  # type: ignore[union-attr]
    assert (drawn(one, "a") != drawn(one, "b")).any()  # type: ignore[union-attr]


class Requests:
    """Lines of cells that answered requests: of each cell the rows and their seconds."""

    def __init__(self, cells: Mapping[str, Mapping[str, float]], times: int = 1) -> None:
        self.cells, self.times = cells, times

    def rounds(self, key: str) -> list[dict[str, float | int | str | None]]:
        asked = [*self.cells[key].items()] * self.times
        return [
            {"id": f"app/{row}/{number}", "met": 1, "ttft": seconds, "tpot": 1.0}
            for number, (row, seconds) in enumerate(asked)
        ]

    def answers(self, key: str) -> list[dict[str, float | int | str | None]]:
        return []


def requests(ttft: float, dataset: str, label: str) -> records.Record:
    """A cell of requests with that mean time to the first token."""
    return records.record("elastilm", {"ttft": ttft}, inputs={"dataset": dataset}, labels={"device": label})


TTFT = ColumnSpec(key="ttft", heading="TTFT", value="ttft", unit="s", aggregate="mean")


def width(cells: Sequence[records.Record], values: Sequence[Mapping[str, float]], times: int = 1) -> float:
    """Width of the interval of the cells' mean."""
    lines = Requests({c.key: v for c, v in zip(cells, values, strict=True)}, times)
    low, high = interval_of(TTFT, cells, [], lines)
    return high - low


def interval_of(
    column: ColumnSpec, cells: Sequence[records.Record], baseline: Sequence[records.Record], lines: LineSource
) -> tuple[float, float]:
    """The interval of the cells' figure, relative to the baseline's."""
    draws = aggregate.drawn(column, cells, baseline, Samples(lines).together([*cells, *baseline]))
    assert draws is not None
    return ends(draws) or (math.nan, math.nan)


def test_the_mean_over_independent_cells_is_surer_than_one_by_the_root_of_their_number() -> None:
    values = {str(i): float(i) for i in range(40)}
    alone = width([requests(19.5, "a", "0")], [values])
    assert alone == pytest.approx(2 * 1.96 * math.sqrt((40**2 - 1) / 12 / 40), rel=0.03), "by arithmetic"
    independent = width([requests(19.5, name, name) for name in "abcd"], [values] * 4)
    assert independent == pytest.approx(alone / 2, rel=0.05)
    same = width([requests(19.5, "a", name) for name in "abcd"], [values] * 4)
    assert same == pytest.approx(alone, rel=1e-9), "the same rows are no further evidence"


def test_cells_of_a_dataset_that_share_rows_are_drawn_together() -> None:
    """What one gains on a row the other loses; the second was asked ten rows more, all of the mean."""
    first = {str(i): float(i) for i in range(20)}
    second = {row: 19.0 - value for row, value in first.items()}
    cells = [requests(9.5, "a", "0"), requests(9.5, "a", "1")]
    assert width(cells, [first, second]) == pytest.approx(0.0, abs=1e-9)
    longer = {**second, **{str(i): 9.5 for i in range(20, 30)}}
    apart = width([cells[0], requests(9.5, "b", "1")], [first, longer])
    assert width(cells, [first, longer]) < 0.5 * apart


def test_a_row_that_is_asked_twice_is_one_unit() -> None:
    values = {str(i): float(i) for i in range(40)}
    once, twice = (width([requests(19.5, "a", "0")], [values], times) for times in (1, 2))
    assert twice == pytest.approx(once, rel=1e-9)


def test_seeds_are_drawn_with_the_prompts() -> None:
    """Each prompt is as fast as the others, so that only seeds differ: by 3, 4 and 5 tokens a second."""
    speeds = {0: 3.0, 1: 4.0, 2: 5.0}
    cells = [
        records.record("sp", {"decode_tokens_per_s": speed}, seed=seed, labels={"seed": str(seed)})
        for seed, speed in speeds.items()
    ]

    class Lines:
        def rounds(self, key: str) -> list[dict[str, float | int | str | None]]:
            speed = next(speeds[cell.provenance.seed] for cell in cells if cell.key == key)
            return [{**line} for line in rounds_of(*[(2, 2 / speed)] * 6)]

        def answers(self, key: str) -> list[dict[str, float | int | str | None]]:
            return []

    column = ColumnSpec(
        key="speed", heading="Speed", value="decode_tokens_per_s", unit="tokens/s", aggregate="mean"
    )
    assert aggregate.figures(column, cells) == pytest.approx([4.0])
    assert interval_of(column, cells, [], Lines()) == pytest.approx((3.0, 5.0))
    one_seed = [replace(cell, provenance=replace(cell.provenance, seed=0)) for cell in cells]
    assert interval_of(column, one_seed, [], Lines()) == pytest.approx((4.0, 4.0))
    ratio = replace(column, relative_to="std")
    assert interval_of(ratio, cells, cells, Lines()) == pytest.approx((1.0, 1.0)), "paired"


def test_a_text_that_several_cells_read_counts_once() -> None:
    def record(method: str, dataset: str, prompts: int, **others: str) -> records.Record:
        inputs = {"dataset": dataset, "target": "t"}
        return records.record(method, {"prompts": prompts}, inputs=inputs, **others)

    cells = [record("sp", "d", 3), record("std", "d", 5), record("sp", "e", 4)]
    assert distinct(cells) == 9
    assert distinct([record("sp", "d", 1, weights="none")]) is None, "no text was computed"


def test_equal_examples_of_a_record_count_once() -> None:
    class Lines:
        def rounds(self, key: str) -> list[Round]:
            return []

        def answers(self, key: str) -> list[Round]:
            hashes = {"a" * 64: "aaaaaa", "b" * 64: "aba", "c" * 64: ""}[key]
            return [{"request": f"d/{i}", "row_hash": row_hash} for i, row_hash in enumerate(hashes)]

    def counted(key: str, prompts: int) -> int | None:
        record = records.record("sp", {"prompts": prompts}, inputs={"dataset": key, "target": "t"})
        return distinct([replace(record, key=key)], Samples(Lines()))

    assert (counted("a" * 64, 6), counted("b" * 64, 3), counted("c" * 64, 4)) == (1, 2, 4)


def test_answers_and_requests_have_intervals_too() -> None:
    right: list[Round] = [{"id": str(i), "right": i % 2, "baseline_right": 1} for i in range(6)]
    accuracies = {"accuracy": 50.0, "baseline_accuracy": 100.0, "difference": -50.0}
    found = with_interval(records.record("w8a8", accuracies), right)
    assert set(found.uncertainty) == {"accuracy", "difference"}
    low, high = found.uncertainty["accuracy"]  # type: ignore[misc]
    assert found.uncertainty["difference"] == pytest.approx((low - 100, high - 100)), "of the same rows"
    served: list[Round] = [
        {"id": "a", "ttft": 0.1 * i, "tpot": 0.01, "met": i % 3 > 0, "fell_back": 0, "right": i % 2}
        for i in range(6)
    ]
    values = {"ttft": 0.25, "met": 400 / 6, "accuracy": 50.0, "accuracy_in_time": 100 * 2 / 6}
    found = with_interval(records.record("elastilm", values), served)
    assert set(found.uncertainty) == set(values)
