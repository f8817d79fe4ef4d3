"""Reads files that people bring, under limits of size and depth, and without following links in a folder.

Owns these limits for YAML, JSON, CSV and what is compressed. Must not know what the files say.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from repro.core.errors import InputError

MB = 1 << 20
LINES_BYTES = 2048 * MB
"""Largest file of lines."""
JSON_BYTES = 128 * MB
"""Largest file, or line, that is one piece of JSON."""
UNPACKED_BYTES = 256 * MB
UNPACKED_RATIO = 50
"""What is compressed may unpack to `UNPACKED_BYTES`, or to `UNPACKED_RATIO` times its size if more."""
DICTIONARY_BYTES = 256 * MB
"""Memory for unpacking xz."""
MOST_LEVELS = 100
"""Levels of lists and mappings."""

SETTLED_NS = 100_000_000
"""Age from which a further change of a file shows in its times, which tick every few milliseconds."""

XZ_SUFFIX = ".xz"

YAML_BYTES = 4 * MB
"""Largest YAML file: a second of parsing."""
MOST_NODES = 100_000
"""Most values of a file, those that aliases repeat counted each time."""

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def read_bytes(path: Path, limit: int) -> bytes:
    """A file's content.

    Raises:
        InputError: it has more than `most` bytes, or is no regular file: a pipe would be waited for.
        OSError: it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is no regular file")
    if status.st_size > limit:
        raise InputError(f"{path} has {status.st_size / MB:.0f} MB; at most {limit / MB:.0f} MB are read")
    return path.read_bytes()


def is_settled(file_stat: os.stat_result) -> bool:
    """Whether a further change of a file shows in its times."""
    return time.time_ns() - file_stat.st_ctime_ns > SETTLED_NS


def read_text(path: Path, limit: int) -> str:
    """A file's UTF-8 text; errors as in `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(path, limit).decode()


@contextmanager
def csv_reader(path: Path) -> Iterator[csv.DictReader[str]]:
    """The lines of a CSV file; InputError where it is none, too large, or no regular file."""
    try:
        text = read_text(path, JSON_BYTES).removeprefix("\ufeff")  # the mark of some spreadsheets
        yield csv.DictReader(io.StringIO(text, newline=""))
    except (csv.Error, UnicodeDecodeError) as wrong:
        raise InputError(f"{path} is no CSV: {wrong}") from wrong


def require_no_link(root: Path, path: Path) -> Path:
    """The path itself; InputError if it, or a folder between it and the root, is a link."""
    for ancestor in (path, *path.parents):
        if ancestor == root:
            break
        if ancestor.is_symlink():
            raise InputError(f"{ancestor} is a link, which is not followed; put the files themselves there")
    return path


def unpack(path: Path) -> bytes:
    """The content of a file that is compressed as its suffix says, `.xz` or gzip.

    Raises:
        InputError: it is damaged or a link, or unpacks to more than files of results do.
    """
    try:
        packed = read_bytes(require_no_link(path.parent, path), LINES_BYTES)
        bytes_left = max(UNPACKED_BYTES, UNPACKED_RATIO * len(packed))
        chunks: list[bytes] = []
        while packed:
            part, is_whole, packed = _unpack(packed, path.suffix == XZ_SUFFIX, bytes_left + 1)
            bytes_left -= len(part)
            chunks.append(part)
            if bytes_left < 0:
                raise InputError(f"{path} unpacks to more than {(sum(map(len, chunks)) - 1) / MB:.0f} MB")
            if not is_whole:
                raise EOFError("it is cut")
        return b"".join(chunks)
    except (OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError) as wrong:
        raise InputError(f"{path} is damaged ({wrong}); restore it") from wrong


def _unpack(packed: bytes, is_xz: bool, most_bytes: int) -> tuple[bytes, bool, bytes]:
    """At most that much of the first stream, whether it is whole, and what comes after it."""
    if is_xz:
        xz = lzma.LZMADecompressor(memlimit=DICTIONARY_BYTES)
        return xz.decompress(packed, most_bytes), xz.eof, xz.unused_data.lstrip(b"\0")
    gz = zlib.decompressobj(wbits=31)
    return gz.decompress(packed, most_bytes), gz.eof, gz.unused_data.lstrip(b"\0")


def parse_json(text: str | bytes) -> Any:
    """What JSON says; ValueError if it is none, too long, or nested deeper than `MOST_LEVELS` levels."""
    if len(text) > JSON_BYTES:
        raise ValueError(f"it has {len(text) / MB:.0f} MB; at most {JSON_BYTES / MB:.0f} MB are read")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels") from None
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) > MOST_LEVELS:  # type: ignore[arg-type]
        depth_of(value)
    return value


def depth_of(value: Any) -> int:
    """Levels of lists and mappings in plain data; ValueError if there are more than `MOST_LEVELS`."""
    level_values = [value]
    for depth in range(MOST_LEVELS + 1):
        level_values = [part for part in level_values if isinstance(part, (list, dict))]
        if not level_values:
            return depth
        level_values = [
            inner for part in level_values for inner in (part.values() if isinstance(part, dict) else part)
        ]
    raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels")


def read_mapping(path: Path) -> dict[str, Any]:
    """The content of a YAML file; empty for an empty file.

    Raises:
        InputError: it is too large or not YAML, or not a mapping.
    """
    content = parse_yaml(read_yaml(path), path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a mapping and is {content!r}")
    return {str(key): value for key, value in content.items()}


def read_yaml(path: Path) -> str:
    """The text of a YAML file; InputError if it is none, or too large."""
    try:
        return read_text(path, YAML_BYTES)
    except UnicodeDecodeError as wrong:
        raise InputError(f"{path} is not YAML: {wrong}") from wrong


def parse_yaml(text: str, path: Path | str, loader: Any = _LOADER) -> Any:
    """What the text of a YAML file says, as plain data.

    Raises:
        InputError: it is not YAML, has a tag, or is nested or repeats itself too much.
    """
    try:
        _require_bounds(text, loader)
        return yaml.load(text, Loader=loader)
    except (ValueError, RecursionError, yaml.YAMLError) as wrong:
        raise InputError(f"{path} is not YAML: {' '.join(str(wrong).split())}") from wrong


def _require_bounds(text: str, loader: Any) -> None:
    """YAMLError for YAML that is nested too deeply, or whose aliases make it too large or endless."""
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise yaml.YAMLError(f"the alias *{event.anchor} is inside of what it repeats")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, total))
            elif event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, total_before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - total_before + 1
        if len(open_nodes) > MOST_LEVELS:
            raise yaml.YAMLError(f"it is nested deeper than {MOST_LEVELS} levels")
        if total > MOST_NODES:
            raise yaml.YAMLError(f"it has more than {MOST_NODES} values, its aliases written out")
