"""Scales that move between norms and linears, and the compressions that round in groups."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from repro.models import weights
from repro.models.decoder import Decoder
from repro.models.folding import feeds, folded
from tiny import alone
from tiny_families import FAMILIES, write

TEXT = [3, 17, 99, 4, 56, 7, 120, 8]


@cache
def decoder(family: str) -> Decoder:
    """A tiny random decoder with dense weights, as a compression gets one."""
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write(family, Path(folder))
        return weights.load(folder, "float32", packed=False)


def spread(width: int, seed: int = 0) -> torch.Tensor:
    """Scales of 1/4 to 4."""
    return torch.exp2(4.0 * torch.rand(width, generator=torch.Generator().manual_seed(seed)) - 2.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_moving_scales_changes_no_logit(family: str) -> None:
    made = decoder(family)
    layers = list(made.layers)
    for i, layer in enumerate(layers):
        for norm, parts in feeds(made.config).items():
            layer = folded(layer, norm, parts, spread(made.config.hidden, i))
        layers[i] = layer
    moved = Decoder(made.config, layers, made.ends)
    assert torch.allclose(alone(moved, TEXT), alone(made, TEXT), atol=1e-4, rtol=1e-4)


def test_nothing_moves_through_a_norm_that_feeds_the_residual() -> None:
    assert feeds(decoder("opt-350m").config) == {}
    assert feeds(decoder("phi-2").config) == {"before_attention": ("qkv", "up")}
