"""Fit the engines of mllm-NPU's latency table in closed form, and predict the rows that no fit touched.

python -m workshop.studies.fit_mllm                      parameters, then errors by engine and protocol
python -m workshop.studies.fit_mllm --cells              every predicted cell too
python -m workshop.studies.fit_mllm --prompts range      with other lengths of prompts
python -m workshop.studies.fit_mllm --quadratic attention    with the baselines' other form
python -m workshop.studies.fit_mllm --readings      mllm-NPU under each reading that the paper leaves open
python -m workshop.studies.fit_mllm --left-out           each cell of a baseline by a fit to the other models

Owns the yardsticks beside an error: the trivial predictor, and leaving one model out.

The forms were chosen after a review had seen the misses of the first engines and had tried these; the cells
that they are fitted to were written down before anything was computed with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, log
from statistics import geometric_mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from workshop.studies.mllm_closed_forms import (
    BASELINES,
    CHOSEN,
    DATASETS,
    MODELS,
    OURS,
    PROMPTS,
    QUADRATICS,
    STARTED,
    SUPPORTED,
    Errors,
    Fits,
    Form,
    Predict,
    cell,
    errors,
    linears,
    published,
)


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


def left_out(form: Callable[[Sequence[str]], Predict], column: str) -> Errors:
    """Errors of each model by a fit to all other models of a column."""
    found: Errors = {}
    for model in SUPPORTED[column]:
        others = [m for m in SUPPORTED[column] if m != model]
        found |= errors(form(others), column, [model])
    return found


def middle(found: Mapping[Any, float]) -> float:
    """Median absolute error."""
    return median(map(abs, found.values()))


def said(found: Mapping[Any, float]) -> str:
    """Median and 90th percentile of the absolute errors."""
    if not found:
        return "-"
    sizes = sorted(map(abs, found.values()))
    return f"{middle(found):.1%} ({sizes[ceil(0.9 * len(sizes)) - 1]:.0%})"


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
    def predicted(self) -> list[str]:
        """Models whose rows were not fitted."""
        fitted = CHOSEN[self.column] if self.again else ()
        return [m for m in SUPPORTED[self.column] if m not in fitted]


def engines(fits: Fits) -> list[FittedEngine]:
    """Five baselines, and both protocols of mllm-NPU."""
    found = []
    for column in BASELINES:
        again, own = partial(fits.baseline, column), CHOSEN[column]
        found.append(FittedEngine(column, column, again(own), again, nearest(column, own)))
    return [
        *found,
        FittedEngine("ours, zero-shot", OURS, fits.zero_shot(), None, fits.bound_by_weights),
        FittedEngine(
            "ours, anchored", OURS, fits.anchored(CHOSEN[OURS]), fits.anchored, nearest(OURS, CHOSEN[OURS])
        ),
    ]


def first(predict: Predict, baselines: Sequence[FittedEngine]) -> int:
    """Rows of the table in which mllm-NPU is predicted to be the fastest."""
    return sum(
        all(predict(m, d) < one.form.predict(m, d) for one in baselines if m in SUPPORTED[one.column])
        for m in MODELS
        for d in DATASETS
    )


HEADS = ("engine", "numbers", "fitted", "predicted", "n", "trivial", "skill", "floor", "one model left out")


def row(fits: Fits, one: FittedEngine) -> list[str]:
    """An engine's line of the table."""
    predicted = errors(one.form.predict, one.column, one.predicted)
    trivial = errors(one.trivial, one.column, one.predicted)
    inside = errors(one.form.predict, one.column, CHOSEN[one.column]) if one.again else {}
    apart = left_out(predicting(one.again), one.column) if one.again else {}
    return [
        one.name,
        ", ".join(f"{name} {value:.3g}" for name, value in one.form.numbers.items()),
        said(inside),
        said(predicted),
        str(len(predicted)),
        said(trivial),
        f"{1 - middle(predicted) / middle(trivial):.2f}",
        said(fits.floor(one.column, one.predicted)),
        said(apart),
    ]


def predicting(again: Callable[[Sequence[str]], Form]) -> Callable[[Sequence[str]], Predict]:
    """A fit that gives its prediction alone."""
    return lambda models: again(models).predict


READINGS = ("a start for each", *PROMPTS)
LEFT_OUT = ("engine", "n", "fit", "mean of the others, by weights", "nearest other, by weights")


def readings_rows() -> list[list[str]]:
    """Errors of mllm-NPU's 20 requests under each reading, and the trivial predictor's."""
    rows = []
    for started in STARTED:
        forms = [Fits(prompts, started=started).zero_shot() for prompts in PROMPTS]
        rows.append([started, *(said(errors(form.predict, OURS, MODELS)) for form in forms)])
    guesses = [errors(Fits(prompts).bound_by_weights, OURS, MODELS) for prompts in PROMPTS]
    return [*rows, ["the trivial predictor", *map(said, guesses)]]


def left_out_rows(fits: Fits) -> list[list[str]]:
    """Errors of each baseline's cells by rules that know the other models alone, and of all baselines'."""
    rules: list[dict[str, Errors]] = [
        {column: left_out(predicting(partial(fits.baseline, column)), column) for column in BASELINES},
        {column: left_out(partial(mean_rate, column), column) for column in BASELINES},
        {column: left_out(partial(nearest, column), column) for column in BASELINES},
    ]
    rows = [
        [column, str(len(rules[0][column])), *(said(rule[column]) for rule in rules)] for column in BASELINES
    ]
    every = [{(column, key): e for column in BASELINES for key, e in rule[column].items()} for rule in rules]
    return [*rows, ["all", str(len(every[0])), *map(said, every)]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", action="store_true", help="every predicted cell too")
    parser.add_argument("--prompts", choices=PROMPTS, default=PROMPTS[0], help="lengths of prompts")
    parser.add_argument("--quadratic", choices=QUADRATICS, default=QUADRATICS[0], help="the baselines' form")
    parser.add_argument("--readings", action="store_true", help="mllm-NPU under each reading")
    parser.add_argument("--left-out", action="store_true", help="baselines, one model left out")
    options = parser.parse_args(arguments)
    fits = Fits(options.prompts, options.quadratic)
    console = Console(width=160)
    if options.readings or options.left_out:
        heads, rows = (READINGS, readings_rows()) if options.readings else (LEFT_OUT, left_out_rows(fits))
        table = Table(*heads, title="Median error (90th percentile)")
        for line in rows:
            table.add_row(*line)
        console.print(table)
        return 0
    table = Table(*HEADS, title="Median error (90th percentile)")
    found = engines(fits)
    for one in found:
        table.add_row(*row(fits, one))
        if options.cells:
            each = errors(one.form.predict, one.column, one.predicted)
            console.print(one.name, {f"{m}.{d}": round(e, 3) for (m, d), e in each.items()})
    console.print(table)
    for one in found[len(BASELINES) :]:
        fastest = first(one.form.predict, found[: len(BASELINES)])
        console.print(f"{one.name}: fastest in {fastest} of {len(MODELS) * len(DATASETS)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
