"""Outliers of activations (mllm-NPU, sec. 3.3): in how many channels, in which, and how far out.

Owns which linears are looked at and what is said of them. Must not know how outliers are counted
(`models/analysis/outlier_channels.py`) or thresholds found (`models/analysis/outliers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, log2
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.core.registry import register, unknown
from repro.methods.probes.base import Texts
from repro.models.analysis import outlier_channels as channels
from repro.models.analysis.hooks import PARTS, Place, places
from repro.models.analysis.outlier_channels import Counted
from repro.models.analysis.outliers import OutlierProfile, profile
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

ALL = "all"
ENOUGH = 0.8
"""Of the outliers; sec. 3.3 says how few channels have that share of them."""


@dataclass(frozen=True)
class _Seen:
    """Of every linear: its threshold and largest input on the corpus, and its outliers in the texts."""

    profiles: Mapping[Place, OutlierProfile]
    counted: Mapping[Place, Counted]


@register("probe", "outliers")
@dataclass(frozen=True)
class Outliers:
    """Thresholds from a corpus, outliers counted in texts.

    Attributes:
        quantile: of a linear's inputs in magnitude, its threshold.
        tokens: see `Probe`.
        hot: share of channels whose weights stay in memory, the most frequent ones.
        depth: from 0, the first layer, to 1, the last: the one to look at; `None` for all layers.
        part: the linear of a layer to look at, or "all".
    """

    quantile: float = 0.999
    tokens: int = 2048
    hot: float = 0.03
    depth: float | None = None
    part: str = ALL

    calibrated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("quantile", "hot", "depth"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} of probe outliers is {value}; it is a share, 0 to 1")
        if self.part not in (*PARTS, ALL):
            raise InputError(unknown("linear of a layer", self.part, (*PARTS, ALL)))
        if self.tokens < 1:
            raise InputError(f"tokens of probe outliers is {self.tokens}; it must be at least 1")

    def look(self, decoder: Decoder, corpus: Texts, texts: Texts) -> dict[str, Scalar]:
        """See `Probe`.

        Returns:
            linears: that were looked at.
            channels_at_once, share_at_once: with an outlier in one token's row: mean of a linear, and share.
            channels_a_pass, share_a_pass: with one anywhere in a text.
            share_ever: with one in any text.
            hot_outliers: share of the outliers that lie in the most frequent channels, a share `hot` of all.
            hot_enough: share of all channels that has 80% of the outliers.
            copy_saved: share of the shadow's copy of the weights that need not stay in memory.
            memory_saved: what that is of all weights, copy and embeddings included, at one byte each.
            importance: the corpus' largest input over the threshold, mean of the linears; absent where a
                threshold is 0.
            bits: the same as bits that a scale wide enough for the largest takes from all others.
        """
        seen = _seen(decoder, corpus, texts, self.quantile)
        chosen = [place for place, _ in places(decoder) if self._wants(place, decoder.config.layers)]
        linears = [seen.counted[place] for place in chosen]
        ratios = [seen.profiles[place].importance for place in chosen]
        all_, hot = channels.weights(linears), channels.hot_weights(linears, self.hot)
        return {
            "linears": len(linears),
            "channels_at_once": channels.at_once(linears),
            "share_at_once": channels.share_at_once(linears),
            "channels_a_pass": channels.a_pass(linears),
            "share_a_pass": channels.share_a_pass(linears),
            "share_ever": channels.share_ever(linears),
            "hot_outliers": channels.caused(linears, self.hot),
            "hot_enough": channels.needed(linears, ENOUGH),
            "copy_saved": 1 - hot / all_,
            "memory_saved": (all_ - hot) / (2 * all_ + _ends(decoder)),
            "importance": _finite(fmean(ratios)),
            "bits": _finite(fmean(map(log2, ratios))),
        }

    def _wants(self, place: Place, layers: int) -> bool:
        layer = None if self.depth is None else round(self.depth * (layers - 1))
        return layer in (None, place.layer) and self.part in (ALL, place.part)


def _finite(value: float) -> float | None:
    """Absent if infinite."""
    return value if isfinite(value) else None


def _ends(decoder: Decoder) -> int:
    """Weights that no shadow copies: the embedding, and the output projection where it is not the same."""
    table = decoder.ends.embedding.numel()
    return table if decoder.config.tied else 2 * table


@lru_cache(maxsize=1)
def _seen(decoder: Decoder, corpus: Texts, texts: Texts, quantile: float) -> _Seen:
    """One reading of the corpus and one of the texts, whatever of it is asked for next."""
    profiles = profile(decoder, _tensors(corpus), quantile)
    thresholds = {place: one.threshold for place, one in profiles.items()}
    return _Seen(profiles, channels.count(decoder, thresholds, _tensors(texts)))


def _tensors(texts: Texts) -> list[Tensor]:
    return [torch.tensor(text) for text in texts]
