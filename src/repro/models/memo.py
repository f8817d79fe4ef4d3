"""What a model said about a sequence, kept across runs, devices and billed shapes.

Knows nothing of models beyond `network`. A row is keyed by the checkpoint and the tokens before it, and is
written once; a killed run leaves whole rows. Only ranks are kept, so sampled decoding computes for itself.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Sequence
from pathlib import Path

from repro.models.layer import LayerWeights
from repro.models.network import KnownStep, Network, Row, Step
from repro.models.prefix import Prefix


class Memo:
    """One file of remembered rows of one checkpoint at one precision."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; several processes may share it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._file.execute("pragma journal_mode = wal")
        self._file.execute("pragma synchronous = normal")
        self._file.execute(
            "create table if not exists rows (prefix blob primary key, ranks blob) without rowid"
        )

    def get(self, prefix: Prefix, source: int = 0) -> Row | None:
        """What was said after a sequence, if it is known; its first `source` tokens an encoder read."""
        key = (_key(prefix, source),)
        found = self._file.execute("select ranks from rows where prefix = ?", key).fetchone()
        return Row(None, _unpack(found[0])) if found else None

    def put(self, prefixes: Sequence[Prefix], rows: Sequence[Row], source: int = 0) -> None:
        """Remember rows; what is known already stays as it is."""
        values = [(_key(prefix, source), _pack(row)) for prefix, row in zip(prefixes, rows, strict=True)]
        self._file.execute("begin immediate")
        self._file.executemany("insert or ignore into rows values (?, ?)", values)
        self._file.execute("commit")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _key(prefix: Prefix, source: int) -> bytes:
    """The same tokens mean something else where prompt and answer part at another place."""
    return prefix.digest + source.to_bytes(4, "little") if source else prefix.digest


def _pack(row: Row) -> bytes:
    tokens, logps = row.ranked()
    return array("i", tokens).tobytes() + array("f", logps).tobytes()


def _unpack(packed: bytes) -> tuple[list[int], list[float]]:
    tokens, logps = array("i"), array("f")
    half = len(packed) // 2
    tokens.frombytes(packed[:half])
    logps.frombytes(packed[half:])
    return tokens.tolist(), logps.tolist()


class MemoNetwork:
    """A network that first looks at what it has said before, and computes only if a wanted row is not there.

    What was looked up is not in the real cache; the pass that next computes catches up.
    """

    def __init__(self, network: Network, memo: Memo, encodes: bool = False) -> None:
        """`encodes` says that the network has an encoder, which reads the prompt."""
        self._network = network
        self._memo = memo
        self._encodes = encodes
        self._source = 0
        self.depth = network.depth

    def start(self, prompt: Prefix) -> None:
        """Pass it on."""
        self._source = prompt.length if self._encodes else 0
        self._network.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass over the memo if that knows all, else over the network."""
        known = [self._memo.get(prefix, self._source) for prefix in wanted]
        if all(known):
            return KnownStep([row for row in known if row])
        return _Remembering(self._network.begin(wanted, branches), self._memo, wanted, self._source)

    def keep(self, text: Prefix) -> None:
        """Pass it on."""
        self._network.keep(text)


class _Remembering:
    def __init__(self, step: Step, memo: Memo, wanted: Sequence[Prefix], source: int) -> None:
        self._step, self._memo, self._wanted, self._source = step, memo, wanted, source

    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        self._step.layers(first, last, streamed)

    def rows(self) -> list[Row]:
        rows = self._step.rows()
        self._memo.put(self._wanted, rows, self._source)
        return [Row(None, row.ranked()) for row in rows]
