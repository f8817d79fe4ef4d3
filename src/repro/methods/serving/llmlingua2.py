"""Cost of scoring a prompt with LLMLingua-2's encoder.

Owns the shape of the encoder. Must not know scores or how they are used.
"""

from __future__ import annotations

from repro.device.op import Op
from repro.models.costs.model_cost import EncoderShape, ModelCost, Shape, precision

ENCODER = Shape(
    layers=0,
    hidden=768,
    heads=12,
    kv_heads=12,
    head_dim=64,
    intermediate=3072,
    vocab=119547,
    gated=False,
    tied=True,
    encoder=EncoderShape(12, 3072),
)
"""BERT-base multilingual cased, the base of LLMLingua-2's small model, which the release runs; from its
published configuration: 177 million parameters, 85 million of them in the layers."""

MODEL_COST = ModelCost(ENCODER, precision("fp16"))
"""fp16, like the language models; the paper does not say."""

CHUNK = 510
"""Tokens per pass, without the two special tokens at the ends."""


def scoring(tokens: int, on: str) -> tuple[Op, ...]:
    """Ops that score a prompt of `tokens` tokens on a processor, one per chunk.

    Deviation: tokens are counted with the language model's tokenizer instead of the encoder's.
    """
    sizes = [min(CHUNK, tokens - start) + 2 for start in range(0, tokens, CHUNK)]
    return tuple(_chunk(size, on) for size in sizes)


def _chunk(rows: int, on: str) -> Op:
    layers = ENCODER.encoder_layers
    flops, moved = MODEL_COST.encode(layers, rows)
    looked_up = MODEL_COST.embed(rows)[1]
    return Op(
        on,
        "score",
        "LLMLingua-2",
        rows,
        flops=flops,
        bytes=moved + looked_up,
        precision=MODEL_COST.stored.arithmetic,
        launches=layers,
    )
