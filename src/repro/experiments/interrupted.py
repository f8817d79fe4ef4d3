"""What a run that was interrupted says: what is kept, and the command that goes on.

Ctrl-C and SIGTERM end a run early; records of finished cells are kept, cells that had begun noted. Must not
know Hydra nor what a cell computes.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from repro.experiments.progress import Watcher


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a queue sends it before it takes a node away."""

    code = 128 + signal.SIGTERM


_STOPS: list[type[KeyboardInterrupt]] = []
"""The signals that have come within `stopping`."""


@contextmanager
def stopping() -> Iterator[None]:
    """Within the block, SIGTERM stops the run as Ctrl-C does, and `heed` raises what others swallow."""

    def stop(number: int, _: object) -> None:
        _STOPS.append(Terminated if number == signal.SIGTERM else KeyboardInterrupt)
        raise _STOPS[-1]

    heeded = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background ignores it
        heeded.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        _STOPS.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def heed() -> None:
    """Raise the stop that has come, if a library made an error of its own of it, as torch does in C."""
    if _STOPS:
        raise _STOPS[-1]


def stop_message(arguments: Sequence[str], watched: Watcher | None) -> str:
    """Two lines after Ctrl-C.

    Args:
        arguments: those of the command, its name first.
        watched: the sweep; `None` for a single cell.
    """
    state = _done_sentence(watched) if watched else "the cell is not done"
    return f"stopped; {state}\n{go_on(arguments)}"


def _done_sentence(watched: Watcher) -> str:
    done = sum(note.state in ("done", "cached") for note in watched.finished.values())
    if not watched.total:
        return "no cell had begun"
    return f"{done} of {watched.total} cells {'is' if done == 1 else 'are'} done and kept"


def go_on(arguments: Sequence[str], mode: str = "run") -> str:
    """The command that runs what is left: this one, which runs what has no finished record.

    Args:
        arguments: those of the command, its name first.
        mode: its `sweep=`; what was forced is not forced again, and what was to be listed runs.
    """
    command, *rest = arguments
    if mode in ("force", "list"):
        rest = [argument for argument in rest if not argument.startswith("sweep=")]
    started = "python -m repro" if command.endswith("__main__.py") else Path(command).name
    return f"go on with: {shlex.join([*started.split(), *rest])}"
