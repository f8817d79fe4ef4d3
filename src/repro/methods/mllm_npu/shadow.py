"""mllm-NPU's quantization: int8 with scales that ignore outliers, whose contribution is added in float.

Owns which linears keep their outliers. Must not know how a pass finds and multiplies outliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from repro.core.bounds import Part, Share
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.mllm_npu.subgraphs import layers_at_ends
from repro.models.analysis import outlier_channels
from repro.models.analysis.activations import OutlierProfile, largest_by_channel, profile
from repro.models.analysis.hooks import LinearId, matrices
from repro.models.quantization.w8a8 import HIGH, quantize_static
from repro.models.transformer.decoder import Decoder

RELEASE = 5.0
"""Importance above which the release's default keeps a linear's outliers: its maximum over its quantile."""


@register("compression", "shadow")
@dataclass(frozen=True)
class Shadow:
    """Static W8A8 with shadow outliers (mllm-NPU sec. 3.3); the defaults are the release's reading.

    Deviation: the paper gives no quantile; 0.999 is the release's, but here of magnitudes instead of signed
    values.
    Deviation: the paper removes the outliers of unimportant linears (`clamp`); its release scales those
    linears by their maximum instead (`rescale`).
    Deviation: the shadow copy of all weights is in memory; cold channels are not fetched from disk.

    Attributes:
        pruned: share of linears (of layers, with `keeps=ends`) without outliers; 0.85 is the paper's.
        quantile: quantile of a linear's input magnitudes; larger inputs are outliers.
        weights: one weight scale a `matrix`, as in the release, or a `row` of outputs.
        rest: treatment of outliers in pruned linears: `rescale` or `clamp`.
        keeps: linears that keep their outliers: the most important ones (`ranked`), those of the layers
            nearest both ends (`ends`), or those more important than `RELEASE` (`release`, without `pruned`).
        outputs: also round the linears' outputs to 8 bits, one static scale a matrix, as the release does.
    """

    calibrated: ClassVar[bool] = True

    pruned: Share = 0.85
    quantile: Part = 0.999
    weights: Literal["matrix", "row"] = "matrix"
    rest: Literal["rescale", "clamp"] = "rescale"
    keeps: Literal["ranked", "ends", "release"] = "ranked"
    outputs: bool = False

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        profiles, shares = _measured(decoder, corpus, self.quantile)
        kept = self.kept(profiles, decoder.config.layers)
        steps = {
            place: (one.largest if self.rest == "rescale" and place not in kept else one.threshold) / HIGH
            for place, one in profiles.items()
        }
        rounded = _output_steps(decoder, corpus) if self.outputs else None
        figures = {"bits_per_weight": 8, "shadowed_linears": len(kept), "linears": len(profiles)}
        made = quantize_static(decoder, steps, kept, self.weights == "row", rounded)
        return Compressed(made, figures, {place: shares[place] for place in profiles if place in kept})

    def kept(self, profiles: Mapping[LinearId, OutlierProfile], layers: int) -> frozenset[LinearId]:
        """The linears that keep their outliers, of a decoder of `layers` layers."""
        if self.keeps == "ends":
            near = layers_at_ends(layers, self.pruned)
            return frozenset(place for place in profiles if place.layer in near)
        if self.keeps == "release":
            return frozenset(place for place, one in profiles.items() if one.importance > RELEASE)
        return important(profiles, self.pruned)


def important(profiles: Mapping[LinearId, OutlierProfile], pruned: float) -> frozenset[LinearId]:
    """The linears that keep their outliers: all but the least important share `pruned`."""
    ranked = sorted(profiles, key=lambda place: profiles[place].importance, reverse=True)
    return frozenset(ranked[: len(ranked) - round(pruned * len(ranked))])


Measured = tuple[dict[LinearId, OutlierProfile], dict[LinearId, float]]

_known: WeakKeyDictionary[Decoder, dict[tuple[object, ...], Measured]] = WeakKeyDictionary()
"""What was measured of a decoder on a corpus: reading it takes longer than all else of a compression."""


def _measured(decoder: Decoder, corpus: Sequence[Tensor], quantile: float) -> Measured:
    """Each linear's profile, and the mean share of its channels with an outlier in a text."""
    asked = (quantile, *(tuple(text.tolist()) for text in corpus))
    known = _known.setdefault(decoder, {})
    if asked not in known:
        profiles = profile(decoder, corpus, quantile)
        if silent := [place for place, one in profiles.items() if one.threshold == 0.0]:
            raise InputError(
                f"shadow.quantile {quantile} of the inputs of {silent[0].part} in layer "
                f"{silent[0].layer} is zero, which is no scale; raise it"
            )
        thresholds = {place: one.threshold for place, one in profiles.items()}
        counts = outlier_channels.count(decoder, thresholds, corpus)
        known[asked] = profiles, {place: one.a_pass / one.inputs for place, one in counts.items()}
    return known[asked]


def _output_steps(decoder: Decoder, corpus: Sequence[Tensor]) -> dict[LinearId, Tensor]:
    """Steps of the outputs of every linear, fp32 `[outputs]`: the largest of its matrix over the corpus."""
    steps = {}
    for place, largest in largest_by_channel(decoder, corpus, outputs=True).items():
        parts = torch.split(largest, list(matrices(decoder.config, place.part)))
        steps[place] = torch.cat([(part.max() / HIGH).expand(len(part)) for part in parts])
    return steps
