"""Reordering and views: exact on every family, and without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from repro.core.errors import InputError
from repro.methods.elastilm.elastic_profile import settings_text
from repro.methods.elastilm.submodels import LayerSizes, UnitDecoder, dense_copy, reorder, submodel
from repro.models.analysis.hooks import matrices
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig, Rope
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain
from tiny_dense import dense as decoder
from tiny_elastic import TOKENS, apart, logits, masked, order_of, uneven
from tiny_families import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_reordered_decoder_is_the_original(family: str) -> None:
    made = decoder(family)
    whole = reorder(made, order_of(made))
    first = whole.layers[0]
    assert first is not None
    assert made.layers[0] is not None
    rows = matrices(made.config, "qkv")[0]
    assert not torch.equal(first.qkv.tensors()["0.weight"], as_plain(made.layers[0].qkv).weight[:rows])
    assert apart(logits(whole), logits(made)) < 1e-4
    assert torch.equal(logits(submodel(whole, LayerSizes.full(made.config))), logits(whole))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_level_is_the_pruned_model(family: str) -> None:
    made = decoder(family)
    order, kept = order_of(made), uneven(made)
    sub = submodel(reorder(made, order), kept)
    pruned = logits(masked(made, order, kept))
    assert apart(logits(sub), pruned) < 1e-4
    assert apart(logits(dense_copy(sub)), pruned) < 1e-4
    assert apart(pruned, logits(made)) > 1e-2, "what was pruned must show"


def weights_of(made: Decoder) -> Iterator[tuple[str, Tensor]]:
    for i, w in enumerate(made.layers):
        assert w is not None
        for part in ("qkv", "out", "up", "down"):
            yield from ((f"{i}.{part}.{n}", t) for n, t in getattr(w, part).tensors().items())


@pytest.mark.parametrize("family", ["llama-2", "llama-biased", "qwen-3", "opt"])
def test_every_matrix_of_a_level_is_a_beginning_of_the_whole_ones(family: str) -> None:
    whole = reorder(decoder(family), order_of(decoder(family)))
    there = dict(weights_of(whole))
    for name, tensor in weights_of(submodel(whole, uneven(whole))):
        assert tensor.untyped_storage().data_ptr() == there[name].untyped_storage().data_ptr()
        assert tensor.storage_offset() == there[name].storage_offset() == 0
        assert tensor.is_contiguous()
    copies = {
        t.untyped_storage().data_ptr() for _, t in weights_of(dense_copy(submodel(whole, uneven(whole))))
    }
    assert not copies & {t.untyped_storage().data_ptr() for n, t in there.items() if n.endswith("weight")}


class Allocations(TorchDispatchMode):
    """Counts the bytes of results that lie in no memory of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.new = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        if isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in given:
            self.new += out.untyped_storage().nbytes()
        return out


def test_switching_a_level_allocates_nothing() -> None:
    whole = reorder(decoder("llama-2"), order_of(decoder("llama-2")))
    with Allocations() as seen:
        sub = submodel(whole, uneven(whole))
    frequencies = sum(f.nbytes for f in sub._frequencies.values() if f is not None)
    assert seen.new <= 8 * frequencies, "but for the rotary frequencies, which every decoder has its own of"
    with Allocations() as seen:
        dense_copy(sub)
    assert seen.new >= sum(t.nbytes for _, t in weights_of(sub) if t.dim() == 2)


def test_a_level_counts_its_weights() -> None:
    made = decoder("qwen-3")
    kept = uneven(made)
    sub = submodel(reorder(made, order_of(made)), kept)
    assert kept.parameters(made.config) == sum(t.numel() for _, t in weights_of(sub) if t.dim() == 2)
    assert LayerSizes.full(made.config).true_ratio(made.config) == 1.0
    assert sub.weight_bytes < made.weight_bytes


@torch.no_grad()
def test_the_cache_of_a_level_serves_another_level() -> None:
    made = decoder("llama-2")
    whole = reorder(made, order_of(made))
    sub, cache = submodel(whole, uneven(made)), KVCache(made.config, 64)
    sub.forward(TOKENS, torch.arange(40), None, cache)
    cache.truncate(0)
    again = whole.forward(TOKENS, torch.arange(40), None, cache)
    assert torch.equal(again, whole.forward(TOKENS, torch.arange(40), None, KVCache(made.config, 64)))


@pytest.mark.parametrize("units", [0, 3])
def test_a_level_without_units_or_with_too_many_is_refused(units: int) -> None:
    made = decoder("llama-2")
    whole: UnitDecoder = reorder(made, order_of(made))
    with pytest.raises(InputError, match="keeps 1 to 2"):
        submodel(whole, replace(LayerSizes.full(made.config), units=(units, 1, 1, 1)))


def test_an_order_that_names_a_unit_twice_is_refused() -> None:
    made = decoder("llama-2")
    order = order_of(made)
    twice = replace(order, units=(torch.zeros(2, dtype=torch.int64), *order.units[1:]))
    with pytest.raises(InputError, match="each of 2 once"):
        reorder(made, twice)


def test_a_decoder_s_settings_are_spelled_as_when_hashes_were_committed() -> None:
    """The text that SmolLM2-135M's committed profile was found by on 2026-11-22, before ropes had factors."""
    rope = Rope(theta=100000.0)
    config = DecoderConfig(49152, 576, 30, 9, 3, 64, 1536, 8192, rope=rope, query_scale=0.125, tied=True)
    spelled = (
        "Rope(theta=100000.0, share=1.0, kind='default', factor=1.0, low_frequency_factor=1.0, "
        "high_frequency_factor=4.0, original_positions=8192)"
    )
    assert settings_text(config) == (
        "[('vocab', 49152), ('hidden', 576), ('layers', 30), ('heads', 9), ('kv_heads', 3), "
        "('head_dim', 64), ('intermediate', 1536), ('max_positions', 8192), "
        f"('rope', {spelled}), ('query_scale', 0.125), ('tied', True)]"
    )
    assert "factors=(2.0,)" in settings_text(replace(config, rope=replace(rope, factors=(2.0,))))
