"""Parameters, bytes and FLOPs of a model of a given shape.

Knows nothing of weights. A decoder layer is its linears and its attention; the output projection is one
linear; an embedding lookup moves the gathered rows. In an encoder-decoder, a decoder layer also has
cross-attention, whose source keys and values are computed once. An EAGLE-3 head fuses target features with
one linear and uses its target's embedding table. Medusa heads have square linears (residual blocks) and an
output projection, their own or the target's; each head gives logits for one position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.registry import require_choice
from repro.core.typed import require, typed


@dataclass(frozen=True)
class Precision:
    """How weights are stored and which arithmetic uses them.

    Attributes:
        bits: bits per stored weight, scales included.
        arithmetic: the precision of the multiply-adds.
        activation: bytes of one activation or key-value element.
        format: the name of the storage format, by which an engine may have a kernel of its own; "" for none.
    """

    bits: float
    arithmetic: str
    activation: float
    format: str = ""


PRECISIONS = {
    name: replace(precision, format=name)
    for name, precision in {
        "fp32": Precision(32, "fp32", 4),
        "bf16": Precision(16, "fp16", 2),
        "fp16": Precision(16, "fp16", 2),
        "int8": Precision(8, "int8", 2),
        # weights in 8 or 4 bits, activations in 8 or 16, as NPUs run models; scales are a channel's
        "w8a8": Precision(8, "int8", 2),
        "w4a16": Precision(4, "int8", 2),
        # llama.cpp's blocks of 32 weights with an fp16 scale (and, for _1, an fp16 minimum)
        "q8_0": Precision(8.5, "int8", 2),
        "q4_0": Precision(4.5, "int8", 2),
        # AutoGPTQ's 4 bits, with an fp16 scale and a 4-bit zero point per group of 128 weights
        "gptq4": Precision(4 + 20 / 128, "int8", 2),
        "q4_1": Precision(5.0, "int8", 2),
        "q4_k": Precision(4.5, "int8", 2),
        # llama.cpp's mixes of super-blocks of 256 weights, by the average over Llama-3-8B
        "q6_k": Precision(6.56, "int8", 2),
        "q5_k_m": Precision(5.69, "int8", 2),
        "q4_k_m": Precision(4.85, "int8", 2),
        "q3_k_m": Precision(3.91, "int8", 2),
        "q2_k": Precision(3.35, "int8", 2),
        "iq1_s": Precision(1.56, "int8", 2),
        "int4": Precision(4.5, "int8", 2),
    }.items()
}


def precision(name: str) -> Precision:
    """Look up a stored precision; InputError for an unknown name."""
    require_choice("precision", name, PRECISIONS)
    return PRECISIONS[name]


LARGEST_COUNTS = {"layers": 10_000, "heads": 10_000, "kv_heads": 10_000, "medusa": 1_000, "blocks": 1_000}
"""Largest counts of a shape; widths are at most `LARGEST_WIDTH`."""

LARGEST_WIDTH = 10_000_000


def _require_counts(section: str, least_count: int = 1, **counts: object) -> None:
    """InputError for a dimension that is no whole number, below the least one or beyond any model's."""
    for name, count in counts.items():
        bounds = Annotated[int, Interval(ge=least_count, le=LARGEST_COUNTS.get(name, LARGEST_WIDTH))]
        require(bounds, count, f"{section}.{name}")


@dataclass(frozen=True)
class EncoderShape:
    """The encoder of an encoder-decoder; hidden size, heads and MLP type are the decoder's.

    Attributes:
        layers: number of encoder layers.
        intermediate: width inside its MLPs.
    """

    layers: int
    intermediate: int

    def __post_init__(self) -> None:
        _require_counts("shape.encoder", layers=self.layers, intermediate=self.intermediate)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder that determine its cost.

    A dimension below 1 is an InputError, except for those that a part of a model may lack.

    Attributes:
        gated: the MLP has three matrices, not two.
        tied: the output projection is the embedding table; for Medusa heads, it is the target's.
        encoder: encoder that reads the prompt; `None` for a decoder-only model.
        features: width of the target features that an EAGLE-3 head reads; 0 for other models.
        medusa: number of Medusa heads, which use only `hidden`, `vocab`, `tied` and `blocks`; 0 for other
            models.
        blocks: residual blocks per Medusa head.
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
    def of_medusa(cls, medusa: int, hidden: int, vocab: int, tied: bool, block_count: int = 1) -> Shape:
        """Shape of `medusa` Medusa heads, which have no attention, MLP or KV cache."""
        return cls(1, hidden, 1, 1, 0, 0, vocab=vocab, tied=tied, medusa=medusa, blocks=block_count)

    @classmethod
    def parse(cls, mapping: Mapping[str, Any]) -> Shape:
        """Parse a file of `conf/model/shape/`."""
        if mapping.get("medusa"):
            return cls.of_medusa(**mapping)
        shape = typed(cls, mapping, "shape")
        _require_counts("shape", layers=shape.layers)
        _require_counts("shape", head_dim=shape.head_dim, intermediate=shape.intermediate)
        return shape

    def __post_init__(self) -> None:
        _require_counts("shape", hidden=self.hidden, vocab=self.vocab, blocks=self.blocks)
        _require_counts("shape", 0 if self.encoder else 1, layers=self.layers)  # an encoder may be all
        _require_counts("shape", heads=self.heads, kv_heads=self.kv_heads)
        # Medusa heads and a layer that lost its attention or its MLP lack these.
        _require_counts("shape", 0, head_dim=self.head_dim, intermediate=self.intermediate)
        _require_counts("shape", 0, features=self.features, medusa=self.medusa)
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly")

    @property
    def attention_weights(self) -> int:
        """Weights of Q, K, V and output projections; an EAGLE-3 head's Q, K, V take doubled inputs."""
        input_widths = 2 if self.features else 1
        return self.hidden * self.head_dim * (self.heads + input_widths * (self.heads + 2 * self.kv_heads))

    @property
    def mlp_weights(self) -> int:
        """Weights of one MLP."""
        return self._mlp(self.intermediate)

    @property
    def source_weights(self) -> int:
        """Weights of a layer's cross-attention K and V projections; 0 without an encoder."""
        return 2 * self.hidden * self.head_dim * self.kv_heads if self.encoder else 0

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's linears: (cross-)attention and MLP, or the blocks of all Medusa heads."""
        if self.medusa:
            return self.medusa * self.block_weights
        return self.attention_weights * (2 if self.encoder else 1) + self.mlp_weights

    @property
    def block_weights(self) -> int:
        """Weights of one Medusa head's residual blocks."""
        return self.blocks * self.hidden**2

    @property
    def encoder_layers(self) -> int:
        """Number of encoder layers; 0 without an encoder."""
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
        """Weights of an EAGLE-3 head's fusing linear; 0 for other models."""
        return self.hidden * self.features

    @property
    def table_weights(self) -> int:
        """Weights outside the layers: embedding table, output projection if untied, fusing linear.

        An EAGLE-3 head has no embedding table; Medusa heads have only their own output projections.
        """
        if self.medusa:
            return 0 if self.tied else self.medusa * self.head_weights
        has_one_table = self.tied or self.features
        return self.head_weights * (1 if has_one_table else 2) + self.fuse_weights

    @property
    def parameters(self) -> int:
        """All weights."""
        layers = self.layers * self.layer_weights + self.encoder_layers * self.encoder_layer_weights
        return layers + self.table_weights

    def _mlp(self, intermediate: int) -> int:
        return (3 if self.gated else 2) * self.hidden * intermediate

    def sharing(self, row_count: int, projected: bool = False) -> int:
        """How many of `row_count` positions share weights, in the layers or, if `projected`, the head.

        All of them; but each Medusa head has its own blocks, and its own output projection unless tied.
        """
        return 1 if row_count and self.medusa and not (projected and self.tied) else row_count

    def attention_flops(self, row_count: int, context_length: float) -> float:
        """FLOPs of scores and weighted values in one layer: of so many queries over so many keys each."""
        return 4.0 * row_count * context_length * self.heads * self.head_dim

    def cache_elements(self, token_count: float) -> float:
        """Elements of one layer's KV cache of `token_count` tokens."""
        return 2.0 * token_count * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class ModelCost:
    """FLOPs and bytes of a shape in a stored precision."""

    shape: Shape
    stored: Precision

    def weight_bytes(self, weight_count: float) -> float:
        """Bytes of a number of stored weights."""
        return weight_count * self.stored.bits / 8

    @property
    def layer_bytes(self) -> float:
        """Bytes of one layer."""
        return self.weight_bytes(self.shape.layer_weights)

    @property
    def block_bytes(self) -> float:
        """Bytes of all layers, without adapters."""
        return self.shape.layers * self.layer_bytes

    @property
    def adapter_bytes(self) -> float:
        """Bytes of adapters beside the layers' weights; none here."""
        return 0.0

    @property
    def encoder_layer_bytes(self) -> float:
        """Bytes of one encoder layer; 0 without an encoder."""
        return self.weight_bytes(self.shape.encoder_layer_weights)

    @property
    def table_bytes(self) -> float:
        """Bytes of embedding table, output projection and an EAGLE-3 head's fusing linear."""
        return self.weight_bytes(self.shape.table_weights)

    @property
    def model_bytes(self) -> float:
        """Bytes of all weights."""
        return self.weight_bytes(self.shape.parameters)

    def cache_bytes(self, token_count: int) -> float:
        """Bytes of the KV cache of `token_count` tokens, source tokens included."""
        return self.shape.layers * self.shape.cache_elements(token_count) * self.stored.activation

    def layers(
        self,
        layer_count: int,
        row_count: int,
        context_length: float,
        prompt_length: int = 0,
        is_first: bool = False,
    ) -> tuple[float, float]:
        """FLOPs and bytes of so many layers over rows that each see `context_length` cached tokens.

        With an encoder they also attend to `prompt_length` tokens, whose keys and values the first pass of a
        request (`is_first`) computes.
        """
        shape = self.shape
        if shape.medusa:
            return 2.0 * row_count * shape.block_weights, self.weight_bytes(row_count * shape.block_weights)
        used_weights = shape.layer_weights - (0 if is_first else shape.source_weights)
        flops = 2.0 * row_count * (shape.layer_weights - shape.source_weights)
        flops += shape.attention_flops(row_count, context_length + prompt_length)
        flops += 2.0 * prompt_length * shape.source_weights if is_first else 0.0
        moved_bytes = self.weight_bytes(used_weights)
        key_count = context_length + prompt_length + row_count
        moved_bytes += shape.cache_elements(key_count) * self.stored.activation
        return layer_count * flops, layer_count * moved_bytes

    def attention_flops(self, layer_count: int, row_count: int, context_length: float) -> float:
        """How many of the FLOPs of `layer_count` layers are attention's, as of one layer in `Shape`."""
        return layer_count * self.shape.attention_flops(row_count, context_length)

    def encode(self, layer_count: int, prompt_length: int) -> tuple[float, float]:
        """FLOPs and bytes of encoder layers over `prompt_length` tokens, with full attention."""
        flops = 2.0 * prompt_length * self.shape.encoder_layer_weights + self.shape.attention_flops(
            prompt_length, prompt_length
        )
        moved_bytes = (
            self.encoder_layer_bytes + self.shape.cache_elements(prompt_length) * self.stored.activation
        )
        return layer_count * flops, layer_count * moved_bytes

    def head(self, row_count: int) -> tuple[float, float]:
        """FLOPs and bytes of the output projection for `row_count` positions."""
        reads = row_count // self.shape.sharing(row_count, projected=True) if row_count else 0
        return 2.0 * row_count * self.shape.head_weights, self.weight_bytes(reads * self.shape.head_weights)

    def embed(self, row_count: int) -> tuple[float, float]:
        """FLOPs and bytes of looking up `row_count` rows of the embedding table."""
        return 0.0, self.weight_bytes(row_count * self.shape.hidden)

    def fuse(self, row_count: int) -> tuple[float, float]:
        """FLOPs and bytes of fusing target features of `row_count` positions to the head's hidden size."""
        moved_bytes = (
            self.weight_bytes(self.shape.fuse_weights)
            + row_count * self.shape.features * self.stored.activation
        )
        return 2.0 * row_count * self.shape.fuse_weights, moved_bytes
