"""What a run that was interrupted says: what is kept, and the command that goes on.

Ctrl-C, and a worker process of a launcher that died, end a run early; records of finished cells are kept.
Must not know Hydra nor what a cell computes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from repro.experiments.progress.notes import running_in
from repro.experiments.progress.watch import Watcher

LAUNCHERS = ("joblib", "submitit", "ray", "cloudpickle")
"""Libraries of launchers; an error of theirs that reaches the command is a worker that did not finish."""


def is_launchers(wrong: BaseException) -> bool:
    """Whether an error is a launcher's own, and not of the code that it runs."""
    return type(wrong).__module__.partition(".")[0] in LAUNCHERS


def stopped(arguments: Sequence[str], watched: Watcher | None) -> str:
    """Two lines after Ctrl-C.

    Args:
        arguments: those of the command, its name first.
        watched: the sweep; `None` for a single cell.
    """
    kept = _kept(watched) if watched else "the cell is not done"
    return f"stopped; {kept}\n{go_on(arguments)}"


def worker_died(arguments: Sequence[str], watched: Watcher) -> str:
    """Two lines after the death of a worker process: killed, out of memory, or out of time."""
    lost = ", ".join(watched.plan.name(number) for number in running_in(watched.folder))
    during = f" during {lost}" if lost else ""
    error = f"error: a worker died{during} (killed, or out of memory or time); {_kept(watched)}"
    return f"{error}\n{go_on(arguments)}"


def _kept(watched: Watcher) -> str:
    done = sum(note.state in ("done", "cached") for note in watched.plan.finished.values())
    if not watched.plan.total:
        return "no cell had begun"
    return f"{done} of {watched.plan.total} cells {'is' if done == 1 else 'are'} done and kept"


def go_on(arguments: Sequence[str], mode: str = "run") -> str:
    """The command that runs what is left: this one, which runs what has no finished record.

    Args:
        arguments: those of the command, its name first.
        mode: its `sweep=`; what was forced is not forced again, and what was to be listed runs.
    """
    command, *given = arguments
    if mode in ("force", "list"):
        given = [argument for argument in given if not argument.startswith("sweep=")]
    started = "python -m repro" if command.endswith("__main__.py") else Path(command).name
    return f"go on with: {shlex.join([*started.split(), *given])}"
