"""A disk cache of a model's next-token ranks, shared across runs, devices and billed shapes.

Owns the SQLite file and the network that reads it first. Entries are keyed by the tokens before them, one
file per checkpoint and precision, and written once; a killed run leaves whole entries. Only the top ranks are
stored, so sampled decoding cannot use the cache. Must not know about models beyond `network`.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from repro.core.late import late
from repro.models.forward.network import LateLogits, Logits, Network, Step
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.layer import LayerWeights
from repro.records.effort import count

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


class LogitCache:
    """A file of cached ranks and hidden states of one checkpoint at one precision."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; several processes may share it."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._file.execute("pragma journal_mode = wal")
        self._file.execute("pragma synchronous = normal")
        self._file.execute(
            "create table if not exists rows (prefix blob primary key, ranks blob) without rowid"
        )
        self._file.execute(
            "create table if not exists hidden (layers integer, prefix blob, x blob, "
            "primary key (layers, prefix)) without rowid"
        )

    def get(self, prefix: Prefix, source: int = 0) -> Logits | None:
        """The cached ranks after a sequence, or None; an encoder read its first `source` tokens."""
        key = (_key(prefix, source),)
        found = self._file.execute("select ranks from rows where prefix = ?", key).fetchone()
        return Logits(None, _unpack(found[0])) if found else None

    def put(self, prefixes: Sequence[Prefix], rows: Sequence[Logits], source: int = 0) -> None:
        """Store ranks; existing entries are not overwritten."""
        values = [(_key(prefix, source), _pack(row)) for prefix, row in zip(prefixes, rows, strict=True)]
        self._file.execute("begin immediate")
        self._file.executemany("insert or ignore into rows values (?, ?)", values)
        self._file.execute("commit")

    def hidden(self, prefixes: Sequence[Prefix], layers: int) -> Tensor | None:
        """Hidden states after `layers` layers, fp32 `[n, hidden]`; None unless all are cached."""
        ask = "select x from hidden where layers = ? and prefix = ?"
        found = [self._file.execute(ask, (layers, prefix.digest)).fetchone() for prefix in prefixes]
        if not all(found):
            return None
        return torch.stack([torch.frombuffer(bytearray(x), dtype=torch.float32) for (x,) in found])

    def put_hidden(self, prefixes: Sequence[Prefix], layers: int, rows: Tensor) -> None:
        """Store hidden states, fp32 `[n, hidden]`."""
        values = [
            (layers, prefix.digest, row.numpy().tobytes())
            for prefix, row in zip(prefixes, rows.float().cpu(), strict=True)
        ]
        self._file.execute("begin immediate")
        self._file.executemany("insert or ignore into hidden values (?, ?, ?)", values)
        self._file.execute("commit")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def smallest_margin(folder: Path) -> float | None:
    """The smallest gap between the top two log-probabilities in all memos of a folder; None without any.

    Shows how close two tokens came to being swapped by a different summation order.
    """
    margins: list[float] = []
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as file:
            ranks = (_unpack(packed)[1] for (packed,) in file.execute("select ranks from rows"))
            margins += [logps[0] - logps[1] for logps in ranks if len(logps) > 1]
    return min(margins, default=None)


def _key(prefix: Prefix, source: int) -> bytes:
    """The entry's key; it includes `source` because an encoder's prompt length changes the logits."""
    return prefix.digest + source.to_bytes(4, "little") if source else prefix.digest


def _pack(row: Logits) -> bytes:
    tokens, logps = row.ranked()
    return array("i", tokens).tobytes() + array("f", logps).tobytes()


def _unpack(packed: bytes) -> tuple[list[int], list[float]]:
    tokens, logps = array("i"), array("f")
    half = len(packed) // 2
    tokens.frombytes(packed[:half])
    logps.frombytes(packed[half:])
    return tokens.tolist(), logps.tolist()


class MemoNetwork:
    """A network that looks up logits in the cache and computes only if a wanted entry is missing.

    Looked-up sequences are not in the KV cache; the next computed pass fills them in.
    """

    def __init__(self, network: Network, memo: LogitCache, encodes: bool = False) -> None:
        """`encodes`: whether the network has an encoder, which reads the prompt."""
        self._network = network
        self._memo = memo
        self._encodes = encodes
        self._source = 0
        self.depth = network.depth

    def start(self, prompt: Prefix) -> None:
        """See `Network`."""
        self._source = prompt.length if self._encodes else 0
        self._network.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass that computes only what the memo lacks."""
        return _Remembering(self._network, self._memo, wanted, branches, self._source)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self._network.keep(text)


class _Remembering(Step):
    """Defers computing until a missing entry is read, then computes all wanted sequences in one pass."""

    def __init__(
        self,
        network: Network,
        memo: LogitCache,
        wanted: Sequence[Prefix],
        branches: Sequence[Prefix],
        source: int,
    ) -> None:
        self._network, self._memo, self._source = network, memo, source
        self._wanted, self._branches = list(wanted), branches
        self._step: Step | None = None
        self._asked = self._ran = 0

    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "what is read from a disk computes, and is not remembered"
        self._asked = last

    def hidden(self) -> Tensor:
        known = self._memo.hidden(self._wanted, self._asked)
        if known is None:
            known = self._computed(self._asked).hidden()
            self._memo.put_hidden(self._wanted, self._asked, known)
        return known

    def drop(self, kept: Sequence[int]) -> None:
        self._wanted = [self._wanted[i] for i in kept]
        if self._step is not None:
            self._step.drop(kept)

    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        wanted = self._wanted if at is None else [self._wanted[i] for i in at]
        known = [self._memo.get(prefix, self._source) for prefix in wanted]
        if all(known):
            count(found=self._counted(wanted))
            return [row for row in known if row]
        rows = self._computed(self._network.depth).rows()
        self._memo.put(self._wanted, rows, self._source)
        count(computed=self._counted(self._wanted))
        ranked = [Logits(None, row.ranked()) for row in rows]
        return ranked if at is None else [ranked[i] for i in at]

    def late_rows(self) -> list[Logits]:
        """Logits of each wanted sequence; if no pass has begun, missing ones are computed when read."""
        if self._step is not None or self._branches:
            return self.rows()
        known = [(prefix, self._memo.get(prefix, self._source)) for prefix in self._wanted]
        count(found=self._counted(prefix for prefix, row in known if row))
        return [row or LateLogits(partial(self._alone, prefix)) for prefix, row in known]

    def _alone(self, prefix: Prefix) -> Logits:
        """Logits of one sequence, from a separate pass."""
        known = self._memo.get(prefix, self._source)
        if known is None:
            step = self._network.begin([prefix])
            step.layers(0, self._network.depth)
            (computed,) = step.rows()
            self._memo.put([prefix], [computed], self._source)
            count(computed=self._counted([prefix]))
            known = Logits(None, computed.ranked())
        return known

    def _counted(self, prefixes: Iterable[Prefix]) -> list[tuple[Path, bytes]]:
        """Keys for `count`: one model's entries are not another's."""
        return [(self._memo.path, _key(prefix, self._source)) for prefix in prefixes]

    def _computed(self, layers: int) -> Step:
        """The real pass, run through `layers` layers."""
        if self._step is None:
            self._step = self._network.begin(self._wanted, self._branches)
        if layers > self._ran:
            self._step.layers(self._ran, layers)
            self._ran = layers
        return self._step
