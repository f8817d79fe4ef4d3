"""Things fetched or computed once and kept: found whole, or not found at all.

Owns the cache folder, the folder of what was computed, the lock that lets one process build while others
wait, and the free space check. Must not know what is being kept.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock, Timeout

from repro.core.errors import InputError

log = logging.getLogger(__name__)

CACHE_VARIABLE = "REPRO_CACHE"


REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)


class Unavailable(Exception):
    """One source cannot be reached or lacks the thing: another source may still have it."""


def cache_root(override: Path | str | None = None) -> Path:
    """The cache folder, which may not exist yet: `override`, else $REPRO_CACHE, else `~/.cache/repro`."""
    chosen = override or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "repro"
    return Path(chosen).expanduser().absolute()


_forgetting: ContextVar[Path | None] = ContextVar("forgetting", default=None)


def memory_root() -> Path:
    """The folder of what checkpoints were found to say: that of the cache, or within `forgetting` its own."""
    return _forgetting.get() or cache_root()


@contextmanager
def forgetting() -> Iterator[Path]:
    """Remember nothing that was computed before, and in the end nothing of what is computed meanwhile.

    Files that were fetched or converted stay in use. Yields the folder of what is remembered meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="repro-") as folder:
        token = _forgetting.set(Path(folder))
        try:
            yield Path(folder)
        finally:
            _forgetting.reset(token)


def build_once(
    target: Path,
    build: Callable[[Path], Path],
    need: int = 0,
    is_whole: Callable[[Path], bool] = Path.exists,
) -> Path:
    """`target`, built if it is not there whole; one process builds while the others wait for it.

    `build` gets an empty scratch folder on the same disk and returns the file or folder in it that becomes
    `target` by one rename, so that a killed process leaves nothing half-made under that name.

    Args:
        target: the file or folder to have.
        build: makes it; called at most once, under the lock.
        need: bytes that building may take at its peak, checked before it starts.
        is_whole: whether what lies at `target` can be used; what cannot be is removed and built again.

    Raises:
        InputError: the folder cannot be written, or the disk is full or has less than `need` bytes left.
    """
    if is_whole(target):
        return target
    with _errors_of_the_disk(target), _alone(target):
        if is_whole(target):
            return target
        scratch = target.with_name(f"{target.name}.partial")
        _remove(scratch)
        _remove(target)
        require_space(target.parent, need, str(target))
        scratch.mkdir()
        try:
            os.replace(build(scratch), target)
        finally:
            _remove(scratch)
    return target


def require_space(folder: Path, need: int, what: str) -> None:
    """InputError if the disk of `folder` (or of its nearest existing parent) has under `need` bytes left."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need:
        raise InputError(
            f"disk too full for {what}: up to {need / 1e6:,.0f} MB needed while it is made, "
            f"{free / 1e6:,.0f} MB left under {folder}; free some, or set {CACHE_VARIABLE} to another disk"
        )


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    lock = FileLock(target.with_name(f"{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.warning("another process is making %s; waiting for it", target)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _errors_of_the_disk(target: Path) -> Iterator[None]:
    """Turn what the file system refuses into an InputError that says what can be done about it."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(
                f"disk full while making {target}; set {CACHE_VARIABLE} to another disk"
            ) from error
        if error.errno in REFUSALS:
            raise _unwritable(target.parent, error) from error
        raise


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {folder}: {error.strerror}; set {CACHE_VARIABLE} to a writable folder")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
