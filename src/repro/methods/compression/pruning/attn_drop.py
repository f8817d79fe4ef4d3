"""LLM-Drop: attention goes where it turns hidden rows least, and MLPs after it where that is not enough.

Owns the order in which halves of layers go. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.pruning.level import checked, figures_of
from repro.models.analysis.layer_dropping import (
    block_elements,
    elements,
    has_attention,
    has_mlp,
    of_layers,
    resident,
    with_layers,
    without_attention,
    without_mlp,
)
from repro.models.analysis.layer_importance import half_similarities
from repro.models.transformer.decoder import Decoder


class Half(NamedTuple):
    """One half of a layer."""

    layer: int
    is_mlp: bool


@register("compression", "attn_drop")
@dataclass(frozen=True)
class AttnDrop:
    """Halves of layers go in the order of their similarity until no more than the level is left.

    A half's similarity is the mean cosine of a token's row before it and behind its sum with the residual. A
    layer that loses both halves is gone; the last half stays whatever the level.

    Deviation: where a model without any attention is still above the level, MLPs go in the same order;
    LLM-Drop names a number of halves and not a share of parameters.

    Attributes:
        level: the share of the blocks' matrices kept at most.
        joint: attention and MLPs stand in one order, instead of attention first.
    """

    level: float = 0.5
    joint: bool = False

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        checked(self.level)
        made = _without(decoder, self._gone(decoder, self._order(decoder, corpus)))
        layers = resident(made)
        kept = {
            "kept_attention": sum(map(has_attention, layers)),
            "kept_mlps": sum(map(has_mlp, layers)),
        }
        return Compressed(made, {**figures_of(made, decoder), **kept})

    def _order(self, decoder: Decoder, corpus: Sequence[Tensor]) -> list[Half]:
        """All halves, the most dispensable first; of equals the earlier ones."""
        attention, mlp = half_similarities(decoder, corpus)
        similar = {Half(i, False): one for i, one in enumerate(attention)}
        similar |= {Half(i, True): one for i, one in enumerate(mlp)}
        if self.joint:
            return sorted(similar, key=lambda half: -similar[half])
        return sorted(similar, key=lambda half: (half.is_mlp, -similar[half]))

    def _gone(self, decoder: Decoder, order: Sequence[Half]) -> set[Half]:
        """The first halves of an order, as many as bring the decoder to the level."""
        most = self.level * block_elements(decoder)
        left, layers = block_elements(decoder), resident(decoder)
        gone: set[Half] = set()
        for half in order[:-1]:
            if left <= most:
                break
            layer = layers[half.layer]
            left -= elements(layer) - elements(
                without_mlp(layer) if half.is_mlp else without_attention(layer)
            )
            gone.add(half)
        return gone


def _without(decoder: Decoder, gone: Iterable[Half]) -> Decoder:
    """A decoder without these halves, nor layers that have none."""
    layers = resident(decoder)
    for i, is_mlp in gone:
        layers[i] = without_mlp(layers[i]) if is_mlp else without_attention(layers[i])
    kept = [i for i, layer in enumerate(layers) if has_attention(layer) or has_mlp(layer)]
    return of_layers(with_layers(decoder, layers), kept)
