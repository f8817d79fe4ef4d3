"""Errors of predictions: how many, how large, and how they compare with a trivial rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


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


def errors(predicted: Mapping[str, float], measured: Mapping[str, float], ids: Sequence[str]) -> ErrorSummary:
    """The errors over some ids; those without a prediction are left out."""
    ratios = pd.Series({id: predicted[id] / measured[id] for id in ids if id in predicted}, dtype=float)
    sizes, signed = (ratios - 1).abs(), np.exp(np.log(ratios).mean())
    return ErrorSummary(len(ratios), float(sizes.median()), float(sizes.quantile(0.9)), float(signed))


def skill(ours: ErrorSummary, trivial: ErrorSummary) -> float:
    """1 - median error over the trivial rule's: 1 is perfect, 0 no better, below 0 worse."""
    return 1 - ours.median / trivial.median if trivial.n and trivial.median else float("nan")
