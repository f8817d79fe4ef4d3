"""Accuracy metrics with standard errors and confidence intervals.

Owns accuracies, their standard errors and paired differences. Must not know how answers were obtained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from repro.core.errors import InputError
from repro.core.registry import register
from repro.metrics.base import INTEGER, INTEGERS, NUMBER, NUMBERS, Metric, Scores, require_rows
from repro.records.record import FEWEST

RESAMPLES = 2000
SEED = 0


@register("metric", "accuracy")
class Accuracy(Metric):
    """Percentage of correct answers, with the standard error in percentage points.

    Input `correct`: 1 for a correct answer, 0 for a wrong one.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"correct": INTEGER}
    unit: ClassVar[str] = "%"

    def _compute(self, correct: Sequence[int]) -> Scores:
        require_rows(correct, "accuracy")
        if invalid_values := set(correct) - {0, 1}:
            raise InputError(f"metric 'accuracy' takes 0 and 1, not {sorted(invalid_values)}")
        mean, error = mean_and_error([100.0 * value for value in correct])
        return {"accuracy": mean, "accuracy_stderr": error}


@register("metric", "multiple_choice")
class MultipleChoice(Metric):
    """Percentage of examples whose correct continuation is the likeliest, with standard errors.

    `acc` compares log-likelihoods, `acc_norm` log-likelihoods per byte of the choice; ties go to the first.
    Standard errors are in percentage points.

    Inputs, one entry per example: `loglikelihoods` of the continuations, in nats; `lengths`, the UTF-8 bytes
    of the choices' texts; `answers`, the index of the correct one.
    """

    inputs: ClassVar[Mapping[str, Any]] = {
        "loglikelihoods": NUMBERS,
        "lengths": INTEGERS,
        "answers": INTEGER,
    }
    unit: ClassVar[str] = "%"

    def _compute(
        self,
        loglikelihoods: Sequence[Sequence[float]],
        lengths: Sequence[Sequence[int]],
        answers: Sequence[int],
    ) -> Scores:
        require_rows(answers, "multiple_choice")
        plain_hits, normed_hits = [], []
        for row, choice_lengths, answer in zip(loglikelihoods, lengths, answers, strict=True):
            if len(row) != len(choice_lengths) or min(choice_lengths) < 1 or not 0 <= answer < len(row):
                raise InputError(
                    f"{len(row)} likelihoods, choices of {list(choice_lengths)} bytes, the right one {answer}"
                )
            plain_hits.append(100.0 * (int(np.argmax(row)) == answer))
            normed_hits.append(100.0 * (int(np.argmax(np.divide(row, choice_lengths))) == answer))
        acc, acc_error = mean_and_error(plain_hits)
        norm, norm_error = mean_and_error(normed_hits)
        return {"acc": acc, "acc_stderr": acc_error, "acc_norm": norm, "acc_norm_stderr": norm_error}


@register("metric", "paired_difference")
class PairedDifference(Metric):
    """Mean paired difference to a baseline on the same examples, with standard error and 95% interval.

    The interval is a percentile bootstrap over 2000 resamples of the examples with a fixed seed; fewer than
    `FEWEST` examples have none.

    Inputs: `values` and `baseline_values`, one per example, in any unit; the results have the same unit.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"values": NUMBER, "baseline_values": NUMBER}
    unit: ClassVar[str] = "of the values"

    def _compute(self, values: Sequence[float], baseline_values: Sequence[float]) -> Scores:
        require_rows(values, "paired_difference")
        differences = np.subtract(values, baseline_values)
        generator = np.random.default_rng(SEED)
        row_count = len(differences)
        means = [differences[generator.integers(row_count, size=row_count)].mean() for _ in range(RESAMPLES)]
        low, high = (
            float(end) if row_count >= FEWEST else None for end in np.quantile(means, (0.025, 0.975))
        )
        mean, error = mean_and_error(list(differences))
        return {
            "difference": mean,
            "difference_stderr": error,
            "difference_low": low,
            "difference_high": high,
        }


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error of the mean, from the sample variance; the error of a single value is None."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
