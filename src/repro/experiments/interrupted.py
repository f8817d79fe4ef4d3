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


_STOP_SIGNALS: list[type[KeyboardInterrupt]] = []
"""The signals that have come within `stopping`."""


@contextmanager
def stopping() -> Iterator[None]:
    """Within the block, SIGTERM stops the run as Ctrl-C does, and `heed` raises what others swallow."""

    def stop(signal_number: int, _: object) -> None:
        _STOP_SIGNALS.append(Terminated if signal_number == signal.SIGTERM else KeyboardInterrupt)
        raise _STOP_SIGNALS[-1]

    signals = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background ignores it
        signals.append(signal.SIGINT)
    earlier_handlers = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        _STOP_SIGNALS.clear()
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)


def heed() -> None:
    """Raise the stop that has come, if a library made an error of its own of it, as torch does in C."""
    if _STOP_SIGNALS:
        raise _STOP_SIGNALS[-1]


def stop_message(arguments: Sequence[str], watcher: Watcher | None) -> str:
    """Two lines after Ctrl-C.

    Args:
        arguments: those of the command, its name first.
        watcher: the sweep; `None` for a single cell.
    """
    state = _done_sentence(watcher) if watcher else "the cell is not done"
    return f"stopped; {state}\n{go_on(arguments)}"


def _done_sentence(watcher: Watcher) -> str:
    done_count = sum(note.state in ("done", "cached") for note in watcher.finished.values())
    if not watcher.total:
        return "no cell had begun"
    return f"{done_count} of {watcher.total} cells {'is' if done_count == 1 else 'are'} done and kept"


def go_on(arguments: Sequence[str], mode: str = "run") -> str:
    """The command that runs what is left: this one, which runs what has no finished record.

    Args:
        arguments: those of the command, its name first.
        mode: its `sweep=`; what was forced is not forced again, and what was to be listed runs.
    """
    command, *words = arguments
    if mode in ("force", "list"):
        words = [argument for argument in words if not argument.startswith("sweep=")]
    command_words = "python -m repro" if command.endswith("__main__.py") else Path(command).name
    return f"go on with: {shlex.join([*command_words.split(), *words])}"
