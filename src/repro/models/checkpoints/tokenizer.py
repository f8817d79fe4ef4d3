"""What the project needs of a language model's tokenizer; `checkpoint.CheckpointTokenizer` is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def has_chat(self) -> bool:
        """Whether it carries a chat template."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the tokens that a prompt begins with and none that ends it."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without control tokens."""

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of messages (`role`, `content`) in the chat template, up to where the answer begins."""
