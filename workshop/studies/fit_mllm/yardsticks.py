"""Errors of the closed forms beside those of trivial predictors, and by fits that left a model out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import log, nan
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pandas as pd
from rich.table import Table

from workshop.studies.fit_mllm.closed_forms import (
    BASELINES,
    COLUMNS,
    DATASETS,
    MODELS,
    OURS,
    PROMPTS,
    STARTED,
    Errors,
    Fits,
    Form,
    Predict,
    cell,
    errors,
    linears,
    published,
)

NOTHING: Errors = pd.Series(dtype=float)
HEADS = ("engine", "numbers", "fitted", "predicted", "n", "trivial", "skill", "floor", "one model left out")
SCORED = ("engine", "fitted", "predicted", "n", "trivial", "skill")
READINGS = ("a start for each", *PROMPTS)
LEFT_OUT = ("engine", "n", "fit", "mean of the others, by weights", "nearest other, by weights")


def nearest(column: str, models: Sequence[str]) -> Predict:
    """The trivial predictor: the fitted model nearest in weights, same dataset, by weights."""

    def predict(model: str, dataset: str) -> float:
        by = min(models, key=lambda m: abs(log(linears(m) / linears(model))))
        return published(cell(column, by, dataset)) * linears(model) / linears(by)

    return predict


def mean_rate(column: str, models: Sequence[str]) -> Predict:
    """Another trivial predictor: the geometric mean of the models' times a weight, same dataset."""

    def predict(model: str, dataset: str) -> float:
        times = [published(cell(column, m, dataset)) / linears(m) for m in models]
        return geometric_mean(times) * linears(model)

    return predict


def left_out(predicting: Callable[[Sequence[str]], Predict], column: str) -> Errors:
    """Errors of each model by a fit to all other models of a column."""
    models = COLUMNS[column].models
    others = {model: [m for m in models if m != model] for model in models}
    return pd.concat([errors(predicting(others[model]), column, [model]) for model in models])


def middle(signed: Errors) -> float:
    """Median absolute error."""
    return float(signed.abs().median())


def in_words(signed: Errors) -> str:
    """Median and 90th percentile of the absolute errors."""
    if signed.empty:
        return "-"
    return f"{middle(signed):.1%} ({np.quantile(signed.abs(), 0.9, method='inverted_cdf'):.0%})"


def skill(predicted: Errors, trivial: Errors) -> str:
    """One less the median error over the trivial one."""
    return f"{1 - middle(predicted) / middle(trivial):.2f}"


@dataclass(frozen=True)
class FittedEngine:
    """An engine's fit.

    Attributes:
        name: in the table.
        column: of the latency table.
        form: what was fitted.
        again: fits the form to other models; None if it was fitted to no model.
        trivial: the trivial predictor.
    """

    name: str
    column: str
    form: Form
    again: Callable[[Sequence[str]], Form] | None
    trivial: Predict

    @property
    def fitted(self) -> Sequence[str]:
        """Models whose rows were fitted."""
        return COLUMNS[self.column].fitted if self.again else ()

    @property
    def predicted(self) -> list[str]:
        """Models whose rows were not fitted."""
        return [m for m in COLUMNS[self.column].models if m not in self.fitted]

    def row(self, fits: Fits) -> list[str]:
        """The engine's line of the table."""
        predicted = errors(self.form.predict, self.column, self.predicted)
        trivial = errors(self.trivial, self.column, self.predicted)
        apart = left_out(predicting(self.again), self.column) if self.again else NOTHING
        return [
            self.name,
            ", ".join(f"{name} {value:.3g}" for name, value in self.form.numbers.items()),
            in_words(errors(self.form.predict, self.column, self.fitted)),
            in_words(predicted),
            str(len(predicted)),
            in_words(trivial),
            skill(predicted, trivial),
            in_words(fits.floor(self.column, self.predicted)),
            in_words(apart),
        ]


def predicting(fit: Callable[[Sequence[str]], Form]) -> Callable[[Sequence[str]], Predict]:
    """A fit that gives its prediction alone."""
    return lambda models: fit(models).predict


def engines(fits: Fits) -> list[FittedEngine]:
    """Five baselines, and both protocols of mllm-NPU."""
    fitted = COLUMNS[OURS].fitted
    ours = [
        FittedEngine("ours, zero-shot", OURS, fits.zero_shot(), None, fits.bound_by_weights),
        FittedEngine("ours, anchored", OURS, fits.anchored(fitted), fits.anchored, nearest(OURS, fitted)),
    ]
    baselines = []
    for column in BASELINES:
        fit, models = partial(fits.baseline, column), COLUMNS[column].fitted
        baselines.append(FittedEngine(column, column, fit(models), fit, nearest(column, models)))
    return [*baselines, *ours]


def first(predict: Predict, baselines: Sequence[FittedEngine]) -> int:
    """Rows of the table in which mllm-NPU is predicted to be the fastest."""
    return sum(
        all(predict(m, d) < b.form.predict(m, d) for b in baselines if m in COLUMNS[b.column].models)
        for m in MODELS
        for d in DATASETS
    )


def readings_rows() -> list[list[str]]:
    """Errors of mllm-NPU's 20 requests under each reading, and the trivial predictor's."""
    rows = []
    for started in STARTED:
        forms = [Fits(prompts, started=started).zero_shot() for prompts in PROMPTS]
        rows.append([started, *(in_words(errors(form.predict, OURS, MODELS)) for form in forms)])
    guesses = [errors(Fits(prompts).bound_by_weights, OURS, MODELS) for prompts in PROMPTS]
    return [*rows, ["the trivial predictor", *map(in_words, guesses)]]


def left_out_rows(fits: Fits) -> list[list[str]]:
    """Errors of each baseline's cells by rules that know the other models alone, and of all baselines'."""
    rules = (
        lambda c: predicting(partial(fits.baseline, c)),
        lambda c: partial(mean_rate, c),
        lambda c: partial(nearest, c),
    )
    by_rule = [pd.concat({column: left_out(rule(column), column) for column in BASELINES}) for rule in rules]
    parts = [(column, [rule[column] for rule in by_rule]) for column in BASELINES]
    return [[name, str(len(part[0])), *map(in_words, part)] for name, part in (*parts, ("all", by_rule))]


def read_ratios(path: Path) -> dict[str, Errors]:
    """Errors by column of a made `mllm_npu/table4`, over its published cells."""
    ratios = pd.read_csv(path).dropna(subset="ratio").set_index("reference")["ratio"]

    def of_column(column: str) -> Errors:
        return errors(
            lambda *row: ratios[cell(column, *row)] * published(cell(column, *row)),
            column,
            COLUMNS[column].models,
        )

    return {column: of_column(column) for column in COLUMNS}


def score(signed: Mapping[str, Errors]) -> Table:
    """Errors of the predicted cells of a made table beside the trivial ones, by engine and together."""
    table = Table(*SCORED, title="Emulated: median error (90th percentile)")
    predicted, trivial = NOTHING, NOTHING

    def add(name: str, fitted: Errors, rest: Errors, guess: Errors) -> None:
        words = in_words(fitted), in_words(rest), str(len(rest)), in_words(guess), skill(rest, guess)
        table.add_row(name, *words)

    for engine in engines(Fits())[:-1]:
        if engine.column == OURS:
            add("all baselines", NOTHING, predicted, trivial)
        ours, guess = signed[engine.column], errors(engine.trivial, engine.column, engine.predicted)
        is_fitted = ours.index.get_level_values("model").isin(engine.fitted)
        add(engine.name, ours[is_fitted], ours[~is_fitted], guess)
        predicted, trivial = pd.concat([predicted, ours[~is_fitted]]), pd.concat([trivial, guess])
    add("all", NOTHING, predicted, trivial)
    return table


def order(signed: Mapping[str, Errors]) -> tuple[int, int, int, int]:
    """How well the order of the systems in each row is met.

    Returns:
        Rows with mllm-NPU as the fastest, rows with it and another system, pairs of systems of a row in the
        printed order, and pairs.
    """
    errors_by_column = pd.DataFrame(signed)
    printed = errors_by_column.apply(
        lambda e: [published(cell(e.name, *row)) if pd.notna(e[row]) else nan for row in e.index]
    )
    ours = printed * (1 + errors_by_column)
    several = printed[printed.count(axis=1) > 1]
    rows = several[OURS].notna()
    first = ours.loc[several.index].idxmin(axis=1) == OURS
    right = pairs = 0
    for a, b in combinations(printed, 2):
        both = printed[a].notna() & printed[b].notna()
        pairs += int(both.sum())
        right += int(((printed[a] < printed[b]) == (ours[a] < ours[b]))[both].sum())
    return int(first.sum()), int(rows.sum()), right, pairs
