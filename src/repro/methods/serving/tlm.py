"""The tiny language model (TLM) that services may score prompts and decide levels with.

It is ElastiLM's, which is reached by registry: this module must not know how it computes.
"""

from __future__ import annotations

from typing import Protocol

from repro.core.registry import discover, lookup
from repro.methods.serving.deciders import Decider
from repro.methods.serving.shortening import Scorer
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.costs.model_cost import Precision


class TinyLanguageModel(Protocol):
    """Two trained heads of one encoder."""

    def digest(self) -> str:
        """Content hash of the heads in the repository."""

    def score_head(self, tokenizer: Tokenizer, shares_bottom: bool, stored_precision: Precision) -> Scorer:
        """Open the score head.

        Args:
            tokenizer: tokenizer of the language model whose prompts are scored.
            shares_bottom: bill the lower layers with the decision head, which has them in common.
            stored_precision: precision in which the encoder is billed.

        Raises:
            InputError: the encoder or the head is not there.
        """

    def decision_head(self, tokenizer: Tokenizer, stored_precision: Precision) -> Decider:
        """Open the decision head; as `score_head`."""


def tiny_language_model() -> TinyLanguageModel:
    """The TLM of services."""
    discover("repro.methods")
    model: TinyLanguageModel = lookup("tlm", "elastilm")()
    return model
