"""What is known of a cell of a sweep that has ended. Must not know what cells compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Note:
    """The result of one cell of a sweep.

    Attributes:
        key: key of its record; "" if the input was invalid and there is no record.
        labels: short names.
        state: `done`, `cached` (done before), `failed`, `lost` (workers died in it), `todo`, `skipped`, or
            `invalid` in a list.
        seconds: measured time; `None` if unknown.
        error: error message of a cell that failed in this sweep or is invalid.
        chosen: the values that the command line gave this cell, by their overrides' keys; plain data.
    """

    key: str
    labels: dict[str, str]
    state: str
    seconds: float | None = None
    error: str = ""
    chosen: dict[str, Any] = field(default_factory=dict)


def in_words(seconds: float) -> str:
    """A duration: `0.05 s`, `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
