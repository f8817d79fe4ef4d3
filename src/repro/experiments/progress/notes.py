"""What is known of a cell of a sweep: its result, or what it is doing. Must not know what cells compute."""

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
        seconds: measured or expected time; `None` if unknown.
        error: error message of a cell that failed in this sweep or is invalid.
        chosen: the values that the command line gave this cell, by their overrides' keys; plain data.
    """

    key: str
    labels: dict[str, str]
    state: str
    seconds: float | None = None
    error: str = ""
    chosen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    """What a cell is doing: the stage of its work, and the steps done of all."""

    stage: str = ""
    done: int = 0
    total: int = 0
