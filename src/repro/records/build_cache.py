"""A cache of files that are fetched or computed once; entries appear complete or not at all.

Owns the cache folder, the folder of computed entries, the lock that lets one process build while others wait,
and the check for free space. Must not know what is cached.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import Timeout

from repro.core.errors import InputError, warn
from repro.core.reading import parse_json
from repro.records.locks import Lock
from repro.records.record import flush

log = logging.getLogger(__name__)

CACHE_VARIABLE = "REPRO_CACHE"

ADVICE = f"set {CACHE_VARIABLE} to a writable folder with free space"
"""What to do about a cache that cannot be written."""

REFUSAL_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)


class Unavailable(Exception):
    """A source is unreachable or lacks the item; another source may have it."""


def cache_root(override: Path | str | None = None) -> Path:
    """The cache folder, which may not exist yet: `override`, else $REPRO_CACHE, else `~/.cache/repro`."""
    folder = override or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "repro"
    return Path(folder).expanduser().absolute()


_forgetful_root: ContextVar[Path | None] = ContextVar("forgetting", default=None)


def memory_root() -> Path:
    """The folder of computed entries (logits, scores): the cache root, or a temporary one in `forgetting`."""
    return _forgetful_root.get() or cache_root()


def is_forgetting() -> bool:
    """Whether this is within a `forgetting` block, where nothing that was computed before counts."""
    return _forgetful_root.get() is not None


@contextmanager
def forgetting() -> Iterator[Path]:
    """Within the block, keep computed entries in an empty temporary folder, which is deleted at the end.

    Fetched and converted files are still taken from the cache. Yields the temporary folder.
    """
    with tempfile.TemporaryDirectory(prefix="repro-") as folder:
        token = _forgetful_root.set(Path(folder))
        try:
            yield Path(folder)
        finally:
            _forgetful_root.reset(token)


def build_once(
    target: Path,
    build: Callable[[Path], Path],
    needed_bytes: int = 0,
    is_whole: Callable[[Path], bool] = Path.exists,
) -> Path:
    """Return `target`, building it if it is missing or incomplete; other processes wait for the build.

    `build` gets an empty scratch folder on the same disk and returns the file or folder in it that becomes
    `target` by one rename after it was flushed, so that a killed process or a power cut leaves nothing
    incomplete under that name.

    Args:
        target: the cached file or folder.
        build: builds it; called at most once, under the lock.
        needed_bytes: peak disk space of the build in bytes, checked before it starts.
        is_whole: whether the existing `target` is complete; if not, it is removed and built again.

    Raises:
        InputError: the folder is not writable, or the disk is full or has less than `needed_bytes` left; or
            what is there is another user's, who lets nobody read it.
    """
    require_readable(target)
    if is_whole(target):
        return target
    with _errors_of_the_disk(target), _alone(target):
        if is_whole(target):
            return target
        if target.exists():
            log.warning("%s is damaged or of another version; it is made again", target)
        scratch = target.with_name(f"{target.name}.partial")
        _remove(scratch)
        _remove(target)
        require_space(target.parent, needed_bytes, str(target))
        scratch.mkdir()
        try:
            built_path = build(scratch)
            _finish(built_path, scratch.stat().st_mode & 0o666)
            os.replace(built_path, target)
            flush(target.parent)
        finally:
            _remove(scratch)
    return target


def computed_once(path: Path, compute: Callable[[], Any]) -> Any:
    """Plain data that are computed once and kept in a JSON file with a checksum.

    A damaged file is named and made again. If none can be written, a warning says so and nothing is kept.
    """
    if (data := _read_checked(path)) is not None:
        return data
    results: list[Any] = []

    def build(scratch: Path) -> Path:
        results.append(compute())
        text = json.dumps(results[0])
        file = scratch / path.name
        file.write_text(json.dumps({"sha256": _sum(text), "data": text}), encoding="utf-8")
        return file

    try:
        build_once(path, build, is_whole=lambda copy: _read_checked(copy) is not None)
    except InputError as wrong:
        if not results:
            results.append(compute())
        warn(f"{wrong}; until then the run goes on without this cache")
    return results[0] if results else _read_checked(path)


def _read_checked(path: Path) -> Any:
    """The data of a file of `computed_once`; None if there is none or it is damaged."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        return parse_json(content["data"]) if _sum(content["data"]) == content["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def one_at_a_time(lock_name: str) -> Iterator[None]:
    """Hold a lock of all processes that share the cache; if it cannot be written, only a warning says so."""
    lock = Lock(cache_root() / f"{lock_name}.lock")
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as wrong:
        warn(f"cannot lock {lock.lock_file} ({wrong.strerror}), so others may run beside this; {ADVICE}")
    try:
        yield
    finally:
        lock.release()


def require_space(folder: Path, needed_bytes: int, purpose: str) -> None:
    """InputError if the disk of `folder` (or of its nearest existing parent) has less than `needed_bytes`."""
    while not folder.exists():
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise InputError(
            f"disk too full for {purpose}: up to {needed_bytes / 1e6:,.0f} MB needed while it is made, "
            f"{free_bytes / 1e6:,.0f} MB left under {folder}; free some, or set {CACHE_VARIABLE} "
            "to another disk"
        )


def require_readable(target: Path) -> None:
    """InputError naming the first file of a cached file or folder that this user may not read."""
    try:
        paths = [target, *target.glob("*")] if target.exists() else []
        locked = [path for path in paths if path.exists() and not os.access(path, os.R_OK)]
    except PermissionError:  # of a folder above
        locked = [target]
    if locked:
        raise InputError(file_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(locked[0]))))


def file_error(error: OSError) -> str:
    """An error of a file in a sentence: its path, what is wrong, and what to do."""
    path = Path(str(error.filename))
    remedy = "choose other folders with results= and outputs="
    if isinstance(error, PermissionError) and os.path.isfile(path):
        remedy = "its owner can let you read it"
    if path.is_relative_to(cache_root()):
        remedy = f"its owner can let you read it, or set {CACHE_VARIABLE} to a folder of your own"
    return f"{path}: {error.strerror}; {remedy}"


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold the lock of a cached file; wait, with a warning, while another process holds it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    lock = Lock(target.with_name(f"{target.name}.lock"))
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
    """Convert a full disk or missing write permission into an InputError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(
                f"disk full while making {target}; set {CACHE_VARIABLE} to another disk"
            ) from error
        if error.errno in REFUSAL_ERRNOS:
            raise _unwritable(target.parent, error) from error
        raise


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {folder}: {error.strerror}; set {CACHE_VARIABLE} to a writable folder")


def _finish(built_path: Path, mode: int) -> None:
    """Flush a file, or a folder with all that is in it, and give files a mode, which safetensors narrows."""
    for path in [*built_path.rglob("*"), built_path]:
        if not path.is_symlink():
            if path.is_file():
                path.chmod(mode)
            flush(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
