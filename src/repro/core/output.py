"""Standard output that cannot end a command: its files and records are worth more than what it prints.

Must not know what is printed.
"""

from __future__ import annotations

import io
import os
import sys


class SafeOutput(io.TextIOWrapper):
    """Standard output that drops what cannot be written, and says once on stderr why."""

    def write(self, text: str) -> int:
        """Write a text; returns the number of its letters."""
        try:
            return super().write(text)
        except OSError as wrong:
            self._drop(wrong)
            return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        try:
            super().flush()
        except OSError as wrong:
            self._drop(wrong)

    def _drop(self, wrong: OSError) -> None:
        """Let the rest go nowhere; a reader that has seen enough (`| head`) is no fault."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        if not isinstance(wrong, BrokenPipeError):
            print(f"warning: the rest of the output is lost: {wrong.strerror}", file=sys.stderr)


def prepare_process() -> None:
    """Make a command independent of its streams and of the notebook or window system around it.

    Letters that standard output lacks are printed as `?`; a closed stream is one to nowhere.
    """
    os.environ["MPLBACKEND"] = "agg"
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):  # not redirected
        sys.stdout = SafeOutput(
            sys.stdout.buffer,
            encoding=sys.stdout.encoding,
            errors="replace",
            line_buffering=sys.stdout.line_buffering,
            write_through=sys.stdout.write_through,
        )


def _nowhere() -> io.TextIOWrapper:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
