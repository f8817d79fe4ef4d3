"""Sampling settings: greedy, temperature, top-p. Pure functions of logits and a generator."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro.core.errors import InputError
from repro.libraries import Tensor, torch

LEAST = 1e-6
"""Smallest temperature above 0: below it logits divided by it leave the range of fp32."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings.

    Attributes:
        temperature: 0 is greedy.
        top_p: draw from the smallest token set with this mass.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not LEAST <= self.temperature < math.inf:
            raise InputError(
                f"sampling.temperature is {self.temperature}; it must be 0 (greedy), or a number of at least "
                f"{LEAST:g}"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(f"sampling.top_p is {self.top_p}; it must be above 0 and at most 1")

    @property
    def greedy(self) -> bool:
        """True if decoding is greedy (temperature 0)."""
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """The sampling distribution of logits: `[..., vocab]` to `[..., vocab]`, fp32."""
        probabilities = torch.softmax(logits.float() / self.temperature, dim=-1)
        return probabilities if self.top_p == 1 else _nucleus(probabilities, self.top_p)


GREEDY = Sampling()


def _nucleus(probabilities: Tensor, mass: float) -> Tensor:
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    nucleus = ordered.masked_fill(before >= mass, 0.0)
    masses = torch.zeros_like(probabilities).scatter(-1, order, nucleus)
    return masses / masses.sum(dim=-1, keepdim=True)


def draw(probabilities: Tensor, generator: torch.Generator) -> int:
    """Sample one token from a distribution `[vocab]`."""
    return int(torch.multinomial(probabilities, 1, generator=generator))
