"""A decoder whose passes of few rows have fixed shapes, so that each is recorded once and then replayed.

On a fast GPU a pass of a few rows takes as long as Python needs to launch its kernels; a recorded pass is a
few launches in all. Rows are padded to one of `ROW_COUNTS`, they attend to the whole cache through a mask,
and all inputs are copied into buffers that stay where they are. Knows nothing of what records: on a CPU
nothing does, and the same functions run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from repro.libraries import Tensor, torch
from repro.models.forward.network import Captured, DecoderNetwork, DecoderStep, Step
from repro.models.runtime.cuda import Work
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.cache import FixedCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights
from repro.records.provenance import count_layers

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows that passes are padded to; of more rows computing takes longer than launching."""

MOST_RECORDINGS = 64
"""Recordings of one network. What comes later runs as it is, on the same buffers."""

EMBED, HEAD = "embed", "head"
Piece = str | tuple[int, int]
"""A part of a pass: the embedding, layers from the first to before the last, or the output projection."""


class _Buffers:
    """What passes of up to `row_count` rows read and write.

    Attributes:
        tokens, positions, slots: int64 `[rows]`; rows that pad a pass write behind its last slot.
        mask: bool `[rows, capacity]`, the slots that each row sees.
        x: hidden states of the rows, fp32 `[rows, hidden]`.
        after: hidden states by the number of layers after which a draft head reads them.
        head_input: final hidden states whose logits are asked for, as `x`.
        logits: fp32 `[rows, tokens]`, once they were computed.
    """

    def __init__(self, decoder: Decoder, row_count: int, capacity: int, depths: Sequence[int]) -> None:
        device, hidden = decoder.device, decoder.config.hidden
        self.rows = row_count
        self._ids = torch.zeros(3, row_count, dtype=torch.int64, device=device)
        self.tokens, self.positions, self.slots = self._ids
        self.mask = torch.zeros(row_count, capacity, dtype=torch.bool, device=device)
        self.x, self.head_input = (torch.zeros(row_count, hidden, device=device) for _ in range(2))
        self.after = {depth: torch.zeros(row_count, hidden, device=device) for depth in depths}
        self.logits: Tensor | None = None

    def load(self, tokens: Tensor | None, positions: Tensor, mask: Tensor | None, cached_slots: int) -> None:
        """Set a pass's inputs, all on the CPU, after `cached_slots`; `mask` is None for a chain."""
        count = len(positions)
        ids = torch.zeros_like(self._ids, device="cpu")
        if tokens is not None:
            ids[0, :count] = tokens
        ids[1, :count] = positions
        torch.arange(cached_slots, cached_slots + self.rows, out=ids[2])
        self._ids.copy_(ids)
        is_visible = torch.zeros_like(self.mask, device="cpu")
        if mask is None:
            mask = torch.ones(count, cached_slots + count, dtype=torch.bool).tril_(cached_slots)
        is_visible[:count, : cached_slots + count] = mask
        is_visible[count:, 0] = True  # a softmax over nothing would be NaN
        self.mask.copy_(is_visible)


class RecordedNetwork(DecoderNetwork):
    """A resident decoder that replays passes of up to 64 rows.

    Longer ones run as they are, and so do all while another decoder is in its place.
    """

    cache_kind = FixedCache
    cache: FixedCache

    def __init__(
        self,
        decoder: Decoder,
        capacity: int,
        record: Callable[[Work], Work],
        captured: Captured | None = None,
    ) -> None:
        """Record all usual passes, so that no answer waits for it.

        Args:
            decoder: computes.
            capacity: tokens that the cache has room for; if more come it grows, and all is recorded anew.
            record: makes a recording of a function (`cuda.GraphRecorder`).
            captured: see `DecoderNetwork`.
        """
        super().__init__(decoder, capacity + ROW_COUNTS[-1], captured)
        self._recorded = decoder
        self._record = record
        self._moved = self.cache.moved
        self._buffers: dict[int, _Buffers] = {}
        self._recordings: dict[tuple[int, Piece], Work] = {}
        with torch.inference_mode():
            for row_count in ROW_COUNTS:
                buffers = self.buffers(row_count, 0)
                buffers.load(None, torch.zeros(1, dtype=torch.int64), None, 0)
                for piece in (EMBED, (0, self.depth), HEAD):
                    self.play(buffers, piece)

    @property
    def is_exchanged(self) -> bool:
        """Whether a method has put another decoder in the place of the recorded one."""
        return self.decoder is not self._recorded

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `DecoderNetwork`."""
        return _RecordedStep(self, prefixes, branches)

    def buffers(self, row_count: int, cached_slots: int) -> _Buffers:
        """The buffers for a pass of so many rows, at most 64, after `cached_slots`."""
        padded_rows = next(padded_count for padded_count in ROW_COUNTS if row_count <= padded_count)
        self.cache.reserve(cached_slots + padded_rows)
        if self.cache.moved != self._moved:
            self._moved = self.cache.moved
            self._buffers.clear()
            self._recordings.clear()
        if padded_rows not in self._buffers:
            depths = self.captured.depths if self.captured else ()
            self._buffers[padded_rows] = _Buffers(self.decoder, padded_rows, self.cache.capacity, depths)
        return self._buffers[padded_rows]

    def play(self, buffers: _Buffers, piece: Piece) -> None:
        """Run a piece of a pass on its buffers, recorded the first time."""
        key = buffers.rows, piece
        if key not in self._recordings:
            work = self._work(buffers, piece)
            if len(self._recordings) == MOST_RECORDINGS:
                work()
                return
            states = buffers.x.clone()  # a recording runs the work, which replaces its own input
            self._recordings[key] = self._record(work)
            buffers.x.copy_(states)
        self._recordings[key]()

    def _work(self, buffers: _Buffers, piece: Piece) -> Work:
        if isinstance(piece, tuple):
            return partial(self._layers, buffers, *piece)
        return partial(self._embed if piece == EMBED else self._head, buffers)

    def _embed(self, buffers: _Buffers) -> None:
        buffers.x.copy_(self._recorded.embed(buffers.tokens, buffers.positions, ahead=True))

    def _layers(self, buffers: _Buffers, start: int, end: int) -> None:
        x, positions = buffers.x, buffers.positions.clone()  # by new positions a decoder knows a new pass
        self.cache.writes = buffers.slots
        states = self._recorded.states(x, positions, buffers.mask, self.cache, range(start, end))
        for depth, x in enumerate(states, start + 1):
            if depth in buffers.after:
                buffers.after[depth].copy_(x)
        self.cache.writes = None
        buffers.x.copy_(x)

    def _head(self, buffers: _Buffers) -> None:
        buffers.logits = self._recorded.head(buffers.head_input)


class _RecordedStep(DecoderStep):
    """A pass on the buffers of a `RecordedNetwork`; its positions and mask stay on the CPU."""

    _network: RecordedNetwork
    _buffers: _Buffers | None = None

    def _embed(self, tokens: Tensor) -> Tensor:
        network, row_count = self._network, len(tokens)
        if row_count > ROW_COUNTS[-1] or network.is_exchanged:
            return super()._embed(tokens)
        self._buffers = network.buffers(row_count, self._before)
        self._buffers.load(tokens, self._positions, self._mask, self._before)
        network.play(self._buffers, EMBED)
        return self._buffers.x[:row_count]

    @inference
    def layers(self, start: int, end: int, weights: Sequence[LayerWeights] | None = None) -> None:
        """See `Step`."""
        network, row_count = self._network, len(self._rows)
        if self._buffers is None:
            super().layers(start, end, weights)
            return
        network.play(self._buffers, (start, end))
        count_layers(end - start)
        network.cache.advance(range(start, end), self._before + row_count)
        for depth, x in self._buffers.after.items():
            if network.captured and start < depth <= end:
                network.captured.see(depth, self._rows, x[:row_count].clone())
        self._did(end)

    @inference
    def drop(self, indices: Sequence[int]) -> None:
        """See `Step`."""
        super().drop(indices)
        if self._buffers is not None:
            self._buffers = self._network.buffers(len(self._rows), self._before)
            self._buffers.load(None, self._positions, self._mask, self._before)
            self._x = self._buffers.x[: len(self._rows)].copy_(self._x)

    def _head(self, x: Tensor) -> Tensor:
        network, row_count = self._network, len(x)
        if row_count > ROW_COUNTS[-1] or network.is_exchanged:
            return super()._head(x)
        buffers = network.buffers(row_count, 0)
        buffers.head_input[:row_count].copy_(x)
        network.play(buffers, HEAD)
        assert buffers.logits is not None
        return buffers.logits[:row_count].clone()
