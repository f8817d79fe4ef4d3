"""Metrics against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from repro.core.errors import InputError
from repro.core.registry import registered
from repro.metrics.acceptance import Acceptance, DraftCorrectness
from repro.metrics.accuracy import Accuracy, MultipleChoice, PairedDifference
from repro.metrics.base import score
from repro.metrics.text import ExactMatch, RougeL, RougeLTokens, tokens

NAMES = [
    "acceptance",
    "accuracy",
    "answer_exact",
    "answer_f1",
    "chrf",
    "draft_correctness",
    "exact_match",
    "final_number",
    "multiple_choice",
    "paired_difference",
    "pass_at_1",
    "reference_rouge_l",
    "rouge_l",
    "rouge_l_tokens",
    "task_score",
]


def rouge(predictions: list[str], references: list[str]) -> float:
    value: float = RougeL().compute(prediction_texts=predictions, reference_texts=references)["rouge_l"]
    return value


def rouge_tokens(predictions: list[list[int]], references: list[list[int]]) -> float:
    value: float = RougeLTokens().compute(predictions=predictions, references=references)["rouge_l_tokens"]
    return value


def accept(accepted: list[list[int]], emitted: list[list[int]]) -> dict[str, Any]:
    scores: dict[str, Any] = Acceptance().compute(accepted=accepted, emitted=emitted)
    return scores


# Text


def test_rouge_l_is_the_f_measure_over_words_in_percent() -> None:
    # "the red ball" and "the ball flew away" share "the ball": precision 2/3, recall 2/4, F = 4/7.
    assert rouge(["the red ball"], ["the ball flew away"]) == pytest.approx(400 / 7)


def test_rouge_l_drops_punctuation_and_case_where_token_ids_do_not() -> None:
    vocabulary = {token: i for i, token in enumerate(["f", "F", "(", ")", "x", "[", "]"])}
    ours, theirs = ["f", "(", "x", ")"], ["F", "[", "x", "]"]
    assert rouge(["".join(ours)], ["".join(theirs)]) == 100.0
    # Of four tokens on either side only `x` is common: F = 1/4.
    assert rouge_tokens([[vocabulary[t] for t in ours]], [[vocabulary[t] for t in theirs]]) == 25.0


def test_equal_texts_score_100_also_where_the_tokenizer_finds_no_word() -> None:
    assert rouge(["天气很好。"], ["天气很好。"]) == 100.0
    assert rouge(["天气很好。"], ["天气不好。"]) == 75.0, "three of four characters"
    assert rouge(["", "..."], ["", "..."]) == 100.0
    assert rouge(["", "。"], ["x", "、"]) == 0.0


def test_letters_of_all_scripts_are_tokens() -> None:
    assert tokens("他做了 WiFi门铃。") == ["他", "做", "了", "wifi", "门", "铃"]
    assert tokens("für die Straße") == ["für", "die", "straße"]
    assert tokens("ไปดี हिन्दी 한국어 мир") == ["ไ", "ป", "ดี", "हिन्दी", "한국어", "мир"]
    assert tokens("e\u0301te\u0301") == tokens("été") == ["été"]


@given(st.text(st.characters(max_codepoint=127)), st.text(st.characters(max_codepoint=127)))
def test_on_ascii_text_tokens_and_scores_are_those_of_rouge_score(one: str, other: str) -> None:
    assert tokens(one) == DefaultTokenizer(False).tokenize(one)
    plain = RougeScorer(["rougeL"]).score(other, one)["rougeL"].fmeasure
    assert rouge([one], [other]) == (100.0 if one == other else 100.0 * plain)


def test_rouge_l_over_tokens_takes_each_id_whole() -> None:
    assert rouge_tokens([[1, 23]], [[12, 3]]) == 0.0
    # [1, 2, 3, 4] and [2, 9, 4]: the common subsequence is [2, 4], precision 2/4, recall 2/3, F = 4/7.
    assert rouge_tokens([[1, 2, 3, 4]], [[2, 9, 4]]) == pytest.approx(400 / 7)


def test_exact_match_is_a_share_of_prompts() -> None:
    same = ExactMatch().compute(predictions=[[1, 2], [1, 2], [], [3]], references=[[1, 2], [1], [], [4]])
    assert same == {"exact_match": 0.5}


# Acceptance


def test_acceptance_is_totals_over_totals() -> None:
    # Prompt means of emitted tokens are 4 and 1.5; the totals are 7 tokens in 3 verifications.
    scores = accept([[3], [0, 1]], [[4], [1, 2]])
    assert scores["acceptance_length"] == pytest.approx(7 / 3)
    assert scores["accepted_draft_tokens"] == pytest.approx(4 / 3)


def test_acceptance_by_position_follows_from_the_histogram() -> None:
    scores = accept([[3, 0, 1, 1]], [[4, 1, 2, 2]])
    assert scores["acceptance_histogram"] == [1, 2, 0, 1]
    assert scores["acceptance_by_position"] == [0.75, 0.25, 0.25]
    assert sum(scores["acceptance_by_position"]) == pytest.approx(scores["accepted_draft_tokens"])


def test_an_output_that_ends_before_the_bonus_token_emits_none() -> None:
    scores = accept([[2, 2]], [[3, 2]])
    assert (scores["acceptance_length"], scores["accepted_draft_tokens"]) == (2.5, 2.0)


@pytest.mark.parametrize(
    ("accepted", "emitted", "says"),
    [
        ([[2]], [[4]], "verification 0 accepted 2 draft tokens and emitted 4 tokens, not 2 or 3"),
        ([[0, 3]], [[1, 2]], "verification 1 accepted 3 draft tokens and emitted 2"),
        ([[-1]], [[0]], "accepted -1"),
        ([[1, 1]], [[2]], "2 verifications accepted tokens and 1 emitted some"),
        ([[]], [[]], "'acceptance' has no rows"),
    ],
)
def test_counts_that_cannot_be_are_refused(
    accepted: list[list[int]], emitted: list[list[int]], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        accept(accepted, emitted)


def correctness(drafted: list[list[int]], accepted: list[list[int]]) -> dict[str, Any]:
    scores: dict[str, Any] = DraftCorrectness().compute(drafted=drafted, accepted=accepted)
    return scores


def test_draft_correctness_is_totals_over_totals_with_a_standard_error() -> None:
    # 3 of 4 right; the sample's variance of (1, 1, 1, 0) is 1/4, its mean's standard error 1/4.
    assert correctness([[1, 1], [1, 1]], [[1, 0], [1, 1]]) == pytest.approx(
        {"draft_correctness": 75.0, "draft_correctness_stderr": 25.0}
    )
    assert correctness([[1]], [[1]]) == {"draft_correctness": 100.0, "draft_correctness_stderr": None}


@pytest.mark.parametrize(("drafted", "accepted"), [([[0]], [[0]]), ([[1]], [[2]])])
def test_a_share_of_nothing_is_refused(drafted: list[list[int]], accepted: list[list[int]]) -> None:
    with pytest.raises(InputError, match="drafted tokens were accepted, which is no share"):
        correctness(drafted, accepted)


# Accuracy


def test_accuracy_has_a_standard_error() -> None:
    scores = Accuracy().compute(correct=[1, 1, 1, 0])
    assert scores["accuracy"] == 75.0
    # Sample variance 0.75 * 0.25 * 4 / 3 = 1/4, over 4 rows: 1/16.
    assert scores["accuracy_stderr"] == pytest.approx(25.0)
    assert Accuracy().compute(correct=[1]) == {"accuracy": 100.0, "accuracy_stderr": None}
    with pytest.raises(InputError, match=r"takes 0 and 1, not \[2\]"):
        Accuracy().compute(correct=[1, 2])


def test_length_normalization_can_change_the_choice() -> None:
    scores = MultipleChoice().compute(
        loglikelihoods=[[-4.0, -6.0], [-1.0, -2.0]], lengths=[[2, 12], [4, 4]], answers=[1, 0]
    )
    assert (scores["acc"], scores["acc_norm"]) == (50.0, 100.0)
    assert (scores["acc_stderr"], scores["acc_norm_stderr"]) == (pytest.approx(50.0), 0.0)


@pytest.mark.parametrize(("lengths", "answer"), [([1], 0), ([1, 0], 0), ([1, 1], 2), ([1, 1], -1)])
def test_a_row_of_choices_that_does_not_fit_is_refused(lengths: list[int], answer: int) -> None:
    with pytest.raises(InputError, match="2 likelihoods"):
        MultipleChoice().compute(loglikelihoods=[[-1.0, -2.0]], lengths=[lengths], answers=[answer])


def test_a_paired_difference_ignores_what_both_share() -> None:
    hard = [10.0, 50.0, 90.0, 30.0, 20.0, 40.0]
    ours = [value + gain for value, gain in zip(hard, (1.0, 3.0, 1.0, 3.0, 1.0, 3.0), strict=True)]
    scores = PairedDifference().compute(values=ours, baseline_values=hard)
    assert scores["difference"] == 2.0
    # Differences 1, 3, 1, 3, 1, 3: sample variance 6/5, over 6 rows 1/5.
    assert scores["difference_stderr"] == pytest.approx(math.sqrt(1 / 5))
    assert 1.0 <= scores["difference_low"] < 2.0 < scores["difference_high"] <= 3.0
    assert scores == PairedDifference().compute(values=ours, baseline_values=hard)


def test_fewer_than_five_pairs_have_no_interval() -> None:
    ends = ("difference_low", "difference_high")
    four = PairedDifference().compute(values=[100.0] * 4, baseline_values=[0.0] * 4)
    assert [four[end] for end in ends] == [None, None]
    five = PairedDifference().compute(values=[100.0] * 5, baseline_values=[0.0] * 5)
    assert [five[end] for end in ends] == [100.0, 100.0]


# Several at once


def test_an_outcome_is_scored_by_several_metrics() -> None:
    outcome = {
        "predictions": [[1, 2]],
        "references": [[1, 2]],
        "prediction_texts": ["a b"],
        "reference_texts": ["a c"],
        "accepted": [[1]],
        "emitted": [[2]],
    }
    scores = score(["exact_match", "rouge_l", "acceptance"], outcome)
    assert scores["exact_match"] == 1.0
    assert scores["rouge_l"] == 50.0
    assert scores["acceptance_length"] == 2.0
    with pytest.raises(InputError, match="metric 'accuracy' needs correct; the outcome has predictions, "):
        score(["accuracy"], outcome)
    with pytest.raises(InputError, match=r"there is no metric 'rouge'. Did you mean rouge_l"):
        score(["rouge"], outcome)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_average_is_refused(name: str) -> None:
    inputs = registered("metric")[name].inputs  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=f"metric '{name}' has no rows"):
        score([name], {key: [] for key in inputs})
