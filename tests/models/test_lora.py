"""Adapters beside views: what they add, where they may stand, and that nothing of them is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm import lora
from repro.methods.elastilm.lora import Adapter, Lora, Site
from repro.methods.elastilm.submodels import JoinedLinear, TransposedLinear, UnitDecoder, reorder, submodel
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear
from tiny_dense import dense
from tiny_elastic import apart, logits, order_of, uneven

FAMILIES = ["llama-2", "qwen-3", "opt", "gpt-2"]


def sub_of(family: str) -> UnitDecoder:
    made = dense(family)
    return submodel(reorder(made, order_of(made)), uneven(made))


def adapters(made: Decoder, matrices: tuple[str, ...] = lora.MATRICES, rank: int = 3) -> Lora:
    """Random adapters for the sub-model of `uneven`."""
    chance = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return 0.2 * torch.randn(shape, generator=chance)

    at = lora.shapes(made.config, uneven(made), matrices)
    found = {site: Adapter(drawn(rank, into), drawn(of, rank)) for site, (into, of) in at.items()}
    return Lora(found, uneven(made), order_of(made).digest, scale=0.5)


def merged(sub: UnitDecoder, added: Lora) -> UnitDecoder:
    """The sub-model with the products of the adapters added to copies of its weights."""
    layers = []
    for i, w in enumerate(sub.layers):
        assert w is not None
        names = {"qkv": ("q", "k", "v"), "up": ("gate", "up")}

        def change(matrix: str, i: int = i) -> Tensor:
            one = added.adapters[Site(i, matrix)]
            return added.scale * one.wide @ one.narrow

        joined = {}
        for part, of in names.items():
            linear = getattr(w, part)
            assert isinstance(linear, JoinedLinear)
            parts = [p for p in linear.parts if isinstance(p, PlainLinear)]
            pairs = zip(parts, of[-len(parts) :], strict=True)
            grown = (replace(p, weight=p.weight + change(name)) for p, name in pairs)
            joined[part] = JoinedLinear(tuple(grown))
        turned = {}
        for part in ("out", "down"):
            linear = getattr(w, part)
            assert isinstance(linear, TransposedLinear)
            turned[part] = replace(linear, weight=linear.weight + change(part).t())
        layers.append(replace(w, **joined, **turned))
    return UnitDecoder(sub.config, layers, sub.ends)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_an_adapter_adds_its_product(family: str) -> None:
    sub, added = sub_of(family), adapters(dense(family))
    adapted = lora.attach_adapters(sub, added)
    assert apart(logits(adapted), logits(merged(sub, added))) < 1e-4
    assert apart(logits(lora.merge_adapters(adapted)), logits(merged(sub, added))) < 1e-4
    assert apart(logits(adapted), logits(sub)) > 1e-2


@torch.no_grad()
def test_attaching_moves_no_weight() -> None:
    sub = sub_of("llama-2")
    adapted = lora.attach_adapters(sub, adapters(sub))
    for before, after in zip(sub.resident_layers(), adapted.resident_layers(), strict=True):
        for one, other in zip(before.linears, after.linears, strict=True):
            tensors = other.tensors()
            assert all(tensors[name].data_ptr() == held.data_ptr() for name, held in one.tensors().items())


def test_adapters_come_back_from_their_file(tmp_path: Path) -> None:
    made = adapters(dense("llama-2"))
    lora.save(made, tmp_path / "a.safetensors", torch.float32)
    back = lora.load(tmp_path / "a.safetensors")
    assert (back.sizes, back.order, back.scale) == (made.sizes, made.order, made.scale)
    assert set(back.adapters) == set(made.adapters)
    for site, one in made.adapters.items():
        assert all(torch.equal(a, b) for a, b in zip(one, back.adapters[site], strict=True))


def test_adapters_of_another_level_are_refused() -> None:
    made = dense("llama-2")
    whole = reorder(made, order_of(made))
    with pytest.raises(InputError, match=r"of q in layer 0 is \(64, 32\), its matrix \(64, 64\)"):
        lora.attach_adapters(whole, adapters(made))
