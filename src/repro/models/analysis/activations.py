"""Inputs of a decoder's linears over a corpus: sampled rows, and largest magnitudes and their quantiles.

Owns which rows and magnitudes are held, in one pass that stores no more. Must not know how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import LinearId, accumulate
from repro.models.transformer.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs of one linear.

    Attributes:
        rows: sampled input rows, evenly spread over the corpus, fp32 `[rows, inputs]`.
        magnitude: mean magnitude of each input channel over all rows, fp32 `[inputs]`.
    """

    rows: Tensor
    magnitude: Tensor

    def over(self, divisors: Tensor) -> Sample:
        """The sample divided by `divisors`, fp32 `[inputs]`."""
        return Sample(self.rows / divisors, self.magnitude / divisors)


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


def samples(decoder: Decoder, corpus: Sequence[Tensor], row_count: int) -> Mapping[LinearId, Sample]:
    """Sample at most `row_count` input rows of every linear; mean magnitudes cover all rows.

    Raises:
        InputError: the corpus has no tokens.
    """
    stride = -(-_tokens(corpus) // row_count)

    def add(_: LinearId, x: Tensor, sampled_rows: _SampledRows | None) -> _SampledRows:
        return (sampled_rows or _SampledRows(stride)).add(x.float())

    return {name: sampled_rows.sample() for name, sampled_rows in accumulate(decoder, corpus, add).items()}


def largest_by_channel(
    decoder: Decoder, corpus: Sequence[Tensor], outputs: bool = False
) -> dict[LinearId, Tensor]:
    """Largest magnitude of every input (or output) channel of every linear, fp32 `[channels]`.

    Raises:
        InputError: the corpus has no tokens.
    """
    _tokens(corpus)

    def add(_: LinearId, x: Tensor, largest_magnitudes: Tensor | None) -> Tensor:
        magnitudes = x.abs().amax(0).float()
        return magnitudes if largest_magnitudes is None else torch.maximum(largest_magnitudes, magnitudes)

    return accumulate(decoder, corpus, add, outputs)


def profile(
    decoder: Decoder, corpus: Sequence[Tensor], quantile: float = 0.999
) -> dict[LinearId, OutlierProfile]:
    """Quantile and maximum of the input magnitudes of every linear.

    The quantile is exact; only the largest share `1 - quantile` of the magnitudes is stored.

    Raises:
        InputError: the corpus has no tokens, or the quantile is not in [0, 1].
    """
    if not 0.0 <= quantile <= 1.0:
        raise InputError(f"a quantile lies between 0 and 1, got {quantile}")
    share, tokens = 1.0 - quantile, _tokens(corpus)

    def add(_: LinearId, x: Tensor, top: _Top | None) -> _Top:
        count = tokens * x.shape[1]
        return (top or _Top(min(count, int(share * count + 1e-6) + 1))).add(x)

    tops = accumulate(decoder, corpus, add)
    return {
        name: OutlierProfile(float(top.values.min()), float(top.values.max())) for name, top in tops.items()
    }


def _tokens(corpus: Sequence[Tensor]) -> int:
    token_count = sum(map(len, corpus))
    if not token_count:
        raise InputError("the corpus has no tokens, and calibration needs at least one token")
    return token_count


@dataclass(slots=True)
class _SampledRows:
    """Every `stride`-th row of all rows so far, and the summed magnitudes of all."""

    stride: int
    row_count: int = 0
    total: Tensor | None = None
    rows: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> _SampledRows:
        self.rows.append(x[-self.row_count % self.stride :: self.stride].clone())
        self.row_count += len(x)
        sums = x.abs().sum(0)
        self.total = sums if self.total is None else self.total + sums
        return self

    def sample(self) -> Sample:
        assert self.total is not None
        return Sample(torch.cat(self.rows), self.total / self.row_count)


@dataclass(slots=True)
class _Top:
    """The `count` largest magnitudes seen so far, unordered."""

    count: int
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    least_value: float = -1.0

    def add(self, x: Tensor) -> _Top:
        """Add values; only those above the least one held matter once `count` are held."""
        magnitudes = x.float().abs().flatten()
        values = torch.cat((self.values, magnitudes[magnitudes > self.least_value]))
        if len(values) > self.count:
            values = values.topk(self.count, sorted=False).values
        if len(values) == self.count:
            self.least_value = float(values.min())
        self.values = values
        return self
