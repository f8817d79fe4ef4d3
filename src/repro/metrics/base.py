"""What every metric of ours is, and how `evaluate` runs it without touching hub or disk.

Owns that class, and the scoring of one outcome by several metrics. Must not know where outcomes come from.
`evaluate` takes seconds to import and is imported when something is scored, so that a metric's name, unit and
version are known at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.late import absent
from repro.core.registry import lookup

# Types of inputs as `datasets` names them; a list of one is a list of such.
INTEGER, NUMBER, TEXT = "int64", "float64", "string"
INTEGERS, NUMBERS = [INTEGER], [NUMBER]

Scores = dict[str, Any]
"""Figures by name: numbers, None for one that is unknown, a list of numbers for a histogram."""


class Metric:
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
    """

    inputs: ClassVar[Mapping[str, Any]]
    """The types of the inputs by name: `INTEGER`, `NUMBER`, `TEXT`, or a list of one."""

    version: ClassVar[int] = 1
    """Raised by hand when the metric's figures change (docs/identity.md)."""

    unit: ClassVar[str]
    """The unit of the metric's figures: `%`, `share`, `tokens`."""

    _compute: Callable[..., Scores]
    """The figures of the inputs, which come by name."""

    def compute(self, **inputs: Sequence[Any]) -> Scores:
        """The figures, by `evaluate`, which checks the types of the inputs; ValueError for a wrong one."""
        found: Scores = self.as_evaluate().compute(**inputs)
        return found

    def as_evaluate(self) -> Any:
        """The same as an `evaluate.Metric`."""
        return _adapter()(self)


@cache
def _adapter() -> Any:
    """The subclass of `evaluate.Metric` that runs one of ours."""
    with absent("transformers"):  # evaluate's evaluators, unused here, would import its pipelines and torch
        import evaluate
        from evaluate.info import Features, Value

    def feature(kind: Any) -> Any:
        return [feature(each) for each in kind] if isinstance(kind, list) else Value(kind)

    class Adapter(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        """Keeps its inputs in memory: the original writes them to files below the user's cache."""

        def __init__(self, metric: Metric) -> None:
            self._metric = metric
            super().__init__(keep_in_memory=True)

        def _info(self) -> evaluate.MetricInfo:
            features = Features({name: feature(kind) for name, kind in self._metric.inputs.items()})
            text = type(self._metric).__doc__ or ""
            return evaluate.MetricInfo(
                description=text, citation="", inputs_description="", features=features
            )

        def _build_data_dir(self) -> str:
            # The original makes the folder, which a read-only home forbids; in memory it is never used.
            return str(self._data_dir_root)

        def _compute(self, **inputs: Any) -> Scores:
            return self._metric._compute(**inputs)

    return Adapter


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
