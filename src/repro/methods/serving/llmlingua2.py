"""Cost of scoring a prompt with LLMLingua-2's encoder.

Owns the shape of the encoder. Must not know scores or how they are used.
"""

from __future__ import annotations

from repro.device.op import Op
from repro.models.costs.model_cost import EncoderShape, ModelCost, Precision, Shape

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

CHUNK_TOKENS = 510
"""Tokens per pass, without the two special tokens at the ends."""


def model_cost(precision: Precision) -> ModelCost:
    """The encoder's cost in the precision of the language model beside it; the paper does not say."""
    return ModelCost(ENCODER, precision)


def scoring(token_count: int, on: str, precision: Precision) -> tuple[Op, ...]:
    """Ops that score a prompt of `token_count` tokens on a processor, one per chunk.

    Deviation: tokens are counted with the language model's tokenizer instead of the encoder's.
    """
    cost, layers = model_cost(precision), ENCODER.encoder_layers
    ops = []
    for start in range(0, token_count, CHUNK_TOKENS):
        row_count = min(CHUNK_TOKENS, token_count - start) + 2
        flops, moved_bytes = cost.encode(layers, row_count)
        size, arithmetic = moved_bytes + cost.embed(row_count)[1], cost.stored.arithmetic
        ops.append(Op(on, "score", "LLMLingua-2", row_count, flops, size, arithmetic, launches=layers))
    return tuple(ops)
