"""What passes took, averaged by their shape, and what passes of other shapes should take (LEVER sec. 4.2,
"Cost").

Has no clock: seconds come from who measured them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from repro.core.errors import InputError


class Measurement(NamedTuple):
    """One pass.

    Attributes:
        rows: rows of the pass; of a verification |T|, the root included, so that the bare root has 1.
        leaves: leaf sequences, L_T; the bare root is one.
        seconds: what it took from end to end, reads included.
    """

    rows: int
    leaves: int
    seconds: float


class LatencyProfile:
    """Moving averages by shape (rows, leaves), and estimates between and beyond them.

    A shape that was seen costs its average. With a row count that was seen, but other leaves, it costs what
    the line between the nearest leaf counts says, and beyond them a constant for each leaf. With other rows
    it is on the line between the nearest row counts, or beyond the largest on the line through all, and pays
    a penalty for every row to the nearest; between two it never costs more than the larger. With fewer rows
    than any seen it costs as much as with the fewest seen. Where more rows took less time, which is noise,
    the line is level: between two row counts an estimate does not fall.

    Deviation: LEVER says "nearby observed shapes with a conservative penalty" and gives no formula.
    """

    def __init__(
        self, measured: Iterable[Measurement] = (), *, decay: float = 0.8, penalty: float = 0.25
    ) -> None:
        """Begin with offline measurements.

        Args:
            measured: at least of few and of many rows, or rows cannot be told from a fixed cost; and of one
                row count with few and many leaves, or leaves are taken to cost a penalty each.
            decay: what an average keeps of itself with each new measurement of its shape.
            penalty: of an unseen row count, for every row to the nearest, as a share of what a row costs on
                average.

        Raises:
            InputError: a share is none, or a measurement is of no pass.
        """
        if not 0 <= decay < 1:
            raise InputError(f"the latency profile's decay is {decay}; it is a share from 0 to below 1")
        if not 0 <= penalty <= 1:
            raise InputError(f"the latency profile's penalty is {penalty}; it is a share from 0 to 1")
        self._decay, self._penalty = decay, penalty
        self._seen: dict[int, dict[int, float]] = {}
        self._rows: list[int] = []
        self._rates: tuple[float, float] | None = None
        for measurement in measured:
            self.observe(*measurement)

    @property
    def empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._rows

    def observe(self, rows: int, leaves: int, seconds: float) -> None:
        """Take note of a pass; a shape's first measurement is its average.

        Raises:
            InputError: no pass has such rows, leaves or seconds.
        """
        if rows < 1 or leaves < 1 or seconds < 0:
            raise InputError(
                f"{rows} rows with {leaves} leaves in {seconds} s is no pass; rows and leaves count from 1"
            )
        averages = self._seen.setdefault(rows, {})
        before = averages.get(leaves, seconds)
        averages[leaves] = self._decay * before + (1 - self._decay) * seconds
        self._rows = sorted(self._seen)
        self._rates = None

    def estimate(self, rows: int, leaves: int) -> float:
        """Seconds that a pass of a shape should take; never negative.

        Raises:
            RuntimeError: nothing was measured, not even offline.
        """
        if self.empty:
            raise RuntimeError("an empty latency profile estimates nothing: give it offline measurements")
        low, high = _around(self._rows, rows)
        below = self._at(low, leaves)
        if rows <= low:
            return below
        per_row, _ = self._slopes()
        penalty = self._penalty * per_row * min(rows - low, abs(high - rows))
        if rows > high:
            return below + (rows - low) * per_row + penalty
        above = max(below, self._at(high, leaves))
        return min(above, below + (above - below) * (rows - low) / (high - low) + penalty)

    def _at(self, rows: int, leaves: int) -> float:
        """Seconds with a row count that was seen."""
        seen = self._seen[rows]
        low, high = _around(sorted(seen), leaves)
        if low == high:
            return seen[low] if leaves == low else max(0.0, seen[low] + (leaves - low) * self._slopes()[1])
        return seen[low] + (seen[high] - seen[low]) * (leaves - low) / (high - low)

    def _slopes(self) -> tuple[float, float]:
        """Seconds a row and a leaf, of what was seen so far."""
        if self._rates is None:
            per_row = self._row_cost()
            self._rates = per_row, self._leaf_cost(per_row)
        return self._rates

    def _row_cost(self) -> float:
        """Seconds a row, from the fewest rows to the most; a pass's own if only one row count was seen."""
        first, last = (min(self._seen[rows].values()) for rows in (self._rows[0], self._rows[-1]))
        span = self._rows[-1] - self._rows[0]
        return max(0.0, last - first) / span if span else first / self._rows[0]

    def _leaf_cost(self, per_row: float) -> float:
        """Seconds a leaf, from all row counts seen with several; a row's penalty if there is none."""
        ends = [(min(seen), max(seen), seen) for seen in self._seen.values() if len(seen) > 1]
        if not ends:
            return self._penalty * per_row
        rise = sum(seen[most] - seen[fewest] for fewest, most, seen in ends)
        return max(0.0, rise) / sum(most - fewest for fewest, most, _ in ends)


class DraftLatency:
    """What the draft's passes took, by processor and number of nodes.

    Until a group's size was measured, its nodes cost what they would cost one by one.
    """

    def __init__(self, decay: float = 0.8) -> None:
        """Begin with nothing: the first measurements are the first averages."""
        self._decay = decay
        self._profiles: dict[str, LatencyProfile] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._profiles

    def observe(self, on: str, nodes: int, seconds: float) -> None:
        """Take note of a pass over so many nodes on a processor."""
        if on not in self._profiles:
            self._profiles[on] = LatencyProfile(decay=self._decay, penalty=0.0)
        self._profiles[on].observe(nodes, 1, seconds)

    def estimate(self, on: str, nodes: int) -> float:
        """Seconds that a pass over so many nodes should take there; as elsewhere if none ran there yet.

        Nothing measured at all is nothing: the first pass of a tree tells.
        """
        if not nodes or self.empty:
            return 0.0
        profile = self._profiles.get(on) or next(iter(self._profiles.values()))
        return profile.estimate(nodes, 1)


def _around(known: Sequence[int], at: int) -> tuple[int, int]:
    """The nearest known counts below and above, both the count itself if it is known, both the last (or
    first) one if it is beyond."""
    index = bisect_left(known, at)
    if index == len(known):
        return known[-1], known[-1]
    if known[index] == at or index == 0:
        return known[index], known[index]
    return known[index - 1], known[index]
