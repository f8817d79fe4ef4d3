"""A model's own greedy text after a prompt, stored once and apart from what methods compute.

Owns the stored texts, and which prompts are computed together. Methods are judged by these texts, so nothing
here reads a cache of logits that methods fill.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from repro.models.forward.network import Logits, Network
from repro.models.forward.side_by_side import TOGETHER, GreedyText, Report, greedy_tokens
from repro.models.tokens.prefix import Prefix
from repro.records.row_file import RowFile

TEXTS, PACKS = "texts", "packs"
HEAD = struct.Struct("<ii")
"""Number of tokens, and ranks kept of each row."""

BEYOND = 16
"""Tokens by which an own text is longer than the answers: a verification looks beyond an answer's end."""

Ranks = tuple[Sequence[int], Sequence[float]]
"""Tokens and their log-probabilities, most likely first."""


class TextStore:
    """Own texts of one model by prompt, with the ranks from which each token was chosen."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; see `RowFile`."""
        self.file = RowFile(path, (TEXTS, PACKS))

    def get(self, prompt: Prefix, tokens: int) -> GreedyText | None:
        """The first `tokens` tokens of a prompt's text; None if there is none or it is shorter."""
        packed = self.file.get(TEXTS, prompt.digest)
        if packed is None or HEAD.unpack_from(packed)[0] < tokens:
            return None
        text, ranks = _unpack(packed, tokens)
        return GreedyText(prompt, text, [Logits(None, row) for row in ranks])

    def length(self, prompt: Prefix) -> int:
        """Number of stored tokens of a prompt's text."""
        packed = self.file.get(TEXTS, prompt.digest)
        return HEAD.unpack_from(packed)[0] if packed else 0

    def put(self, texts: Sequence[GreedyText]) -> None:
        """Store texts; each replaces the stored text of its prompt."""
        packed = [
            (text.prompt.digest, _pack(text.tokens, [row.top_ranks() for row in text.rows])) for text in texts
        ]
        self.file.put(TEXTS, packed, replace=True)

    def put_missing(self, texts: Iterable[tuple[bytes, Sequence[int], Sequence[Ranks]]]) -> None:
        """Store texts by the hash of their prompt; a stored text that is as long stays."""
        for digest, tokens, ranks in texts:
            stored = self.file.get(TEXTS, digest)
            if stored is None or HEAD.unpack_from(stored)[0] < len(tokens):
                self.file.put(TEXTS, [(digest, _pack(tokens, ranks))], replace=True)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _pack(tokens: Sequence[int], rows: Sequence[Ranks]) -> bytes:
    ranks = min((len(ids) for ids, _ in rows), default=0)
    ids, logps = array("i", tokens), array("f")
    for row, values in rows:
        ids.extend(row[:ranks])
        logps.extend(values[:ranks])
    return HEAD.pack(len(tokens), ranks) + ids.tobytes() + logps.tobytes()


def _unpack(stored: bytes, tokens: int) -> tuple[list[int], list[tuple[list[int], list[float]]]]:
    count, width = HEAD.unpack_from(stored)
    ids, logps = array("i"), array("f")
    middle = HEAD.size + 4 * count * (1 + width)
    ids.frombytes(stored[HEAD.size : middle])
    logps.frombytes(stored[middle:])
    cuts = [slice(i * width, (i + 1) * width) for i in range(tokens)]
    ranks = ids[count:]
    return ids[:tokens].tolist(), [(ranks[cut].tolist(), logps[cut].tolist()) for cut in cuts]


def groups(prompts: Sequence[Prefix], together: int = TOGETHER) -> Iterator[list[Prefix]]:
    """Prompts in groups that are computed together: of similar length, so that little is padded."""
    longest_first = sorted(dict.fromkeys(prompts), key=lambda prompt: -prompt.length)
    for start in range(0, len(longest_first), together):
        yield longest_first[start : start + together]


def one_by_one(network: Network, prompt: Prefix, tokens: int) -> GreedyText:
    """A prompt's text from a network of its own, one row a pass."""
    text = GreedyText(prompt)
    answer = greedy_tokens(network, prompt, tokens, (), text.rows.append)
    return GreedyText(prompt, answer, text.rows)


Compute = Callable[[Sequence[Prefix], int, Report], list[GreedyText]]
"""Computes the texts of some prompts; its callback receives the tokens done of each."""


def own_texts(
    store: TextStore,
    compute: Compute,
    prompts: Sequence[Prefix],
    tokens: int,
    report: Report = lambda done: None,
) -> list[GreedyText]:
    """The own text of each prompt: stored ones, and the others computed in groups and stored.

    A stored text that is too short is continued.

    Args:
        store: the model's texts.
        compute: computes what is missing.
        prompts: the prompts.
        tokens: length of each text.
        report: progress callback, called with the number of finished tokens over all prompts.
    """
    done = 0
    missing: dict[int, list[Prefix]] = {}
    for prompt in dict.fromkeys(prompts):
        length = min(tokens, store.length(prompt))
        done += length
        if length < tokens:
            missing.setdefault(length, []).append(prompt)
    report(done)
    for length, unfinished in sorted(missing.items()):
        for group in groups(unfinished):
            store.put(_continue(store, compute, group, length, tokens, shift(report, done, len(group))))
            done += len(group) * (tokens - length)
    return [text for prompt in prompts if (text := store.get(prompt, tokens)) is not None]


def _continue(
    store: TextStore, compute: Compute, prompts: Sequence[Prefix], length: int, tokens: int, report: Report
) -> list[GreedyText]:
    """Texts of prompts of which the first `length` tokens are stored."""
    before = [store.get(prompt, length) or GreedyText(prompt) for prompt in prompts]
    added = compute([text.prompt.extend(text.tokens) for text in before], tokens - length, report)
    return [
        GreedyText(head.prompt, head.tokens + tail.tokens, head.rows + tail.rows)
        for head, tail in zip(before, added, strict=True)
    ]


def shift(report: Report, done: int, together: int) -> Report:
    """Progress of a group of texts, as that of all: `done` tokens before, so many side by side."""
    return lambda each: report(done + each * together)
