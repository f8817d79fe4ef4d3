"""One decoder for all families: operators on `[rows, hidden]`, one row per token position, no batch axis.

Owns the order of operations in a block. Must not know about family names, checkpoints, token meaning or time.
Hidden states are fp32 for every weight precision: norms, sums and attention need it, and it is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from repro.core.errors import InputError
from repro.libraries import F, Tensor, torch
from repro.models.transformer.attention import AttentionMask, attend, attention_mask
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear
from repro.models.transformer.norm import Norm
from repro.models.transformer.rope import frequencies, rotations
from repro.records.provenance import count_layers

__all__ = ["Decoder", "DecoderConfig", "EmbeddingAndHead"]


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "relu": F.relu,
    }
    return functions[name]


@dataclass(frozen=True, slots=True)
class EmbeddingAndHead:
    """The parts before the first layer and after the last one.

    `embedding` is `[vocab, width]`; `positions` is the learned position table; the projections convert
    between the embedding width and the hidden size if these differ. Logits are of ids below `tokens`; later
    rows of the head are padding.
    """

    embedding: Tensor
    head: Linear
    final_norm: Norm | None
    positions: Tensor | None = None
    project_in: Linear | None = None
    project_out: Linear | None = None
    tokens: int | None = None


@dataclass(slots=True)
class _Pass:
    """The current pass, so that masks and rotations are computed once for all layers.

    A pass is recognized by the identity of its tensors: callers that drop rows between layers pass new ones.
    """

    positions: Tensor
    mask: Tensor | None
    cache: KVCache
    layer: int
    cached_slots: int
    masks: dict[bool, AttentionMask] = field(default_factory=dict)

    def goes_on(self, layer: int, positions: Tensor, mask: Tensor | None, cache: KVCache) -> bool:
        return (
            layer > self.layer
            and positions is self.positions
            and mask is self.mask
            and cache is self.cache
            and cache.length_of(layer) == self.cached_slots
        )


class Decoder:
    """Operators of one language model.

    `layers[i]` is None if the layer's weights are passed to each call, for example when streamed from flash.
    """

    def __init__(
        self, config: DecoderConfig, layers: Sequence[LayerWeights | None], ends: EmbeddingAndHead
    ) -> None:
        if len(layers) != config.layers:
            raise InputError(f"the configuration has {config.layers} layers, got weights for {len(layers)}")
        self.config = config
        self.layers = list(layers)
        self.ends = ends
        self._activation = _activation(config.activation)
        device = ends.embedding.device
        kinds = {config.is_sliding(i): config.rope_of(i) for i in range(config.layers)}
        self._frequencies = {
            kind: None if rope is None else frequencies(rope, config.head_dim).to(device)
            for kind, rope in kinds.items()
        }
        self._pass: _Pass | None = None

    def with_layers(
        self,
        layers: Sequence[LayerWeights | None],
        ends: EmbeddingAndHead | None = None,
        config: DecoderConfig | None = None,
    ) -> Self:
        """A decoder of the same class with other layers, and with other ends or configuration if given.

        Raises:
            InputError: the configuration has another number of layers.
        """
        decoder = copy(self)
        Decoder.__init__(decoder, config or self.config, layers, ends or self.ends)
        return decoder

    @property
    def device(self) -> torch.device:
        """The device of the resident weights."""
        return self.ends.embedding.device

    def resident_layers(self) -> list[LayerWeights]:
        """All layers; InputError if one is not resident."""
        layers = [layer for layer in self.layers if layer is not None]
        if len(layers) != len(self.layers):
            raise InputError("a layer is not resident; load the decoder with all of them")
        return layers

    def embed(self, tokens: Tensor, positions: Tensor, ahead: bool = False) -> Tensor:
        """Input hidden states of `tokens` at `positions`, both int64 `[rows]`: fp32 `[rows, hidden]`.

        With `ahead`, rows may look past the last learned position, behind which nothing is emitted; they
        read its entry.
        """
        ends = self.ends
        x = F.embedding(tokens, ends.embedding).float()
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if ends.project_in is not None:
            x = ends.project_in(x).float()
        if ends.positions is not None:
            ids = positions + self.config.position_offset
            x = x + F.embedding(ids.clamp(max=len(ends.positions) - 1) if ahead else ids, ends.positions)
        return x

    def layer(
        self,
        layer: int,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        weights: LayerWeights | None = None,
    ) -> Tensor:
        """Run a layer on hidden states `x`, fp32 `[rows, hidden]`, and append keys and values to the cache.

        `positions` is int64 `[rows]`; `mask` is bool `[rows, cached + rows]`, True where a row sees a slot,
        or None for causal attention over all cached slots. `weights` replace the resident ones.

        Raises:
            InputError: the layer has no weights, or the mask has the wrong shape or dtype.
        """
        layer_weights = weights if weights is not None else self.layers[layer]
        if layer_weights is None:
            raise InputError(f"layer {layer} is not resident and no weights were given")
        count_layers()
        block = self.config.block
        attention_mask = self._shared_mask(layer, positions, mask, cache)
        h = x if layer_weights.before_attention is None else layer_weights.before_attention(x)
        attention = self._attention(layer, h, layer_weights, attention_mask, cache)
        if block == "parallel":
            return x + attention + self._mlp(h, layer_weights)
        x = _join(x, attention, layer_weights.after_attention, block == "post")
        h = x if layer_weights.before_mlp is None else layer_weights.before_mlp(x)
        return _join(x, self._mlp(h, layer_weights), layer_weights.after_mlp, block == "post")

    def head(self, x: Tensor) -> Tensor:
        """Final norm and output projection: fp32 logits `[rows, vocab]`, or `[rows, tokens]`."""
        ends, cap = self.ends, self.config.logit_cap
        if ends.final_norm is not None:
            x = ends.final_norm(x)
        if ends.project_out is not None:
            x = ends.project_out(x)
        logits = ends.head(x).float()[:, : ends.tokens]
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def states(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        layers: Iterable[int] | None = None,
        weights: Sequence[LayerWeights | None] | None = None,
    ) -> Iterator[Tensor]:
        """Hidden states after each of some layers, run in this order; by default after each of all.

        `weights`, one for each of these layers, replace the resident ones. The rest is as in `layer`.
        """
        for read_count, layer in enumerate(range(self.config.layers) if layers is None else layers):
            x = self.layer(layer, x, positions, mask, cache, weights[read_count] if weights else None)
            yield x

    def run(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        """Hidden states after all layers; arguments as in `layer`."""
        for state in self.states(x, positions, mask, cache):
            x = state
        return x

    def hidden_rows(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Hidden states after all layers of tokens that are read alone: fp32 `[tokens, hidden]`.

        The tokens, int64 `[tokens]`, are one causal sequence, or with `positions` and `mask` several.
        """
        position_ids = torch.arange(len(tokens), device=tokens.device) if positions is None else positions
        cache = KVCache(self.config, len(tokens), device=self.device)
        return self.run(self.embed(tokens, position_ids), position_ids, mask, cache)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        """All layers and the head: fp32 logits `[rows, vocab]`; arguments as in `embed` and `layer`."""
        return self.head(self.run(self.embed(tokens, positions), positions, mask, cache))

    def _shared_mask(
        self, layer: int, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        """The mask and rotation of a layer; computed once per pass and kind of layer."""
        current_pass = self._pass
        if current_pass is None or not current_pass.goes_on(layer, positions, mask, cache):
            cache.set_positions(layer, positions)
            current_pass = self._pass = _Pass(positions, mask, cache, layer, cache.length_of(layer))
        current_pass.layer = layer
        kind = self.config.is_sliding(layer)
        if kind not in current_pass.masks:
            frequency = self._frequencies[kind]
            rotation = None if frequency is None else rotations(frequency, positions)
            current_pass.masks[kind] = self._build_mask(layer, rotation, positions, mask, cache)
        return current_pass.masks[kind]

    def _attention(
        self, layer: int, h: Tensor, w: LayerWeights, mask: AttentionMask, cache: KVCache
    ) -> Tensor:
        config = self.config
        heads = w.qkv(h).float().view(h.shape[0], -1, config.head_dim)
        rotated_heads = config.heads + config.kv_heads
        if w.qk_norm is not None:
            heads[:, :rotated_heads] = w.qk_norm(heads[:, :rotated_heads])
        if mask.rotation is not None:
            heads.view(torch.complex64)[:, :rotated_heads].mul_(mask.rotation)
        keys, values = cache.append_joint(layer, heads[:, config.heads :])
        return w.out(self._mix(heads[:, : config.heads], keys, values, mask))

    def _build_mask(
        self, layer: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        """See `attention.attention_mask`."""
        return attention_mask(self.config, layer, rotation, positions, mask, cache)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: AttentionMask) -> Tensor:
        """See `attention.attend`."""
        return attend(self.config, queries, keys, values, mask)

    def _mlp(self, h: Tensor, w: LayerWeights) -> Tensor:
        up = w.up(h)
        if not self.config.gated:
            return w.down(self._activation(up))
        gate, up = up.chunk(2, -1)
        return w.down(self._activation(gate).mul_(up))


def _join(x: Tensor, block_output: Tensor, norm: Norm | None, norm_last: bool) -> Tensor:
    """Residual sum of a block's attention or MLP output, with an optional norm of the output or the sum."""
    if norm is None:
        return x + block_output
    return norm(x + block_output) if norm_last else x + norm(block_output)
