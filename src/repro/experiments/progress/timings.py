"""How long cells took on this machine, and how long a cell may take.

Owns the file of timings in the cache folder: one line a cell that ran, with the share of its results that it
computed and did not find in a cache. Estimates use cells that computed at least half. Must not know records,
which may come from another machine.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from repro.core.errors import warn
from repro.core.typed import typed
from repro.records.build_cache import ADVICE, cache_root
from repro.scenarios.registry import scenario_of

LEAST_SHARE = 0.5
"""Share of results that a cell computed if its time counts."""
NEAREST = 5
"""How many timings an estimate is the median of: those nearest in amount."""


@dataclass(frozen=True)
class CellWork:
    """What a cell computes, as far as its time depends on it.

    Attributes:
        method: its method, compression, probe or service.
        target: the model's name.
        dataset: the dataset's name.
        clock: `emulated on cpu`, `emulated on cuda`, or the name of the device that really runs.
        amount: tokens or examples, as the scenario counts them.
    """

    method: str
    target: str
    dataset: str
    clock: str
    amount: int


@dataclass(frozen=True)
class Timing:
    """A cell that ran: its work, how many seconds it took, and the share of results that it computed."""

    work: CellWork
    seconds: float
    share: float


def work_of(config: Mapping[str, Any]) -> CellWork:
    """The work of a resolved configuration, which must be valid."""
    scenario = scenario_of(config)
    labels = scenario.labels_of(config)
    device = config["device"]
    clock = f"emulated on {config['host']}" if device["kind"] == "emulated" else str(device["name"])
    method, target, dataset = (labels.get(name, "") for name in ("method", "target", "dataset"))
    return CellWork(method, target, dataset, clock, scenario.amount_of(config))


class Estimates:
    """How long cells take that find nothing in a cache, by timings; the latest come first."""

    def __init__(self, timings: Iterable[Timing]) -> None:
        """Sort them by what an estimate looks for."""
        self._by_kind: dict[tuple[str, ...], dict[int, list[float]]] = {}
        for timing in timings:
            work = timing.work
            if timing.share < LEAST_SHARE:
                continue
            for kind in ((work.method, work.clock), _kind(work)):
                rates = self._by_kind.setdefault(kind, {}).setdefault(work.amount, [])
                if len(rates) < NEAREST:
                    rates.append(timing.seconds / timing.share / work.amount)
        self._amounts = {kind: sorted(rates) for kind, rates in self._by_kind.items()}

    def expected(self, work: CellWork) -> float | None:
        """Expected seconds of a cell that finds nothing in a cache; `None` if nothing like it has run.

        The median over timings of the same method, scaled by amount; those with the same target and dataset,
        if there are any.
        """
        kind = _kind(work) if _kind(work) in self._by_kind else (work.method, work.clock)
        amounts = self._amounts.get(kind, [])
        place = bisect_left(amounts, work.amount)
        around = amounts[max(0, place - NEAREST) : place + NEAREST]
        near = sorted(around, key=lambda amount: abs(math.log(amount / work.amount)))
        rates = [rate for amount in near for rate in self._by_kind[kind][amount]][:NEAREST]
        return median(rates) * work.amount if rates else None


def _kind(work: CellWork) -> tuple[str, ...]:
    return (work.method, work.clock, work.target, work.dataset)


def read() -> list[Timing]:
    """All timings, the latest first; none if there is no file, or it cannot be read."""
    try:
        lines = _path().read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as wrong:
        warn(f"cannot read {_path()} ({wrong.strerror}), so no time is expected of a cell; {ADVICE}")
        return []
    found = [_parsed(line) for line in reversed(lines)]
    if None in found:
        warn(f"{found.count(None)} of {len(found)} lines of {_path()} are damaged and left out")
    return [one for one in found if one]


def keep(timing: Timing) -> None:
    """Append a timing; a warning if the file cannot be written."""
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(timing) | {"work": vars(timing.work)}) + "\n")
    except OSError as wrong:
        warn(f"cannot note how long the cell took in {path} ({wrong.strerror}); {ADVICE}")


def stopwatch() -> Callable[[], float]:
    """A function that returns the seconds since this call."""
    since = time.monotonic()
    return lambda: time.monotonic() - since


def _path() -> Path:
    return cache_root() / "timings.jsonl"


@lru_cache(maxsize=100_000)
def _parsed(line: str) -> Timing | None:
    """A line's timing; `None` if it is incomplete or damaged."""
    try:
        plain = json.loads(line)
        found = typed(Timing, plain, "a timing")
    except (ValueError, RecursionError):
        return None
    return found if found.work.amount > 0 and found.seconds >= 0 <= found.share else None
