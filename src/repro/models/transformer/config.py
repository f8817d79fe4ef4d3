"""Configuration of decoder-only language models.

Owns the shape and options of a decoder. Must not know family names or checkpoints: `families` translates
those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repro.models.costs.model_cost import Shape

NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Block = Literal["pre", "post", "sandwich", "parallel"]
RopeKind = Literal["default", "linear", "llama3", "longrope"]


@dataclass(frozen=True)
class Rope:
    """RoPE settings: base, the rotated share of each head, and scaling for long contexts.

    `linear` divides every frequency by `factor`. `llama3` divides frequencies whose wavelength is long
    relative to `original_positions`, and interpolates between the two bounds. `longrope` divides the
    frequency of each rotated pair by its entry of `factors`.
    """

    theta: float = 10_000.0
    share: float = 1.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    factors: tuple[float, ...] = ()

    def rotated_dims(self, head_dim: int) -> int:
        """Number of rotated dimensions of a head."""
        return int(head_dim * self.share)


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and options of one decoder; every field is read by `Decoder` or by `weights`.

    `block` is the placement of norms: before attention and MLP (`pre`), after each residual sum (`post`),
    before and after attention and MLP (`sandwich`), or one norm before both, which then run in parallel
    (`parallel`). `sliding[i]` says whether layer i sees only keys less than `window` positions back; such
    layers use `local_rope` if given.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_positions: int
    norm: NormKind = "rms"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0  # added to stored norm weights: Gemma stores weight - 1
    final_norm: bool = True
    qk_norm: bool = False
    block: Block = "pre"
    activation: Activation = "silu"
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    rope: Rope | None = None
    local_rope: Rope | None = None
    learned_positions: int = 0  # size of the learned position table; 0 if there is none
    position_offset: int = 0  # position p reads entry p + offset: OPT reserves two entries for padding
    window: int | None = None
    sliding: tuple[bool, ...] = ()
    query_scale: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    embedding_width: int = 0  # differs from `hidden` if embeddings are projected (OPT-350m)
    tied: bool = False
    shares_embeddings: bool = False  # the checkpoint has no embedding and no output projection

    @property
    def shape(self) -> Shape:
        """Dimensions for the cost model; shared embeddings count as tied."""
        return Shape(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate,
            vocab=self.vocab,
            gated=self.gated,
            tied=self.tied or self.shares_embeddings,
        )

    @property
    def groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def qkv_rows(self) -> int:
        """Output width of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def projects(self) -> bool:
        """Whether the embedding width differs from the hidden size."""
        return self.embedding_width not in (0, self.hidden)

    def is_sliding(self, layer: int) -> bool:
        """Whether this layer uses sliding-window attention."""
        return self.window is not None and bool(self.sliding) and self.sliding[layer]

    def rope_of(self, layer: int) -> Rope | None:
        """This layer's RoPE settings, if any."""
        return self.local_rope if self.local_rope is not None and self.is_sliding(layer) else self.rope
