"""Contextual sparsity: which neurons a token computes, and how predictors learn them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from repro.methods.compression.pruning.contextual_sparsity import ContextualSparsity
from repro.models.analysis.hooks import LinearId, read, with_observer
from repro.models.transformer.decoder import Decoder
from tiny_dense import CORPUS, TOKENS, dense, logits
from tiny_families import FAMILIES, VOCAB

NEURONS = 96


TEXTS = [torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(i)) for i in range(10)]


def into_down(made: Decoder, layer: int) -> Tensor:
    """What a layer's neurons give on a text, `[tokens, neurons]`."""
    found: dict[LinearId, Tensor] = {}
    read(with_observer(made, found.__setitem__), [TOKENS])
    return found[LinearId(layer, "down")]


def unmasked(made: Decoder) -> Decoder:
    """The decoder with its predictors put aside."""
    layers = [replace(layer, up=layer.up.linear) for layer in made.resident_layers()]  # type: ignore[attr-defined]
    return Decoder(made.config, layers, made.ends)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_token_computes_its_share_of_neurons_and_no_other(family: str) -> None:
    made = ContextualSparsity(0.25, rank=4, epochs=1).compress(dense(family), CORPUS).decoder
    given = into_down(made, 0)
    predictor = made.layers[0].up.predictor  # type: ignore[union-attr]
    inputs: dict[LinearId, Tensor] = {}
    read(with_observer(made, inputs.__setitem__), [TOKENS])
    whole = into_down(unmasked(made), 0)
    ranks = predictor(inputs[LinearId(0, "up")]).argsort(-1, descending=True)
    chosen = torch.zeros_like(whole).scatter_(1, ranks[:, : made.config.intermediate // 4], 1.0)
    assert torch.equal(given, whole * chosen)


@pytest.mark.parametrize("family", ["llama-2", "opt"])
def test_all_neurons_are_the_whole_model(family: str) -> None:
    found = ContextualSparsity(1.0).compress(dense(family), CORPUS)
    assert torch.equal(logits(found.decoder), logits(dense(family)))
    assert found.figures == {"true_ratio": 1.0, "kept_neurons": NEURONS}


def test_predictors_learn_which_neurons_are_large_on_tokens_they_did_not_see() -> None:
    """Guessing finds the share of them that is kept."""
    found = ContextualSparsity(0.25, rank=32, epochs=40).compress(dense("llama-2"), TEXTS)
    assert 0.45 < found.figures["recall"] <= 1.0
    untrained = ContextualSparsity(0.25, rank=32, epochs=1).compress(dense("llama-2"), TEXTS)
    assert untrained.figures["recall"] < found.figures["recall"]


def test_the_share_of_the_blocks_that_a_token_computes() -> None:
    found = ContextualSparsity(0.25, rank=4, epochs=1).compress(dense("llama-2"), CORPUS)
    mlp, attention = 3 * 64 * NEURONS, 2 * 64 * 64 + 2 * 32 * 64
    assert found.figures["true_ratio"] == pytest.approx((mlp / 4 + attention) / (mlp + attention))
    assert found.figures["kept_neurons"] == NEURONS // 4
