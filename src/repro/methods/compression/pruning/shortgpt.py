"""ShortGPT: removes the layers that change hidden states least.

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
from repro.models.analysis.layer_importance import block_influences
from repro.models.transformer.decoder import Decoder


@register("compression", "shortgpt")
@dataclass(frozen=True)
class ShortGpt:
    """Removes the layers of least block influence; ranked once, on the whole model.

    Block influence is 1 minus the mean cosine of a token's hidden states before and after the layer
    (ShortGPT Eq. 1).

    Attributes:
        level: share of layers kept, rounded down.
    """

    level: Part = 0.5

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        pruned = most_important(decoder, block_influences(decoder, corpus), self.level)
        return Compressed(pruned, figures_of(pruned, decoder))
