"""Tiny random decoders with dense weights, as a compression gets one, and texts to calibrate on."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from tiny_families import VOCAB, WINDOW, write

TOKENS = torch.randint(0, VOCAB, (3 * WINDOW,), generator=torch.Generator().manual_seed(3))
CORPUS = (TOKENS, TOKENS.flip(0)[:9])


@cache
def dense(family: str) -> Decoder:
    """A tiny random decoder of one of `tiny_families.FAMILIES`, plain fp32 matrices."""
    with TemporaryDirectory() as folder:
        write(family, Path(folder))
        return weights.load(folder, "float32", is_packed=False)


@torch.no_grad()
def logits(made: Decoder, tokens: Tensor = TOKENS) -> Tensor:
    """What a decoder says of a text, `[tokens, vocab]`, read at once."""
    return made.forward(tokens, torch.arange(len(tokens)), None, KVCache(made.config, len(tokens)))


def silent(made: Decoder, layer: int, *parts: str) -> Decoder:
    """The decoder with a layer of which these linears give nothing, so that their halves add nothing."""
    layers = list(made.layers)
    linears = {part: getattr(layers[layer], part) for part in parts}
    still = {
        part: linear.with_tensors({name: torch.zeros_like(t) for name, t in linear.tensors().items()})
        for part, linear in linears.items()
    }
    layers[layer] = replace(layers[layer], **still)
    return Decoder(made.config, layers, made.ends)
