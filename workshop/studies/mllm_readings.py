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
from repro.reports.intervals.bootstrap import drawn, ends, figure
from repro.reports.intervals.rounds import totals

TABLE = "mllm_npu/readings"
SMALL, LARGE = "SmolLM2-135M-Instruct", "Qwen2.5-Coder-0.5B"
ABOUT_ONE = 1.5
"""Points: a loss below it is printed as one point or none."""


class Reading(NamedTuple):
    """A cell's place in the table; `rest` is `rescale` where all linears keep their outliers."""

    target: str
    weights: str
    keeps: str
    rest: str = "rescale"


class Estimate(NamedTuple):
    """A figure, and its values in all resamples."""

    value: float
    draws: NDArray[np.float64]

    def less(self, other: Estimate) -> Estimate:
        """The difference of two figures over the same texts."""
        return Estimate(self.value - other.value, self.draws - other.draws)

    @property
    def ends(self) -> tuple[float, float]:
        """The 95% interval."""
        found = ends(self.draws)
        assert found is not None
        return found


class Statement(NamedTuple):
    """A sentence, a figure that decides it, and the bound that the figure must be below or above."""

    says: str
    estimate: Estimate
    unit: str
    bound: float
    below: bool = False

    @property
    def verdict(self) -> str:
        """`holds`, `fails` or `undetermined`, by the whole interval."""
        low, high = self.estimate.ends
        if self.below:
            return "holds" if high < self.bound else "fails" if low >= self.bound else "undetermined"
        return "holds" if low > self.bound else "fails" if high <= self.bound else "undetermined"


class Readings:
    """The cells of the table, by reading."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._keys = {
            (*(m.labels[name] for name in ("target", "weights_scale", "keeps", "rest", "dataset")),): m.key
            for m in results.members(TABLE)
        }

    def estimate(self, dataset: str, metric: str, reading: Reading) -> Estimate:
        """A figure of a reading; KeyError if its cell was not computed."""
        key = self._keys[(*reading, dataset)]
        record = self._results.get(key)
        assert record is not None
        own = totals(record, self._results.rounds(key))[metric]
        value, draws = figure(own), drawn(own)
        assert value is not None
        assert draws is not None
        return Estimate(value, draws)

    def nats(self, *reading: str) -> Estimate:
        """Nats lost a token of wikitext-2."""
        return self.estimate("wikitext2_texts", "nats_lost", Reading(*reading))

    def points(self, *reading: str) -> Estimate:
        """Points of LAMBADA's words lost."""
        gained = self.estimate("lambada_openai", "difference", Reading(*reading))
        return Estimate(-gained.value, -gained.draws)


def statements(of: Readings) -> Iterator[Statement]:
    """The statements on the page of mllm-NPU."""
    pruned = {
        target: of.nats(target, "row", "ranked").less(of.nats(target, "row", "all"))
        for target in (SMALL, LARGE)
    }
    coarse = {
        target: of.nats(target, "matrix", "all").less(of.nats(target, "row", "all"))
        for target in (SMALL, LARGE)
    }
    for target in (SMALL, LARGE):
        yield Statement(f"{target}: pruning 85% loses", pruned[target], "nats", 0.0)
    yield Statement("pruning loses less of the larger model", pruned[SMALL].less(pruned[LARGE]), "nats", 0.0)
    for target in (SMALL, LARGE):
        yield Statement(f"{target}: one scale a matrix loses", coarse[target], "nats", 0.0)
    yield Statement(
        "one scale a matrix loses more of Qwen2.5", coarse[LARGE].less(coarse[SMALL]), "nats", 0.0
    )
    for target in (SMALL, LARGE):
        ends_less = of.nats(target, "row", "ends").less(of.nats(target, "row", "ranked"))
        yield Statement(
            f"{target}: layers at both ends lose more than ranked linears", ends_less, "nats", 0.0
        )
    for target in (SMALL, LARGE):
        clamped = of.nats(target, "row", "ranked", "clamp").less(of.nats(target, "row", "ranked"))
        yield Statement(f"{target}: clamping loses more than rescaling", clamped, "nats", 0.0)
    for target in (SMALL, LARGE):
        lost = of.points(target, "row", "all")
        yield Statement(
            f"{target}: a scale a row, all shadows: about one point", lost, "points", ABOUT_ONE, True
        )
    both = [of.points(target, "row", "all") for target in (SMALL, LARGE)]
    mean = Estimate((both[0].value + both[1].value) / 2, (both[0].draws + both[1].draws) / 2)
    yield Statement("both: a scale a row, all shadows: about one point", mean, "points", ABOUT_ONE, True)


def main() -> None:
    """Print every statement with its figure, interval and verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    for one in statements(Readings(open_results(parser.parse_args().results))):
        low, high = one.estimate.ends
        print(f"{one.says}: {one.estimate.value:.4f} [{low:.4f}, {high:.4f}] {one.unit}: {one.verdict}")


if __name__ == "__main__":
    main()
