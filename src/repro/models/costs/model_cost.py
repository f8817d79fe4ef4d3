"""What a model of a given shape moves and computes: parameters, bytes and FLOPs of its parts.

Knows nothing of weights. A decoder's layer is its linears and its attention; an output projection is one
linear; an embedding look-up moves the gathered rows. Behind an encoder, a decoder's layer attends a second
time, to the source that the encoder read: to keys and values that it computes once. An EAGLE-3 head reads
features of its target, which one linear fuses, and looks tokens up in its target's table. Medusa heads are a
square linear each and an output projection, their own or their target's; each makes one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed


@dataclass(frozen=True)
class Precision:
    """How weights are stored and in which arithmetic a processor uses them.

    Attributes:
        bits: per stored weight, scales included.
        arithmetic: the precision of the multiply-adds.
        activation: bytes of one activation or key-value element.
    """

    bits: float
    arithmetic: str
    activation: float


PRECISIONS = {
    "fp32": Precision(32, "fp32", 4),
    "bf16": Precision(16, "fp16", 2),
    "fp16": Precision(16, "fp16", 2),
    "int8": Precision(8, "int8", 2),
    # llama.cpp's blocks of 32 weights with an fp16 scale (and, for _1, an fp16 minimum)
    "q8_0": Precision(8.5, "int8", 2),
    "q4_0": Precision(4.5, "int8", 2),
    # AutoGPTQ's 4 bits, with an fp16 scale and a 4-bit zero point per group of 128 weights
    "gptq4": Precision(4 + 20 / 128, "int8", 2),
    "q4_1": Precision(5.0, "int8", 2),
    # super-blocks of 256; the mixes Q4_K_M and Q2_K-Q6_K are stated by their average
    "q4_k": Precision(4.5, "int8", 2),
    "int4": Precision(4.5, "int8", 2),
}


def precision(name: str) -> Precision:
    """A stored precision by name; InputError with the choices for an unknown one."""
    if name not in PRECISIONS:
        raise InputError(unknown("precision", name, PRECISIONS))
    return PRECISIONS[name]


@dataclass(frozen=True)
class EncoderShape:
    """The encoder before a decoder; its rows, its heads and the kind of its MLPs are the decoder's.

    Attributes:
        intermediate: width inside its MLPs.
    """

    layers: int
    intermediate: int


@dataclass(frozen=True)
class Shape:
    """A decoder's dimensions, as far as its cost depends on them.

    Attributes:
        gated: the MLP has three matrices and not two.
        tied: the output projection is the embedding table; of Medusa heads, it is their target's.
        encoder: what reads the prompt before the decoder does; `None` where the decoder reads it itself.
        features: width of the target's features that an EAGLE-3 head reads; 0 for a model that reads none.
        medusa: Medusa heads, for which all but `hidden`, `vocab` and `tied` say nothing; 0 for other models.
        blocks: residual blocks of each of them.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    tied: bool = False
    encoder: EncoderShape | None = None
    features: int = 0
    medusa: int = 0
    blocks: int = 1

    @classmethod
    def of_medusa(cls, medusa: int, hidden: int, vocab: int, tied: bool, blocks: int = 1) -> Shape:
        """So many Medusa heads, which have no attention, no MLP and no keys and values."""
        return cls(1, hidden, 1, 1, 0, 0, vocab=vocab, tied=tied, medusa=medusa, blocks=blocks)

    @classmethod
    def parse(cls, mapping: Mapping[str, Any]) -> Shape:
        """The shape that one file of `conf/model/shape/` describes."""
        if mapping.get("medusa"):
            return cls.of_medusa(**mapping)
        return typed(cls, mapping, "shape")

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly")

    @property
    def attention_weights(self) -> int:
        """Weights of one attention block's four linears; a head's queries, keys and values read two rows."""
        wide = 2 if self.features else 1
        return self.hidden * self.head_dim * (self.heads + wide * (self.heads + 2 * self.kv_heads))

    @property
    def mlp_weights(self) -> int:
        """Weights of one MLP."""
        return self._mlp(self.intermediate)

    @property
    def source_weights(self) -> int:
        """Weights of the linears that make a layer's keys and values of the source; 0 without an encoder."""
        return 2 * self.hidden * self.head_dim * self.kv_heads if self.encoder else 0

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's linears: its attention, behind an encoder its cross-attention, its MLP; of
        Medusa heads, all their blocks."""
        if self.medusa:
            return self.medusa * self.block_weights
        return self.attention_weights * (2 if self.encoder else 1) + self.mlp_weights

    @property
    def block_weights(self) -> int:
        """Weights of one Medusa head's blocks."""
        return self.blocks * self.hidden**2

    @property
    def encoder_layers(self) -> int:
        """Layers of the encoder; 0 where there is none."""
        return self.encoder.layers if self.encoder else 0

    @property
    def encoder_layer_weights(self) -> int:
        """Weights of one encoder layer's linears; 0 without an encoder."""
        return self.attention_weights + self._mlp(self.encoder.intermediate) if self.encoder else 0

    @property
    def head_weights(self) -> int:
        """Weights of the output projection."""
        return self.hidden * self.vocab

    @property
    def fuse_weights(self) -> int:
        """Weights of the linear that fuses a target's features; 0 for a model that reads none."""
        return self.hidden * self.features

    @property
    def table_weights(self) -> int:
        """Weights beside the layers: embedding table (a head has its target's), output projection unless
        it is that table, fusing linear; of Medusa heads the projections that are their own."""
        if self.medusa:
            return 0 if self.tied else self.medusa * self.head_weights
        own = self.tied or self.features
        return self.head_weights * (1 if own else 2) + self.fuse_weights

    @property
    def parameters(self) -> int:
        """All weights."""
        layers = self.layers * self.layer_weights + self.encoder_layers * self.encoder_layer_weights
        return layers + self.table_weights

    def _mlp(self, intermediate: int) -> int:
        return (3 if self.gated else 2) * self.hidden * intermediate

    def sharing(self, rows: int, projected: bool = False) -> int:
        """How many of so many rows meet the same weights, in the layers or where they are `projected`: all;
        but each Medusa head's row meets its own block, and its own projection unless there is but one."""
        return 1 if rows and self.medusa and not (projected and self.tied) else rows

    def attention_flops(self, rows: int, context: float) -> float:
        """FLOPs of scores and weighted values in one layer: `rows` queries over `context` keys each."""
        return 4.0 * rows * context * self.heads * self.head_dim

    def cache_elements(self, tokens: float) -> float:
        """Elements of one layer's keys and values for so many tokens."""
        return 2.0 * tokens * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class ModelCost:
    """A shape in a precision: FLOPs and bytes of what a session asks a device to do."""

    shape: Shape
    stored: Precision

    def weight_bytes(self, weights: float) -> float:
        """Bytes of so many stored weights."""
        return weights * self.stored.bits / 8

    @property
    def layer_bytes(self) -> float:
        """Bytes of one layer."""
        return self.weight_bytes(self.shape.layer_weights)

    @property
    def encoder_layer_bytes(self) -> float:
        """Bytes of one encoder layer; 0 without an encoder."""
        return self.weight_bytes(self.shape.encoder_layer_weights)

    @property
    def table_bytes(self) -> float:
        """Bytes of the embedding table, the output projection, and what fuses a target's features."""
        return self.weight_bytes(self.shape.table_weights)

    @property
    def model_bytes(self) -> float:
        """Bytes of all weights."""
        return self.weight_bytes(self.shape.parameters)

    def cache_bytes(self, tokens: int) -> float:
        """Bytes of all layers' keys and values for so many tokens, those of a source among them."""
        return self.shape.layers * self.shape.cache_elements(tokens) * self.stored.activation

    def layers(
        self, count: int, rows: int, context: float, source: int = 0, first: bool = False
    ) -> tuple[float, float]:
        """FLOPs and bytes of `count` layers over `rows` rows that see `context` tokens each.

        Behind an encoder they also see `source` tokens, whose keys and values a request's first pass makes.
        """
        shape = self.shape
        if shape.medusa:
            return 2.0 * rows * shape.block_weights, self.weight_bytes(rows * shape.block_weights)
        used = shape.layer_weights - (0 if first else shape.source_weights)
        flops = 2.0 * rows * (shape.layer_weights - shape.source_weights)
        flops += shape.attention_flops(rows, context + source)
        flops += 2.0 * source * shape.source_weights if first else 0.0
        moved = self.weight_bytes(used)
        moved += shape.cache_elements(context + source + rows) * self.stored.activation
        return count * flops, count * moved

    def encode(self, count: int, source: int) -> tuple[float, float]:
        """FLOPs and bytes of `count` encoder layers over a source, whose tokens all see each other."""
        flops = 2.0 * source * self.shape.encoder_layer_weights + self.shape.attention_flops(source, source)
        moved = self.encoder_layer_bytes + self.shape.cache_elements(source) * self.stored.activation
        return count * flops, count * moved

    def head(self, rows: int) -> tuple[float, float]:
        """FLOPs and bytes of the output projection of `rows` rows."""
        read = rows // self.shape.sharing(rows, projected=True) if rows else 0
        return 2.0 * rows * self.shape.head_weights, self.weight_bytes(read * self.shape.head_weights)

    def embed(self, rows: int) -> tuple[float, float]:
        """FLOPs and bytes of looking up `rows` rows of the embedding table."""
        return 0.0, self.weight_bytes(rows * self.shape.hidden)

    def fuse(self, rows: int) -> tuple[float, float]:
        """FLOPs and bytes of fusing a target's features of `rows` rows into a head's own width."""
        moved = (
            self.weight_bytes(self.shape.fuse_weights) + rows * self.shape.features * self.stored.activation
        )
        return 2.0 * rows * self.shape.fuse_weights, moved
