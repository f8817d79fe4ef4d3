"""What tells one decoder-only language model from another, as data.

Owns the shape and the switches of a decoder. Knows no family by name and no checkpoint:
`families` translates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Block = Literal["pre", "post", "sandwich", "parallel"]
RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base wavelength, the rotated share of each head, how long contexts stretch it.

    `linear` divides every frequency by `factor`; `llama3` divides those whose wavelength is long against
    `original_positions` and blends between the two bounds.
    """

    theta: float = 10_000.0
    share: float = 1.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and switches of one decoder; every field is read by `Decoder` or by `weights`.

    `block` says where norms stand: before each half (`pre`), after the residual sum (`post`), on both sides
    of each half (`sandwich`), or once before both halves, which then run side by side (`parallel`).
    `sliding[i]` says whether layer i sees only keys less than `window` positions back; such layers rotate by
    `local_rope` where that is given.
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
    norm_offset: float = 0.0  # added to every stored norm weight: Gemma stores weight - 1
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
    learned_positions: int = 0  # rows of the learned position table; 0 where there is none
    position_offset: int = 0  # position p reads row p + offset: OPT keeps two rows for padding
    window: int | None = None
    sliding: tuple[bool, ...] = ()
    query_scale: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    embedding_width: int = 0  # differs from `hidden` where projections stand between (OPT-350m)
    tied: bool = False
    shares_embeddings: bool = False  # the checkpoint holds no embedding and no output projection of its own

    @property
    def groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def qkv_rows(self) -> int:
        """Output width of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def projected(self) -> bool:
        """Whether embeddings are narrower or wider than the hidden rows."""
        return self.embedding_width not in (0, self.hidden)

    def is_sliding(self, layer: int) -> bool:
        """Whether this layer's attention is limited to the window."""
        return self.window is not None and bool(self.sliding) and self.sliding[layer]

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary positions that this layer uses, if any."""
        return self.local_rope if self.local_rope is not None and self.is_sliding(layer) else self.rope
