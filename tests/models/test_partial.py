"""Decoders of which layers or halves are gone, and what a layer is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.layers import (
    Absent,
    block_elements,
    block_influences,
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
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from tiny_dense import CORPUS, TOKENS, dense, logits, silent
from tiny_families import FAMILIES

LAYERS = 4
SLIDING = ("qwen-2.5", "gemma-2", "gemma-3")
TEXT = TOKENS.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kept", [(0, 2, 3), (1,)])
def test_a_decoder_of_some_layers_goes_through_these(family: str, kept: tuple[int, ...]) -> None:
    """Each with the window and the rotation that it had, whatever number it has now."""
    made = dense(family)
    rows = through(made, kept, made.embed(TOKENS, torch.arange(len(TOKENS))))[-1]
    assert torch.equal(logits(of_layers(made, kept)), made.head(rows))


@pytest.mark.parametrize("family", SLIDING)
def test_layers_of_both_kinds_keep_theirs(family: str) -> None:
    kinds = dense(family).config.sliding
    assert set(kinds) == {True, False}
    for kept in ([0, 2, 3], [1]):
        assert of_layers(dense(family), kept).config.sliding == tuple(kinds[i] for i in kept)


def test_layers_that_there_are_not_cannot_be_kept() -> None:
    for kept in ([], [4]):
        with pytest.raises(InputError, match="of 4; name at least one"):
            of_layers(dense("llama-2"), kept)


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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_without_both_halves_is_no_layer(family: str) -> None:
    made = dense(family)
    layers = made.resident_layers()
    layers[2] = without_mlp(without_attention(layers[2]))
    assert torch.equal(logits(partial_decoder(made, layers)), logits(of_layers(made, (0, 1, 3))))


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


def test_what_is_gone_weighs_nothing_and_is_not_called() -> None:
    made = dense("llama-2")
    layers = made.resident_layers()
    mlp = 3 * 64 * 96
    assert block_elements(made) == LAYERS * (mlp + 2 * 64 * 64 + 2 * 32 * 64)
    layers[1] = without_attention(layers[1])
    assert block_elements(partial_decoder(made, layers)) == block_elements(made) - (2 * 64 * 64 + 2 * 32 * 64)
    layers[1] = without_mlp(layers[1])
    assert block_elements(partial_decoder(made, layers)) == (LAYERS - 1) * block_elements(made) // LAYERS
    with pytest.raises(TypeError, match="PartialDecoder"):
        Absent()(torch.zeros(1, 64))
    with pytest.raises(InputError, match="not resident"):
        Decoder(made.config, [None] * LAYERS, made.ends).resident_layers()


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


def test_losses_and_ranks_need_texts() -> None:
    made = dense("llama-2")
    for corpus in ([], [TOKENS[:1]]):
        with pytest.raises(InputError, match="at least two tokens"):
            losses_without(made, corpus)
    for measure in (block_influences, half_similarities):
        with pytest.raises(InputError, match="at least 1"):
            measure(made, [])


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Of each row."""
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))


@pytest.mark.parametrize("family", ["llama-2", "gemma-2", "opt"])
def test_a_layer_that_passes_rows_on_turns_none(family: str) -> None:
    influences = block_influences(silent(dense(family), 2, "out", "down"), CORPUS)
    assert influences[2] == pytest.approx(0.0, abs=1e-6)
    assert all(influences[i] > 0.01 for i in (0, 1, 3))


def test_influence_is_a_mean_over_tokens() -> None:
    made = dense("llama-2")
    rows = [rows_by_layer(made, tokens) for tokens in CORPUS]
    mean = torch.cat([cosine(one[1], one[2]) for one in rows]).mean()
    assert block_influences(made, CORPUS)[1] == pytest.approx(1.0 - float(mean), abs=1e-6)


@pytest.mark.parametrize("family", ["llama-2", "gemma-2", "phi-2"])
@pytest.mark.parametrize(("half", "part"), [(0, "out"), (1, "down")])
def test_a_half_that_adds_nothing_is_as_similar_as_can_be(family: str, half: int, part: str) -> None:
    similar = half_similarities(silent(dense(family), 1, part), CORPUS)
    assert similar[half][1] == pytest.approx(1.0, abs=1e-6)
    others: Sequence[float] = [*similar[1 - half], *(similar[half][i] for i in (0, 2, 3))]
    assert max(others) < 0.99


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
