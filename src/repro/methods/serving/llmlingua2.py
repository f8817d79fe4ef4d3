"""What LLMLingua-2 takes to score a prompt, for whoever is billed for its scores.

Owns the shape of its encoder. Must not know scores, nor what becomes of them.
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
"""BERT-base, multilingual and cased, of which LLMLingua-2's small model is made, from its published
configuration: 177 million parameters, of which a pass computes with 85 million. The release runs this one."""

MODEL_COST = ModelCost(ENCODER, precision("fp16"))
"""As the models it reads for are stored; the paper does not say."""

CHUNK = 510
"""Tokens that it reads at once, beside two that mark beginning and end."""


def scoring(tokens: int, on: str) -> tuple[Op, ...]:
    """Ops that score a prompt of so many tokens, chunk by chunk, on a processor.

    Deviation: the prompt's tokens are those of the model that reads it, since the encoder's own are not known
    without its tokenizer.
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
