"""LLM-Drop: removes the attention blocks that change hidden states least, then MLPs if that is not enough.

Owns the order in which halves of layers (attention, MLP) are removed. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from repro.core.bounds import Part
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.level import figures_of
from repro.models.analysis.layer_dropping import (
    block_elements,
    elements,
    has_attention,
    has_mlp,
    of_layers,
    partial_decoder,
    without_attention,
    without_mlp,
)
from repro.models.analysis.layer_importance import half_similarities
from repro.models.transformer.decoder import Decoder


class Half(NamedTuple):
    """The attention or the MLP of a layer."""

    layer: int
    is_mlp: bool


@register("compression", "attn_drop")
@dataclass(frozen=True)
class AttnDrop:
    """Removes halves of layers, most similar first, until at most the level's share of parameters is left.

    The similarity of a half is the mean cosine of a token's hidden states before the half and after its
    residual sum. A layer without both halves is removed; the last half in the order always stays.

    Deviation: if a model without attention is still above the level, MLPs are removed in the same order;
    LLM-Drop sets a number of halves instead of a share of parameters.

    Attributes:
        level: maximum share of the blocks' matrix elements kept.
        joint: rank attention and MLPs together instead of attention first.
    """

    level: Part = 0.5
    joint: bool = False

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        pruned = _without(decoder, self._halves_to_remove(decoder, self._order(decoder, corpus)))
        layers = pruned.resident_layers()
        counts = {
            "kept_attention": sum(map(has_attention, layers)),
            "kept_mlps": sum(map(has_mlp, layers)),
        }
        return Compressed(pruned, {**figures_of(pruned, decoder), **counts})

    def _order(self, decoder: Decoder, corpus: Sequence[Tensor]) -> list[Half]:
        """All halves, most similar first; ties go to the earlier layer."""
        attention, mlp = half_similarities(decoder, corpus)
        similarities = {Half(i, False): similarity for i, similarity in enumerate(attention)}
        similarities |= {Half(i, True): similarity for i, similarity in enumerate(mlp)}
        if self.joint:
            return sorted(similarities, key=lambda half: -similarities[half])
        return sorted(similarities, key=lambda half: (half.is_mlp, -similarities[half]))

    def _halves_to_remove(self, decoder: Decoder, order: Sequence[Half]) -> set[Half]:
        """The first halves of the order, as many as needed to reach the level."""
        limit = self.level * block_elements(decoder)
        remaining, layers = block_elements(decoder), decoder.resident_layers()
        halves: set[Half] = set()
        for half in order[:-1]:
            if remaining <= limit:
                break
            layer = layers[half.layer]
            remaining -= elements(layer) - elements(
                without_mlp(layer) if half.is_mlp else without_attention(layer)
            )
            halves.add(half)
        return halves


def _without(decoder: Decoder, halves: Iterable[Half]) -> Decoder:
    """Remove these halves, and layers that have neither half left."""
    layers = decoder.resident_layers()
    for i, is_mlp in halves:
        layers[i] = without_mlp(layers[i]) if is_mlp else without_attention(layers[i])
    nonempty = [i for i, layer in enumerate(layers) if has_attention(layer) or has_mlp(layer)]
    return of_layers(partial_decoder(decoder, layers), nonempty)
