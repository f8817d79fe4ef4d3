"""Orders of a tiny decoder's units, levels of it, and the decoder with zeros for what a level leaves out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from repro.methods.elastilm.submodels import LayerSizes, Order
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, as_plain

TOKENS = torch.arange(40) * 7 % 131


def _shuffled(count: int, chance: torch.Generator) -> Tensor:
    """Another order than the one there is; nothing else is left to two units."""
    drawn = torch.randperm(count, generator=chance)
    return drawn.flip(0) if torch.equal(drawn, torch.arange(count)) else drawn


def order_of(made: Decoder, seed: int = 0) -> Order:
    """A random order."""
    chance, c = torch.Generator().manual_seed(seed), made.config
    units, neurons = (
        tuple(_shuffled(count, chance) for _ in range(c.layers)) for count in (c.kv_heads, c.intermediate)
    )
    return Order(units, neurons)


def uneven(made: Decoder) -> LayerSizes:
    """Half the units and a third of the neurons, but the second layer whole."""
    c = made.config
    counts = [(max(1, c.kv_heads // 2), c.intermediate // 3)] * c.layers
    counts[1] = (c.kv_heads, c.intermediate)
    units, neurons = zip(*counts, strict=True)
    return LayerSizes(units, neurons)


def logits(made: Decoder, tokens: Tensor = TOKENS) -> Tensor:
    """All logits, first of a prompt in one pass and then of two more tokens by themselves."""
    cache, at = KVCache(made.config, 8), torch.arange(len(tokens))
    cut = len(tokens) - 2
    parts = [slice(0, cut), slice(cut, cut + 1), slice(cut + 1, cut + 2)]
    return torch.cat([made.forward(tokens[part], at[part], None, cache) for part in parts])


def masked(made: Decoder, order: Order, kept: LayerSizes) -> Decoder:
    """The original with zeros where the outputs of all other units are read: the independent truth."""
    c, layers = made.config, []
    width = c.groups * c.head_dim
    for i, w in enumerate(made.layers):
        assert w is not None
        out, down = as_plain(w.out).weight.clone(), as_plain(w.down).weight.clone()
        for unit in order.units[i][kept.units[i] :].tolist():
            out[:, unit * width : (unit + 1) * width] = 0
        down[:, order.neurons[i][kept.neurons[i] :]] = 0
        layers.append(
            replace(
                w, out=PlainLinear(out, as_plain(w.out).bias), down=PlainLinear(down, as_plain(w.down).bias)
            )
        )
    return Decoder(c, layers, made.ends)


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max())
