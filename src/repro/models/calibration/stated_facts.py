"""What a user says of a machine beside its rows: its memory, its flash and its power.

Owns the reading of power logs. Must not know what is measured of speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.core.registry import require_choice
from repro.core.typed import require
from repro.models.calibration.sections import Section, fact

BUDGET_SHARE = 0.8
"""The share of the memory that models may hold."""
LEAST_CONTRAST = 1.2
"""Busy watts over idle ones from which a log has two parts."""


@dataclass(frozen=True)
class StatedFacts:
    """What is said; None or nothing for what is not.

    Attributes:
        memory: gigabytes of memory.
        flash: gigabytes a second that a read gets.
        watts: while a processor works, of the whole machine, or a file with a log of it; `PROCESSOR=` before
            it says whose.
        watts_idle: of the whole machine at rest.
    """

    memory: float | None = None
    flash: float | None = None
    watts: Sequence[str] = ()
    watts_idle: float | None = None

    def put_over(self, device: Section) -> Section:
        """A device file with these facts in it.

        Raises:
            InputError: a value is out of range, a log cannot be read, or a processor is not there.
        """
        positive = Annotated[float, Interval(gt=0, le=1e5)]
        for option in ("memory", "flash", "watts_idle"):
            if (value := getattr(self, option)) is not None:
                require(positive, value, f"--{option.replace('_', '-')}")
        changed = {**device}
        if self.memory is not None:
            changed["dram"] = {
                **device["dram"],
                "capacity": fact(self.memory, "GB", "measured", "--memory"),
                "budget": fact(
                    BUDGET_SHARE * self.memory, "GB", "assumed", "four fifths of the memory (--memory)"
                ),
            }
        if self.flash is not None:
            changed["flash"] = {
                **device["flash"],
                "bandwidth": fact(self.flash, "GB/s", "measured", "--flash"),
            }
        return self._with_watts(changed) if self.watts or self.watts_idle is not None else changed

    def _with_watts(self, device: Section) -> Section:
        processors = {**device["processors"]}
        idle = (device.get("power") or {}).get("idle")
        logs = {on: _power(text) for on, text in _by_processor(self.watts, processors).items()}
        if self.watts_idle is not None:
            idle = fact(self.watts_idle, "W", "measured", "--watts-idle")
        elif idle_logs := [log for log in logs.values() if log.idle is not None]:
            idle = fact(
                min(log.idle or 0.0 for log in idle_logs), "W", "measured", f"at rest, {idle_logs[0].origin}"
            )
        if idle is None:
            raise InputError("--watts needs power at rest: give --watts-idle, or a log with a part at rest")
        for on, log in logs.items():
            above = log.busy - idle["value"]
            if above <= 0:
                raise InputError(
                    f"--watts {log.origin}: {log.busy:.4g} W are not above {idle['value']:.4g} W at rest"
                )
            note = f"{log.busy:.4g} W, {log.origin}, less {idle['value']:.4g} W at rest"
            processors[on] = {**processors[on], "watts": fact(above, "W", "measured", note)}
        return {**device, "processors": processors, "power": {**(device.get("power") or {}), "idle": idle}}


@dataclass(frozen=True)
class _Power:
    """Watts of the whole machine while it works and, if a log says it, at rest; and what says so."""

    busy: float
    idle: float | None
    origin: str


def _by_processor(words: Sequence[str], processors: Mapping[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for word in words:
        name, separator, text = word.partition("=")
        if separator:
            require_choice("--watts: processor", name, processors)
        elif len(processors) > 1:
            choices = ", ".join(f"{on}={word}" for on in processors)
            raise InputError(f"--watts {word}: it must say of which processor: {choices}")
        else:
            (name,), text = processors, word
        texts[name] = text
    return texts


def _power(text: str) -> _Power:
    try:
        watts = float(text)
    except ValueError:
        return read_power_log(Path(text))
    require(Annotated[float, Interval(gt=0, le=1e5)], watts, "--watts")
    return _Power(watts, None, "--watts")


def read_power_log(path: Path) -> _Power:
    """Power while a machine works and at rest, from readings in the columns `seconds` and `watts`.

    Readings are taken a thousand times at even distances. The border lies halfway between the 5th and the
    95th percentile; above it the machine works, below it rests, and each part's figure is its median.

    Raises:
        InputError: no such file, a column or a number is missing, seconds do not rise, or the 95th percentile
            is not a fifth above the 5th.
    """
    try:
        with csv_reader(path) as reader:
            readings = np.array([[float(line[name]) for name in ("seconds", "watts")] for line in reader])
        seconds, watts = readings.T
    except OSError as error:
        raise InputError(f"--watts {path}: neither a number nor a file ({error.strerror or error})") from None
    except (KeyError, ValueError, TypeError):
        raise InputError(
            f"--watts {path}: it must be a CSV with numbers in the columns seconds and watts"
        ) from None
    if len(seconds) < 2 or not np.all(np.diff(seconds) > 0) or not np.all((watts > 0) & (watts < 1e5)):
        raise InputError(f"--watts {path}: seconds must rise, and watts must be above 0")
    even_watts = np.interp(np.linspace(seconds[0], seconds[-1], 1000), seconds, watts)
    low, high = np.percentile(even_watts, (5, 95))
    if high < LEAST_CONTRAST * low:
        raise InputError(
            f"--watts {path}: all readings are between {low:.4g} and {high:.4g} W, so that work and rest are "
            "not told apart; give a log with both, or both as --watts and --watts-idle"
        )
    border = (low + high) / 2
    busy, idle = np.median(even_watts[even_watts > border]), np.median(even_watts[even_watts <= border])
    return _Power(float(busy), float(idle), path.name)
