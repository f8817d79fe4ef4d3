"""Errors of many comparisons in a few numbers, the same for every page.

Owns what is counted where. Must not know pages.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from repro.reports.comparison.comparison import POINTS, Compared

FITTED_MISS = 0.10
"""Relative error above which a fitted figure is listed."""


@dataclass(frozen=True)
class Summary:
    """What comparisons say together.

    Attributes:
        relative: the counted ones whose error is relative, the worst first.
        points: the counted ones whose error is in points, the worst first.
        inside: those in a published range.
        kept: bounds that are met.
        broken: bounds that are not met.
        fitted: fitted ones, the worst first.
        certain: those that cannot miss.
        contradicted: those whose printed value the paper's own numbers exclude, the worst first.
        absent: those without a figure of ours.
    """

    relative: tuple[Compared, ...]
    points: tuple[Compared, ...]
    inside: tuple[Compared, ...]
    kept: tuple[Compared, ...]
    broken: tuple[Compared, ...]
    fitted: tuple[Compared, ...]
    certain: tuple[Compared, ...]
    contradicted: tuple[Compared, ...]
    absent: tuple[Compared, ...]

    @property
    def counted(self) -> tuple[Compared, ...]:
        """All whose error counts."""
        return self.relative + self.points

    @property
    def compared(self) -> tuple[Compared, ...]:
        """All that can miss and have an error, with those whose printed value is set aside."""
        return self.counted + tuple(
            one for one in self.contradicted if one.error is not None and not one.inside
        )

    @property
    def median(self) -> float | None:
        """Median of all relative errors, with those whose printed value is set aside."""
        return median([one for one in self.compared if not one.in_points])

    @property
    def median_without(self) -> float | None:
        """The same without what the paper's own numbers exclude."""
        return median(self.relative)

    @property
    def misses(self) -> list[Compared]:
        """Counted ones that are off by more than a quarter, or ten points."""
        return [one for one in self.counted if one.missed]

    @property
    def fitted_misses(self) -> list[Compared]:
        """Fitted ones that are off by more than a tenth, or more points than agree."""
        return [
            one for one in self.fitted if abs(one.error or 0.0) > (POINTS if one.in_points else FITTED_MISS)
        ]


def summed(comparisons: Sequence[Compared]) -> Summary:
    """Sort comparisons by how they count; each is in one group."""
    groups: dict[str, list[Compared]] = {name: [] for name in Summary.__annotations__}
    for one in comparisons:
        groups[_group(one)].append(one)
    for name in ("relative", "points", "fitted", "contradicted"):
        groups[name].sort(key=lambda one: (-abs(one.error or 0.0), one.cell.id, one.table, one.row))
    return Summary(**{name: tuple(some) for name, some in groups.items()})


def _group(one: Compared) -> str:
    if not one.ours:
        return "absent"
    if one.fitted:
        return "fitted"
    if one.certain:
        return "certain"
    if one.cell.contradicted:
        return "contradicted"
    if one.published.bound:
        return "broken" if one.broken else "kept"
    if one.inside:
        return "inside"
    if one.error is None:
        return "certain"
    return "points" if one.in_points else "relative"


def median(comparisons: Sequence[Compared]) -> float | None:
    """Median of the errors' sizes; None of none."""
    errors = [abs(one.error) for one in comparisons if one.error is not None]
    return statistics.median(errors) if errors else None


def sentences(found: Summary) -> list[str]:
    """The counts and errors in sentences, for the notes of a page."""
    said = []
    if every := sorted(found.compared, key=lambda one: (one.in_points, -abs(one.error or 0.0))):
        said += _medians([one for one in every if not one.in_points], [one for one in every if one.in_points])
    if found.contradicted:
        without = found.median_without
        said.append(
            f"Of {_times(found.contradicted, 'figure')} the paper's own numbers exclude the printed value "
            "(docs/errata.md)"
            + ("." if without is None else f"; without them the median error is {without:.1%}.")
        )
    others = {
        "inside a published range": found.inside,
        "bound met": found.kept,
        "bound broken": found.broken,
        "fitted": found.fitted,
    }
    counts = [f"{len(some)} {words}" for words, some in others.items() if some]
    if counts:
        said.append(f"Apart from these: {', '.join(counts)}.")
    if found.fitted_misses:
        off = ", ".join(f"{one.cell.id} ({one.distance})" for one in found.fitted_misses[:5])
        more = f" and {len(found.fitted_misses) - 5} more" if len(found.fitted_misses) > 5 else ""
        said.append(
            f"Fitted and yet off by more than {FITTED_MISS:.0%}, or {POINTS:.0f} points: {off}{more}."
        )
    why = Counter(one.certain or "printed as 0, so that no ratio exists" for one in found.certain)
    said += [f"Cannot miss and not counted: {count} ({words})." for words, count in why.items()]
    return said


def _medians(relative: Sequence[Compared], points: Sequence[Compared]) -> list[str]:
    """A sentence on each kind of errors, of which the worst stands first."""
    said = []
    if relative:
        said.append(
            f"Against the paper, over {_times(relative, 'figure')} that can miss: median error "
            f"{median(relative):.1%}, worst {abs(relative[0].error or 0):.1%} ({relative[0].cell.id})."
        )
    if points:
        said.append(
            f"Accuracies, over {_times(points, 'figure')} that can miss: median difference "
            f"{median(points):.1f} points, most {abs(points[0].error or 0):.1f} ({points[0].cell.id})."
        )
    return said


def _times(some: Sequence[Compared], noun: str) -> str:
    return f"{len(some)} {noun}" + ("" if len(some) == 1 else "s")
