"""Decoders of which layers or halves are gone, and what a layer is worth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from repro.models.analysis.layers import (
    half_similarities,
    loss,
    losses_without,
    of_layers,
    partial_decoder,
    rows_by_layer,
    through,
    without_attention,
    without_mlp,
)
from repro.models.analysis.likelihood import Reader
from repro.models.transformer.layer import LayerWeights
from tiny_dense import CORPUS, TOKENS, dense, logits, silent
from tiny_families import FAMILIES

LAYERS = 4
TEXT = TOKENS.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kept", [(0, 2, 3), (1,)])
def test_a_decoder_of_some_layers_goes_through_these(family: str, kept: tuple[int, ...]) -> None:
    """Each with the window and the rotation that it had, whatever number it has now."""
    made = dense(family)
    rows = through(made, kept, made.embed(TOKENS, torch.arange(len(TOKENS))))[-1]
    assert torch.equal(logits(of_layers(made, kept)), made.head(rows))


HALVES = (("out", without_attention), ("down", without_mlp))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"opt-350m"}))
@pytest.mark.parametrize(("part", "without"), HALVES, ids=["attention", "mlp"])
def test_a_layer_without_a_half_is_one_whose_half_adds_nothing(
    family: str, part: str, without: Callable[[LayerWeights], LayerWeights]
) -> None:
    """OPT-350m norms the sum, and that norm goes with the half."""
    made = dense(family)
    layers = made.resident_layers()
    layers[0] = without(layers[0])
    assert torch.equal(logits(partial_decoder(made, layers)), logits(silent(made, 0, part)))


@pytest.mark.parametrize("family", ["llama-2", "gemma-3", "opt"])
def test_a_decoder_without_attention_in_some_layers_reads_branches_like_any_other(family: str) -> None:
    """Also where the first layer has none, of which a cache's length is."""
    made = dense(family)
    layers = made.resident_layers()
    for i in (0, 2):
        layers[i] = without_attention(layers[i])
    reader = Reader(thin := partial_decoder(made, layers))
    pairs = [(TEXT[:9], TEXT[9:12]), (TEXT[:9], TEXT[12:16])]
    for _ in range(2):  # the second time from the cache
        for (context, tail), said in zip(pairs, reader.score(pairs), strict=True):
            rows = logits(thin, torch.tensor(context + tail)).log_softmax(-1)[len(context) - 1 : -1]
            assert said.nats == pytest.approx(float(rows[range(len(tail)), tail].sum()), abs=1e-4)


@pytest.mark.parametrize("family", ["llama-2", "gemma-3", "phi-2", "opt-350m"])
def test_the_loss_without_a_layer_is_that_of_the_decoder_without_it(family: str) -> None:
    made = dense(family)
    found = losses_without(made, CORPUS)
    for i in range(LAYERS):
        rest = of_layers(made, [j for j in range(LAYERS) if j != i])
        assert found[i] == pytest.approx(loss(rest, CORPUS), rel=1e-6)


def test_a_loss_is_the_mean_over_all_predicted_tokens() -> None:
    made = dense("llama-2")
    nats = [float(-logits(made, t).log_softmax(-1)[range(len(t) - 1), t[1:]].sum()) for t in CORPUS]
    assert loss(made, CORPUS) == pytest.approx(sum(nats) / (len(CORPUS[0]) + len(CORPUS[1]) - 2), rel=1e-6)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Of each row."""
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


def test_similarities_follow_the_rows_through_a_layer() -> None:
    """Attention first, then the MLP on what it left; side by side both from the layer's own rows."""
    for family in ("llama-2", "phi-2"):
        made = dense(family)
        rows = rows_by_layer(made, TOKENS)
        attention, mlp = half_similarities(made, [TOKENS])
        mixed = rows_by_layer(silent(made, 0, "down"), TOKENS)[1]
        assert attention[0] == pytest.approx(float(cosine(rows[0], mixed).mean()), abs=1e-5)
        if family == "llama-2":
            assert mlp[0] == pytest.approx(float(cosine(mixed, rows[1]).mean()), abs=1e-5)
        else:
            alone = rows_by_layer(silent(made, 0, "out"), TOKENS)[1]
            assert mlp[0] == pytest.approx(float(cosine(rows[0], alone).mean()), abs=1e-5)
