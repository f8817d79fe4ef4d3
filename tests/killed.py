"""Processes that die at a chosen low-level call, for tests of what they leave behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("open", "replace", "fsync", "unlink", "chmod", "close", "fdopen", "mkdir", "write")
"""Functions of `os` that writing, renaming and removing files comes down to."""


def forked(work: Callable[[], object], at: int | None = None, after: bool = False) -> tuple[int, int]:
    """Do some work in a fork of this process.

    Args:
        work: what the fork does.
        at: the low-level call, counted from 0, at which it is killed; None lets it live.
        after: kill it after that call instead of before.

    Returns:
        The signal that ended it, 0 for none, and the number of its low-level calls if it lived.
    """
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made = _count(at, after)
            work()
            os.write(there, str(made()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(there)
    told = os.read(here, 20)
    os.close(here)
    _, ended = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ended) or os.WEXITSTATUS(ended) == 0, "the work itself failed"
    return os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else 0, int(told or 0)


def _count(at: int | None, after: bool) -> Callable[[], int]:
    """Count the low-level calls of this process from now on, and kill it at one of them."""
    calls = 0

    def deadly(made: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            now, calls = calls, calls + 1
            if now == at and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return made(*given, **named)
            finally:
                if now == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    return lambda: calls
