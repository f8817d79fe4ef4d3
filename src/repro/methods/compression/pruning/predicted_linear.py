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

    narrow: Tensor
    wide: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Scores of each neuron for each token, as logits `[rows, neurons]`."""
        return x @ self.narrow.T @ self.wide.T


@dataclass(frozen=True, slots=True)
class PredictedLinear:
    """A linear over neurons (gate and up concatenated if gated) that outputs 0 for unselected neurons.

    A neuron with output 0 adds nothing to the MLP, since every activation is 0 at 0. All products are
    computed and then masked, so this shows the effect on accuracy, not on speed.

    Attributes:
        linear: the full linear.
        predictor: scores the neurons.
        kept: neurons kept per token.
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
        """The tensors of the full linear."""
        return self.linear.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> PredictedLinear:
        """See `Linear`; the predictor is unchanged."""
        return replace(self, linear=self.linear.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the kept neurons' weights and of the predictor."""
        neurons = self.predictor.wide.shape[0]
        return (
            self.linear.weight_bytes * self.kept // neurons
            + self.predictor.narrow.nbytes
            + self.predictor.wide.nbytes
        )
