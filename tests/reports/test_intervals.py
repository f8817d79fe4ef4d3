"""Bootstrap intervals: of known distributions, of stored rounds, and paired over prompts."""

from dataclasses import replace
from pathlib import Path

import pytest

import records
from repro.records.record import Round
from repro.records.results import Results
from repro.reports.intervals.bootstrap import FEWEST, Total, drawn, figure, interval, paired
from repro.reports.intervals.rounds import totals, with_interval
from repro.reports.intervals.samples import Samples, distinct
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


def test_on_a_wall_clock_the_spread_over_repetitions_stays() -> None:
    record = records.record("std", VALUES, clock="wall", uncertainty={"decode_tokens_per_s": 0.1})
    assert with_interval(record, rounds_of(*PROMPTS)).uncertainty["decode_tokens_per_s"] == 0.1


def test_a_failed_cell_has_no_interval(tmp_path: Path) -> None:
    failed = records.record("std", {}, status="failed", error="Traceback")
    assert with_interval(failed, []) == failed
    assert Samples(Results(tmp_path)).drawn(failed, "ttft") is None


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
    assert aggregate.figure(column, cells) == pytest.approx(4.0)
    assert aggregate.interval(column, cells, [], Samples(Lines())) == pytest.approx((3.0, 5.0))
    one_seed = [replace(cell, provenance=replace(cell.provenance, seed=0)) for cell in cells]
    assert aggregate.interval(column, one_seed, [], Samples(Lines())) == pytest.approx((4.0, 4.0))
    ratio = replace(column, relative_to="std")
    assert aggregate.interval(ratio, cells, cells, Samples(Lines())) == pytest.approx((1.0, 1.0)), "paired"


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
    found = with_interval(records.record("w8a8", {"accuracy": 50.0, "baseline_accuracy": 100.0}), right)
    assert set(found.uncertainty) == {"accuracy"}
    served: list[Round] = [
        {"id": "a", "ttft": 0.1 * i, "tpot": 0.01, "met": i % 3 > 0, "fell_back": 0, "right": i % 2}
        for i in range(6)
    ]
    values = {"ttft": 0.25, "met": 400 / 6, "accuracy": 50.0, "accuracy_in_time": 100 * 2 / 6}
    found = with_interval(records.record("elastilm", values), served)
    assert set(found.uncertainty) == set(values)
