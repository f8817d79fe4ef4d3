"""A decoder whose layers two torch devices share for real, as Ghidorah (sec. III-B) or Megatron divides them.

Owns what each part multiplies and how parts become one. Knows nothing of how a good division is found, nor
what a part takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repro.core.late import late
from repro.models.costs.partition import AttentionExtent as Asked
from repro.models.costs.partition import Split
from repro.models.forward.features import Captured
from repro.models.forward.network import DecoderNetwork
from repro.models.parallel.divided_linear import Part, split_linear
from repro.models.parallel.tree_kernels import Partial, TreePattern, attend_tree, cached_pattern, merged
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

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

CPU = "cpu"
MEGATRON = "megatron"


@dataclass(frozen=True, slots=True)
class DividedSight(AttentionMask):
    """What the rows of a pass see, for attention in parts.

    The other device attends to the first `there` slots and, by `pattern`, to the pass's own; the main one to
    those from `there` to `reach`. A bias is None where every row sees every slot of its part.
    """

    there: int = 0
    reach: int = 0
    there_bias: Tensor | None = None
    here_bias: Tensor | None = None
    pattern: TreePattern | None = None


def divided_linears(decoder: Decoder, share: float, form: str, other: torch.device) -> Decoder:
    """The decoder with a share of every linear on another device: the weights here are not copied.

    In the form `columns` every linear is divided by its outputs; in `megatron` the first of each two by its
    outputs and the second by its inputs, and the partial sums are added.

    Raises:
        InputError: the decoder's weights are packed or quantized, or its layers are not in memory.
    """
    parts = [Part(decoder.device, 1 - share), Part(other, share)]
    blocks = 2 if decoder.config.gated else 1

    def layer(w: LayerWeights) -> LayerWeights:
        if form == MEGATRON:
            up = split_linear(w.up, parts, blocks=blocks)
            out, down = split_linear(w.out, parts, by="rows"), split_linear(w.down, parts, by="rows")
        else:
            up, out, down = (split_linear(linear, parts) for linear in (w.up, w.out, w.down))
        return replace(w, qkv=split_linear(w.qkv, parts), out=out, up=up, down=down)

    layers = [None if w is None else layer(w) for w in decoder.layers]
    ends = replace(decoder.ends, head=split_linear(decoder.ends.head, parts))
    return Decoder(decoder.config, layers, ends)


class DividedDecoder(Decoder):
    """A decoder whose attention to a tree is computed in parts, each with a softmax of its own.

    Passes of one row, of a prompt's first rows or of more rows than a tree has are computed as ever.

    Attributes:
        split: the division in force; it may change between passes.
    """

    def __init__(self, decoder: Decoder, split: Split, other: torch.device | str = CPU) -> None:
        """`decoder` is whole or has divided linears; `other` is where the split's other part computes."""
        super().__init__(decoder.config, decoder.layers, decoder.ends)
        self.split = split
        self._other = torch.device(other)

    def rehearse(self, asked: Asked) -> None:
        """One layer's attention over made-up keys, for its seconds alone."""
        config, slots = self.config, asked.context + asked.rows
        own = torch.tensor(asked.own)[:, None] > torch.arange(asked.rows)
        seen = torch.cat((torch.ones(asked.rows, asked.context, dtype=torch.bool), own), 1).to(self.device)
        queries = torch.ones(asked.rows, config.heads, config.head_dim, device=self.device)
        keys = torch.ones(config.kv_heads, slots, config.head_dim, device=self.device)
        self._mix(queries, keys, keys, self._divided(None, seen))

    def _seen(
        self, i: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        cached = cache.length_of(i)
        if self.split.form == MEGATRON or not cached or not 1 < len(positions) < TILED_ROWS:
            return attention_mask(self.config, i, rotation, positions, mask, cache)
        return self._divided(rotation, visible(self.config, i, positions, mask, cache))

    def _divided(self, rotation: Tensor | None, seen: Tensor) -> DividedSight:
        """The parts of what rows see, bool `[rows, cached + rows]`."""
        rows, slots = seen.shape
        cached, left = slots - rows, min(self.split.left, rows)
        there, reach = round(self.split.keys * cached), cached + left

        def bias(part: Tensor) -> Tensor | None:
            return None if part.all() else blindness(self.config, part)

        pattern = cached_pattern(seen[:, cached:], left)
        return DividedSight(
            rotation,
            there=there,
            reach=reach,
            there_bias=_to(bias(seen[:, :there]), self._other),
            here_bias=bias(seen[:, there:reach]),
            pattern=pattern if pattern.listed else None,
        )

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, shared: AttentionMask) -> Tensor:
        if isinstance(shared, DividedSight):
            return self._in_parts(queries, keys, values, shared)
        if self.split.form == MEGATRON and (edge := round(self.split.share * len(keys))):
            return self._by_heads(queries, keys, values, shared, edge)
        return attend(self.config, queries, keys, values, shared)

    def _in_parts(self, queries: Tensor, keys: Tensor, values: Tensor, shared: DividedSight) -> Tensor:
        """Each device attends to its slots; what it found is merged by its maximum and its sum.

        What the other device needs leaves before the main one is given work, behind which it would queue.
        """
        rows, config, there, other = len(queries), self.config, shared.there, self._other
        own = slice(keys.shape[1] - rows, None)
        # Deviation: the tree's own part is the CPU's, whichever processor is the split's other one.
        tree = queries.to(CPU), keys[:, own].to(CPU), values[:, own].to(CPU)
        # Deviation: without memory that both devices address, the other one's cached keys are sent each time.
        sent = (queries.to(other), keys[:, :there].to(other), values[:, :there].to(other)) if there else None
        parts = []
        if there < shared.reach:
            ours = slice(there, shared.reach)
            parts.append(dense_part(config, queries, keys[:, ours], values[:, ours], shared.here_bias))
        if shared.pattern is not None:
            parts.append(attend_tree(shared.pattern, *tree, config.query_scale, config.attention_cap))
        if sent is not None:
            parts.append(dense_part(config, *sent, shared.there_bias))
        home = [Partial(*(each.to(keys.device) for each in part)) for part in parts]
        return merged(home).reshape(rows, -1)

    def _by_heads(
        self, queries: Tensor, keys: Tensor, values: Tensor, shared: AttentionMask, edge: int
    ) -> Tensor:
        """Megatron's attention: the first `edge` heads of keys on the other device, and their queries."""
        other, ours = self._other, slice(edge * self.config.groups, None)
        sent = queries[:, : ours.start].to(other), keys[:edge].to(other), values[:edge].to(other)
        seen = AttentionMask(None, shared.tiled, _to(shared.visible, other), _to(shared.bias, other))
        halves = []
        if edge < len(keys):
            halves.append(attend(self.config, queries[:, ours], keys[edge:], values[edge:], shared))
        return torch.cat([attend(self.config, *sent, seen).to(keys.device), *halves], 1)


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def dense_part(
    config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
) -> Partial:
    """Attention of all rows to some slots: shapes as of `attention.attend`, bias as of `blindness`."""
    kv_heads, _, width = keys.shape
    grouped = queries.transpose(0, 1).reshape(kv_heads, -1, width)
    found = scores(config, grouped, keys, bias)
    # A row that sees nothing here keeps a finite maximum, over which all of its weights are 0.
    top = found.amax(-1, keepdim=True).clamp_(min=torch.finfo(found.dtype).min)
    weights = found.sub_(top).exp_()
    shape = config.heads, len(queries)
    mixed = torch.bmm(weights, values).view(*shape, width)
    return Partial(mixed, top.view(*shape, 1), weights.sum(-1).view(*shape, 1))


class DividableNetwork(DecoderNetwork):
    """A decoder in memory whose layers may be divided for real while it is in use."""

    def __init__(self, decoder: Decoder, capacity: int = 512, captured: Captured | None = None) -> None:
        """See `DecoderNetwork`; the other device is the CPU."""
        super().__init__(decoder, capacity, captured)
        self._whole = decoder
        self._divided: DividedDecoder | None = None

    def divide(self, split: Split | None) -> None:
        """From now on compute divided, or whole. Beside a CPU there is no other device: linears stay whole.

        Raises:
            InputError: as `divided_linears`.
        """
        if split is None:
            self.decoder = self._whole
            return
        if self._whole.device.type == CPU:
            split = Split(share=0.0, left=split.left, to=split.to)
        before = self._divided
        if before is None or (before.split.share, before.split.form) != (split.share, split.form):
            linears = (
                divided_linears(self._whole, split.share, split.form, torch.device(CPU))
                if split.share
                else self._whole
            )
            self._divided = before = DividedDecoder(linears, split)
        before.split = split
        self.decoder = before

    @inference
    def attend(self, asked: Asked) -> None:
        """One layer's attention as it is divided at present, for its seconds alone."""
        if isinstance(self.decoder, DividedDecoder):
            self.decoder.rehearse(asked)
