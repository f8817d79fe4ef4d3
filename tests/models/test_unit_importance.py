"""Importance against finite differences and `transformers`' autograd; the pass that has gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.core.typed import typed
from repro.methods.elastilm.differentiable import DifferentiableDecoder, next_token_loss
from repro.methods.elastilm.submodels import LayerSizes, reorder, submodel
from repro.methods.elastilm.unit_importance import Measure, importance
from repro.models.analysis.hooks import matrices
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, as_plain
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


def scaled(made: Decoder, layer: int, unit: int | None, neuron: int | None, by: float) -> Decoder:
    """All weights of one unit or neuron times `by`."""
    c, layers = made.config, list(made.layers)
    w = layers[layer]
    assert w is not None
    qkv, out, up, down = (
        PlainLinear(p.weight.double(), None if p.bias is None else p.bias.double())
        for p in map(as_plain, w.linears)
    )
    rows, width = torch.ones(len(qkv.weight)).double(), c.groups * c.head_dim
    columns, ups, downs = (
        torch.ones(n).double() for n in (out.weight.shape[1], len(up.weight), c.intermediate)
    )
    if unit is not None:
        queries, keys, _ = matrices(c, "qkv")
        rows[unit * width : (unit + 1) * width] = columns[unit * width : (unit + 1) * width] = by
        for start in (queries, queries + keys):
            rows[start + unit * c.head_dim : start + (unit + 1) * c.head_dim] = by
    if neuron is not None:
        downs[neuron] = by
        ups.view(-1, c.intermediate)[:, neuron] = by
    grown = [
        PlainLinear((p.weight * r[:, None] * k).float(), None if p.bias is None else (p.bias * r).float())
        for p, r, k in (
            (qkv, rows, torch.ones(1)),
            (out, torch.ones(1).expand(len(out.weight)), columns),
            (up, ups, torch.ones(1)),
            (down, torch.ones(1).expand(len(down.weight)), downs),
        )
    ]
    layers[layer] = replace(w, **dict(zip(("qkv", "out", "up", "down"), grown, strict=True)))
    return Decoder(c, layers, made.ends)


@torch.no_grad()
def loss_of(made: Decoder) -> float:
    return sum(float(next_token_loss(passing(made), tokens)) for tokens in CORPUS) / len(CORPUS)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sum_over_a_unit_is_how_the_loss_answers_to_its_scale(family: str) -> None:
    made, found = dense(family), importance_of(family, aggregate="abs_sum")
    step = 2e-3
    for unit, neuron, said in ((1, None, found.units[2][1]), (None, 5, found.neurons[1][5])):
        layer = 2 if neuron is None else 1
        up, down = (loss_of(scaled(made, layer, unit, neuron, 1 + s)) for s in (step, -step))
        assert float(said) == pytest.approx(abs(up - down) / (2 * step), rel=0.05, abs=2e-3)


@pytest.mark.parametrize("family", GROUPED)
def test_absolute_terms_are_those_of_transformers(family: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = write(family, tmp_path)
    for tokens in CORPUS:
        logits = model(tokens[None]).logits[0]
        (F.cross_entropy(logits[:-1], tokens[1:]) / len(CORPUS)).backward()
    from repro.models.transformer import weights

    made = weights.load(tmp_path, packed=False)
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


@pytest.mark.parametrize(("corpus", "said"), [((), "no sequence"), ((TOKENS[:1],), "at least two")])
def test_a_corpus_that_predicts_nothing_is_refused(corpus: tuple[Tensor, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        importance(dense("llama-2"), corpus)


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(InputError, match="abs_sum, sum_abs"):
        typed(Measure, {"aggregate": "max"}, "measure")
