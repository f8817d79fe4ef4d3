"""What every metric of ours is: an `evaluate.Metric` that touches neither hub nor disk.

Owns that class, and the scoring of one outcome by several metrics. Must not know where outcomes come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.late import absent
from repro.core.registry import lookup

with absent(
    "transformers"
):  # evaluate's evaluators, which nobody here uses, would import its pipelines and torch
    import evaluate
    from evaluate.info import Features, Value

# The types of inputs under evaluate's own names: `repro.data` stays the only importer of `datasets`.
INTEGER, NUMBER, TEXT = Value("int64"), Value("float64"), Value("string")
INTEGERS, NUMBERS = [INTEGER], [NUMBER]

Scores = dict[str, Any]
"""Figures by name: numbers, None for one that is unknown, a list of numbers for a histogram."""


class Metric(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """A metric with its inputs and its unit; a subclass sets both and writes `_compute`.

    An outcome is a mapping from these names to one entry a prompt:

    - `predictions`, `references`: token ids that a method and the target alone emitted;
    - `prediction_texts`, `reference_texts`: the same, decoded by the caller;
    - `drafted`, `accepted`, `emitted`: tokens drafted, draft tokens accepted and tokens emitted,
      verification by verification;
    - `correct`: 1 where an answer is right;
    - `loglikelihoods`, `lengths`, `answers`: of each continuation its log-likelihood and its bytes, and which
      is right;
    - `values`, `baseline_values`: a figure of two methods on the same rows.

    `evaluate` would keep its inputs in files below the user's cache. Here they stay in memory.
    """

    inputs: ClassVar[Mapping[str, Any]]
    """The features of the inputs, by name."""

    version: ClassVar[int] = 1
    """Raised by hand when the metric's figures change (docs/identity.md)."""

    unit: ClassVar[str]
    """The unit of the metric's figures: `%`, `share`, `tokens`."""

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        text = type(self).__doc__ or ""
        return evaluate.MetricInfo(
            description=text, citation="", inputs_description="", features=Features(dict(self.inputs))
        )

    def _build_data_dir(self) -> str:
        # The original makes the folder, which a read-only home forbids; in memory it is never used.
        return str(self._data_dir_root)


def score(names: Iterable[str], outcome: Mapping[str, Sequence[Any]]) -> Scores:
    """The figures of several registered metrics on one outcome.

    Raises:
        InputError: a metric is unknown, or the outcome lacks one of its inputs, or has no prompt.
    """
    scores: Scores = {}
    for name in names:
        metric = lookup("metric", name)()
        if lacking := [key for key in metric.inputs if key not in outcome]:
            raise InputError(
                f"metric {name!r} needs {', '.join(lacking)}; the outcome has {', '.join(outcome)}"
            )
        scores.update(metric.compute(**{key: outcome[key] for key in metric.inputs}))
    return scores


def require_rows(rows: Sequence[Any], metric: str) -> None:
    """InputError if there is nothing to average over."""
    if not rows:
        raise InputError(f"metric {metric!r} has no rows to average over")
