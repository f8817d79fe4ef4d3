"""Contextual sparsity (Deja Vu): for each token a predictor chooses the MLP neurons that are computed.

Owns the fitting of predictors. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import Place, watched
from repro.models.analysis.layer_dropping import block_elements, elements, resident, without_mlp
from repro.models.analysis.layer_importance import through
from repro.models.elastic.predicted_linear import ActivationPredictor, PredictedLinear
from repro.models.transformer.decoder import Decoder

RATE = 1e-3
"""Step of AdamW, as Deja Vu's script for MLPs has it."""
DECAY = 0.01
"""AdamW's weight decay there."""
BATCH = 128
"""Tokens of a step; Deja Vu's 1024 of 400,000 would make too few steps of a small corpus."""
HELD_OUT = 0.05
"""Of the tokens, for the recall (Deja Vu)."""
SEED = 0


@register("compression", "contextual_sparsity")
@dataclass(frozen=True)
class ContextualSparsity:
    """Each token computes a share of every MLP's neurons: those that a low-rank predictor ranks highest.

    A predictor reads what the MLP reads and learns, by binary cross-entropy, which neurons are among the
    token's largest by the magnitude that goes into the second linear.

    Deviation: Deja Vu's label is whether a ReLU gives more than 0, which says nothing of the gated
    activations of today's families. Attention stays whole, as in ElastiLM's baseline (ElastiLM 5.2). Scoring
    reads a text at once, so the prompt's tokens are thinned out too, where a phone's prefill is not.

    Attributes:
        share: of the neurons that each token computes.
        rank: of the predictors.
        epochs: passes over the corpus' tokens.
    """

    share: float = 0.5
    rank: int = 128
    epochs: int = 20

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        self._check()
        if sum(map(len, corpus)) < 2:
            raise InputError(
                "predictors are fitted to tokens of a corpus, and tried on others; raise corpus.texts"
            )
        kept = max(1, round(self.share * decoder.config.intermediate))
        figures = {"true_ratio": _computed(decoder, kept), "kept_neurons": kept}
        if kept == decoder.config.intermediate:
            return Compressed(decoder, figures)
        layers, recalls = resident(decoder), []
        for i, seen in enumerate(_seen(decoder, corpus)):
            predictor, recall = self._fitted(seen, kept)
            layers[i] = replace(layers[i], up=PredictedLinear(layers[i].up, predictor, kept))
            recalls.append(recall)
        made = Decoder(decoder.config, layers, decoder.ends)
        return Compressed(made, {**figures, "recall": sum(recalls) / len(recalls)})

    def _check(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise InputError(f"compression.share is {self.share}; it must be above 0 and at most 1")
        if self.rank < 1 or self.epochs < 1:
            raise InputError(f"rank is {self.rank} and epochs {self.epochs}; both are at least 1")

    def _fitted(self, seen: Seen, kept: int) -> tuple[ActivationPredictor, float]:
        """A layer's predictor, and its recall on tokens that it was not fitted to."""
        held = max(1, round(HELD_OUT * len(seen.inputs)))
        largest = torch.zeros_like(seen.magnitudes)
        largest.scatter_(1, seen.magnitudes.topk(kept, -1).indices, 1.0)
        predictor = self._descended(seen.inputs[:-held], largest[:-held])
        chosen = predictor(seen.inputs[-held:]).topk(kept, -1).indices
        return predictor, float(largest[-held:].gather(1, chosen).mean())

    def _descended(self, inputs: Tensor, largest: Tensor) -> ActivationPredictor:
        """A predictor after gradient descent, from a start and in an order of a fixed seed."""
        generator = torch.Generator().manual_seed(SEED)
        shapes = ((self.rank, inputs.shape[1]), (largest.shape[1], self.rank))
        narrow, wide = (torch.randn(shape, generator=generator) * shape[1] ** -0.5 for shape in shapes)
        weights = [narrow.requires_grad_(), wide.requires_grad_()]
        descent = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY)
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(inputs), generator=generator)
                for rows in torch.split(order, BATCH):
                    descent.zero_grad()
                    said = ActivationPredictor(narrow, wide)(inputs[rows])
                    F.binary_cross_entropy_with_logits(said, largest[rows]).backward()  # type: ignore[no-untyped-call]
                    descent.step()
        return ActivationPredictor(narrow.detach(), wide.detach())


class Seen(NamedTuple):
    """What an MLP reads, `[tokens, hidden]`, and how much its neurons give, `[tokens, neurons]`, unsigned."""

    inputs: Tensor
    magnitudes: Tensor


def _seen(decoder: Decoder, corpus: Sequence[Tensor]) -> Iterator[Seen]:
    """Layer by layer, over all tokens of a corpus; one layer's rows are held at a time."""
    found: dict[str, list[Tensor]] = {}

    def note(place: Place, x: Tensor) -> None:
        found.setdefault(place.part, []).append(x)

    seeing = watched(decoder, note)
    texts = [decoder.embed(tokens, torch.arange(len(tokens))) for tokens in corpus]
    for i in range(decoder.config.layers):
        found.clear()
        texts = [through(seeing, [i], x) for x in texts]
        yield Seen(torch.cat(found["up"]), torch.cat(found["down"]).abs())


def _computed(decoder: Decoder, kept: int) -> float:
    """The share of the blocks' matrices that a token is multiplied by, without the predictors'."""
    layers = resident(decoder)
    mlps = sum(elements(layer) - elements(without_mlp(layer)) for layer in layers)
    return 1.0 - (1.0 - kept / decoder.config.intermediate) * mlps / block_elements(decoder)
