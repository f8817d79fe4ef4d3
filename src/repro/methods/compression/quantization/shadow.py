"""mllm-NPU's quantization: int8 with scales that ignore outliers, whose contribution is added in float.

Owns which linears keep their outliers. Must not know how a pass finds and multiplies outliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.errors import InputError
from repro.core.ranges import SHARE, Range, require
from repro.core.registry import register, unknown
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import Place
from repro.models.analysis.outliers import OutlierProfile, profile
from repro.models.quantization.w8a8 import HIGH, static
from repro.models.transformer.decoder import Decoder

RESTS = ("clamp", "rescale")


@register("compression", "shadow")
@dataclass(frozen=True)
class Shadow:
    """Per-tensor W8A8 with shadow outliers (mllm-NPU sec. 3.3).

    Deviation: the paper gives no quantile; 0.999 is the release's, but here of magnitudes instead of signed
    values.
    Deviation: the paper removes the outliers of unimportant linears (`clamp`, the default); its release
    scales those linears by their maximum instead (`rescale`).
    Deviation: the shadow copy of all weights is in memory; cold channels are not fetched from disk.

    Attributes:
        pruned: share of linears, least important first, without outliers; 0.85 is the paper's.
        quantile: quantile of a linear's input magnitudes; larger inputs are outliers.
        rest: treatment of outliers in pruned linears: `clamp` or `rescale`.
    """

    calibrated: ClassVar[bool] = True

    pruned: float = 0.85
    quantile: float = 0.999
    rest: str = "clamp"

    def __post_init__(self) -> None:
        require("compression", self, {"pruned": SHARE, "quantile": Range(above=True, most=1.0)})
        if self.rest not in RESTS:
            raise InputError(unknown("compression.rest", self.rest, RESTS))

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        found = profile(decoder, corpus, self.quantile)
        if silent := [place for place, one in found.items() if one.threshold == 0.0]:
            raise InputError(
                f"shadow.quantile {self.quantile} of the inputs of {silent[0].part} in layer "
                f"{silent[0].layer} is zero, which is no scale; raise it"
            )
        kept = important(found, self.pruned)
        rescaled = self.rest == "rescale"
        steps = {
            place: (one.largest if rescaled and place not in kept else one.threshold) / HIGH
            for place, one in found.items()
        }
        figures = {"bits_per_weight": 8, "shadowed_linears": len(kept), "linears": len(found)}
        return Compressed(static(decoder, steps, kept), figures)


def important(profiles: Mapping[Place, OutlierProfile], pruned: float) -> frozenset[Place]:
    """The linears that keep their outliers: all but the least important share `pruned`."""
    ranked = sorted(profiles, key=lambda place: profiles[place].importance, reverse=True)
    return frozenset(ranked[: len(ranked) - round(pruned * len(ranked))])
