"""The notes that the cells of a sweep leave in its folder, whichever process runs them.

`N.json` is the result of cell N, `N.running` what a cell that has begun is doing. A `running` note without a
result belongs to a cell that runs, or whose process died. Must not know what a cell computes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from repro.core.errors import InputError
from repro.experiments.progress.timings import CellWork, stopwatch
from repro.records.record import write_atomically

EVERY_SECONDS = 0.5
"""How often a running cell writes at most what it is doing."""


@dataclass(frozen=True)
class Note:
    """The result of one cell of a sweep.

    Attributes:
        key: key of its record; "" if the input was invalid and there is no record.
        labels: short names.
        state: `done`, `cached` (done before), `failed`, `todo`, `skipped`, or `invalid` in a list.
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


@contextmanager
def notes_alone(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder of notes, without those of an earlier sweep.

    Raises:
        InputError: a sweep that runs has it.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock").acquire(timeout=0):
            for path in folder.glob("[0-9]*.*"):
                path.unlink()
            yield
    except Timeout:
        raise InputError(f"another sweep runs in {folder.parent}; choose another hydra.sweep.dir") from None


def note_down(folder: Path, number: int, note: Note) -> None:
    """Write a cell's result; it is not running any more."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{number}.json", json.dumps(asdict(note)))
    (folder / f"{number}.running").unlink(missing_ok=True)


def notes_in(folder: Path) -> list[Note]:
    """The results of a sweep's cells, in their order."""
    return list(results_in(folder).values())


def results_in(folder: Path, known: Mapping[int, Note] | None = None) -> dict[int, Note]:
    """The results by the cells' numbers, in their order; those in `known` are not read again."""
    known = known or {}
    numbers = sorted(int(path.stem) for path in folder.glob("*.json"))
    return {
        n: known.get(n) or Note(**json.loads((folder / f"{n}.json").read_text(encoding="utf-8")))
        for n in numbers
    }


def running_in(folder: Path) -> dict[int, Running]:
    """What the cells that have begun and have no result are doing, by number, in their order."""
    found = {}
    for path in sorted(folder.glob("*.running"), key=lambda path: int(path.stem)):
        try:
            found[int(path.stem)] = Running(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:  # it has ended since
            continue
    return {number: one for number, one in found.items() if not (folder / f"{number}.json").exists()}


@contextmanager
def running(folder: Path, number: int, work: CellWork) -> Iterator[Callable[[str, int, int], None]]:
    """Note that a cell has begun. Yields its progress callback: (stage, steps done, total steps).

    The note stays until `note_down` removes it, so that a cell whose process died is known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, number, Running())
    clock, last = stopwatch(), 0.0

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= EVERY_SECONDS:
            last = clock()
            _write(folder, number, Running(stage, done, total))

    yield tell


def _write(folder: Path, number: int, running: Running) -> None:
    """Replace a cell's `running` note at once, without waiting for the disk."""
    scratch = folder / f"{number}.writing"
    scratch.write_text(json.dumps(asdict(running)), encoding="utf-8")
    os.replace(scratch, folder / f"{number}.running")
