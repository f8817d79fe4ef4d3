"""Attention within a tree: every form of every kernel is the masked attention of torch."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro.methods.ghidorah import tree_kernels
from repro.methods.ghidorah.tree_kernels import FORMS, TreePattern, attend_tree, kernel, merge

CHAIN, STAR, BRANCHED = [-1, 0, 1, 2], [-1, 0, 0, 0], [-1, 0, 0, 1, 1, 2, 3]


@st.composite
def trees(draw: st.DrawFn, most: int = 24) -> list[int]:
    """Parents of a random tree."""
    width = draw(st.integers(1, most))
    return [-1] + [draw(st.integers(0, node - 1)) for node in range(1, width)]


def rows(parents: Sequence[int], heads: int, kv_heads: int, dim: int, seed: int) -> tuple[Tensor, ...]:
    chance = torch.Generator().manual_seed(seed)
    shapes = [(len(parents), heads, dim), *[(kv_heads, len(parents), dim)] * 2]
    return tuple(torch.randn(*shape, generator=chance) for shape in shapes)


def seen(parents: Sequence[int]) -> Tensor:
    """Who sees whom, by going from node to node."""
    out = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        above = node
        while above >= 0:
            out[node, above] = True
            above = parents[above]
    return out


def reference(parents: Sequence[int], queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Masked scores in float64, `[heads, rows, rows]`."""
    keys = keys.repeat_interleave(queries.shape[1] // len(keys), 0).double()
    scores = queries.transpose(0, 1).double() @ keys.transpose(1, 2) * scale
    return scores.masked_fill(~seen(parents), -torch.inf)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20, deadline=None)
@given(
    parents=trees(),
    kv_heads=st.sampled_from([1, 3]),
    group=st.sampled_from([1, 4]),
    dim=st.sampled_from([4, 24, 64, 80, 128]),
    seed=st.integers(0, 99),
)
def test_every_form_computes_the_products_of_torch(
    form: str, compiled: bool, parents: list[int], kv_heads: int, group: int, dim: int, seed: int
) -> None:
    queries, keys, values = rows(parents, kv_heads * group, kv_heads, dim, seed)
    pattern, ours = TreePattern.of_parents(parents), kernel(form, compiled)
    expected = reference(parents, queries, keys, dim**-0.5)
    scores = ours.scores(pattern, queries, keys, dim**-0.5)
    table = torch.full(expected.shape, -torch.inf)
    if form == "dense":
        table = scores
    else:
        table[:, pattern.rows.long(), pattern.cols.long()] = scores
    torch.testing.assert_close(table.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.softmax(expected, -1)
    given = (
        weights.float() if form == "dense" else weights[:, pattern.rows.long(), pattern.cols.long()].float()
    )
    mixed = weights @ values.repeat_interleave(group, 0).double()
    torch.testing.assert_close(ours.mix(pattern, given, values).double(), mixed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
@settings(max_examples=20, deadline=None)
@given(
    parents=trees(),
    left=st.integers(0, 5),
    cap=st.sampled_from([None, 2.0]),
    dim=st.sampled_from([8, 64, 128]),
    seed=st.integers(0, 99),
)
def test_attention_in_one_call_knows_its_own_sums(
    compiled: bool, parents: list[int], left: int, cap: float | None, dim: int, seed: int
) -> None:
    queries, keys, values = rows(parents, 6, 2, dim, seed)
    scores = reference(parents, queries, keys, 0.3)
    if cap:
        scores = torch.where(scores.isinf(), scores, torch.tanh(scores / cap) * cap)
    scores[..., :left] = -torch.inf
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = torch.exp(scores - top)
    pattern = TreePattern.of_parents(parents).beyond(left)
    found = attend_tree(pattern, queries, keys, values, 0.3, cap, compiled)
    expected = weights @ values.repeat_interleave(3, 0).double(), top, weights.sum(-1, keepdim=True)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
@settings(max_examples=20, deadline=None)
@given(parents=trees(), left=st.integers(0, 24), dim=st.sampled_from([8, 64]), seed=st.integers(0, 99))
def test_two_parts_are_the_whole(compiled: bool, parents: list[int], left: int, dim: int, seed: int) -> None:
    """The first columns and those beyond, each with a softmax of its own."""
    queries, keys, values = rows(parents, 6, 2, dim, seed)
    whole, first = TreePattern.of_parents(parents), seen(parents)
    first[:, left:] = False
    halves = TreePattern.of_mask(first), whole.beyond(left)
    parts = [attend_tree(half, queries, keys, values, 0.3, None, compiled) for half in halves]
    expected = (
        torch.softmax(reference(parents, queries, keys, 0.3), -1) @ values.repeat_interleave(3, 0).double()
    )
    found = merge(parts, compiled).double()
    torch.testing.assert_close(found, expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


@pytest.fixture
def forgotten() -> Iterator[None]:
    tree_kernels.loops.cache_clear()
    yield
    tree_kernels.loops.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_without_numba_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, given: Any = None, here: Any = None, wanted: Any = (), level: int = 0) -> Any:
        if "tree_loops" in (wanted or ()):
            raise ImportError("no module named numba")
        return real(name, given, here, wanted, level)

    monkeypatch.setattr(builtins, "__import__", lacking)
    assert kernel("optimized").loops is None
