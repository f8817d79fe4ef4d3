"""A decoder whose layers are split between two torch devices, as in Ghidorah (sec. III-B) or Megatron.

Owns how weights are cut, the work of each part and how results are combined. Knows nothing of how a good
split is found or how long a part takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import Tensor, torch
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
from repro.models.transformer.linear import Linear, PlainLinear, as_plain, fastest_linear

AXES = ("columns", "rows")


class Part(NamedTuple):
    """A device and its share of the outputs or inputs, from 0 to 1."""

    device: torch.device
    share: float


class LinearPart(NamedTuple):
    """The linear of one part, which covers the outputs or inputs `start:end`."""

    linear: Linear
    device: torch.device
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Divided(Linear):
    """Parts of one weight; accelerators come first, since their kernels run asynchronously."""

    parts: tuple[LinearPart, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class ColumnSplit(_Divided):
    """Each part reads the whole input and writes its own outputs, without a reduction (Ghidorah III-B 1).

    A part has the same columns of each of `blocks` equal blocks of outputs.
    """

    blocks: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        # Send all inputs before launching kernels, since a later copy would wait for them.
        inputs = [x.to(part.device) for part in self.parts]
        partial_outputs = [part.linear(rows) for part, rows in zip(self.parts, inputs, strict=True)]
        # Deviation: torch has no memory that two devices can write, so outputs are copied into place.
        out = torch.empty(len(x), self.outputs, dtype=partial_outputs[0].dtype, device=x.device)
        columns = out.view(len(x), self.blocks, -1)
        for part, outputs in zip(self.parts, partial_outputs, strict=True):
            columns[:, :, part.start : part.end] = outputs.view(len(x), self.blocks, -1).to(x.device)
        return out


@dataclass(frozen=True, slots=True)
class RowSplit(_Divided):
    """Each part reads its own inputs, and partial outputs are summed (Megatron's all-reduce)."""

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        inputs = [x[:, part.start : part.end].to(part.device) for part in self.parts]
        partial_outputs = [part.linear(rows) for part, rows in zip(self.parts, inputs, strict=True)]
        total = partial_outputs[0].to(x.device)
        for outputs in partial_outputs[1:]:
            total = total + outputs.to(x.device)
        return total


def split_linear(
    linear: Linear, parts: Sequence[Part], axis: str = "columns", block_count: int = 1
) -> ColumnSplit | RowSplit:
    """Split a linear over devices; empty parts are left out.

    Args:
        linear: a dense weight that is not packed.
        parts: devices and shares, which sum to 1.
        axis: `columns` splits outputs, `rows` inputs.
        block_count: of outputs that are split alike; 2 where gate and up are one weight, so that a part has
            matching columns of both.

    Raises:
        InputError: a packed or quantized weight; shares that do not sum to 1; an unknown `axis`.
    """
    dense_linear = as_plain(linear)
    if axis not in AXES:
        raise InputError(unknown("way to divide a linear", axis, AXES))
    shares = [part.share for part in parts]
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"the shares of a divided linear are {shares}; they are 0 or more and make up 1")
    outputs, inputs = dense_linear.weight.shape
    size = inputs if axis == "rows" else outputs // block_count
    edges = [round(size * share) for share in accumulate(shares, initial=0.0)]
    cuts = [(p.device, a, b) for p, a, b in zip(parts, edges, edges[1:], strict=False) if a < b]
    cuts.sort(key=lambda cut: cut[0].type == "cpu")
    if axis == "rows":
        return RowSplit(tuple(_rows(dense_linear, *cut, has_bias=cut == cuts[0]) for cut in cuts), outputs)
    return ColumnSplit(tuple(_columns(dense_linear, block_count, *cut) for cut in cuts), outputs, block_count)


def _columns(linear: PlainLinear, block_count: int, device: torch.device, start: int, end: int) -> LinearPart:
    weight, bias = linear.weight.unflatten(0, (block_count, -1))[:, start:end].flatten(0, 1), linear.bias
    if bias is not None:
        # With one column per block, flatten returns a strided view, which packed kernels misread.
        bias = bias.unflatten(0, (block_count, -1))[:, start:end].flatten().contiguous()
    return _part(weight, bias, device, start, end)


def _rows(linear: PlainLinear, device: torch.device, start: int, end: int, has_bias: bool) -> LinearPart:
    """A part of the inputs; only the first part has the bias, so it is added once."""
    return _part(linear.weight[:, start:end], linear.bias if has_bias else None, device, start, end)


def _part(weight: Tensor, bias: Tensor | None, device: torch.device, start: int, end: int) -> LinearPart:
    linear = PlainLinear(weight.to(device).contiguous(), None if bias is None else bias.to(device))
    return LinearPart(fastest_linear(linear), device, start, end)


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


def divided_linears(decoder: Decoder, share: float, form: str, other_device: torch.device) -> Decoder:
    """The decoder with a share of every linear on another device.

    `columns` splits every linear by outputs; `megatron` splits linears in pairs, the first by outputs and the
    second by inputs, and sums the partial outputs.

    Raises:
        InputError: the decoder's weights are packed or quantized, or its layers are not in memory.
    """
    device_parts = [Part(decoder.device, 1 - share), Part(other_device, share)]
    blocks = 2 if decoder.config.gated else 1

    def layer(w: LayerWeights) -> LayerWeights:
        if form == MEGATRON:
            up = split_linear(w.up, device_parts, block_count=blocks)
            out, down = (
                split_linear(w.out, device_parts, axis="rows"),
                split_linear(w.down, device_parts, axis="rows"),
            )
        else:
            up, out, down = (split_linear(linear, device_parts) for linear in (w.up, w.out, w.down))
        return replace(w, qkv=split_linear(w.qkv, device_parts), out=out, up=up, down=down)

    layers = [None if w is None else layer(w) for w in decoder.layers]
    ends = replace(decoder.ends, head=split_linear(decoder.ends.head, device_parts))
    return decoder.with_layers(layers, ends)


class DividedDecoder(Decoder):
    """A decoder whose tree attention is computed in parts, each with its own softmax, then merged.

    Passes of one token, with an empty KV cache, or with more tokens than a tree has use ordinary attention.

    Attributes:
        split: the current split; it may change between passes.
    """

    def __init__(self, decoder: Decoder, split: Split) -> None:
        """`decoder` is undivided or has divided linears; the device of the split's other part is the CPU."""
        super().__init__(decoder.config, decoder.layers, decoder.ends)
        self.split = split
        self._other = torch.device(CPU)

    @inference
    def rehearse(self, extent: AttentionExtent) -> None:
        """Run one layer's attention on dummy keys, only to time it."""
        config, slot_count = self.config, extent.context + extent.rows
        mask = torch.tensor(extent.visible_keys)[:, None] > torch.arange(extent.rows)
        mask = torch.cat((torch.ones(extent.rows, extent.context, dtype=torch.bool), mask), 1).to(self.device)
        queries = torch.ones(extent.rows, config.heads, config.head_dim, device=self.device)
        keys = torch.ones(config.kv_heads, slot_count, config.head_dim, device=self.device)
        self._mix(queries, keys, keys, self._divide_mask(None, mask))

    def _build_mask(
        self, layer: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        cached = cache.length_of(layer)
        if self.split.form == MEGATRON or not cached or not 1 < len(positions) < TILED_ROWS:
            return attention_mask(self.config, layer, rotation, positions, mask, cache)
        return self._divide_mask(rotation, visible(self.config, layer, positions, mask, cache))

    def _divide_mask(self, rotation: Tensor | None, mask: Tensor) -> DividedMask:
        """Split a visibility mask, bool `[rows, cached + rows]`, into parts."""
        row_count, slot_count = mask.shape
        cached, dense_keys = slot_count - row_count, min(self.split.dense_keys, row_count)
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

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, shared_mask: AttentionMask) -> Tensor:
        if isinstance(shared_mask, DividedMask):
            return self._in_parts(queries, keys, values, shared_mask)
        if self.split.form == MEGATRON and (edge := round(self.split.share * len(keys))):
            return self._by_heads(queries, keys, values, shared_mask, edge)
        return attend(self.config, queries, keys, values, shared_mask)

    def _in_parts(self, queries: Tensor, keys: Tensor, values: Tensor, shared_mask: DividedMask) -> Tensor:
        """Each device attends to its slots; partial results are merged by maximum and sum (online softmax).

        Inputs are sent to the other device first, since copies would queue behind the main device's kernels.
        """
        row_count, config, other_slots, other_device = (
            len(queries),
            self.config,
            shared_mask.other_slots,
            self._other,
        )
        own_slots = slice(keys.shape[1] - row_count, None)
        # Deviation: attention's sparse part runs on the CPU, whatever the split's other device is.
        tree = queries.to(CPU), keys[:, own_slots].to(CPU), values[:, own_slots].to(CPU)
        # Deviation: without shared memory, the other device's cached keys and values are sent each time.
        sent = None
        if other_slots:
            sent = (
                queries.to(other_device),
                keys[:, :other_slots].to(other_device),
                values[:, :other_slots].to(other_device),
            )
        parts = []
        if other_slots < shared_mask.reach:
            main_slots = slice(other_slots, shared_mask.reach)
            main = keys[:, main_slots], values[:, main_slots]
            parts.append(dense_part(config, queries, *main, shared_mask.main_bias))
        if shared_mask.pattern is not None:
            parts.append(attend_tree(shared_mask.pattern, *tree, config.query_scale, config.attention_cap))
        if sent is not None:
            parts.append(dense_part(config, *sent, shared_mask.other_bias))
        partials = [Partial(*(tensor.to(keys.device) for tensor in part)) for part in parts]
        return merge(partials).reshape(row_count, -1)

    def _by_heads(
        self, queries: Tensor, keys: Tensor, values: Tensor, shared_mask: AttentionMask, edge: int
    ) -> Tensor:
        """Megatron's attention: the first `edge` key-value heads, with their query heads, run on `_other`."""
        other_device, main_heads = self._other, slice(edge * self.config.groups, None)
        sent = (
            queries[:, : main_heads.start].to(other_device),
            keys[:edge].to(other_device),
            values[:edge].to(other_device),
        )
        other_mask = AttentionMask(
            None,
            shared_mask.tiled,
            _to(shared_mask.visible, other_device),
            _to(shared_mask.bias, other_device),
        )
        halves = []
        if edge < len(keys):
            halves.append(
                attend(self.config, queries[:, main_heads], keys[edge:], values[edge:], shared_mask)
            )
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
    top_scores = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    weights = logits.sub_(top_scores).exp_()
    shape = config.heads, len(queries)
    mixed = torch.bmm(weights, values).view(*shape, width)
    return Partial(mixed, top_scores.view(*shape, 1), weights.sum(-1).view(*shape, 1))
