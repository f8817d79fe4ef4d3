"""The base class of metrics, and the scoring of an outcome by several of them.

Must not know where outcomes come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.registry import lookup

# Input types as named in `datasets`; `[T]` is a list of T.
INTEGER, NUMBER, TEXT = "int64", "float64", "string"
INTEGERS, NUMBERS = [INTEGER], [NUMBER]

Scores = dict[str, Any]
"""Figures by name: numbers, None for one that is unknown, a list of numbers for a histogram."""


class Metric:
    """A metric with its inputs and its unit; a subclass sets both and implements `_compute`.

    An outcome is a mapping from these names to lists with one entry per prompt:

    - `predictions`, `references`: token ids emitted by a method and by the target alone;
    - `prediction_texts`, `reference_texts`: the same, decoded by the caller;
    - `drafted`, `accepted`, `emitted`: number of tokens drafted, accepted and emitted, per verification;
    - `correct`: 1 if an answer is correct, else 0;
    - `loglikelihoods`, `lengths`, `answers`: log-likelihood and bytes per continuation, and the index of the
      correct one;
    - `values`, `baseline_values`: a figure of two methods on the same examples.
    """

    inputs: ClassVar[Mapping[str, Any]]
    """Input types by name: `INTEGER`, `NUMBER`, `TEXT`, or a list of one of them."""

    version: ClassVar[int] = 1
    """Raised by hand when the metric's figures change (docs/tables.md)."""

    unit: ClassVar[str]
    """The unit of the metric's figures: `%`, `share`, `tokens`."""

    _compute: Callable[..., Scores]
    """Computes the figures from the inputs, which are keyword arguments."""

    def compute(self, **inputs: Sequence[Any]) -> Scores:
        """Compute the figures; InputError if the inputs differ in length."""
        lengths = {name: len(column) for name, column in inputs.items()}
        if len({*lengths.values()}) > 1:
            counts = ", ".join(f"{name} ({length})" for name, length in lengths.items())
            raise InputError(f"a metric's inputs must have the same length, and they have {counts}")
        scores: Scores = self._compute(**inputs)
        return scores


def score(names: Iterable[str], outcome: Mapping[str, Sequence[Any]]) -> Scores:
    """Compute several registered metrics on one outcome.

    Raises:
        InputError: a metric is unknown, or the outcome lacks one of its inputs or is empty.
    """
    scores: Scores = {}
    for name in names:
        metric = lookup("metric", name)()
        if missing_inputs := [key for key in metric.inputs if key not in outcome]:
            raise InputError(
                f"metric {name!r} needs {', '.join(missing_inputs)}; the outcome has {', '.join(outcome)}"
            )
        scores.update(metric.compute(**{key: outcome[key] for key in metric.inputs}))
    return scores


def require_rows(rows: Sequence[Any], metric: str) -> None:
    """InputError if there is nothing to average over."""
    if not rows:
        raise InputError(f"metric {metric!r} has no rows to average over")
