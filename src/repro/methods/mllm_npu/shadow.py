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
        rescales = self.rest == "rescale"
        steps = {
            name: (profile.largest if rescales and name not in shadowed else profile.threshold) / HIGH
            for name, profile in profiles.items()
        }
        output_steps = _output_steps(decoder, corpus) if self.outputs else None
        figures = {"bits_per_weight": 8, "shadowed_linears": len(shadowed), "linears": len(profiles)}
        quantized_decoder = quantize_static(decoder, steps, shadowed, self.weights == "row", output_steps)
        return Compressed(
            quantized_decoder, figures, {name: shares[name] for name in profiles if name in shadowed}
        )

    def shadowed_linears(
        self, profiles: Mapping[LinearId, OutlierProfile], layer_count: int
    ) -> frozenset[LinearId]:
        """The linears that keep their outliers, of a decoder of `layer_count` layers."""
        if self.keeps == "ends":
            end_layers = layers_at_ends(layer_count, self.pruned)
            return frozenset(name for name in profiles if name.layer in end_layers)
        if self.keeps == "release":
            return frozenset(name for name, profile in profiles.items() if profile.importance > RELEASE)
        return important(profiles, self.pruned)


def important(profiles: Mapping[LinearId, OutlierProfile], pruned_share: float) -> frozenset[LinearId]:
    """The linears that keep their outliers: all but the least important share `pruned_share`."""
    ranked_linears = sorted(profiles, key=lambda name: profiles[name].importance, reverse=True)
    return frozenset(ranked_linears[: len(ranked_linears) - round(pruned_share * len(ranked_linears))])


Measurement = tuple[dict[LinearId, OutlierProfile], dict[LinearId, float]]

_measurements: WeakKeyDictionary[Decoder, dict[tuple[object, ...], Measurement]] = WeakKeyDictionary()
"""What was measured of a decoder on a corpus: reading it takes longer than all else of a compression."""


def _measure(decoder: Decoder, corpus: Sequence[Tensor], quantile: float) -> Measurement:
    """Each linear's profile, and the mean share of its channels with an outlier in a text."""
    key = (quantile, *(tuple(text.tolist()) for text in corpus))
    results = _measurements.setdefault(decoder, {})
    if key not in results:
        profiles = profile(decoder, corpus, quantile)
        if zero_linears := [name for name, linear in profiles.items() if linear.threshold == 0.0]:
            raise InputError(
                f"shadow.quantile {quantile} of the inputs of {zero_linears[0].part} in layer "
                f"{zero_linears[0].layer} is zero, which is no scale; raise it"
            )
        thresholds = {name: linear.threshold for name, linear in profiles.items()}
        counts = outlier_channels.count(decoder, thresholds, corpus)
        results[key] = profiles, {name: linear.a_pass / linear.inputs for name, linear in counts.items()}
    return results[key]


def _output_steps(decoder: Decoder, corpus: Sequence[Tensor]) -> dict[LinearId, Tensor]:
    """Steps of the outputs of every linear, fp32 `[outputs]`: the largest of its matrix over the corpus."""
    steps = {}
    for name, magnitudes in largest_by_channel(decoder, corpus, outputs=True).items():
        parts = torch.split(magnitudes, list(matrices(decoder.config, name.part)))
        steps[name] = torch.cat([(part.max() / HIGH).expand(len(part)) for part in parts])
    return steps
