"""Shares of right answers, with how far they can be trusted.

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

RESAMPLES = 2000
SEED = 0


@register("metric", "accuracy")
class Accuracy(Metric):
    """Right answers in percent, with the standard error in percentage points.

    Input `correct`: 1 for a right answer, 0 for a wrong one.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"correct": INTEGER}
    unit: ClassVar[str] = "%"

    def _compute(self, correct: Sequence[int]) -> Scores:
        require_rows(correct, "accuracy")
        if wrong := set(correct) - {0, 1}:
            raise InputError(f"metric 'accuracy' takes 0 and 1, not {sorted(wrong)}")
        mean, error = _mean_and_error([100.0 * value for value in correct])
        return {"accuracy": mean, "accuracy_stderr": error}


@register("metric", "multiple_choice")
class MultipleChoice(Metric):
    """Rows in percent whose right continuation is the likeliest, with standard errors in percentage points.

    `acc` compares log-likelihoods, `acc_norm` compares them per byte of the choice; of equals the first wins.

    Inputs, one entry a row: `loglikelihoods` of the continuations, in nats; `lengths`, the UTF-8 bytes of the
    bare choices; `answers`, the position of the right one.
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
        plain, normed = [], []
        for row, sizes, answer in zip(loglikelihoods, lengths, answers, strict=True):
            if len(row) != len(sizes) or min(sizes) < 1 or not 0 <= answer < len(row):
                raise InputError(
                    f"{len(row)} likelihoods, choices of {list(sizes)} bytes, the right one {answer}"
                )
            plain.append(100.0 * (int(np.argmax(row)) == answer))
            normed.append(100.0 * (int(np.argmax(np.divide(row, sizes))) == answer))
        acc, acc_error = _mean_and_error(plain)
        norm, norm_error = _mean_and_error(normed)
        return {"acc": acc, "acc_stderr": acc_error, "acc_norm": norm, "acc_norm_stderr": norm_error}


@register("metric", "paired_difference")
class PairedDifference(Metric):
    """Mean of a figure less a baseline's on the same rows, with standard error and a 95% bootstrap interval.

    The rows' difficulty is common to both and drops out. The interval is the percentile one, over 2000
    resamples of the rows with a fixed seed.

    Inputs: `values` and `baseline_values`, one a row, in any unit; the results are in the same.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"values": NUMBER, "baseline_values": NUMBER}
    unit: ClassVar[str] = "of the values"

    def _compute(self, values: Sequence[float], baseline_values: Sequence[float]) -> Scores:
        require_rows(values, "paired_difference")
        differences = np.subtract(values, baseline_values)
        generator = np.random.default_rng(SEED)
        rows = len(differences)
        means = [differences[generator.integers(rows, size=rows)].mean() for _ in range(RESAMPLES)]
        low, high = np.quantile(means, (0.025, 0.975))
        mean, error = _mean_and_error(list(differences))
        return {
            "difference": mean,
            "difference_stderr": error,
            "difference_low": float(low),
            "difference_high": float(high),
        }


def _mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error, from the sample's variance; of a single value it is unknown."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
