"""The cache keeps an accepted path as if nothing else had ever been computed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.errors import InputError
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig

CONFIG = DecoderConfig(
    vocab=11, hidden=8, layers=3, heads=4, kv_heads=2, head_dim=2, intermediate=8, max_positions=64
)


def rows(count, seed):
    """Different keys and values for every layer, `[layers, rows, kv_heads, head_dim]` each."""
    generator = torch.Generator().manual_seed(seed)
    shape = (CONFIG.layers, count, CONFIG.kv_heads, CONFIG.head_dim)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def append(cache, layer, keys, values):
    return cache.append_joint(layer, torch.cat((keys, values), 1))


def fill(cache, keys, values, positions):
    """Append the same rows to all layers; what the last append of each layer returned."""
    cache.set_positions(0, positions)
    return [append(cache, layer, keys[layer], values[layer]) for layer in range(CONFIG.layers)]


def contents(cache):
    """Everything that a pass would read."""
    nothing = torch.zeros(0, CONFIG.kv_heads, CONFIG.head_dim)
    held = [append(cache, layer, nothing, nothing) for layer in range(CONFIG.layers)]
    return [tensor.clone() for pair in held for tensor in pair] + [cache.positions.clone()]


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_append_returns_all_rows_by_head():
    cache = KVCache(CONFIG, 8)
    first, second = rows(3, 0), rows(2, 1)
    fill(cache, *first, torch.arange(3))
    keys, values = fill(cache, *second, torch.arange(3, 5))[1]
    assert keys.shape == values.shape == (2, 5, 2)
    assert torch.equal(keys, torch.cat((first[0][1], second[0][1])).transpose(0, 1))
    assert torch.equal(values, torch.cat((first[1][1], second[1][1])).transpose(0, 1))
    assert cache.length == 5


def test_rows_that_come_one_by_one_are_all_there():
    """As while decoding, in slots that held other rows before."""
    keys, values = rows(20, 0)
    cache = KVCache(CONFIG, 4)
    fill(cache, *rows(20, 1), torch.arange(20))
    cache.truncate(0)
    for i in range(20):
        fill(cache, keys[:, i : i + 1], values[:, i : i + 1], torch.tensor([i]))
    whole = KVCache(CONFIG, 20)
    fill(whole, keys, values, torch.arange(20))
    assert same(contents(cache), contents(whole))


def test_joint_rows_are_keys_beside_values():
    keys, values = rows(3, 0)
    apart, joint = KVCache(CONFIG, 8), KVCache(CONFIG, 8)
    fill(apart, keys, values, torch.arange(3))
    joint.set_positions(0, torch.arange(3))
    for layer in range(CONFIG.layers):
        joint.append_joint(layer, torch.cat((keys[layer], values[layer]), 1))
    assert same(contents(apart), contents(joint))


@settings(deadline=None)
@given(
    base=st.integers(0, 5),
    extra=st.integers(0, 6),
    picks=st.lists(st.integers(0, 5), unique=True),
    capacity=st.integers(1, 12),
)
def test_keep_equals_appending_only_the_kept_rows(base, extra, picks, capacity):
    slots = [base + pick for pick in picks if pick < extra]
    total = base + extra
    keys, values = rows(total, 0)
    positions = torch.arange(total) * 3
    cache = KVCache(CONFIG, capacity)
    fill(cache, keys, values, positions)
    cache.keep(base, slots)
    expected = KVCache(CONFIG, 12)
    chosen = list(range(base)) + slots
    fill(expected, keys[:, chosen], values[:, chosen], positions[chosen])
    assert cache.length == len(chosen)
    assert same(contents(cache), contents(expected))


@given(before=st.integers(1, 9), length=st.integers(0, 9))
def test_truncate_equals_never_having_seen_the_rest(before, length):
    keys, values = rows(before, 0)
    cache, expected = KVCache(CONFIG, 4), KVCache(CONFIG, 4)
    fill(cache, keys, values, torch.arange(before))
    if length > before:
        with pytest.raises(InputError, match=f"truncate to {length}.*0 to {before}"):
            cache.truncate(length)
        return
    cache.truncate(length)
    fill(expected, keys[:, :length], values[:, :length], torch.arange(length))
    assert same(contents(cache), contents(expected))
    fill(cache, *rows(2, 5), torch.arange(2))
    fill(expected, *rows(2, 5), torch.arange(2))
    assert same(contents(cache), contents(expected))


def test_growth_keeps_what_was_there():
    keys, values = rows(33, 0)
    grown, roomy = KVCache(CONFIG, 1), KVCache(CONFIG, 64)
    for row in range(33):
        part = slice(row, row + 1)
        fill(grown, keys[:, part], values[:, part], torch.tensor([row]))
        fill(roomy, keys[:, part], values[:, part], torch.tensor([row]))
    assert grown.capacity == 64
    assert same(contents(grown), contents(roomy))


def test_layers_may_hold_fewer_rows_and_keep_other_slots():
    """A pass of four rows drops rows 0 and 2 before the last layer, then keeps the path 1, 3."""
    keys, values = rows(6, 0)
    cache = KVCache(CONFIG, 8)
    fill(cache, keys[:, :2], values[:, :2], torch.arange(2))
    cache.set_positions(0, torch.tensor([2, 3, 3, 4]))
    for layer in range(2):
        append(cache, layer, keys[layer, 2:], values[layer, 2:])
    cache.set_positions(2, torch.tensor([3, 4]))
    append(cache, 2, keys[2, [3, 5]], values[2, [3, 5]])
    assert [cache.length_of(layer) for layer in range(3)] == [6, 6, 4]
    assert cache.positions_of(2).tolist() == [0, 1, 3, 4]
    cache.keep(2, [3, 5], layers=range(2))
    cache.keep(2, [2, 3], layers=range(2, 3))
    expected = KVCache(CONFIG, 8)
    path = [0, 1, 3, 5]
    fill(expected, keys[:, path], values[:, path], torch.tensor([0, 1, 3, 4]))
    assert same(contents(cache), contents(expected))
    assert cache.positions_of(2).tolist() == expected.positions_of(2).tolist()


def test_slots_that_are_not_held_are_named():
    cache = KVCache(CONFIG, 4)
    fill(cache, *rows(4, 0), torch.arange(4))
    with pytest.raises(InputError, match=r"\[7\].*base 2, 4 slots"):
        cache.keep(2, [3, 7])
    with pytest.raises(InputError, match=r"\[1\]"):
        cache.keep(2, [1])
    with pytest.raises(InputError, match="cannot keep slots 5"):
        cache.keep(5, [])
    with pytest.raises(InputError, match="at least 1 slot, got 0"):
        KVCache(CONFIG, 0)
