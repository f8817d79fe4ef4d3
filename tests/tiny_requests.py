"""Rows of an app whose requests begin alike, and a tokenizer of bytes, so that tokens are counted by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.data.config import DatasetConfig, read_config
from repro.methods.serving.shortening import Scorer

PREAMBLE = "Ways.\n\nQuestion: Dry these wet shoes\nAnswer: with my paper"
"""With the empty line behind it 60 bytes."""
SPARE = 60
SET: DatasetConfig = replace(
    read_config("piqa"),
    name="ways",
    prompt={"builder": "text", "preamble": PREAMBLE, "template": "Question: {goal}\nAnswer:"},
)
ROWS = [
    {"goal": f"{i} goals", "sol1": "a short end", "sol2": f"another end of {i}", "label": i % 2}
    for i in range(8)
]
REQUEST = 25
"""Bytes of a request behind what all begin with."""


class Bytes:
    """A token a byte."""

    has_chat = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Last(Scorer):
    """Later tokens matter more; with `every` above 1 one in so many, the last of them, more than others."""

    every: int = 1

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        return [place + 1000.0 * (place % self.every == self.every - 1) for place in range(len(tokens))]


def write_rows(folder: Path, rows: Sequence[dict[str, Any]] = tuple(ROWS)) -> None:
    """The rows, and texts to calibrate on, where `data_dir` looks for them."""
    texts = [{"text": f"word{i} " * 40} for i in range(9)]
    for name, lines in (("piqa", rows), ("wikitext-2-raw-v1_train", texts)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8"
        )
