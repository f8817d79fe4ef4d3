"""The tokenizer interface that the project uses; `checkpoint.CheckpointTokenizer` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def has_chat(self) -> bool:
        """Whether there is a chat template."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with leading special tokens (BOS) and without EOS."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of messages (`role`, `content`) in the chat template, up to the start of the answer."""
