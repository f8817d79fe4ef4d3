"""A decoder forward pass without in-place operations, so that autograd works.

Owns this forward pass and the next-token loss. Must not know what the gradients are for. It is slower than
`Decoder` and only processes whole sequences; the KV cache stays empty.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm.submodels import UnitDecoder
from repro.models.transformer.attention import AttentionMask, blindness, visible
from repro.models.transformer.cache import KVCache
from repro.models.transformer.layer import LayerWeights


class DifferentiableDecoder(UnitDecoder):
    """Same outputs as `UnitDecoder`, differentiable in all weights that require gradients."""

    def _build_mask(
        self, i: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        return AttentionMask(
            rotation, bias=blindness(self.config, visible(self.config, i, positions, mask, cache))
        )

    def _attention(self, i: int, h: Tensor, w: LayerWeights, shared: AttentionMask, cache: KVCache) -> Tensor:
        config = self.config
        heads = w.qkv(h).float().view(h.shape[0], -1, config.head_dim)
        units = heads.shape[1] // (config.groups + 2)
        queries, rotary_heads = units * config.groups, units * (config.groups + 1)
        rotary, values = heads[:, :rotary_heads], heads[:, rotary_heads:]
        if w.qk_norm is not None:
            norms = self._head_norms(w.qk_norm, units)
            rotary = torch.cat([norm(rotary[:, start:stop]) for start, stop, norm in norms], 1)
        if shared.rotation is not None:
            pairs = torch.view_as_complex(rotary.unflatten(-1, (-1, 2)).contiguous())  # type: ignore[no-untyped-call]
            rotary = torch.view_as_real(pairs * shared.rotation).flatten(-2)
        mixed = self._mix(
            rotary[:, :queries], rotary[:, queries:].transpose(0, 1), values.transpose(0, 1), shared
        )
        return w.out(mixed)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, shared: AttentionMask) -> Tensor:
        config, rows = self.config, queries.shape[0]
        units, _, width = keys.shape
        query_groups = queries.transpose(0, 1).reshape(units, -1, width)
        scores = torch.bmm(query_groups, keys.transpose(1, 2)) * config.query_scale
        if config.attention_cap is not None:
            scores = torch.tanh(scores / config.attention_cap) * config.attention_cap
        assert shared.bias is not None, "a pass of this decoder always says what rows see"
        mixed = torch.bmm(torch.softmax(scores + shared.bias, -1), values)
        return mixed.view(-1, rows, width).transpose(0, 1).reshape(rows, -1)

    def _mlp(self, h: Tensor, w: LayerWeights) -> Tensor:
        up = w.up(h)
        if not self.config.gated:
            return w.down(self._activation(up))
        gate, up = up.chunk(2, -1)
        return w.down(self._activation(gate) * up)


def next_token_loss(decoder: DifferentiableDecoder, tokens: Tensor) -> Tensor:
    """The mean next-token loss of a sequence in nats, a differentiable scalar.

    Raises:
        InputError: there are fewer than two tokens.
    """
    if len(tokens) < 2:
        raise InputError(f"a sequence of {len(tokens)} tokens predicts none; it needs at least two")
    return F.cross_entropy(decoder.head(decoder.hidden_rows(tokens)[:-1]), tokens[1:])
