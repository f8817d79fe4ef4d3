"""The first linear of an MLP of which each row computes some neurons only, as a small predictor chooses.

Owns the predictor's form and what a neuron that is not chosen gives. Must not know how a predictor is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from repro.models.transformer.linear import Linear


@dataclass(frozen=True, slots=True)
class ActivationPredictor:
    """Two linears without bias and nothing between them (Deja Vu), `[rank, inputs]` and `[neurons, rank]`."""

    narrow: Tensor
    wide: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """How likely each neuron matters for each row, as logits `[rows, neurons]`."""
        return x @ self.narrow.T @ self.wide.T


@dataclass(frozen=True, slots=True)
class PredictedLinear:
    """A linear over neurons, gate above up where the family is gated, that gives 0 for those not chosen.

    A neuron whose linears give 0, bias and all, adds nothing to the MLP: every activation is 0 at 0. Products
    are computed and then dropped, so this says what skipping does to answers and nothing of its speed.

    Attributes:
        linear: the whole one.
        predictor: says which neurons matter.
        kept: how many of them each row keeps.
    """

    linear: Linear
    predictor: ActivationPredictor
    kept: int

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        chosen = self.predictor(x).topk(self.kept, -1).indices
        whole = self.linear(x).view(x.shape[0], -1, self.predictor.wide.shape[0])
        index = chosen[:, None].expand(-1, whole.shape[1], -1)
        left = whole.new_zeros(whole.shape).scatter_(2, index, whole.gather(2, index))
        return left.view(x.shape[0], -1)

    def tensors(self) -> dict[str, Tensor]:
        """The whole linear's."""
        return self.linear.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> PredictedLinear:
        """See `Linear`; the predictor stays."""
        return replace(self, linear=self.linear.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the chosen neurons' weights, and of the predictor."""
        neurons = self.predictor.wide.shape[0]
        return (
            self.linear.weight_bytes * self.kept // neurons
            + self.predictor.narrow.nbytes
            + self.predictor.wide.nbytes
        )
