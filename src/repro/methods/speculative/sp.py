"""The original speculative decoding (Leviathan et al., ICML 2023), as EdgeLLM runs it for its baseline SP."""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.bounds import DraftTokens, Layers
from repro.core.registry import register
from repro.methods.speculative.chain_sd import ChainSD


@register("method", "sp")
@dataclass(frozen=True)
class SpeculativeDecoding(ChainSD):
    """A chain of fixed length, verified in the standard engine: read a layer, then compute it.

    EdgeLLM does not give the length. Leviathan et al. (Table 2) draft 7 tokens with T5-small for greedy
    translation, which most of EdgeLLM's tasks are, and 5 for greedy summarisation.

    Attributes:
        length: draft tokens per round.
        prefetch: layers that are read ahead.
    """

    length: DraftTokens = 7
    prefetch: Layers = 0
