"""Who wins: systems that a paper sets side by side on one workload, in the paper, here and by a trivial rule.

Owns which values are comparable, which one is better, and what one rate an engine says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from repro.reports.comparison.comparison import Comparison
from repro.reports.fidelity.skill import TrivialPredictor
from repro.reports.reference.reference import PublishedCell

TIE = 0.01
"""Relative difference of printed values that counts as a tie."""

HIGHER = ("throughput", "rouge_l", "accuracy", "acceptance", "speedup")
LOWER = ("latency", "energy", "memory", "time")
"""Words of metrics of which more, or less, is better."""

Pair = tuple[Comparison, Comparison]
Value = Callable[[Comparison], float]


@dataclass(frozen=True)
class Race:
    """Systems on one workload; `sign` is 1 if more is better and -1 if less is."""

    artifact: str
    sign: int
    runners: tuple[Comparison, ...]

    def pairs(self) -> list[Pair]:
        """Each two systems, without printed ties and pairs of fitted values."""
        return [
            (one, other)
            for one, other in combinations(self.runners, 2)
            if abs(_difference(printed(one), printed(other))) > TIE
            and not (one.is_fitted and other.is_fitted)
        ]

    def best(self, system: str, value: Value) -> bool | None:
        """Whether a system that the paper has first is first by a value; None if the paper has not."""
        own = [one for one in self.runners if one.cell.system == system]
        others = [one for one in self.runners if one.cell.system != system]
        if not own or not others:
            return None
        if any(self.sign * _difference(printed(o), printed(own[0])) > 0 for o in others):
            return None
        return all(self.sign * (value(own[0]) - value(o)) >= 0 for o in others)


@dataclass(frozen=True)
class Orders:
    """How often an order is the paper's.

    Attributes:
        agree, pairs: pairs of systems in the paper's order, of how many.
        first, races: workloads that the paper's own system wins, of those that it wins in the paper.
        wrong: systems of the pairs in another order, with how many.
    """

    agree: int
    pairs: int
    first: int
    races: int
    wrong: Counter[str]


def races(comparisons: Iterable[Comparison]) -> list[Race]:
    """Every workload on which a paper prints one value for each of several systems, and we have a figure.

    What cannot miss runs in none: lossless text, means of other values, repetitions.
    """
    groups: dict[tuple[str, ...], dict[str, Comparison]] = defaultdict(dict)
    for one in comparisons:
        cell, ends = one.cell, one.published
        single = ends.low is not None and ends.low == ends.high and len(one.ours) == 1 and not one.certain
        if single and cell.system and cell.relative_to in ("", "target LLM output") and _sign(cell.metric):
            key = (cell.paper, cell.artifact, cell.device, cell.model, cell.draft_model, cell.dataset)
            groups[(*key, cell.condition, cell.metric)].setdefault(cell.system, one)
    return [
        Race(key[1], _sign(key[-1]), tuple(systems.values()))
        for key, systems in groups.items()
        if len(systems) > 1
    ]


def orders(found: Sequence[Race], system: str, value: Value) -> Orders:
    """How often a value's order is the paper's, and how often a paper's own system is first by it."""
    pairs = [pair for race in found for pair in race.pairs()]
    wrong = [(a, b) for a, b in pairs if (printed(a) - printed(b)) * (value(a) - value(b)) <= 0]
    wins = [won for race in found if (won := race.best(system, value)) is not None]
    names = Counter(" and ".join(sorted((a.cell.system, b.cell.system))) for a, b in wrong)
    return Orders(len(pairs) - len(wrong), len(pairs), sum(wins), len(wins), names)


def one_rate(found: Sequence[Race], predictor: TrivialPredictor) -> Value:
    """Values by one rate a system, from one cell each, by weights and lengths.

    The cell is the first fitted one of its engine, or the abstract's rate, else its first printed one of
    another workload, which stands as it is where no weights are known; without either the value is 0.
    """
    held: dict[tuple[str, str, str], list[PublishedCell]] = defaultdict(list)
    for race in found:
        for one in race.runners:
            held[race.artifact, one.cell.metric, one.cell.system].append(one.cell)

    def value(one: Comparison) -> float:
        cell = one.cell
        sources = [*predictor.of_engine(cell), *held[cell.artifact, cell.metric, cell.system]]
        sources = [source for source in sources if source.id != cell.id]
        values = (predictor.scaled(source, cell) for source in sources)
        unscaled = next((source.value_low or 0.0 for source in sources), 0.0)
        return next((value for value in values if value is not None), unscaled)

    return value


def our_figure(one: Comparison) -> float:
    """Our figure of a comparison that has one."""
    return one.ours[0].value


def printed(one: Comparison) -> float:
    """The printed value."""
    return one.published.low or 0.0


def _sign(metric: str) -> int:
    if any(word in metric for word in HIGHER):
        return 1
    return -1 if any(word in metric for word in LOWER) else 0


def _difference(first: float, second: float) -> float:
    """Relative difference of two values, signed."""
    return (first - second) / max(abs(first), abs(second), 1e-12)
