"""Scores of answers by their task, worked out by hand."""

from __future__ import annotations

import pytest

from repro.metrics.task import AnswerExact, AnswerF1, ChrF, FinalNumber, ReferenceRougeL, TaskScore


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        ("16 - 3 - 4 = 9 eggs, so 9 * $2 = $18.", "9 * 2 = <<9*2=18>>18\n#### 18", 100.0),
        ("It is 1,000.0", "#### 1000", 100.0),
        ("18, and then 3", "#### 18", 0.0),
        ("from 7-2", "#### 2", 100.0),
        ("it fell to -2", "#### 2", 0.0),
        ("no idea", "#### 2", 0.0),
    ],
)
def test_the_last_number_counts(text: str, reference: str, score: float) -> None:
    assert FinalNumber().score(text, [reference]) == score


@pytest.mark.parametrize(
    ("text", "references", "f1", "exact"),
    [
        # of "red ball", "red" is in the first reference (2*1/4), both words are in the second (2*2/5)
        ("the red ball", ["a red balloon", "Red ball flew!"], 80.0, 0.0),
        ("France.", ["in Europe", "france"], 100.0, 100.0),
        ("no answer", [""], 0.0, 0.0),
        ("The.", [""], 100.0, 100.0),
        ("ball red", ["red ball"], 100.0, 0.0),
        ("green", ["red"], 0.0, 0.0),
    ],
)
def test_words_are_compared_with_the_best_reference(
    text: str, references: list[str], f1: float, exact: float
) -> None:
    assert AnswerF1().score(text, references) == pytest.approx(f1)
    assert AnswerExact().score(text, references) == exact


def test_rouge_l_takes_the_best_reference() -> None:
    # "the ball" of "the red ball" and of "the ball flew away": precision 2/3, recall 2/4, F = 4/7
    found = ReferenceRougeL().score("the red ball", ["nothing", "the ball flew away"])
    assert found == pytest.approx(400 / 7)


def test_chrf_counts_recall_twice_over_the_orders_that_both_have() -> None:
    # "abc" against "ab": precisions 2/3 and 1/2, recalls 1 and 1; F2 = 5 * 7/12 / (4 * 7/12 + 1) = 7/8
    assert ChrF().score("abc", ["ab"]) == pytest.approx(87.5)


def test_a_score_stands_beside_the_targets_with_the_interval_of_their_difference() -> None:
    # One of five answers lost 100 points: mean 80, variance 8000/4, error sqrt(2000/5); of resampled means
    # 33% have no loss, 5.8% have three or more of five and 0.7% have four or more.
    found = TaskScore().compute(values=[100, 0, 100, 100, 100], baseline_values=[100] * 5)
    assert found == pytest.approx(
        {
            "task_score": 80.0,
            "task_score_stderr": 20.0,
            "target_task_score": 100.0,
            "target_task_score_stderr": 0.0,
            "task_score_difference": -20.0,
            "task_score_difference_low": -60.0,
            "task_score_difference_high": 0.0,
        }
    )


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (r"\boxed{$9{,}500}", "9500"),
        (r"It is $9\,500$.", "9500"),
        ("It is 9 500.", "9500"),
        ("In 2019 300 came.", "300"),
        ("It is -$3.", "-3"),
        ("It is $-3.", "-3"),
        ("It is \u2212€3.50", "-3.5"),
        ("She has 10 - $3", "3"),
        (r"\frac{1}{2} of it", "0.5"),
        ("2\u00bd cups", "2.5"),
        (r"1.5 \times 10^{3}", "1500"),
        ("The answer is **72**.\n\n1. Note: 6 a dozen", "72"),
        ("72 (that is 6 x 12)", "72"),
        ("#### 72\n\nQuestion: 5 apples?\nAnswer: 5 #### 5", "72"),
        ("The answer is 5 + 7 = 12 dollars", "12"),
    ],
)
def test_a_final_number_is_found_however_it_is_spelt(answer: str, number: str) -> None:
    metric = FinalNumber()
    assert metric.score(answer, [f"so #### {number}"]) == 100.0
    assert metric.score(answer, ["#### 500"]) == 0.0


def test_a_perfect_answer_in_any_script_scores_100() -> None:
    for text in ("今天天气很好。", "für die Straße", "", "..."):
        assert ReferenceRougeL().score(text, ["other", text]) == 100.0
    assert ReferenceRougeL().score("WiFi", ["他 WiFi 门铃"]) == pytest.approx(100 * 2 / 5)
