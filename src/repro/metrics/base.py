"""The base class of metrics, and their form in `evaluate`, without hub or disk access.

Owns that class, and the scoring of an outcome by several metrics. Must not know where outcomes come from.
`evaluate` takes seconds to import, so it is imported when somebody asks for its form of a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.late import absent
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
    """Raised by hand when the metric's figures change (docs/identity.md)."""

    unit: ClassVar[str]
    """The unit of the metric's figures: `%`, `share`, `tokens`."""

    _compute: Callable[..., Scores]
    """Computes the figures from the inputs, which are keyword arguments."""

    def compute(self, **inputs: Sequence[Any]) -> Scores:
        """Compute the figures; InputError if the inputs differ in length."""
        lengths = {name: len(column) for name, column in inputs.items()}
        if len({*lengths.values()}) > 1:
            said = ", ".join(f"{name} ({length})" for name, length in lengths.items())
            raise InputError(f"a metric's inputs must have the same length, and they have {said}")
        found: Scores = self._compute(**inputs)
        return found

    def as_evaluate(self) -> Any:
        """This metric as an `evaluate.Metric`, which checks input types."""
        return _adapter()(self)


@cache
def _adapter() -> Any:
    """The subclass of `evaluate.Metric` that wraps a `Metric`."""
    # Else evaluate's evaluators, which are unused here, import pipelines with torch, and a second of scipy.
    with absent("transformers"), absent("scipy.stats"):
        import evaluate
        from evaluate.info import Features, Value

    def feature(kind: Any) -> Any:
        return [feature(each) for each in kind] if isinstance(kind, list) else Value(kind)

    class Adapter(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        """Keeps inputs in memory; the base class writes them to files in the user's cache."""

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
            # The base class creates the folder, which fails in a read-only home; in memory it is never used.
            return str(self._data_dir_root)

        def _compute(self, **inputs: Any) -> Scores:
            return self._metric._compute(**inputs)

    return Adapter


def score(names: Iterable[str], outcome: Mapping[str, Sequence[Any]]) -> Scores:
    """Compute several registered metrics on one outcome.

    Raises:
        InputError: a metric is unknown, or the outcome lacks one of its inputs or is empty.
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
