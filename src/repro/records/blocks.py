"""Blocks: large parts of plain data, stored once by content.

Owns how data are split into blocks, and the file that holds them. Must not know what the data mean.
"""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import DEEPEST, JSON_BYTES, XZ, depth_of, parse_json, unpack
from repro.core.remembered import remembered
from repro.records.record import canonical, write_atomically

REF = "$block"
"""The one key of a mapping that stands for a block."""

BEFORE, BETWEEN = '{"id":"', '","block":'
"""What stands before a block's name and before its content in a line of the file."""

SHARED = 2
"""Depth at which cells of a sweep have much in common, as `config.target`; it is split once."""

LEAST = 120
"""Length of canonical JSON from which a mapping, list or string becomes a block."""


def split(value: Any, found: dict[str, str]) -> Any:
    """Plain data with its large parts replaced by references to blocks.

    The blocks' canonical JSON is added to `found` by name. A block's own parts are split in the same way.

    Raises:
        InputError: a mapping has the reserved key `$block`.
    """
    return _split(value, found, 0)[0]


def _split(value: Any, found: dict[str, str], depth: int) -> tuple[Any, str]:
    """Data with its large parts replaced, and their canonical JSON."""
    if isinstance(value, str):
        text = encode_basestring_ascii(value)
    elif value is None or isinstance(value, (int, float)):
        return value, _number(value)
    elif depth == SHARED and isinstance(value, dict):
        part, text, blocks = _split_shared(value)
        found |= blocks
        return part, text
    elif isinstance(value, (dict, Mapping)):  # dict is quick
        if REF in value:
            raise InputError(f"the key {REF!r} is reserved for blocks")
        parts = {str(name): _split(part, found, depth + 1) for name, part in value.items()}
        value = {name: part for name, (part, _) in parts.items()}
        text = "{" + ",".join(f"{encode_basestring_ascii(n)}:{parts[n][1]}" for n in sorted(parts)) + "}"
    elif isinstance(value, (list, tuple)):
        rows = [_split(part, found, depth + 1) for part in value]
        value, text = [part for part, _ in rows], "[" + ",".join(text for _, text in rows) + "]"
    else:
        return value, canonical(value)
    if len(text) < LEAST:
        return value, text
    name = sha256(text.encode()).hexdigest()[:16]
    found[name] = text
    return {REF: name}, f'{{"{REF}":"{name}"}}'


@remembered(512)
def _split_shared(value: dict[str, Any]) -> tuple[Any, str, Mapping[str, str]]:
    """What `_split` makes of data, and their blocks; nobody changes either."""
    found: dict[str, str] = {}
    return *_split(value, found, SHARED + 1), found


def _number(value: float | None) -> str:
    """`canonical`, without making an encoder for each."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return repr(value) if math.isfinite(value) else canonical(value)


FAR = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 16 << 20}]
"""Fast, and finds what cells far apart in a file have in common, as answers that are equal."""


class Blocks:
    """Blocks by name, as read from a file. Equal parts of joined data are one object: do not change it.

    `damaged` has a sentence for each damaged line, or for the file.
    """

    def __init__(self, path: Path, texts: Mapping[str, str], damaged: Sequence[str] = ()) -> None:
        self.path = path
        self.texts = texts
        self.damaged = damaged
        self._joined: dict[str, Any] = {}
        self._extents: dict[str, tuple[int, int]] = {}

    def joined(self, value: Any) -> Any:
        """The data that `split` was given.

        Raises:
            InputError: a block is missing, or blocks of blocks are too deep or too long.
        """
        if isinstance(value, dict):
            if value.keys() == {REF}:
                return self._block(str(value[REF]))
            return {name: self.joined(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.joined(part) for part in value]
        return value

    def reach(self, names: Iterable[str]) -> dict[str, str]:
        """The texts of these blocks and of all blocks that they refer to."""
        left, found = list(names), dict[str, str]()
        while left:
            name = left.pop()
            if name not in found:
                found[name] = self._text(name)
                left += references(parse_json(found[name]))
        return found

    def _block(self, name: str) -> Any:
        if name not in self._joined:
            text = self._text(name)
            content = parse_json(text)
            self._joined[name] = self.joined(content)
            below = [self._extents[part] for part in references(content)]
            length = len(text) + sum(length for length, _ in below)
            self._extents[name] = length, depth_of(content) + max((depth for _, depth in below), default=0)
        length, depth = self._extents[name]
        if length > JSON_BYTES or depth > DEEPEST:
            raise InputError(
                f"{self.path}: the block {name} is {length} bytes and {depth} levels, written out"
            )
        return self._joined[name]

    def _text(self, name: str) -> str:
        if name not in self.texts:
            lacks = f"{self.path} lacks the block {name}, to which a cell refers; restore the file"
            raise InputError("; ".join([lacks, *self.damaged[:1]]))
        return self.texts[name]


def references(value: Any) -> list[str]:
    """Names of the blocks to which plain data refer directly."""
    if isinstance(value, dict):
        if value.keys() == {REF}:
            return [str(value[REF])]
        value = list(value.values())
    return [name for part in value for name in references(part)] if isinstance(value, list) else []


def read_blocks(path: Path) -> Blocks:
    """The blocks of a file, without those that are damaged; none if there is no file."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return Blocks(path, {})
    return _read(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, *_: int) -> Blocks:
    """The arguments beside the path change with the file, so that the cache keeps nothing old."""
    texts: dict[str, str] = {}
    damaged = []
    try:
        lines = unzipped(path)
    except InputError as wrong:
        return Blocks(path, {}, (str(wrong),))
    for number, line in enumerate(lines, 1):
        name, text = line[len(BEFORE) : len(BEFORE) + 16], line[len(BEFORE) + 16 + len(BETWEEN) : -1]
        if line != _line(name, text) or sha256(text.encode()).hexdigest()[:16] != name:
            damaged.append(f"{path}, line {number}, is damaged: it is not the block that it names")
            continue
        texts[name] = text
    return Blocks(path, texts, damaged)


def write_blocks(path: Path, texts: Mapping[str, str]) -> None:
    """Write blocks, sorted by name; the same blocks give the same bytes."""
    write_zipped(path, (_line(name, texts[name]) for name in sorted(texts)))


def _line(name: str, text: str) -> str:
    return f"{BEFORE}{name}{BETWEEN}{text}}}"


def unzipped(path: Path) -> list[str]:
    """Lines of a text file that is compressed as its suffix says; InputError if it is damaged."""
    try:
        return unpack(path).decode().splitlines()
    except UnicodeDecodeError as wrong:
        raise InputError(f"{path} is damaged ({wrong}); restore it") from wrong


def write_zipped(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a text file atomically, compressed as its suffix says, without the time of writing."""
    text = "".join(f"{line}\n" for line in lines).encode()
    packed = lzma.compress(text, filters=FAR) if path.suffix == XZ else gzip.compress(text, 9, mtime=0)
    write_atomically(path, packed)
