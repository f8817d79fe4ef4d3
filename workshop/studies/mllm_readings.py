"""Decide statements on mllm-NPU's quantization from the committed cells of mllm_npu/readings.

Run `python -m workshop.studies.mllm_readings`. Each line is a difference of readings with its 95% interval:
texts are resampled jointly over all cells of a line; a statement holds if the whole interval is on its side.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from repro.records.results import Results, open_results
from repro.reports.intervals.bootstrap import ends, figure, resample
from repro.reports.intervals.rounds import totals

TABLE = "mllm_npu/readings"
SMALL, LARGE = "SmolLM2-135M-Instruct", "Qwen2.5-Coder-0.5B"
ABOUT_ONE = 1.5
"""Points: a loss below it is printed as one point or none."""

Estimate = NDArray[np.float64]
"""A figure, then its values in all resamples; those of two figures over the same texts are drawn jointly."""


class Statement(NamedTuple):
    """A sentence, a figure that decides it, and the bound that the figure must be below or above."""

    says: str
    estimate: Estimate
    unit: str = "nats"
    bound: float = 0.0
    below: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval."""
        interval = ends(self.estimate[1:])
        assert interval is not None
        return interval

    @property
    def verdict(self) -> str:
        """`holds`, `fails` or `undetermined`, by the whole interval."""
        low, high = self.interval
        holds, fails = low > self.bound, high <= self.bound
        if self.below:
            holds, fails = high < self.bound, low >= self.bound
        return "holds" if holds else "fails" if fails else "undetermined"


class Readings:
    """The cells of the table by target, scale of weights, linears that keep outliers, and their rest."""

    def __init__(self, results: Results) -> None:
        self._results = results
        names = ("target", "weights_scale", "keeps", "rest", "dataset")
        self._keys = {tuple(m.labels[name] for name in names): m.key for m in results.members(TABLE)}

    def _estimate(self, metric: str, *place: str) -> Estimate:
        """A figure of a cell; KeyError if it was not computed."""
        key = self._keys[place]
        record = self._results.get(key)
        assert record is not None
        sums = totals(record, self._results.rounds(key))[metric]
        value, draws = figure(sums), resample(sums)
        assert value is not None
        assert draws is not None
        return np.concatenate([[value], draws])

    def nats(self, target: str, weights: str, keeps: str, rest: str = "rescale") -> Estimate:
        """Nats lost a token of wikitext-2."""
        return self._estimate("nats_lost", target, weights, keeps, rest, "wikitext2_texts")

    def points(self, target: str, weights: str, keeps: str, rest: str = "rescale") -> Estimate:
        """Points of LAMBADA's words lost."""
        return -self._estimate("difference", target, weights, keeps, rest, "lambada_openai")


def statements(of: Readings) -> Iterator[Statement]:
    """The statements on the page of mllm-NPU."""
    both, nats = (SMALL, LARGE), of.nats
    pruned = {target: nats(target, "row", "ranked") - nats(target, "row", "all") for target in both}
    coarse = {target: nats(target, "matrix", "all") - nats(target, "row", "all") for target in both}
    for target in both:
        yield Statement(f"{target}: pruning 85% loses", pruned[target])
    yield Statement("pruning loses less of the larger model", pruned[SMALL] - pruned[LARGE])
    for target in both:
        yield Statement(f"{target}: one scale a matrix loses", coarse[target])
    yield Statement("one scale a matrix loses more of Qwen2.5", coarse[LARGE] - coarse[SMALL])
    for target in both:
        more = nats(target, "row", "ends") - nats(target, "row", "ranked")
        yield Statement(f"{target}: layers at both ends lose more than ranked linears", more)
    for target in both:
        more = nats(target, "row", "ranked", "clamp") - nats(target, "row", "ranked")
        yield Statement(f"{target}: clamping loses more than rescaling", more)
    lost = {target: of.points(target, "row", "all") for target in both}
    lost["both"] = (lost[SMALL] + lost[LARGE]) / 2
    for target, points in lost.items():
        says = f"{target}: a scale a row, all shadows: about one point"
        yield Statement(says, points, "points", ABOUT_ONE, below=True)


def main() -> None:
    """Print every statement with its figure, interval and verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    for statement in statements(Readings(open_results(parser.parse_args().results))):
        low, high = statement.interval
        value, unit = statement.estimate[0], statement.unit
        print(f"{statement.says}: {value:.4f} [{low:.4f}, {high:.4f}] {unit}: {statement.verdict}")


if __name__ == "__main__":
    main()
