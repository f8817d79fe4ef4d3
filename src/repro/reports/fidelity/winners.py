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

TIE_TOLERANCE = 0.01
"""Relative difference of printed values that counts as a tie."""

HIGHER_IS_BETTER = ("throughput", "rouge_l", "accuracy", "acceptance", "speedup")
LOWER_IS_BETTER = ("latency", "energy", "memory", "time")
"""Words of metrics of which more, or less, is better."""

Pair = tuple[Comparison, Comparison]
Valuation = Callable[[Comparison], float]


@dataclass(frozen=True)
class Race:
    """Systems on one workload; `sign` is 1 if more is better and -1 if less is."""

    artifact: str
    sign: int
    runners: tuple[Comparison, ...]

    def pairs(self) -> list[Pair]:
        """Each two systems, without printed ties and pairs of fitted values."""
        return [
            (a, b)
            for a, b in combinations(self.runners, 2)
            if abs(_difference(printed_value(a), printed_value(b))) > TIE_TOLERANCE
            and not (a.is_fitted and b.is_fitted)
        ]

    def best(self, system: str, value_of: Valuation) -> bool | None:
        """Whether a system that the paper has first is first by a value; None if the paper has not."""
        entrant = next((runner for runner in self.runners if runner.cell.system == system), None)
        rivals = [runner for runner in self.runners if runner.cell.system != system]
        if not entrant or not rivals:
            return None
        if any(self.sign * _difference(printed_value(rival), printed_value(entrant)) > 0 for rival in rivals):
            return None
        return all(self.sign * (value_of(entrant) - value_of(rival)) >= 0 for rival in rivals)


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
    systems_by_race: dict[tuple[str, ...], dict[str, Comparison]] = defaultdict(dict)
    for comparison in comparisons:
        cell, ends, ours = comparison.cell, comparison.published, comparison.ours
        single = ends.low is not None and ends.low == ends.high and len(ours) == 1 and not comparison.certain
        if single and cell.system and cell.relative_to in ("", "target LLM output") and _sign(cell.metric):
            key = (cell.paper, cell.artifact, cell.device, cell.model, cell.draft_model, cell.dataset)
            systems_by_race[(*key, cell.condition, cell.metric)].setdefault(cell.system, comparison)
    return [
        Race(key[1], _sign(key[-1]), tuple(systems.values()))
        for key, systems in systems_by_race.items()
        if len(systems) > 1
    ]


def orders(races: Sequence[Race], system: str, value: Valuation) -> Orders:
    """How often a value's order is the paper's, and how often a paper's own system is first by it."""
    pairs = [pair for race in races for pair in race.pairs()]
    swaps = [(a, b) for a, b in pairs if (printed_value(a) - printed_value(b)) * (value(a) - value(b)) <= 0]
    race_wins = [is_win for race in races if (is_win := race.best(system, value)) is not None]
    wrong_counts = Counter(" and ".join(sorted((a.cell.system, b.cell.system))) for a, b in swaps)
    return Orders(len(pairs) - len(swaps), len(pairs), sum(race_wins), len(race_wins), wrong_counts)


def one_rate(races: Sequence[Race], predictor: TrivialPredictor) -> Valuation:
    """Values by one rate a system, from one cell each, by weights and lengths.

    The cell is the first fitted one of its engine, or the abstract's rate, else its first printed one of
    another workload, which stands as it is where no weights are known; without either the value is 0.
    """
    printed_cells: dict[tuple[str, str, str], list[PublishedCell]] = defaultdict(list)
    for race in races:
        for runner in race.runners:
            printed_cells[race.artifact, runner.cell.metric, runner.cell.system].append(runner.cell)

    def value(comparison: Comparison) -> float:
        cell = comparison.cell
        bases = [*predictor.of_engine(cell), *printed_cells[cell.artifact, cell.metric, cell.system]]
        bases = [base for base in bases if base.id != cell.id]
        values = (predictor.scale(base, cell) for base in bases)
        unscaled_value = next((base.value_low or 0.0 for base in bases), 0.0)
        return next((value for value in values if value is not None), unscaled_value)

    return value


def our_figure(comparison: Comparison) -> float:
    """Our figure of a comparison that has one."""
    return comparison.ours[0].value


def printed_value(comparison: Comparison) -> float:
    """The printed value."""
    return comparison.published.low or 0.0


def _sign(metric: str) -> int:
    if any(word in metric for word in HIGHER_IS_BETTER):
        return 1
    return -1 if any(word in metric for word in LOWER_IS_BETTER) else 0


def _difference(value: float, other_value: float) -> float:
    """Relative difference of two values, signed."""
    return (value - other_value) / max(abs(value), abs(other_value), 1e-12)
