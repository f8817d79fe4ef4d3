"""Texts of a dataset as token sequences of equal length, for calibrating compressions and for probes.

Owns how texts become sequences. Must not know how they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.core.errors import InputError
from repro.data.config import DatasetConfig
from repro.data.prompts import Prompt, Tokens, prompts
from repro.data.rows import load_rows
from repro.models.checkpoints.tokenizer import Tokenizer


@dataclass(frozen=True)
class Corpus:
    """Sequences of equal length, and the digest of their examples."""

    sequences: tuple[Tokens, ...]
    digest: str


def load_corpus(
    config: DatasetConfig,
    tokenizer: Tokenizer,
    text_count: int,
    token_count: int,
    data_dir: Path | str | None = None,
) -> Corpus:
    """The first `text_count` sequences of `token_count` tokens.

    Short texts are concatenated with the following ones, long ones are truncated. Each sequence starts at the
    start of a prompt, with its special tokens.

    Raises:
        InputError: the dataset has too few texts, or cannot be read.
    """
    limit = text_count
    while True:
        rows = load_rows(config, limit, data_dir)
        corpus = _sequences(prompts(config, rows, tokenizer), token_count)
        if len(corpus) >= text_count:
            return Corpus(tuple(corpus[:text_count]), rows.digest)
        if len(rows.rows) < limit:
            raise InputError(
                f"dataset {config.name!r} makes {len(corpus)} texts of {token_count} tokens, and "
                f"corpus.texts is {text_count}; lower corpus.texts or corpus.tokens"
            )
        limit *= 2


def _sequences(texts: Sequence[Prompt], token_count: int) -> list[Tokens]:
    sequences: list[Tokens] = []
    joined_tokens: Tokens = ()
    for text in texts:
        joined_tokens += text.token_ids
        if len(joined_tokens) >= token_count:
            sequences.append(joined_tokens[:token_count])
            joined_tokens = ()
    return sequences
