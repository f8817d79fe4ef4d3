"""Activation outliers (mllm-NPU, sec. 3.3): how many channels have them, which ones, and their magnitude.

Owns the selection of linears and the figures. Must not know how outliers are counted
(`models/analysis/outlier_channels.py`) or how thresholds are found (`models/analysis/activations.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, log2
from statistics import fmean
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor

from repro.core.bounds import Share, Tokens
from repro.core.registry import register
from repro.methods.probes.base import Texts
from repro.models.analysis import outlier_channels as channels
from repro.models.analysis.activations import OutlierProfile, profile
from repro.models.analysis.hooks import LinearId, linears_of
from repro.models.analysis.outlier_channels import ChannelCounts
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

ALL: Final = "all"
ENOUGH_SHARE = 0.8
"""Share of the outliers in `hot_enough` (sec. 3.3)."""


@dataclass(frozen=True)
class _Observation:
    """Per linear: threshold and largest input on the corpus, and outlier counts on the texts."""

    profiles: Mapping[LinearId, OutlierProfile]
    counts: Mapping[LinearId, ChannelCounts]


@register("probe", "outliers")
@dataclass(frozen=True)
class Outliers:
    """Counts outliers in texts, with thresholds from a corpus.

    Attributes:
        quantile: quantile of the input magnitudes of a linear that is its threshold.
        tokens: see `Probe`.
        hot: share of channels whose weights stay in memory: those with the most frequent outliers.
        depth: relative depth of the examined layer, 0 (first) to 1 (last); `None` for all layers.
        part: the examined linear of a layer, or "all".
    """

    quantile: Share = 0.999
    tokens: Tokens = 2048
    hot: Share = 0.03
    depth: Share | None = None
    part: Literal["qkv", "out", "up", "down", "all"] = ALL

    calibrated: ClassVar[bool] = True

    def look(self, decoder: Decoder, corpus: Texts, texts: Texts) -> dict[str, Scalar]:
        """See `Probe`.

        Returns:
            linears: number of examined linears.
            channels_at_once, share_at_once: channels with an outlier per token: mean per linear, and share.
            channels_a_pass, share_a_pass: channels with an outlier anywhere in a text, likewise.
            share_ever: share of channels with an outlier in any text.
            hot_outliers: share of the outliers that lie in the `hot` share of most frequent channels.
            hot_enough: smallest share of channels that contains 80% of the outliers.
            copy_saved: share of the shadow copy of the weights that need not stay in memory.
            memory_saved: the same as a share of all weights, shadow copy and embeddings included, at one
                byte each.
            importance: largest input on the corpus over the threshold, mean over the linears; `None` if a
                threshold is 0.
            bits: mean of its log2: bits of resolution lost to a scale that covers the largest input.
        """
        observation = _observe(decoder, corpus, texts, self.quantile)
        selection = [name for name, _ in linears_of(decoder) if self._wants(name, decoder.config.layers)]
        linears = [observation.counts[name] for name in selection]
        ratios = [observation.profiles[name].importance for name in selection]
        all_weights, hot_weights = channels.weights(linears), channels.hot_weights(linears, self.hot)
        return {
            "linears": len(linears),
            "channels_at_once": channels.at_once(linears),
            "share_at_once": channels.share_at_once(linears),
            "channels_a_pass": channels.a_pass(linears),
            "share_a_pass": channels.share_a_pass(linears),
            "share_ever": channels.share_ever(linears),
            "hot_outliers": channels.hot_outliers(linears, self.hot),
            "hot_enough": channels.hot_share_for(linears, ENOUGH_SHARE),
            "copy_saved": 1 - hot_weights / all_weights,
            "memory_saved": (all_weights - hot_weights) / (2 * all_weights + _ends(decoder)),
            "importance": _finite(fmean(ratios)),
            "bits": _finite(fmean(map(log2, ratios))),
        }

    def _wants(self, name: LinearId, layer_count: int) -> bool:
        layer = None if self.depth is None else round(self.depth * (layer_count - 1))
        return layer in (None, name.layer) and self.part in (ALL, name.part)


def _finite(value: float) -> float | None:
    """The value, or `None` if it is not finite."""
    return value if isfinite(value) else None


def _ends(decoder: Decoder) -> int:
    """Weights without a shadow copy: the embedding, and the output projection if untied."""
    table = decoder.ends.embedding.numel()
    return table if decoder.config.tied else 2 * table


@lru_cache(maxsize=1)
def _observe(decoder: Decoder, corpus: Texts, texts: Texts, quantile: float) -> _Observation:
    """Profiles and counts of all linears; cached for cells that differ only in what they select."""
    profiles = profile(decoder, _tensors(corpus), quantile)
    thresholds = {name: linear_profile.threshold for name, linear_profile in profiles.items()}
    return _Observation(profiles, channels.count(decoder, thresholds, _tensors(texts)))


def _tensors(texts: Texts) -> list[Tensor]:
    return [torch.tensor(text) for text in texts]
