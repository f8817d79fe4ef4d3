"""Samples the inputs of each linear of a decoder.

Owns which input rows are kept. Must not know how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import Place, places, read, watched
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

    def over(self, by: Tensor) -> Sample:
        """The sample divided by `by`, fp32 `[inputs]`."""
        return Sample(self.rows / by, self.magnitude / by)


@dataclass(slots=True)
class _Taken:
    """Running sample of one linear's inputs."""

    stride: int
    seen: int = 0
    total: Tensor | None = None
    rows: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> None:
        self.rows.append(x[-self.seen % self.stride :: self.stride].float().clone())
        self.seen += len(x)
        sums = x.float().abs().sum(0)
        self.total = sums if self.total is None else self.total + sums

    def sample(self) -> Sample:
        assert self.total is not None
        return Sample(torch.cat(self.rows), self.total / self.seen)


def samples(decoder: Decoder, corpus: Sequence[Tensor], rows: int) -> Mapping[Place, Sample]:
    """Sample at most `rows` input rows of every linear; mean magnitudes cover all rows.

    Raises:
        InputError: the corpus is empty.
    """
    tokens = sum(len(text) for text in corpus)
    if not tokens:
        raise InputError("calibration needs at least one token")
    taken = {place: _Taken(-(-tokens // rows)) for place, _ in places(decoder)}
    read(watched(decoder, lambda place, x: taken[place].add(x)), corpus)
    return {place: kept.sample() for place, kept in taken.items()}
