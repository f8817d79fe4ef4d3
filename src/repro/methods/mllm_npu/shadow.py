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
        profiles, shares = _measure(decoder, corpus, self.quantile)
        shadowed = self.shadowed_linears(profiles, decoder.config.layers)
        rescale = self.rest == "rescale"
        steps = {
            place: (profile.largest if rescale and place not in shadowed else profile.threshold) / HIGH
            for place, profile in profiles.items()
        }
        output_steps = _output_steps(decoder, corpus) if self.outputs else None
        figures = {"bits_per_weight": 8, "shadowed_linears": len(shadowed), "linears": len(profiles)}
        quantized = quantize_static(decoder, steps, shadowed, self.weights == "row", output_steps)
        return Compressed(
            quantized, figures, {place: shares[place] for place in profiles if place in shadowed}
        )

    def shadowed_linears(
        self, profiles: Mapping[LinearId, OutlierProfile], layers: int
    ) -> frozenset[LinearId]:
        """The linears that keep their outliers, of a decoder of `layers` layers."""
        if self.keeps == "ends":
            end_layers = layers_at_ends(layers, self.pruned)
            return frozenset(place for place in profiles if place.layer in end_layers)
        if self.keeps == "release":
            return frozenset(place for place, profile in profiles.items() if profile.importance > RELEASE)
        return important(profiles, self.pruned)


def important(profiles: Mapping[LinearId, OutlierProfile], pruned: float) -> frozenset[LinearId]:
    """The linears that keep their outliers: all but the least important share `pruned`."""
    ranked = sorted(profiles, key=lambda place: profiles[place].importance, reverse=True)
    return frozenset(ranked[: len(ranked) - round(pruned * len(ranked))])


Measurement = tuple[dict[LinearId, OutlierProfile], dict[LinearId, float]]

_measurements: WeakKeyDictionary[Decoder, dict[tuple[object, ...], Measurement]] = WeakKeyDictionary()
"""What was measured of a decoder on a corpus: reading it takes longer than all else of a compression."""


def _measure(decoder: Decoder, corpus: Sequence[Tensor], quantile: float) -> Measurement:
    """Each linear's profile, and the mean share of its channels with an outlier in a text."""
    key = (quantile, *(tuple(text.tolist()) for text in corpus))
    by_key = _measurements.setdefault(decoder, {})
    if key not in by_key:
        profiles = profile(decoder, corpus, quantile)
        if silent := [place for place, linear in profiles.items() if linear.threshold == 0.0]:
            raise InputError(
                f"shadow.quantile {quantile} of the inputs of {silent[0].part} in layer "
                f"{silent[0].layer} is zero, which is no scale; raise it"
            )
        thresholds = {place: linear.threshold for place, linear in profiles.items()}
        counts = outlier_channels.count(decoder, thresholds, corpus)
        by_key[key] = profiles, {place: linear.a_pass / linear.inputs for place, linear in counts.items()}
    return by_key[key]


def _output_steps(decoder: Decoder, corpus: Sequence[Tensor]) -> dict[LinearId, Tensor]:
    """Steps of the outputs of every linear, fp32 `[outputs]`: the largest of its matrix over the corpus."""
    steps = {}
    for place, largest in largest_by_channel(decoder, corpus, outputs=True).items():
        parts = torch.split(largest, list(matrices(decoder.config, place.part)))
        steps[place] = torch.cat([(part.max() / HIGH).expand(len(part)) for part in parts])
    return steps
