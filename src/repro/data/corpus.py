"""Texts of a dataset as token sequences of one length, on which a compression is calibrated.

Owns how texts become sequences. Must not know what is learned from them.
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
    """Sequences of one length each, and the digest of the rows that they were made of."""

    sequences: tuple[Tokens, ...]
    digest: str


def load_corpus(
    config: DatasetConfig, tokenizer: Tokenizer, texts: int, tokens: int, data_dir: Path | str | None = None
) -> Corpus:
    """The first `texts` sequences of `tokens` tokens: a text too short is joined by those after it, one too
    long is cut. Each begins where a text begins, as a prompt does, with the token that stands there.

    Raises:
        InputError: the dataset's texts do not suffice, or cannot be read.
    """
    wanted = texts
    while True:
        rows = load_rows(config, wanted, data_dir)
        found = _sequences(prompts(config, rows, tokenizer), tokens)
        if len(found) >= texts:
            return Corpus(tuple(found[:texts]), rows.digest)
        if len(rows.rows) < wanted:
            raise InputError(
                f"dataset {config.name!r} makes {len(found)} texts of {tokens} tokens, and corpus.texts is "
                f"{texts}; lower corpus.texts or corpus.tokens"
            )
        wanted *= 2


def _sequences(texts: Sequence[Prompt], tokens: int) -> list[Tokens]:
    out: list[Tokens] = []
    joined: Tokens = ()
    for text in texts:
        joined += text.token_ids
        if len(joined) >= tokens:
            out.append(joined[:tokens])
            joined = ()
    return out
