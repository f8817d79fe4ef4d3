"""Owns which words of a text should stay: those that surprise a language model, or that a corpus kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from repro.models.encoders.token_spans import Decode, TextSpan, located
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder

CHARACTERS_A_TOKEN = 3.75
"""A little less than English text has, so that most texts reach the tokens that are asked for."""
ROWS_A_TEXT = 12
"""Rows read for a text, some of which are single sentences."""

WORD = re.compile(r"\w+|[^\w\s]")
"""A word, or one mark between words."""


@dataclass(frozen=True)
class Marked:
    """A text whose words are marked: True for those to retain. Words that nobody judged have no span."""

    text: str
    words: tuple[TextSpan, ...]
    retained: tuple[bool, ...]


def words(text: str) -> list[TextSpan]:
    """The spans of a text's words."""
    return [TextSpan(*found.span()) for found in WORD.finditer(text)]


@torch.no_grad()
def surprisals(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Nats of every token but the first, each after all before it."""
    ids = torch.tensor(tokens)
    cache = KVCache(decoder.config, len(tokens))
    logits = decoder.forward(ids[:-1], torch.arange(len(tokens) - 1), None, cache)
    nats = logits.logsumexp(-1) - logits.gather(1, ids[1:, None])[:, 0]
    return [float(one) for one in nats]


def word_nats(tokens: Sequence[int], nats: Sequence[float], decode: Decode) -> dict[str, Any]:
    """A text with the surprisal of its words, as it is kept: a token's nats are shared by the words that it
    touches, and a word's are the sum of its shares. Left out are words of the first token."""
    text, spans = located(tokens, decode)
    found: dict[TextSpan, float] = {one: 0.0 for one in words(text) if one.start >= spans[0].stop}
    for span, value in zip(spans[1:], nats, strict=True):
        touched = [one for one in found if one.start < span.stop and span.start < one.stop]
        for one in touched:
            found[one] += value / len(touched)
    return {"text": text, "words": [*found], "nats": [round(value, 3) for value in found.values()]}


def upper_half(kept: Mapping[str, Any]) -> Marked:
    """Retained are words more surprising than the median word of their text."""
    middle = median(kept["nats"])
    marks = tuple(value > middle for value in kept["nats"])
    return Marked(kept["text"], tuple(TextSpan(*one) for one in kept["words"]), marks)


def passages(texts: Sequence[str], least: float) -> Iterator[str]:
    """Texts joined in their order until each has at least so many characters; the rest is dropped."""
    held: list[str] = []
    for text in texts:
        held.append(text.strip())
        if sum(map(len, held)) >= least:
            yield " ".join(held)
            held = []


def matched(text: str, compressed: str) -> Marked:
    """The words of a text that its compressed form kept, matched greedily in order, case aside.

    A compressed word is looked for behind the last match; one that is not found there was reworded and is
    passed over. Deviation: in the release it blocks all later matches.
    """
    spans = words(text)
    spelled = [text[one.start : one.stop].lower() for one in spans]
    marks, at = [False] * len(spans), 0
    for one in words(compressed):
        word = compressed[one.start : one.stop].lower()
        if word in spelled[at:]:
            at = spelled.index(word, at)
            marks[at] = True
            at += 1
    return Marked(text, tuple(spans), tuple(marks))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; one that a kill cut short is left out; without a file none."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def label(
    decoder: Decoder, sequences: Sequence[Sequence[int]], decode: Decode, path: Path, every: int = 50
) -> list[dict[str, Any]]:
    """The surprisal of the words of all sequences; what the file holds of them is not computed again."""
    known = read_lines(path)[: len(sequences)]
    stays = takewhile(lambda pair: pair[0]["text"] == decode(pair[1]), zip(known, sequences, strict=False))
    known = [one for one, _ in stays]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in known))
    with path.open("a") as out:
        for i in range(len(known), len(sequences)):
            known.append(word_nats(sequences[i], surprisals(decoder, sequences[i]), decode))
            out.write(json.dumps(known[-1]) + "\n")
            if (i + 1) % every == 0:
                out.flush()
                print(f"labelled {i + 1} of {len(sequences)} texts", flush=True)
    return known
