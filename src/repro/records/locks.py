"""A lock file of processes that says whom it waits for.

Where a file system has no `flock`, the file itself is the lock: its holder's process and host stand in it,
and of a host that is gone nobody removes it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

SAY_AFTER_S = 5.0
"""Seconds after which a process says that it waits."""

FOREVER_S = 1e9
"""For a wait without end, which `filelock` takes for a deadlock where the same thread holds the file."""

log = logging.getLogger(__name__)


class Lock(FileLock):
    """A file lock; who waits for it longer than `SAY_AFTER_S` says so, with the file and its holder."""

    def acquire(self, timeout: float | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Hold the lock; Timeout if it is not free within `timeout` seconds, if they are given.

        On a disk without `flock` the first try makes this a `SoftFileLock`, so that `super()` would not do.
        """
        if timeout is not None:
            return FileLock.acquire(self, timeout, **options)
        try:
            return FileLock.acquire(self, SAY_AFTER_S, **options)
        except Timeout:
            path = Path(self.lock_file)
            log.warning("waiting for %s, which %s has locked; %s", path, _holder(path), ADVICE)
        return FileLock.acquire(self, FOREVER_S, **options)


ADVICE = "if that has ended and its host is gone, remove the file"


def _holder(path: Path) -> str:
    """Who holds a lock, as far as its file says it."""
    with suppress(OSError, UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) >= 2:
            return f"process {lines[0]} of {lines[1]}"
    return "another process"
