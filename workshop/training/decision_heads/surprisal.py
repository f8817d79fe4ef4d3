"""Owns the labels of words to retain: by a language model's surprisal, or from a compressed corpus."""

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
"""Slightly below the average of English text, so that most texts reach the wanted number of tokens."""
ROWS_A_TEXT = 12
"""Dataset rows read per text; some rows are single sentences."""

WORD = re.compile(r"\w+|[^\w\s]")
"""A word, or a single punctuation character."""


@dataclass(frozen=True)
class Marked:
    """A text with its words marked: True to retain. Words without a label have no span."""

    text: str
    words: tuple[TextSpan, ...]
    retained: tuple[bool, ...]


def words(text: str) -> list[TextSpan]:
    """The spans of a text's words."""
    return [TextSpan(*found.span()) for found in WORD.finditer(text)]


@torch.no_grad()
def surprisals(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Surprisal in nats of every token but the first, given all tokens before it."""
    ids = torch.tensor(tokens)
    cache = KVCache(decoder.config, len(tokens))
    logits = decoder.forward(ids[:-1], torch.arange(len(tokens) - 1), None, cache)
    nats = logits.logsumexp(-1) - logits.gather(1, ids[1:, None])[:, 0]
    return [float(one) for one in nats]


def word_nats(tokens: Sequence[int], nats: Sequence[float], decode: Decode) -> dict[str, Any]:
    """A text with the surprisal of its words, as stored in the file.

    A token's nats are divided equally among the words it overlaps; a word's surprisal is the sum of its
    shares. Words in the first token are left out.
    """
    text, spans = located(tokens, decode)
    found: dict[TextSpan, float] = {one: 0.0 for one in words(text) if one.start >= spans[0].stop}
    for span, value in zip(spans[1:], nats, strict=True):
        touched = [one for one in found if one.start < span.stop and span.start < one.stop]
        for one in touched:
            found[one] += value / len(touched)
    return {"text": text, "words": [*found], "nats": [round(value, 3) for value in found.values()]}


def upper_half(kept: Mapping[str, Any]) -> Marked:
    """Marks the words that are more surprising than the median word of their text."""
    middle = median(kept["nats"])
    marks = tuple(value > middle for value in kept["nats"])
    return Marked(kept["text"], tuple(TextSpan(*one) for one in kept["words"]), marks)


def passages(texts: Sequence[str], least: float) -> Iterator[str]:
    """Texts joined in order until each has at least `least` characters; the rest is dropped."""
    held: list[str] = []
    for text in texts:
        held.append(text.strip())
        if sum(map(len, held)) >= least:
            yield " ".join(held)
            held = []


def matched(text: str, compressed: str) -> Marked:
    """Marks the words of a text that its compressed form kept, matched greedily in order, ignoring case.

    A compressed word is searched after the last match; if it is not found it was reworded and is skipped.
    Deviation: in the release it blocks all later matches.
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
    """Complete lines of a JSON-lines file, without an unfinished last one; empty if there is no file."""
    if not path.is_file():
        return []
    return [
        json.loads(line)
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]


def label(
    decoder: Decoder, sequences: Sequence[Sequence[int]], decode: Decode, path: Path, every: int = 50
) -> list[dict[str, Any]]:
    """Surprisal of the words of all sequences; those already in the file are not computed again."""
    known = read_lines(path)[: len(sequences)]
    stays = takewhile(lambda pair: pair[0]["text"] == decode(pair[1]), zip(known, sequences, strict=False))
    known = [one for one, _ in stays]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in known), encoding="utf-8")
    with path.open("a", encoding="utf-8") as out:
        for i in range(len(known), len(sequences)):
            known.append(word_nats(sequences[i], surprisals(decoder, sequences[i]), decode))
            out.write(json.dumps(known[-1]) + "\n")
            if (i + 1) % every == 0:
                out.flush()
                print(f"labelled {i + 1} of {len(sequences)} texts", flush=True)
    return known
