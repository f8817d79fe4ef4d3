"""Errors of predictions: how many, how large, and how they compare with a trivial rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ErrorSummary:
    """Relative errors |predicted / measured - 1| of a set of predictions.

    Attributes:
        n: how many.
        median: the median; NaN without predictions.
        p90: the 90th percentile.
        signed: geometric mean of predicted over measured: above 1 if predictions are too large.
    """

    n: int
    median: float
    p90: float
    signed: float


def relative_errors(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """|predicted / measured - 1| by id, over the ids of `predicted`."""
    return {one: abs(value / measured[one] - 1) for one, value in predicted.items()}


def errors(predicted: Mapping[str, float], measured: Mapping[str, float], ids: Sequence[str]) -> ErrorSummary:
    """The errors over some ids; those without a prediction are left out."""
    ids = [one for one in ids if one in predicted]
    if not ids:
        return ErrorSummary(0, float("nan"), float("nan"), float("nan"))
    ratios = np.array([predicted[one] / measured[one] for one in ids])
    wrong = list(relative_errors({one: predicted[one] for one in ids}, measured).values())
    signed = float(np.exp(np.mean(np.log(ratios))))
    return ErrorSummary(len(ids), float(np.median(wrong)), float(np.percentile(wrong, 90)), signed)


def skill(ours: ErrorSummary, trivial: ErrorSummary) -> float:
    """1 - median error over the trivial rule's: 1 is perfect, 0 no better, below 0 worse."""
    return 1 - ours.median / trivial.median if trivial.n and trivial.median else float("nan")
