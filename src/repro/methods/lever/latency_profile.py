"""Measured latencies of passes, averaged by shape, and estimates for other shapes (LEVER sec. 4.2, "Cost").

Has no clock: callers pass measured seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from repro.core.errors import InputError


class Measurement(NamedTuple):
    """One pass.

    Attributes:
        rows: tokens of the pass; for a verification |T|, root included.
        leaves: leaf sequences, L_T; 1 for the root alone.
        seconds: end-to-end time, flash reads included.
    """

    rows: int
    leaves: int
    seconds: float


class LatencyProfile:
    """Moving averages by shape (rows, leaves), and estimates for unseen shapes.

    - Seen shape: its average.
    - Seen row count: linear interpolation over leaves; beyond them a constant cost per leaf.
    - Unseen row count between two seen: linear interpolation plus a penalty per row of distance to the
      nearest, at most the cost of the larger. An estimate never falls with rows; falls are noise.
    - Beyond the largest row count: the mean cost per row plus the penalty per further row.
    - Below the smallest row count: as the smallest.

    Deviation: for unseen shapes LEVER takes "nearby observed shapes with a conservative penalty", without a
    formula.
    """

    def __init__(
        self, measurements: Iterable[Measurement] = (), *, decay: float = 0.8, penalty: float = 0.25
    ) -> None:
        """Begin with offline measurements.

        Args:
            measurements: should contain few and many rows, to separate the cost per row from the fixed cost,
                and one row count with few and many leaves; without, a leaf costs the penalty.
            decay: weight of the old average at each new measurement of a shape.
            penalty: penalty per row of distance to the nearest seen row count, as a share of the mean cost
                per row.

        Raises:
            InputError: `decay` or `penalty` is out of range, or a measurement is invalid.
        """
        if not 0 <= decay < 1:
            raise InputError(f"the latency profile's decay is {decay}; it is a share from 0 to below 1")
        if not 0 <= penalty <= 1:
            raise InputError(f"the latency profile's penalty is {penalty}; it is a share from 0 to 1")
        self._decay, self._penalty = decay, penalty
        self._averages: dict[int, dict[int, float]] = {}
        self._rows: list[int] = []
        self._rates: tuple[float, float] | None = None
        self._estimates: dict[tuple[int, int], float] = {}
        for measurement in measurements:
            self.observe(*measurement)

    @property
    def empty(self) -> bool:
        """Whether there are no measurements yet."""
        return not self._rows

    def observe(self, row_count: int, leaf_count: int, seconds: float) -> None:
        """Add a measurement; the first of a shape is its average.

        Raises:
            InputError: rows or leaves below 1, or negative seconds.
        """
        if row_count < 1 or leaf_count < 1 or seconds < 0:
            raise InputError(
                f"{row_count} rows with {leaf_count} leaves in {seconds} s is no pass; rows and leaves count "
                "from 1"
            )
        averages = self._averages.setdefault(row_count, {})
        average = averages.get(leaf_count, seconds)
        averages[leaf_count] = self._decay * average + (1 - self._decay) * seconds
        self._rows = sorted(self._averages)
        self._rates = None
        self._estimates.clear()

    def estimate(self, row_count: int, leaf_count: int) -> float:
        """Estimated seconds of a pass of a shape; never negative.

        Raises:
            RuntimeError: there are no measurements.
        """
        if self.empty:
            raise RuntimeError("an empty latency profile estimates nothing: give it offline measurements")
        shape = row_count, leaf_count
        if shape not in self._estimates:
            self._estimates[shape] = self._estimate(row_count, leaf_count)
        return self._estimates[shape]

    def _estimate(self, row_count: int, leaf_count: int) -> float:
        low, high = _around(self._rows, row_count)
        low_s = self._at(low, leaf_count)
        if row_count <= low:
            return low_s
        per_row, _ = self._slopes()
        penalty = self._penalty * per_row * min(row_count - low, abs(high - row_count))
        if row_count > high:
            return low_s + (row_count - low) * per_row + penalty
        high_s = max(low_s, self._at(high, leaf_count))
        return min(high_s, low_s + (high_s - low_s) * (row_count - low) / (high - low) + penalty)

    def _at(self, row_count: int, leaf_count: int) -> float:
        """Estimate for a seen row count."""
        means = self._averages[row_count]
        low, high = _around(sorted(means), leaf_count)
        if low == high:
            return (
                means[low]
                if leaf_count == low
                else max(0.0, means[low] + (leaf_count - low) * self._slopes()[1])
            )
        return means[low] + (means[high] - means[low]) * (leaf_count - low) / (high - low)

    def _slopes(self) -> tuple[float, float]:
        """Seconds per row and per leaf."""
        if self._rates is None:
            per_row = self._row_cost()
            self._rates = per_row, self._leaf_cost(per_row)
        return self._rates

    def _row_cost(self) -> float:
        """Seconds per row between the fewest and most rows; with one row count, its seconds over its rows."""
        low_s, high_s = (min(self._averages[rows].values()) for rows in (self._rows[0], self._rows[-1]))
        span = self._rows[-1] - self._rows[0]
        return max(0.0, high_s - low_s) / span if span else low_s / self._rows[0]

    def _leaf_cost(self, per_row: float) -> float:
        """Seconds per leaf, from row counts with several leaf counts; without any, the penalty of a row."""
        extremes = [(min(means), max(means), means) for means in self._averages.values() if len(means) > 1]
        if not extremes:
            return self._penalty * per_row
        rise = sum(means[most_leaves] - means[least_leaves] for least_leaves, most_leaves, means in extremes)
        return max(0.0, rise) / sum(most_leaves - least_leaves for least_leaves, most_leaves, _ in extremes)


class DraftLatency:
    """Latencies of draft passes by processor and number of nodes.

    If only one size was measured, larger passes cost in proportion to their nodes.
    """

    def __init__(self, decay: float = 0.8) -> None:
        """Begin without measurements; `decay` as in `LatencyProfile`."""
        self._decay = decay
        self._profiles: dict[str, LatencyProfile] = {}

    @property
    def empty(self) -> bool:
        """Whether there are no measurements yet."""
        return not self._profiles

    def observe(self, on: str, nodes: int, seconds: float) -> None:
        """Add a measurement of a pass over `nodes` nodes on a processor."""
        if on not in self._profiles:
            self._profiles[on] = LatencyProfile(decay=self._decay, penalty=0.0)
        self._profiles[on].observe(nodes, 1, seconds)

    def estimate(self, on: str, nodes: int) -> float:
        """Estimated seconds of a pass over `nodes` nodes; 0 without any measurement.

        A processor without measurements takes the profile of another one.
        """
        if not nodes or self.empty:
            return 0.0
        profile = self._profiles.get(on) or next(iter(self._profiles.values()))
        return profile.estimate(nodes, 1)


def _around(counts: Sequence[int], needed_count: int) -> tuple[int, int]:
    """The nearest known counts below and above; the same count twice if known or out of range."""
    index = bisect_left(counts, needed_count)
    if index == len(counts):
        return counts[-1], counts[-1]
    if counts[index] == needed_count or index == 0:
        return counts[index], counts[index]
    return counts[index - 1], counts[index]
