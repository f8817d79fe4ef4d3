"""Who wins: systems that a paper sets side by side on one workload, in the paper and here.

Owns which values are comparable and which one is better. Reads comparisons only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from repro.reports.comparison.comparison import Compared

TIE = 0.01
"""Relative difference of printed values that counts as a tie."""

HIGHER = ("throughput", "rouge_l", "accuracy", "acceptance", "speedup")
LOWER = ("latency", "energy", "memory", "time")
"""Words of metrics of which more, or less, is better."""


@dataclass(frozen=True)
class Race:
    """Systems on one workload; `sign` is 1 if more is better and -1 if less is."""

    artifact: str
    sign: int
    runners: tuple[Compared, ...]

    def pairs(self) -> list[bool]:
        """For each two systems whether the paper's order is ours; without ties and pairs of fitted values."""
        found = []
        for one, other in combinations(self.runners, 2):
            printed = _difference(one.published.low, other.published.low)
            if abs(printed) > TIE and not (one.fitted and other.fitted):
                found.append(printed * _difference(one.ours[0].value, other.ours[0].value) > 0)
        return found

    def best(self, system: str) -> bool | None:
        """Whether a system that the paper has first is first here; None if the paper has not."""
        own = [one for one in self.runners if one.cell.system == system]
        others = [one for one in self.runners if one.cell.system != system]
        if not own or not others:
            return None
        if any(self.sign * _difference(o.published.low, own[0].published.low) > 0 for o in others):
            return None
        return all(self.sign * (own[0].ours[0].value - o.ours[0].value) >= 0 for o in others)


def races(comparisons: Iterable[Compared]) -> list[Race]:
    """Every workload on which a paper prints one value for each of several systems, and we have a figure."""
    groups: dict[tuple[str, ...], dict[str, Compared]] = defaultdict(dict)
    for one in comparisons:
        cell, printed = one.cell, one.published
        single = printed.low is not None and printed.low == printed.high and len(one.ours) == 1
        if single and cell.system and cell.relative_to in ("", "target LLM output") and _sign(cell.metric):
            key = (cell.paper, cell.artifact, cell.device, cell.model, cell.draft_model, cell.dataset)
            groups[(*key, cell.condition, cell.metric)].setdefault(cell.system, one)
    return [
        Race(key[1], _sign(key[-1]), tuple(systems.values()))
        for key, systems in groups.items()
        if len(systems) > 1
    ]


def counted(found: Sequence[Race], system: str) -> tuple[int, int, int, int]:
    """Pairs in the paper's order, of how many; races that its own system wins here, of those there."""
    pairs = [agrees for race in found for agrees in race.pairs()]
    wins = [won for race in found if (won := race.best(system)) is not None]
    return sum(pairs), len(pairs), sum(wins), len(wins)


def _sign(metric: str) -> int:
    if any(word in metric for word in HIGHER):
        return 1
    return -1 if any(word in metric for word in LOWER) else 0


def _difference(one: float | None, other: float | None) -> float:
    """Relative difference of two values, signed."""
    first, second = one or 0.0, other or 0.0
    return (first - second) / max(abs(first), abs(second), 1e-12)
