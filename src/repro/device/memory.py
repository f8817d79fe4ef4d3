"""A device's memory budget: bytes held by name, and their peak."""

from __future__ import annotations

from collections.abc import Callable

from repro.core.errors import InputError

UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Memory:
    """Bytes that models may hold; exceeding the budget is an error that lists the current holders.

    Attributes:
        budget: bytes that may be held.
        read_ahead: share of the budget that read-ahead of streamed layers may use.
        peak: most bytes held so far.
        history: (seconds, bytes held from then on), one entry for each change.
    """

    def __init__(
        self,
        budget: float,
        name: str = "device",
        read_ahead: float = 0.0,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`now` is the device's clock."""
        self.budget = budget
        self.read_ahead = read_ahead
        self.peak = 0.0
        self.history: list[tuple[float, float]] = []
        self._now = now
        self._name = name
        self._held: dict[str, float] = {}

    @property
    def in_use(self) -> float:
        """Bytes held now."""
        return sum(self._held.values())

    @property
    def free(self) -> float:
        """Bytes left in the budget."""
        return self.budget - self.in_use

    def reserve(self, size: float, holder: str) -> None:
        """Hold `size` more bytes under the name `what`.

        Raises:
            InputError: the budget would be exceeded.
        """
        if size > self.free:
            holders = ", ".join(f"{name} {_gb(amount)}" for name, amount in self._held.items()) or "nothing"
            raise InputError(
                f"{holder} needs {_gb(size)}, but of {self._name}'s budget of {_gb(self.budget)} only "
                f"{_gb(self.free)} are free (held: {holders})"
            )
        self._held[holder] = self._held.get(holder, 0.0) + size
        self.peak = max(self.peak, self.in_use)
        self.history.append((self._now(), self.in_use))

    def release(self, holder: str) -> None:
        """Release all bytes held under a name."""
        del self._held[holder]
        self.history.append((self._now(), self.in_use))


def _gb(size: float) -> str:
    """Bytes with three significant digits or two decimals, so that a small budget is not shown as zero."""
    unit, scale = next(((u, s) for u, s in UNITS if abs(size) >= s / 100), ("B", 1.0))
    return f"{size / scale:.2f} {unit}" if scale > 1 else f"{size:.0f} B"
