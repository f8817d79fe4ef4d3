"""A disk cache of a model's next-token ranks, shared across runs, devices and billed shapes.

Owns the cached rows and the network that reads them first. Rows are keyed by the tokens before them, one
file per checkpoint and precision. Only the top ranks are stored, so sampled decoding cannot use the cache.
Must not know about models beyond `network`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from operator import attrgetter
from pathlib import Path

from repro.libraries import Tensor, torch
from repro.models.forward.network import RANK_COUNT, LateLogits, Logits, Network, Step, rows_of
from repro.models.tokens.prefix import DIGEST_BYTES, Prefix
from repro.models.transformer.layer import LayerWeights
from repro.records.row_file import RowFile

WHOLE, FIRST, FEATURES, PACKS, READ, AHEAD = "rows", "first_ranks", "features", "packs", "read", "ahead"


class LogitCache:
    """A file of cached ranks of one checkpoint at one precision, each row under its key (`row_key`).

    Rows that were computed here have all 64 ranks; those that came in a pack have only its first ones. The
    file of a draft head also has the features that it reads from its target.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file; several processes may share it."""
        self.file = RowFile(path, (WHOLE, FIRST, FEATURES, PACKS, READ, AHEAD))
        self._read: set[bytes] = set()

    def get(self, key: bytes, ranks: int = RANK_COUNT) -> Logits | None:
        """The cached ranks of a row, or None if fewer than `ranks` are known."""
        self._read.add(key)
        if packed_row := self.file.get(WHOLE, key):
            return Logits(None, _unpack(packed_row))
        if packed_row := self.file.get(FIRST, key):
            row = FirstRanks(_unpack(packed_row))
            return row if row.count >= ranks else None
        return None

    def put(self, keys: Iterable[bytes], rows: Iterable[Logits]) -> None:
        """Store the ranks of computed rows; existing entries are not overwritten."""
        self.file.put(WHOLE, [(key, _pack(*row.top_ranks())) for key, row in zip(keys, rows, strict=True)])

    def put_first(self, rows: Iterable[tuple[bytes, Sequence[int], Sequence[float]]]) -> None:
        """Store first ranks: of each row its key, tokens and log-probabilities."""
        self.file.put(FIRST, [(key, _pack(tokens, logps)) for key, tokens, logps in rows])

    def read_rows(self) -> dict[bytes, tuple[list[int], list[float]]]:
        """The rows that runs have read, by key."""
        keys = {key for key, _ in self.file.each(READ)} | self._read
        return {
            key: _unpack(row) for table in (FIRST, WHOLE) for key, row in self.file.each(table) if key in keys
        }

    def scores(self, key: bytes) -> dict[int, float]:
        """An early exit's known scores after a sequence, by token; the key is the sequence's hash."""
        self._read.add(key)
        return self._stored_scores(key)

    def _stored_scores(self, key: bytes) -> dict[int, float]:
        packed_row = self.file.get(FIRST, key)
        return dict(zip(*_unpack(packed_row), strict=True)) if packed_row else {}

    def add_scores(self, scores: Iterable[tuple[bytes, Mapping[int, float]]]) -> None:
        """Store an early exit's scores after sequences, by their hash, beside those stored before."""
        rows = [(key, {**self._stored_scores(key), **new_scores}) for key, new_scores in scores]
        packed_rows = [(key, _pack([*row], [*row.values()])) for key, row in rows]
        self.file.put(FIRST, packed_rows, replace=True)

    def features(self, prefixes: Sequence[Prefix]) -> Tensor | None:
        """A target's features of sequences, fp32 `[n, width]`; None unless all are cached."""
        stored_rows = [self.file.get(FEATURES, prefix.digest) for prefix in prefixes]
        rows = [torch.frombuffer(bytearray(row), dtype=torch.float32) for row in stored_rows if row]
        return torch.stack(rows) if len(rows) == len(prefixes) else None

    def put_features(self, prefixes: Sequence[Prefix], rows: Tensor) -> None:
        """Store a target's features, fp32 `[n, width]`."""
        pairs = zip(prefixes, rows.float().cpu(), strict=True)
        self.file.put(FEATURES, [(prefix.digest, row.numpy().tobytes()) for prefix, row in pairs])

    def margin(self) -> float | None:
        """The smallest gap between the first two log-probabilities of any computed row."""
        ranks = (_unpack(row)[1] for _, row in self.file.each(WHOLE))
        return min((logps[0] - logps[1] for logps in ranks if len(logps) > 1), default=None)

    def close(self) -> None:
        """Note what was read, and close the file."""
        if self._read:
            self.file.put(READ, ((key, b"") for key in self._read))
        self.file.close()


class FirstRanks(Logits):
    """The first ranks of a row whose others are not known."""

    def __init__(self, ranks: tuple[list[int], list[float]]) -> None:
        super().__init__(None, ranks)
        self.count = len(ranks[0])

    def top(self, count: int) -> list[tuple[int, float]]:
        """See `Logits`; RuntimeError if more ranks are read than the method said (`Method.ranks`)."""
        if count > self.count:
            raise RuntimeError(f"{count} ranks are read of a row of which {self.count} are known")
        return super().top(count)


def smallest_margin(folder: Path) -> float | None:
    """The smallest gap between the top two log-probabilities in all memos of a folder; None without any.

    Shows how close two tokens came to being swapped by a different summation order.
    """
    margins = []
    for path in folder.glob("*.sqlite"):
        with closing(LogitCache(path)) as memo:
            margins.append(memo.margin())
    return min((margin for margin in margins if margin is not None), default=None)


def row_key(digest: bytes, source_number: int = 0) -> bytes:
    """A row's key: the hash of its sequence, and a number if what is computed depends on more than that.

    For an encoder it is the length of the prompt that it read, for an EAGLE head how many tokens had features
    of the target, for Medusa heads the head, counted from 1.
    """
    return digest + source_number.to_bytes(4, "little") if source_number else digest


def parts_of(key: bytes) -> tuple[bytes, int]:
    """The digest and the number of a key (`row_key`)."""
    return key[:DIGEST_BYTES], int.from_bytes(key[DIGEST_BYTES:], "little")


def _pack(tokens: Sequence[int], logps: Sequence[float]) -> bytes:
    return array("i", tokens).tobytes() + array("f", logps).tobytes()


def _unpack(packed_row: bytes) -> tuple[list[int], list[float]]:
    tokens, logps = array("i"), array("f")
    tokens_size = len(packed_row) // 2
    tokens.frombytes(packed_row[:tokens_size])
    logps.frombytes(packed_row[tokens_size:])
    return tokens.tolist(), logps.tolist()


class MemoNetwork:
    """A network that looks up logits in the cache and computes only if a wanted entry is missing.

    Looked-up sequences are not in the KV cache; the next computed pass fills them in.
    """

    def __init__(self, network: Network, memo: LogitCache, ranks: int = RANK_COUNT) -> None:
        """`ranks`: how many first ranks of a row are read. Rows are stored under the network's `key`, or, if
        it has none, under their sequence."""
        self.network, self.memo, self.ranks = network, memo, ranks
        self.key: Callable[[Prefix], bytes] = getattr(network, "key", attrgetter("digest"))
        self.depth = network.depth

    def start(self, prompt: Prefix) -> None:
        """See `Network`."""
        self.network.start(prompt)

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass that computes only what the memo lacks."""
        return _Remembering(self, prefixes, branches)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self.network.keep(text)

    def look_up(self, prefix: Prefix) -> Logits | None:
        """The cached ranks after a sequence, as the network would compute them now."""
        return self.memo.get(self.key(prefix), self.ranks)


class _Remembering(Step):
    """Defers computing until a missing entry is read, then computes all wanted sequences in one pass."""

    def __init__(
        self, remembering: MemoNetwork, prefixes: Sequence[Prefix], branches: Sequence[Prefix]
    ) -> None:
        self._network, self._memo, self._ranks = remembering.network, remembering.memo, remembering.ranks
        self._keys = {prefix: remembering.key(prefix) for prefix in prefixes}
        self._prefixes, self._branches = list(prefixes), branches
        self._step: Step | None = None
        self._layers_due = self._layers_run = 0

    def layers(self, start: int, end: int, weights: Sequence[LayerWeights] | None = None) -> None:
        assert weights is None, "what is read from a disk computes, and is not remembered"
        self._layers_due = end

    def hidden(self) -> Tensor:
        return self._compute(self._layers_due).hidden()

    def drop(self, indices: Sequence[int]) -> None:
        self._prefixes = [self._prefixes[i] for i in indices]
        if self._step is not None:
            self._step.drop(indices)

    def rows(self, indices: Sequence[int] | None = None) -> list[Logits]:
        prefixes = self._prefixes if indices is None else [self._prefixes[i] for i in indices]
        cached_rows = [self._look_up(prefix) for prefix in prefixes]
        if all(cached_rows):
            return [row for row in cached_rows if row]
        rows = self._store(self._prefixes, self._compute(self._network.depth).rows())
        return rows if indices is None else [rows[i] for i in indices]

    def late_rows(self) -> list[Logits]:
        """Logits of each wanted sequence; if no pass has begun, missing ones are computed when read."""
        if self._step is not None or self._branches:
            return self.rows()
        cached_rows = [(prefix, self._look_up(prefix)) for prefix in self._prefixes]
        return [row or LateLogits(partial(self._alone, prefix)) for prefix, row in cached_rows]

    def _alone(self, prefix: Prefix) -> Logits:
        """Logits of one sequence, from a separate pass."""
        return self._look_up(prefix) or self._store([prefix], rows_of(self._network, [prefix]))[0]

    def _look_up(self, prefix: Prefix) -> Logits | None:
        return self._memo.get(self._keys[prefix], self._ranks)

    def _store(self, prefixes: Sequence[Prefix], rows: Sequence[Logits]) -> list[Logits]:
        """The ranks of computed rows, which are in the memo from now on."""
        self._memo.put([self._keys[prefix] for prefix in prefixes], rows)
        return [Logits(None, row.top_ranks()) for row in rows]

    def _compute(self, layer_count: int) -> Step:
        """The real pass, run through `layer_count` layers."""
        if self._step is None:
            self._step = self._network.begin(self._prefixes, self._branches)
        if layer_count > self._layers_run:
            self._step.layers(self._layers_run, layer_count)
            self._layers_run = layer_count
        return self._step
