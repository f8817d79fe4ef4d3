"""Owns the score head's training: which words of a text are retained, its examples, its loss and its figures.

Words are labelled by a language model's surprisal, or by MeetingBank as GPT-4 compressed it (LLMLingua-2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from repro import data
from repro.core.errors import InputError
from repro.data.rows import Rows
from repro.methods.elastilm.dual_head_network import DualHead
from repro.methods.elastilm.token_spans import Decode, TextSpan, carry_over, locate_tokens
from repro.methods.elastilm.word_pieces import WordPieces
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from workshop.training.loop import Figures, Part

CHARACTERS_A_TOKEN = 3.75
"""Slightly below the average of English text, so that most texts reach the wanted number of tokens."""
ROWS_A_TEXT = 12
"""Dataset rows read per text; some rows are single sentences."""

COLUMNS = ("prompt_list", "compressed_prompt_list")
"""A meeting's chunks and their compressed forms; `prompt` and `compressed_prompt` hold it whole."""

UNJUDGED = -100
"""Label that cross-entropy ignores."""

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


# --- labels by surprisal ------------------------------------------------------------------------------------


@torch.no_grad()
def surprisals(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Surprisal in nats of every token but the first, given all tokens before it."""
    ids = torch.tensor(tokens)
    cache = KVCache(decoder.config, len(tokens))
    logits = decoder.forward(ids[:-1], torch.arange(len(tokens) - 1), None, cache)
    nats = logits.logsumexp(-1) - logits.gather(1, ids[1:, None])[:, 0]
    return list(map(float, nats))


def word_nats(tokens: Sequence[int], nats: Sequence[float], decode: Decode) -> list[tuple[int, int, float]]:
    """Start, stop and surprisal of the words of a text.

    A token's nats are divided equally among the words it overlaps; a word's surprisal is the sum of its
    shares. Words in the first token are left out.
    """
    text, spans = locate_tokens(tokens, decode)
    shares = {word: 0.0 for word in words(text) if word.start >= spans[0].stop}
    for span, value in zip(spans[1:], nats, strict=True):
        touched = [word for word in shares if word.start < span.stop and span.start < word.stop]
        for word in touched:
            shares[word] += value / len(touched)
    return [(*word, round(value, 3)) for word, value in shares.items()]


def upper_half(text: str, surprising: Sequence[tuple[int, int, float]]) -> Marked:
    """Marks the words that are more surprising than the median word of their text."""
    starts, stops, nats = zip(*surprising, strict=True)
    return Marked(text, tuple(map(TextSpan, starts, stops)), tuple(value > median(nats) for value in nats))


def marked_by_surprisal(
    open_decoder: Callable[[], Decoder], sequences: Sequence[Sequence[int]], decode: Decode, path: Path
) -> list[Marked]:
    """Texts whose more surprising half of words is retained; see `remembered` for `path`."""
    decoder = cache(open_decoder)

    def label(i: int) -> list[tuple[int, int, float]]:
        return word_nats(sequences[i], surprisals(decoder(), sequences[i]), decode)

    texts = [decode(tokens) for tokens in sequences]
    return list(map(upper_half, texts, remembered(path, texts, label)))


def passages(texts: Sequence[str], least: float) -> Iterator[str]:
    """Texts joined in order until each has at least `least` characters; the rest is dropped."""
    held: list[str] = []
    for text in texts:
        held.append(text.strip())
        if sum(map(len, held)) >= least:
            yield " ".join(held)
            held = []


def remembered(path: Path, keys: Sequence[str], compute: Callable[[int], Any]) -> list[Any]:
    """The value of each key, of which a file keeps what was computed, so that a killed run continues.

    Args:
        path: a JSON-lines file of keys and values.
        keys: each says everything that its value depends on.
        compute: returns the value of the key at an index, as plain data.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole = text[: text.rfind("\n") + 1]
    values = dict(json.loads(line) for line in whole.splitlines())
    with path.open("w", encoding="utf-8") as out:
        out.write(whole)
        for i, key in enumerate(keys):
            if key not in values:
                values[key] = compute(i)
                print(json.dumps([key, values[key]]), file=out, flush=True)
                print(f"labelled {i + 1} of {len(keys)}", flush=True)
    return [values[key] for key in keys]


# --- labels of MeetingBank ----------------------------------------------------------------------------------


def matched(text: str, compressed: str) -> Marked:
    """Marks the words of a text that its compressed form kept, matched greedily in order, ignoring case.

    A compressed word is searched after the last match; if it is not found it was reworded and is skipped.
    Deviation: in the release a reworded word blocks all later matches.
    """
    spans = words(text)
    spelled = [text[start:stop].lower() for start, stop in spans]
    marks, at = [False] * len(spans), 0
    for start, stop in words(compressed):
        word = compressed[start:stop].lower()
        if word in spelled[at:]:
            at = spelled.index(word, at)
            marks[at] = True
            at += 1
    return Marked(text, tuple(spans), tuple(marks))


def read_meetings(source: str, rows: int, columns: Sequence[str] = COLUMNS) -> Rows:
    """At most `rows` rows of the dataset.

    Args:
        source: a repository on the hub (microsoft/MeetingBank-LLMCompressed), a folder with the same layout,
            or the name of a `.jsonl` file in the folder that $REPRO_DATA names.
        rows: largest number of rows.
        columns: of the text and of its compressed form.
    """
    is_file = source.endswith(".jsonl")
    described = {
        "name": "meetingbank",
        "file": source if is_file else "meetingbank.jsonl",
        "version": 1,
        "licence": "CC-BY-NC-ND-4.0",
        "columns": list(columns),
        "prompt": {"builder": "text", "template": f"{{{columns[0]}}}"},
        "scoring": {"kind": "generation"},
    }
    if not is_file:
        described["hub"] = {"id": source, "split": "train"}
    return data.load_rows(data.parse(described), rows)


def marked_chunks(row: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> list[Marked]:
    """A row's chunks, with the words marked that their compressed forms kept; a plain string is one chunk.

    Raises:
        InputError: the numbers of chunks and of compressed chunks differ.
    """
    whole, short = ([row[name]] if isinstance(row[name], str) else list(row[name]) for name in columns)
    if len(whole) != len(short):
        raise InputError(f"a row of MeetingBank has {len(whole)} chunks and {len(short)} compressed ones")
    return [matched(text, kept) for text, kept in zip(whole, short, strict=True)]


# --- what the head learns -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadExample:
    """One training example.

    Attributes:
        prompt: token ids, special tokens included.
        labels: for the score head one per id, for the decision head the classes of prompt and model level.
        text: index of the source text.
        spans: for the score head, the span of each id in its text; empty spans for special tokens.
    """

    prompt: Tensor
    labels: Tensor
    text: int
    spans: tuple[TextSpan, ...] = ()

    @property
    def size(self) -> int:
        """Its tokens."""
        return len(self.prompt)


def scored(marked: Sequence[Marked], pieces: WordPieces, longest: int) -> list[HeadExample]:
    """Examples of the score head from marked texts, cut at `longest` ids; pieces get their word's label."""
    examples = []
    for number, text in enumerate(marked):
        ids, spans = pieces.split(text.text)
        ids, spans = ids[: longest - 2], spans[: longest - 2]
        marks = carry_over(list(map(float, text.retained)), text.words, spans, UNJUDGED)
        labels = [UNJUDGED, *map(round, marks), UNJUDGED]
        around = (TextSpan(0, 0), *spans, TextSpan(0, 0))
        whole = torch.tensor([pieces.first, *ids, pieces.last])
        examples.append(HeadExample(whole, torch.tensor(labels), number, around))
    return examples


def filled(chosen: Sequence[HeadExample], padding: int) -> tuple[Tensor, Tensor]:
    """Ids of examples as one padded tensor, and the mask of real ids."""
    longest = max(example.size for example in chosen)
    ids = torch.full((len(chosen), longest), padding)
    real = torch.zeros(len(chosen), longest, dtype=torch.bool)
    for row, example in enumerate(chosen):
        ids[row, : example.size], real[row, : example.size] = example.prompt, True
    return ids, real


@dataclass(frozen=True)
class ScoreLoss:
    """Cross-entropy of drop and retain, on padded texts."""

    net: DualHead
    padding: int

    def __call__(self, chosen: list[HeadExample], step: int) -> Iterator[Part]:
        """The loss of a batch in one part, and the accuracy."""
        ids, real = filled(chosen, self.padding)
        labels = torch.full(ids.shape, UNJUDGED)
        for row, example in enumerate(chosen):
            labels[row, : len(example.labels)] = example.labels
        logits = self.net.retain(ids, real).float()
        judged = labels != UNJUDGED
        right = (logits.argmax(-1) == labels)[judged].float().mean()
        yield F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=UNJUDGED), right


@torch.no_grad()
def word_figures(net: DualHead, examples: Sequence[HeadExample], marked: Sequence[Marked]) -> Figures:
    """Accuracy on held-out words, scored by the mean probability of their pieces.

    `accuracy` retains as many words per text as its labels do, `threshold_accuracy` uses a threshold of one
    half, `auc` is the probability that a word to retain ranks above one to drop, over all texts.
    """
    scores: list[float] = []
    labels: list[bool] = []
    right: list[bool] = []
    for example in examples:
        text, end = marked[example.text], example.spans[-2].stop  # words after the cut have no piece
        words, marks = zip(
            *((w, m) for w, m in zip(text.words, text.retained, strict=True) if w.stop <= end), strict=True
        )
        pieces = net.retain(example.prompt[None])[0].softmax(-1)[:, 1].tolist()
        values = carry_over(pieces[1:-1], example.spans[1:-1], words, 0.0)
        best = set(sorted(range(len(values)), key=lambda i: -values[i])[: sum(marks)])
        right += [(i in best) == mark for i, mark in enumerate(marks)]
        scores += values
        labels += marks
    return {
        "accuracy": round(fmean(right), 4),
        "threshold_accuracy": round(
            fmean((score > 0.5) == mark for score, mark in zip(scores, labels, strict=True)), 4
        ),
        "auc": round(auc(scores, labels), 4),
    }


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Area under the ROC curve; ties count half.

    Raises:
        InputError: only one class is present.
    """
    values, marks = torch.tensor(scores, dtype=torch.float64), torch.tensor(labels)
    positive, negative = values[marks], values[~marks].sort().values
    if not len(positive) or not len(negative):
        raise InputError("all words have one label; give more texts")
    below, to = (torch.searchsorted(negative, positive, right=right) for right in (False, True))
    return float((below + to).double().mean() / 2 / len(negative))
