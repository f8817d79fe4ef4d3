"""Magnitudes of the inputs of a decoder's linears over a corpus.

Owns maxima and quantiles per linear, computed in one pass without storing all activations. Must not know how
they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import Place, read, watched
from repro.models.transformer.decoder import Decoder


@dataclass(frozen=True)
class OutlierProfile:
    """Magnitude statistics of one linear's inputs.

    Attributes:
        threshold: the `quantile` of the magnitudes; at most a share `1 - quantile` of inputs exceed it.
        largest: the largest magnitude.
    """

    threshold: float
    largest: float

    @property
    def importance(self) -> float:
        """Ratio of the largest outlier to the scale (mllm-NPU sec. 3.3)."""
        return self.largest / self.threshold if self.threshold else inf


def largest_by_channel(
    decoder: Decoder, corpus: Sequence[Tensor], outputs: bool = False
) -> dict[Place, Tensor]:
    """Largest magnitude of every input (or output) channel of every linear, fp32 `[channels]`.

    Raises:
        InputError: the corpus has no tokens.
    """
    found: dict[Place, Tensor] = {}

    def observe(place: Place, x: Tensor) -> None:
        most = x.abs().amax(0).float()
        found[place] = torch.maximum(found[place], most) if place in found else most

    _tokens(corpus)
    read(watched(decoder, observe, outputs), corpus)
    return found


def profile(
    decoder: Decoder, corpus: Sequence[Tensor], quantile: float = 0.999
) -> dict[Place, OutlierProfile]:
    """Quantile and maximum of the input magnitudes of every linear.

    The quantile is exact; only the largest share `1 - quantile` of the magnitudes is stored.

    Raises:
        InputError: the corpus has no tokens, or the quantile is not in [0, 1].
    """
    if not 0.0 <= quantile <= 1.0:
        raise InputError(f"a quantile lies between 0 and 1, got {quantile}")
    share, tokens = 1.0 - quantile, _tokens(corpus)
    tops: dict[Place, _Top] = {}

    def observe(place: Place, x: Tensor) -> None:
        if place not in tops:
            count = tokens * x.shape[1]
            tops[place] = _Top(min(count, int(share * count + 1e-6) + 1))
        tops[place].add(x)

    read(watched(decoder, observe), corpus)
    return {
        place: OutlierProfile(float(top.values[-1]), float(top.values[0]))
        for place, top in ((place, top.sorted()) for place, top in tops.items())
    }


def _tokens(corpus: Sequence[Tensor]) -> int:
    tokens = sum(map(len, corpus))
    if not tokens:
        raise InputError("a corpus to calibrate on must have tokens, got none")
    return tokens


@dataclass(slots=True)
class _Top:
    """The `count` largest magnitudes seen so far, unordered."""

    count: int
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    least: float = -1.0

    def add(self, x: Tensor) -> None:
        """Add values; only those above the least one held matter once `count` are held."""
        seen = x.float().abs().flatten()
        values = torch.cat((self.values, seen[seen > self.least]))
        if len(values) > self.count:
            values = values.topk(self.count, sorted=False).values
        if len(values) == self.count:
            self.least = float(values.min())
        self.values = values

    def sorted(self) -> _Top:
        """A copy sorted in descending order."""
        return _Top(self.count, self.values.sort(descending=True).values, self.least)
