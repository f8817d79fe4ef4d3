"""Computes a cell of a resolved configuration, in whatever process, and writes nothing of it.

What comes of it is plain data that the driver of the sweep stores. Must not know where that is.
"""

from __future__ import annotations

import gzip
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from repro.core.errors import InputError
from repro.records.build_cache import file_error, one_at_a_time
from repro.records.effort import ResultCount, counting
from repro.records.identity import portable_text
from repro.records.record import Record, Round
from repro.scenarios.base import Progress, Scenario

Showing = Callable[[], AbstractContextManager[Progress]]
"""Opens the progress callback of a cell."""


@dataclass(frozen=True)
class WaitingCell:
    """A cell that is to be run.

    Attributes:
        number: its place in the sweep.
        config: its resolved configuration.
        kind: its target, draft and dataset; cells that have them in common go out one after the other.
    """

    number: int
    config: Mapping[str, Any]
    kind: tuple[str, ...]


class Lost(str):
    """Why a cell was given up whose workers died."""


@dataclass(frozen=True)
class Computed:
    """What comes of a cell.

    Attributes:
        record: its record, of a failed cell with the traceback.
        rounds: one line for each round.
        answers: one line for each answer.
        timeline: its Chrome trace, gzipped, which lies where the record says; empty if it has none.
        seconds: how long it took; `None` if it failed.
        error: why it failed, in a sentence.
    """

    record: Record
    rounds: Sequence[Round] = ()
    answers: Sequence[Round] = ()
    timeline: bytes = b""
    seconds: float | None = None
    error: str = ""


Outcome = Computed | str
"""What comes of a cell that was sent away, or the sentence why nothing did."""


class CellEngine(Protocol):
    """Runs cells somewhere."""

    def run(self, cells: Iterator[WaitingCell]) -> Iterator[tuple[int, Outcome | None]]:
        """Run cells; yields each number when the cell is sent out, with None, and when it has ended."""


def computed(cell: Scenario, config: Mapping[str, Any], showing: Showing) -> Computed:
    """Compute a cell; what goes wrong is in what it returns.

    Args:
        cell: made of `config`.
        config: its resolved configuration.
        showing: opens its progress callback.
    """
    try:
        cell.check()
        with float32_on_cpu(), _alone(cell), showing() as progress, counting() as effort:
            begun = time.monotonic()
            outcome = cell.run(with_reason(progress, effort))
            seconds = time.monotonic() - begun
        text = outcome.timeline().encode() if outcome.timeline else b""
        timeline = gzip.compress(text, 6, mtime=0) if text else b""
        record = _with_timeline(outcome.record) if timeline else outcome.record
        record.to_json()  # here, and not where all records are stored; it names a number that is not finite
        return Computed(record, outcome.rounds, outcome.answers, timeline, seconds)
    except (Exception, SystemExit) as wrong:  # whatever a cell does fails that cell alone
        return Computed(cell.failed(traceback.format_exc()), error=_sentence(wrong))


@contextmanager
def float32_on_cpu() -> Iterator[None]:
    """Within the block torch makes float32 tensors on the CPU, whatever the process has set before."""
    torch = sys.modules.get("torch")
    if torch is None:  # nobody can have set anything
        yield
        return
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    if device.type != "cpu":
        torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if device.type != "cpu":
            torch.set_default_device(device)


def _with_timeline(record: Record) -> Record:
    """A record that names its timeline, below the folder of outputs."""
    place = f"timelines/{record.experiment}/{record.labels['method']}-{record.key[:12]}.json.gz"
    return replace(record, provenance=replace(record.provenance, trace=place))


def not_stored(outcome: Computed, wrong: BaseException) -> Computed:
    """What comes of a cell whose outcome could not be stored, as the error that is being handled says."""
    about = replace(outcome.record.provenance, trace=None)
    record = replace(
        outcome.record, status="failed", values={}, uncertainty={}, provenance=about, error=_traceback()
    )
    return Computed(record, error=_sentence(wrong))


def _sentence(wrong: BaseException) -> str:
    if isinstance(wrong, PermissionError) and wrong.filename:
        return file_error(wrong)
    return str(wrong) if isinstance(wrong, InputError) else f"{type(wrong).__name__}: {wrong}"


def _traceback() -> str:
    return portable_text(traceback.format_exc())


@contextmanager
def _alone(cell: Scenario) -> Iterator[None]:
    """Run cells on the wall clock one at a time, across processes."""
    if cell.emulated:
        yield
        return
    with one_at_a_time("wall-clock"):
        yield


def with_reason(progress: Progress, effort: ResultCount) -> Progress:
    """Progress whose stages say that they take long because a cell finds nothing of it in a cache."""

    def told(stage: str, done: int, total: int) -> None:
        new = effort.computed and not stage.startswith("computing")
        progress(f"{stage}, computing what neither cache nor pack has," if new else stage, done, total)

    return told
