"""The first linear of an MLP with contextual sparsity: a predictor selects neurons for each token.

Owns the predictor's structure and the output of unselected neurons. Must not know how predictors are trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from repro.models.transformer.linear import Linear


@dataclass(frozen=True, slots=True)
class ActivationPredictor:
    """Two linears without bias or activation (Deja Vu), `[rank, inputs]` and `[neurons, rank]`."""

    to_rank: Tensor
    to_neurons: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Scores of each neuron for each token, as logits `[rows, neurons]`."""
        return x @ self.to_rank.T @ self.to_neurons.T


@dataclass(frozen=True, slots=True)
class PredictedLinear:
    """A linear over neurons (gate and up concatenated if gated) that outputs 0 for unselected neurons.

    A neuron with output 0 adds nothing to the MLP, since every activation is 0 at 0. All products are
    computed and then masked, so this shows the effect on accuracy, not on speed.

    Attributes:
        linear: the full linear.
        predictor: scores the neurons.
        active_count: neurons computed per token.
    """

    linear: Linear
    predictor: ActivationPredictor
    active_count: int

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        active = self.predictor(x).topk(self.active_count, -1).indices
        outputs = self.linear(x).view(x.shape[0], -1, self.predictor.to_neurons.shape[0])
        index = active[:, None].expand(-1, outputs.shape[1], -1)
        active_outputs = outputs.new_zeros(outputs.shape).scatter_(2, index, outputs.gather(2, index))
        return active_outputs.view(x.shape[0], -1)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the full linear."""
        return self.linear.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> PredictedLinear:
        """See `Linear`; the predictor is unchanged."""
        return replace(self, linear=self.linear.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the kept neurons' weights and of the predictor."""
        neurons = self.predictor.to_neurons.shape[0]
        return (
            self.linear.weight_bytes * self.active_count // neurons
            + self.predictor.to_rank.nbytes
            + self.predictor.to_neurons.nbytes
        )
