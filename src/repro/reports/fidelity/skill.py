"""What an error is worth: the trivial predictor's error, and the noise of the paper's own numbers.

Owns both. The trivial predictor knows printed values and weights, and nothing of any system.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from repro.core.errors import InputError
from repro.reports.comparison.comparison import Compared, Figure
from repro.reports.comparison.summary import median
from repro.reports.fidelity.headlines import Headlines
from repro.reports.reference.names import DisplayNames
from repro.reports.reference.reference import PublishedCell, find, select

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*B\b", re.IGNORECASE)
"""Billions of parameters in a model's name."""

COORDINATES = ("artifact", "device", "system", "dataset", "condition", "draft_model", "relative_to")
"""Fields by which a fitted cell is near a predicted one."""

GROWS = ("latency", "energy", "memory", "time")
SHRINKS = ("throughput",)
"""Words of metrics that grow, and shrink, in proportion to a model's weights."""


TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
"""How many of a unit a second has."""


@dataclass(frozen=True)
class TrivialPredictor:
    """What it may read: cells of baselines that a fit used, and printed values.

    Attributes:
        fitted: published cells that a fit used.
        rates: of a paper whose system is an engine of its own, the abstract's rate in tokens a second.
        baselines: of a paper whose system is a method, the printed baseline that all methods equal.
        spellings: by paper, the engine that each spelling of a system means.
        weights: billions in the layers of models whose names say another number, by plain name.
    """

    fitted: Sequence[PublishedCell] = ()
    rates: Mapping[str, PublishedCell] = field(default_factory=dict)
    baselines: Mapping[str, Sequence[PublishedCell]] = field(default_factory=dict)
    spellings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def compared(self, one: Compared) -> Compared | None:
        """The comparison with the trivial figure in place of ours; None if there is none."""
        value = self._figure(one)
        return None if value is None else replace(one, ours=(Figure(value),), certain="", n=None)

    def _figure(self, one: Compared) -> float | None:
        """The trivial figure in the unit of ours.

        Rouge-L is the target's own. Memory of 8-bit weights is their bytes. A ratio is the quotient of the
        trivial times; of methods and ablations it is 1, and a difference 0. A time or throughput of a paper's
        own engine, with and without its parts, is that of the abstract's rate, scaled by weights; a
        baseline's that of the nearest fitted cell of its engine. Any other value is that of the nearest
        fitted cell, or of the baseline that all methods equal.
        """
        cell = one.cell
        if cell.metric == "rouge_l":
            return 100.0
        if cell.relative_to and (ratio := self._ratio(one)) is not None:
            return ratio
        if cell.unit == "GB" and "INT8 weights" in cell.condition and (size := _size(cell.model)):
            return size
        if one.published.low is None or not cell.value_low:
            return None
        value = self._by_rate(cell) if cell.paper in self.rates else None
        value = self._nearest(cell) if value is None else value
        return None if value is None else value * one.published.low / cell.value_low

    def _ratio(self, one: Compared) -> float | None:
        if one.unit != "x":
            return 0.0 if one.unit in ("%", "percentage_point") else None
        cell = one.cell
        own, base = self._engine(cell, cell.system), self._engine(cell, cell.relative_to)
        near = self._near(cell, base) if base and own != base else None
        rate = self.rates.get(cell.paper)
        if near is None or rate is None or not cell.metric.endswith(("speedup", "reduction")):
            return 1.0
        return (rate.value_low or 0.0) * self._times(rate.model, near.model) / _rate(near)

    def _by_rate(self, cell: PublishedCell) -> float | None:
        """A time or throughput of the nearest fitted cell of its engine, or by the abstract's rate."""
        if cell.unit not in (*TIMES, "tokens/s"):
            return None
        near, rate = self._near(cell, self._engine(cell, cell.system)), self.rates[cell.paper]
        times = self._times(cell.model, (near or rate).model)
        if not times:
            return None
        if cell.unit == "tokens/s":
            return _rate(near or rate) / times
        length = _length(cell)
        seconds = near.value_low if near else length / _rate(rate) if length else None
        return None if seconds is None else seconds * times * TIMES[cell.unit]

    def _times(self, model: str, other: str) -> float:
        """How many times as heavy one model is as another; 0 if that of one is not known."""
        if model == other:
            return 1.0
        known = all(plain(name) in self.weights for name in (model, other))
        own, its = (self.weights[plain(name)] if known else _size(name) for name in (model, other))
        return own / its if own and its else 0.0

    def _engine(self, cell: PublishedCell, system: str) -> str:
        return self.spellings.get(cell.paper, {}).get(plain(system), "")

    def _near(self, cell: PublishedCell, engine: str) -> PublishedCell | None:
        """The fitted time of a whole prompt by an engine that is nearest to a cell, of any version."""
        times = [
            near
            for near in self.fitted
            if engine and self._engine(near, near.system) == engine and near.id != cell.id
            if _version(near) == _version(cell) and near.unit == "s" and _length(near) and near.value_low
        ]
        return max(
            times,
            key=lambda near: (near.model == cell.model, _alike(near, cell), -_apart_in_length(near, cell)),
            default=None,
        )

    def _nearest(self, cell: PublishedCell) -> float | None:
        equal = [base for base in self.baselines.get(cell.paper, ()) if base.system != cell.system]
        others = [
            (near, value)
            for near in (*self.fitted, *equal)
            if near.id != cell.id
            and (near.paper, near.metric, near.unit) == (cell.paper, cell.metric, cell.unit)
            if near.value_low is not None and near.value_low == near.value_high
            if (value := self._scaled(near, cell)) is not None
        ]
        if not others:
            return None
        return max(others, key=lambda other: (_alike(other[0], cell), other[0].model == cell.model))[1]

    def _scaled(self, near: PublishedCell, cell: PublishedCell) -> float | None:
        """The near cell's value for the weights of the other's model; None if a size is not known."""
        assert near.value_low is not None
        if near.model == cell.model:
            return near.value_low
        power = 1 if any(word in cell.metric for word in GROWS) else 0
        power = -1 if any(word in cell.metric for word in SHRINKS) else power
        times = self._times(cell.model, near.model) if power else 1.0
        return near.value_low * times**power if times else None


def trivial_predictor(
    cells: Mapping[str, PublishedCell], fitted: Collection[str], headlines: Headlines, names: DisplayNames
) -> TrivialPredictor:
    """The predictor of all papers; `fitted` are ids of cells that a fit used."""
    spellings = {
        paper: {plain(text): engine for text, engine in names.spellings(paper, "method").items()}
        for paper in headlines.rates
    }
    return TrivialPredictor(
        fitted=[cells[name] for name in sorted(fitted) if name in cells and not cells[name].determined],
        rates={paper: cells[name] for paper, name in headlines.rates.items()},
        baselines={
            paper: select(cells, paper=paper, system=system) for paper, system in headlines.baselines.items()
        },
        spellings=spellings,
        weights={plain(model): float(billions) for model, billions in headlines.weights.items()},
    )


def plain(system: str) -> str:
    """A system's name without what papers spell differently: `llama.cpp (CPU)` as `llama.cpp-CPU`."""
    return re.sub(r"[^a-z0-9]", "", system.lower())


def _version(cell: PublishedCell) -> str:
    return cell.paper.removesuffix("_v2")


def _size(model: str) -> float | None:
    """Billions of parameters; None if the name does not say."""
    found = SIZE.search(model)
    return float(found[1]) if found else None


def _length(cell: PublishedCell) -> float | None:
    """Tokens of the prompt, of a range the middle; None if they are not printed."""
    numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", cell.conditions.get("prompt_length", ""))
    return (float(numbers[1]) + float(numbers[2] or numbers[1])) / 2 if numbers else None


def _apart_in_length(near: PublishedCell, cell: PublishedCell) -> float:
    lengths = [_length(one) or 1.0 for one in (near, cell)]
    return max(lengths) / min(lengths)


def _rate(near: PublishedCell) -> float:
    """Tokens of the prompt a second, printed or of a fitted time."""
    return (
        (near.value_low or 0.0)
        if near.unit == "tokens/s"
        else (_length(near) or 0.0) / (near.value_low or 1.0)
    )


def _alike(near: PublishedCell, cell: PublishedCell) -> int:
    return sum(getattr(near, name) == getattr(cell, name) for name in COORDINATES)


@dataclass(frozen=True)
class Skill:
    """Our median error and the trivial predictor's, over the comparisons for which it has a figure."""

    n: int
    ours: float
    trivial: float

    @property
    def value(self) -> float:
        """1 less the ratio of the medians."""
        return 1 - self.ours / self.trivial


def skill(ours: Sequence[Compared], theirs: Sequence[Compared | None]) -> Skill | None:
    """The medians over the comparisons that both have; None of none."""
    both = [(a, b) for a, b in zip(ours, theirs, strict=True) if b is not None and b.error is not None]
    own, other = median([a for a, _ in both]), median([b for _, b in both])
    return Skill(len(both), own, other) if own is not None and other else None


def read_floors(path: Path, cells: Mapping[str, PublishedCell]) -> dict[str, float]:
    """How far the paper's own other numbers are from printed values, relative, by id.

    The file has the id, the other number or range, and where it stands.

    Raises:
        InputError: an id is no published cell, or a number is missing.
    """
    found: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            cell = find(cells, line["id"])
            try:
                low, high = float(line["low"]), float(line["high"] or line["low"])
            except ValueError as wrong:
                raise InputError(f"{path.name}, {line['id']}: {wrong}") from None
            found[cell.id] = _apart(cell, low, high)
    return found


def _apart(cell: PublishedCell, low: float, high: float) -> float:
    """The farther relative difference of the ends; a bound is taken as a value."""
    ends = ((cell.value_low, low), (cell.value_high, high))
    return max(abs(other / own - 1) for own, other in ends if own)
