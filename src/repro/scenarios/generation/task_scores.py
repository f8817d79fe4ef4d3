"""Score a cell's answers by their task, with the target's own answers beside them.

Must not know device time, sweeps, or how answers were obtained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import cast

from repro.core.errors import InputError
from repro.core.registry import discover, lookup, names, require_choice
from repro.data.config import DatasetConfig, scoring_of
from repro.data.scoring import GeneratedText, TaskScoring
from repro.data.template import Row
from repro.metrics.evaluated import figures, is_evaluated
from repro.records.record import Scalar, Spread
from repro.scenarios.base import spreads

MAIN_SCORE = "task_score"


@dataclass(frozen=True)
class Scored:
    """Scores of answers.

    Attributes:
        values: figures by name; see `repro.metrics.task.compared`.
        uncertainty: standard errors, and the 95% interval of a difference.
        answers: per prompt the score of each metric, and `target_METRIC`, the target's own.
    """

    values: Mapping[str, Scalar] = field(default_factory=dict)
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    answers: Sequence[Mapping[str, Scalar]] = ()


def _require_known(dataset: DatasetConfig) -> None:
    """InputError for a metric of the dataset's task that does not exist."""
    discover("repro.metrics")
    for name in (dataset.scoring.get("score") or {}).get("metrics") or ():
        require_choice(f"metric in scoring.score.metrics of dataset {dataset.name!r}", name, names("metric"))


def asked_of(metrics: Sequence[str], dataset: DatasetConfig) -> tuple[str, ...]:
    """The task's metrics among a run's: all of the dataset's for `task_score`, or the named ones.

    Raises:
        InputError: the dataset's task has no such metric, none at all, or one that does not exist;
            `task_score` would run generated code; this machine cannot compute one.
    """
    _require_known(dataset)
    metrics = [name for name in metrics if not is_evaluated(name)]
    if not metrics:
        return ()
    from repro.metrics.task import AnswerMetric  # late, with numpy

    discover("repro.metrics")
    scoring = [
        name for name in metrics if name != MAIN_SCORE and issubclass(lookup("metric", name), AnswerMetric)
    ]
    if not scoring and MAIN_SCORE not in metrics:
        return ()
    task_metrics = score_of(dataset).metrics
    for name in scoring:
        if name not in task_metrics:
            raise InputError(
                f"metric {name!r} scores answers by their task, and dataset {dataset.name!r} is scored by "
                f"{', '.join(task_metrics)}; choose one of these, or {MAIN_SCORE}"
            )
    selected = tuple(name for name in task_metrics if name in scoring or MAIN_SCORE in metrics)
    for name in selected:
        metric = lookup("metric", name)()
        if metric.runs_code and name not in scoring:
            raise InputError(
                f"dataset {dataset.name!r} is scored by running the answers' code; ask for it by name, "
                f"metrics=[{name}]"
            )
        metric.ready()
    return selected


def score_of(dataset: DatasetConfig) -> TaskScoring:
    """How a dataset's task scores answers; InputError, with the reason, if it does not."""
    scoring = scoring_of(dataset)
    if not isinstance(scoring, GeneratedText):
        raise InputError(
            f"dataset {dataset.name!r} is scored by likelihoods ({dataset.scoring['kind']}), not by "
            "generated answers; choose a compression instead of a method"
        )
    if scoring.score is None:
        raise InputError(
            f"dataset {dataset.name!r} has no task score; its file may name one as scoring.score.metrics"
        )
    if scoring.score.unscored:
        raise InputError(f"dataset {dataset.name!r} has no task score: {scoring.score.unscored}")
    return scoring.score


def evaluate_answers(
    metrics: Sequence[str], dataset: DatasetConfig, rows: Sequence[Row], texts: Sequence[str]
) -> dict[str, Scalar]:
    """Figures of metrics of `evaluate`, over all answers and the dataset's references.

    Raises:
        InputError: the dataset has no references, or a metric cannot score them.
    """
    scoring = scoring_of(dataset)
    if metrics and not (isinstance(scoring, GeneratedText) and scoring.reference):
        raise InputError(
            f"dataset {dataset.name!r} has no references for {metrics[0]} to compare answers with"
        )
    references = [scoring.references(row) for row in rows] if isinstance(scoring, GeneratedText) else []
    return {name: value for metric in metrics for name, value in figures(metric, texts, references).items()}


def score_answers(
    names: Sequence[str],
    dataset: DatasetConfig,
    rows: Sequence[Row],
    texts: Sequence[str],
    target_texts: Sequence[str] | None,
) -> Scored:
    """Score answers.

    Args:
        names: metrics, as `asked_of` returns them.
        dataset: the dataset; its first metric's figures are called `task_score`.
        rows: the example of each answer.
        texts: a method's answers.
        target_texts: the target's own answers; None skips what compares with them.

    Raises:
        InputError: a metric cannot score an example.
    """
    if not names:
        return Scored()
    from repro.metrics.task import compared  # late, with numpy

    scoring = cast(GeneratedText, scoring_of(dataset))
    references = [scoring.expected(row) for row in rows]
    task = score_of(dataset)
    main, texts = task.metrics[0], [*map(task.scored_part, texts)]
    target_texts = None if target_texts is None else [*map(task.scored_part, target_texts)]
    values: dict[str, Scalar] = {}
    columns: dict[str, list[float]] = {}
    for name in names:
        score = cache(lookup("metric", name)().score)  # a lossless method's answers are the target's own
        columns[name] = [score(text, answers) for text, answers in zip(texts, references, strict=True)]
        target_scores = None
        if target_texts is not None:
            target_scores = [
                score(text, answers) for text, answers in zip(target_texts, references, strict=True)
            ]
            columns[f"target_{name}"] = target_scores
        values |= compared(MAIN_SCORE if name == main else name, columns[name], target_scores)
    answer_scores = [{column: scores[i] for column, scores in columns.items()} for i in range(len(texts))]
    figures = {
        name: value for name, value in values.items() if not name.endswith(("_stderr", "_low", "_high"))
    }
    return Scored(figures, spreads(values, len(texts)), answer_scores)
