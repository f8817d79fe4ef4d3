"""Layer elastification (LE), a baseline of ElastiLM: removes whole layers by the loss without them.

Owns the use of that ranking. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.bounds import Part
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.level import figures_of, most_important
from repro.models.analysis.layer_importance import losses_without
from repro.models.transformer.decoder import Decoder


@register("compression", "layerwise")
@dataclass(frozen=True)
class Layerwise:
    """Removes the layers whose removal raises the loss least; ranked once, on the whole model.

    ElastiLM 5.1; the measure is that of its anchor layers (3.2).

    Attributes:
        level: share of layers kept, rounded down.
    """

    level: Part = 0.5

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        pruned = most_important(decoder, losses_without(decoder, corpus), self.level)
        return Compressed(pruned, figures_of(pruned, decoder))
