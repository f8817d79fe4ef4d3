"""How large the inputs of a decoder's linears get over a corpus.

Owns maxima and quantiles per linear, found in one reading without holding what was read. Must not know what
is made of them.
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
    """The magnitudes of one linear's inputs.

    Attributes:
        threshold: the least magnitude that at most `1 - quantile` of all inputs exceed.
        largest: the largest magnitude.
    """

    threshold: float
    largest: float

    @property
    def importance(self) -> float:
        """How far the largest outlier lies beyond the scale (mllm-NPU sec. 3.3)."""
        return self.largest / self.threshold if self.threshold else inf


def largest_by_channel(decoder: Decoder, corpus: Sequence[Tensor]) -> dict[Place, Tensor]:
    """The largest magnitude of every input of every linear, fp32 `[inputs]`.

    Raises:
        InputError: the corpus has no tokens.
    """
    found: dict[Place, Tensor] = {}

    def observe(place: Place, x: Tensor) -> None:
        most = x.abs().amax(0).float()
        found[place] = torch.maximum(found[place], most) if place in found else most

    _tokens(corpus)
    read(watched(decoder, observe), corpus)
    return found


def profile(
    decoder: Decoder, corpus: Sequence[Tensor], quantile: float = 0.999
) -> dict[Place, OutlierProfile]:
    """The inputs' quantile and maximum of every linear.

    A quantile needs only the largest `1 - quantile` of what was read: that alone is held, and it is exact.

    Raises:
        InputError: the corpus has no tokens, or the quantile does not lie in [0, 1].
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
    """The `count` largest magnitudes seen so far, in no order."""

    count: int
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    least: float = -1.0

    def add(self, x: Tensor) -> None:
        """Look at more; what is not above the least one held cannot change a thing."""
        seen = x.float().abs().flatten()
        values = torch.cat((self.values, seen[seen > self.least]))
        if len(values) > self.count:
            values = values.topk(self.count, sorted=False).values
        if len(values) == self.count:
            self.least = float(values.min())
        self.values = values

    def sorted(self) -> _Top:
        """The same, largest first."""
        return _Top(self.count, self.values.sort(descending=True).values, self.least)
