"""Contextual sparsity (Deja Vu): a predictor chooses the MLP neurons to compute for each token.

Owns the predictors, their fitting, and the output of unselected neurons. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from repro.core.bounds import Part
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import LinearId, with_observer
from repro.models.analysis.layers import block_elements, elements, through, without_mlp
from repro.models.transformer.decoder import Decoder
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
class PredictedLinear(Linear):
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


LEARNING_RATE = 1e-3
"""AdamW learning rate of Deja Vu's MLP script."""
WEIGHT_DECAY = 0.01
"""AdamW weight decay of the same script."""
BATCH_SIZE = 128
"""Tokens per step; Deja Vu's 1024 (of 400,000 tokens) would give too few steps on a small corpus."""
HELD_OUT_SHARE = 0.05
"""Share of the tokens held out to measure recall (Deja Vu)."""
SEED = 0


@register("compression", "contextual_sparsity")
@dataclass(frozen=True)
class ContextualSparsity:
    """Each token computes the share of every MLP's neurons that a low-rank predictor ranks highest.

    The predictor takes the MLP's input. It is trained with binary cross-entropy to predict the token's
    largest neurons, by magnitude at the input of the down projection.

    Deviation: Deja Vu labels neurons whose ReLU output is above 0, which does not apply to gated activations.
    Attention stays dense, as in ElastiLM's baseline (ElastiLM 5.2). Scoring reads a text in one pass, so
    prompt tokens are sparse too, unlike in a phone's prefill.

    Attributes:
        share: share of the neurons that each token computes.
        rank: rank of the predictors.
        epochs: training epochs over the corpus' tokens.
    """

    share: Part = 0.5
    rank: Annotated[int, Interval(ge=1, le=65_536)] = 128
    epochs: Annotated[int, Interval(ge=1, le=100_000)] = 20

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        if sum(map(len, corpus)) < 2:
            raise InputError(
                "predictors are fitted to tokens of a corpus, and tried on others; raise corpus.texts"
            )
        active_count = max(1, round(self.share * decoder.config.intermediate))
        figures = {"true_ratio": _active_share(decoder, active_count), "kept_neurons": active_count}
        if active_count == decoder.config.intermediate:
            return Compressed(decoder, figures)
        layers, recalls = decoder.resident_layers(), []
        for i, sample in enumerate(_samples_by_layer(decoder, corpus)):
            predictor, recall = self._fit(sample, active_count)
            layers[i] = replace(layers[i], up=PredictedLinear(layers[i].up, predictor, active_count))
            recalls.append(recall)
        sparse_decoder = decoder.with_layers(layers)
        return Compressed(sparse_decoder, {**figures, "recall": sum(recalls) / len(recalls)})

    def _fit(self, sample: MlpSample, active_count: int) -> tuple[ActivationPredictor, float]:
        """A layer's predictor and its recall on held-out tokens."""
        test_count = max(1, round(HELD_OUT_SHARE * len(sample.inputs)))
        labels = torch.zeros_like(sample.magnitudes)
        labels.scatter_(1, sample.magnitudes.topk(active_count, -1).indices, 1.0)
        predictor = self._train(sample.inputs[:-test_count], labels[:-test_count])
        predictions = predictor(sample.inputs[-test_count:]).topk(active_count, -1).indices
        return predictor, float(labels[-test_count:].gather(1, predictions).mean())

    def _train(self, inputs: Tensor, labels: Tensor) -> ActivationPredictor:
        """Train a predictor, with initial weights and batch order from a fixed seed."""
        generator = torch.Generator().manual_seed(SEED)
        shapes = ((self.rank, inputs.shape[1]), (labels.shape[1], self.rank))
        to_rank, to_neurons = (torch.randn(shape, generator=generator) * shape[1] ** -0.5 for shape in shapes)
        weights = [to_rank.requires_grad_(), to_neurons.requires_grad_()]
        optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(inputs), generator=generator)
                for rows in torch.split(order, BATCH_SIZE):
                    optimizer.zero_grad()
                    logits = ActivationPredictor(to_rank, to_neurons)(inputs[rows])
                    F.binary_cross_entropy_with_logits(logits, labels[rows]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return ActivationPredictor(to_rank.detach(), to_neurons.detach())


class MlpSample(NamedTuple):
    """Inputs of an MLP, `[tokens, hidden]`, and magnitudes of its neurons, `[tokens, neurons]`."""

    inputs: Tensor
    magnitudes: Tensor


def _samples_by_layer(decoder: Decoder, corpus: Sequence[Tensor]) -> Iterator[MlpSample]:
    """Inputs and magnitudes layer by layer over a corpus; only one layer is in memory at a time."""
    rows_by_part: dict[str, list[Tensor]] = {}

    def note(name: LinearId, x: Tensor) -> None:
        rows_by_part.setdefault(name.part, []).append(x)

    recorder = with_observer(decoder, note)
    texts = [decoder.embed(tokens, torch.arange(len(tokens))) for tokens in corpus]
    for i in range(decoder.config.layers):
        rows_by_part.clear()
        texts = [through(recorder, [i], x)[-1] for x in texts]
        yield MlpSample(torch.cat(rows_by_part["up"]), torch.cat(rows_by_part["down"]).abs())


def _active_share(decoder: Decoder, active_count: int) -> float:
    """Share of the blocks' matrix elements that a token uses, without the predictors'."""
    layers = decoder.resident_layers()
    mlp_weights = sum(elements(layer) - elements(without_mlp(layer)) for layer in layers)
    return 1.0 - (1.0 - active_count / decoder.config.intermediate) * mlp_weights / block_elements(decoder)
