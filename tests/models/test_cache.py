"""The cache keeps an accepted path as if nothing else had ever been computed."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
