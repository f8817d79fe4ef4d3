"""A decoder whose layers are split between two torch devices, as in Ghidorah (sec. III-B) or Megatron.

Owns the work of each part and how results are combined. Knows nothing of how a good split is found or how
long a part takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from repro.libraries import Tensor, torch
from repro.methods.ghidorah.divided_linear import Part, split_linear
from repro.methods.ghidorah.partition import AttentionExtent, Split
from repro.methods.ghidorah.tree_kernels import Partial, TreePattern, attend_tree, cached_pattern, merge
from repro.models.transformer.attention import (
    TILED_ROWS,
    AttentionMask,
    attend,
    attention_mask,
    blindness,
    scores,
    visible,
)
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights

CPU = "cpu"
MEGATRON = "megatron"


@dataclass(frozen=True, slots=True)
class DividedMask(AttentionMask):
    """Attention mask of a pass, for attention split between devices.

    The other device attends to the first `other_slots` cache slots; the main one to those up to `reach`;
    `pattern` covers the pass's own remaining slots. A bias is None if nothing is masked in its part.
    """

    other_slots: int = 0
    reach: int = 0
    other_bias: Tensor | None = None
    main_bias: Tensor | None = None
    pattern: TreePattern | None = None


def divided_linears(decoder: Decoder, share: float, form: str, other: torch.device) -> Decoder:
    """The decoder with a share of every linear on another device.

    `columns` splits every linear by outputs; `megatron` splits linears in pairs, the first by outputs and the
    second by inputs, and sums the partial outputs.

    Raises:
        InputError: the decoder's weights are packed or quantized, or its layers are not in memory.
    """
    parts = [Part(decoder.device, 1 - share), Part(other, share)]
    blocks = 2 if decoder.config.gated else 1

    def layer(w: LayerWeights) -> LayerWeights:
        if form == MEGATRON:
            up = split_linear(w.up, parts, blocks=blocks)
            out, down = split_linear(w.out, parts, way="rows"), split_linear(w.down, parts, way="rows")
        else:
            up, out, down = (split_linear(linear, parts) for linear in (w.up, w.out, w.down))
        return replace(w, qkv=split_linear(w.qkv, parts), out=out, up=up, down=down)

    layers = [None if w is None else layer(w) for w in decoder.layers]
    ends = replace(decoder.ends, head=split_linear(decoder.ends.head, parts))
    return decoder.with_layers(layers, ends)


class DividedDecoder(Decoder):
    """A decoder whose tree attention is computed in parts, each with its own softmax, then merged.

    Passes of one token, with an empty KV cache, or with more tokens than a tree has use ordinary attention.

    Attributes:
        split: the current split; it may change between passes.
    """

    def __init__(self, decoder: Decoder, split: Split, other: torch.device | str = CPU) -> None:
        """`decoder` is undivided or has divided linears; `other` is the device of the split's other part."""
        super().__init__(decoder.config, decoder.layers, decoder.ends)
        self.split = split
        self._other = torch.device(other)

    def rehearse(self, extent: AttentionExtent) -> None:
        """Run one layer's attention on dummy keys, only to time it."""
        config, slots = self.config, extent.context + extent.rows
        mask = torch.tensor(extent.visible_keys)[:, None] > torch.arange(extent.rows)
        mask = torch.cat((torch.ones(extent.rows, extent.context, dtype=torch.bool), mask), 1).to(self.device)
        queries = torch.ones(extent.rows, config.heads, config.head_dim, device=self.device)
        keys = torch.ones(config.kv_heads, slots, config.head_dim, device=self.device)
        self._mix(queries, keys, keys, self._divide_mask(None, mask))

    def _build_mask(
        self, i: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        cached = cache.length_of(i)
        if self.split.form == MEGATRON or not cached or not 1 < len(positions) < TILED_ROWS:
            return attention_mask(self.config, i, rotation, positions, mask, cache)
        return self._divide_mask(rotation, visible(self.config, i, positions, mask, cache))

    def _divide_mask(self, rotation: Tensor | None, mask: Tensor) -> DividedMask:
        """Split a visibility mask, bool `[rows, cached + rows]`, into parts."""
        rows, slots = mask.shape
        cached, dense_keys = slots - rows, min(self.split.dense_keys, rows)
        other_slots, reach = round(self.split.keys * cached), cached + dense_keys

        def bias(part: Tensor) -> Tensor | None:
            return None if part.all() else blindness(self.config, part)

        pattern = cached_pattern(mask[:, cached:], dense_keys)
        return DividedMask(
            rotation,
            other_slots=other_slots,
            reach=reach,
            other_bias=_to(bias(mask[:, :other_slots]), self._other),
            main_bias=bias(mask[:, other_slots:reach]),
            pattern=pattern if pattern.pair_count else None,
        )

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, shared: AttentionMask) -> Tensor:
        if isinstance(shared, DividedMask):
            return self._in_parts(queries, keys, values, shared)
        if self.split.form == MEGATRON and (edge := round(self.split.share * len(keys))):
            return self._by_heads(queries, keys, values, shared, edge)
        return attend(self.config, queries, keys, values, shared)

    def _in_parts(self, queries: Tensor, keys: Tensor, values: Tensor, shared: DividedMask) -> Tensor:
        """Each device attends to its slots; partial results are merged by maximum and sum (online softmax).

        Inputs are sent to the other device first, since copies would queue behind the main device's kernels.
        """
        rows, config, other_slots, other = len(queries), self.config, shared.other_slots, self._other
        own_slots = slice(keys.shape[1] - rows, None)
        # Deviation: attention's sparse part runs on the CPU, whatever the split's other device is.
        tree = queries.to(CPU), keys[:, own_slots].to(CPU), values[:, own_slots].to(CPU)
        # Deviation: without shared memory, the other device's cached keys and values are sent each time.
        sent = None
        if other_slots:
            sent = queries.to(other), keys[:, :other_slots].to(other), values[:, :other_slots].to(other)
        parts = []
        if other_slots < shared.reach:
            main_slots = slice(other_slots, shared.reach)
            main = keys[:, main_slots], values[:, main_slots]
            parts.append(dense_part(config, queries, *main, shared.main_bias))
        if shared.pattern is not None:
            parts.append(attend_tree(shared.pattern, *tree, config.query_scale, config.attention_cap))
        if sent is not None:
            parts.append(dense_part(config, *sent, shared.other_bias))
        partials = [Partial(*(tensor.to(keys.device) for tensor in part)) for part in parts]
        return merge(partials).reshape(rows, -1)

    def _by_heads(
        self, queries: Tensor, keys: Tensor, values: Tensor, shared: AttentionMask, edge: int
    ) -> Tensor:
        """Megatron's attention: the first `edge` key-value heads, with their query heads, run on `_other`."""
        other, main_heads = self._other, slice(edge * self.config.groups, None)
        sent = queries[:, : main_heads.start].to(other), keys[:edge].to(other), values[:edge].to(other)
        other_mask = AttentionMask(None, shared.tiled, _to(shared.visible, other), _to(shared.bias, other))
        halves = []
        if edge < len(keys):
            halves.append(attend(self.config, queries[:, main_heads], keys[edge:], values[edge:], shared))
        return torch.cat([attend(self.config, *sent, other_mask).to(keys.device), *halves], 1)


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def dense_part(
    config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
) -> Partial:
    """Partial attention to some slots; shapes as in `attention.attend`, bias as in `blindness`."""
    kv_heads, _, width = keys.shape
    query_groups = queries.transpose(0, 1).reshape(kv_heads, -1, width)
    logits = scores(config, query_groups, keys, bias)
    # A row that sees no slot gets a finite maximum, so that all its weights are 0.
    top = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    weights = logits.sub_(top).exp_()
    shape = config.heads, len(queries)
    mixed = torch.bmm(weights, values).view(*shape, width)
    return Partial(mixed, top.view(*shape, 1), weights.sum(-1).view(*shape, 1))


class DividableDecoder:
    """A resident decoder, whole or with its layers split between two torch devices; the other is the CPU."""

    def __init__(self, decoder: Decoder) -> None:
        self._undivided = decoder
        self._decoder: DividedDecoder | None = None

    def at(self, split: Split | None) -> Decoder:
        """The decoder at a split, or the whole one for None.

        Linears are divided anew only for another share or form; on the CPU itself they stay whole.

        Raises:
            InputError: see `divided_linears`.
        """
        if split is None:
            return self._undivided
        if self._undivided.device.type == CPU:
            split = Split(share=0.0, dense_keys=split.dense_keys, to=split.to)
        divided = self._decoder
        if divided is None or (divided.split.share, divided.split.form) != (split.share, split.form):
            linears = (
                divided_linears(self._undivided, split.share, split.form, torch.device(CPU))
                if split.share
                else self._undivided
            )
            self._decoder = divided = DividedDecoder(linears, split)
        divided.split = split
        return divided

    @inference
    def rehearse(self, extent: AttentionExtent) -> None:
        """Run one layer's attention with the last split, only to time it; nothing without one."""
        if self._decoder is not None:
            self._decoder.rehearse(extent)
