"""Importance against finite differences and `transformers`' autograd; the pass that has gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from repro.methods.elastilm.submodels import LayerSizes, reorder, submodel
from repro.methods.elastilm.unit_importance import DifferentiableDecoder, Measure, importance
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain
from tiny_dense import CORPUS, TOKENS, dense
from tiny_families import FAMILIES, write

GROUPED = ["llama-2", "qwen-3"]


def passing(made: Decoder) -> DifferentiableDecoder:
    return DifferentiableDecoder(made.config, made.layers, made.ends)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_pass_with_gradients_is_the_decoders(family: str) -> None:
    made = dense(family)
    wanted = made.forward(TOKENS, torch.arange(len(TOKENS)), None, KVCache(made.config, 4))
    assert (made.head(passing(made).hidden_rows(TOKENS)) - wanted).abs().max() < 1e-4
    whole = reorder(made, importance_of(family).order())
    half = replace(LayerSizes.full(made.config), units=(1,) * made.config.layers)
    sub = submodel(whole, half)
    wanted = sub.forward(TOKENS, torch.arange(len(TOKENS)), None, KVCache(made.config, 4))
    assert (sub.head(passing(sub).hidden_rows(TOKENS)) - wanted).abs().max() < 1e-4


def importance_of(family: str, **measure: str):  # type: ignore[no-untyped-def]
    return importance(dense(family), CORPUS, Measure(**measure))


@pytest.mark.parametrize("family", GROUPED)
def test_absolute_terms_are_those_of_transformers(family: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = write(family, tmp_path)
    for tokens in CORPUS:
        logits = model(tokens[None]).logits[0]
        (F.cross_entropy(logits[:-1], tokens[1:]) / len(CORPUS)).backward()
    from repro.models.transformer import weights

    made = weights.load(tmp_path, is_packed=False)
    c, found = made.config, importance(made, CORPUS)
    layer = model.model.layers[1]

    def term(linear: torch.nn.Linear, dim: int) -> Tensor:
        assert linear.weight.grad is not None
        return (linear.weight * linear.weight.grad).abs().sum(dim).detach()

    a, m = layer.self_attn, layer.mlp
    units = sum(
        term(linear, dim).view(c.kv_heads, -1).sum(1)
        for linear, dim in ((a.q_proj, 1), (a.k_proj, 1), (a.v_proj, 1), (a.o_proj, 0))
    )
    assert torch.allclose(found.units[1], units, rtol=1e-3)
    neurons = term(m.gate_proj, 1) + term(m.up_proj, 1) + term(m.down_proj, 0)
    assert torch.allclose(found.neurons[1], neurons, rtol=1e-3)


def test_folded_pairs_other_query_heads_where_heads_are_grouped() -> None:
    shared, folded = (importance_of("llama-2", pairing=name) for name in ("shared", "folded"))
    assert not torch.allclose(shared.units[0], folded.units[0], rtol=1e-3)
    assert torch.allclose(shared.units[0].sum(), folded.units[0].sum())
    assert torch.equal(shared.neurons[0], folded.neurons[0])
    alone = [importance_of("llama-1", pairing=name).units[0] for name in ("shared", "folded")]
    assert torch.allclose(*alone)


def test_the_order_is_descending_and_changes_nothing() -> None:
    made, found = dense("llama-2"), importance_of("llama-2")
    order = found.order()
    for worth, ranked in ((found.units, order.units), (found.neurons, order.neurons)):
        assert all((w[r].diff() <= 0).all() for w, r in zip(worth, ranked, strict=True))
    assert all(p.weight.grad is None for w in made.layers if w for p in map(as_plain, w.linears))
