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
from repro.models.forward.side_by_side import GROUP_SIZE, GreedyText, Report, greedy_tokens
from repro.models.tokens.prefix import Prefix
from repro.records.row_file import RowFile

TEXTS, PACKS = "texts", "packs"
HEADER = struct.Struct("<ii")
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

    def get(self, prompt: Prefix, token_count: int) -> GreedyText | None:
        """The first `token_count` tokens of a prompt's text; None if there is none or it is shorter."""
        packed_text = self.file.get(TEXTS, prompt.digest)
        if packed_text is None or HEADER.unpack_from(packed_text)[0] < token_count:
            return None
        text, ranks = _unpack(packed_text, token_count)
        return GreedyText(prompt, text, [Logits(None, row) for row in ranks])

    def length(self, prompt: Prefix) -> int:
        """Number of stored tokens of a prompt's text."""
        packed_text = self.file.get(TEXTS, prompt.digest)
        return HEADER.unpack_from(packed_text)[0] if packed_text else 0

    def put(self, texts: Sequence[GreedyText]) -> None:
        """Store texts; each replaces the stored text of its prompt."""
        packed_texts = [
            (text.prompt.digest, _pack(text.tokens, [row.top_ranks() for row in text.rows])) for text in texts
        ]
        self.file.put(TEXTS, packed_texts, replace=True)

    def put_missing(self, texts: Iterable[tuple[bytes, Sequence[int], Sequence[Ranks]]]) -> None:
        """Store texts by the hash of their prompt; a stored text that is as long stays."""
        for digest, tokens, ranks in texts:
            packed_text = self.file.get(TEXTS, digest)
            if packed_text is None or HEADER.unpack_from(packed_text)[0] < len(tokens):
                self.file.put(TEXTS, [(digest, _pack(tokens, ranks))], replace=True)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _pack(tokens: Sequence[int], rows: Sequence[Ranks]) -> bytes:
    rank_count = min((len(ids) for ids, _ in rows), default=0)
    ids, logps = array("i", tokens), array("f")
    for row, values in rows:
        ids.extend(row[:rank_count])
        logps.extend(values[:rank_count])
    return HEADER.pack(len(tokens), rank_count) + ids.tobytes() + logps.tobytes()


def _unpack(packed_text: bytes, token_count: int) -> tuple[list[int], list[tuple[list[int], list[float]]]]:
    count, width = HEADER.unpack_from(packed_text)
    ids, logps = array("i"), array("f")
    ids_end = HEADER.size + 4 * count * (1 + width)
    ids.frombytes(packed_text[HEADER.size : ids_end])
    logps.frombytes(packed_text[ids_end:])
    spans = [slice(i * width, (i + 1) * width) for i in range(token_count)]
    ranks = ids[count:]
    return ids[:token_count].tolist(), [(ranks[span].tolist(), logps[span].tolist()) for span in spans]


def groups(prompts: Sequence[Prefix], group_size: int = GROUP_SIZE) -> Iterator[list[Prefix]]:
    """Prompts in groups that are computed together: of similar length, so that little is padded."""
    longest_first = sorted(dict.fromkeys(prompts), key=lambda prompt: -prompt.length)
    for start in range(0, len(longest_first), group_size):
        yield longest_first[start : start + group_size]


def one_by_one(network: Network, prompt: Prefix, token_count: int) -> GreedyText:
    """A prompt's text from a network of its own, one row a pass."""
    text = GreedyText(prompt)
    answer = greedy_tokens(network, prompt, token_count, (), text.rows.append)
    return GreedyText(prompt, answer, text.rows)


Compute = Callable[[Sequence[Prefix], int, Report], list[GreedyText]]
"""Computes the texts of some prompts; its callback receives the tokens done of each."""


def own_texts(
    store: TextStore,
    compute: Compute,
    prompts: Sequence[Prefix],
    token_count: int,
    report: Report = lambda count: None,
) -> list[GreedyText]:
    """The own text of each prompt: stored ones, and the others computed in groups and stored.

    A stored text that is too short is continued.

    Args:
        store: the model's texts.
        compute: computes what is missing.
        prompts: the prompts.
        token_count: length of each text.
        report: progress callback, called with the number of finished tokens over all prompts.
    """
    count = 0
    prompts_by_length: dict[int, list[Prefix]] = {}
    for prompt in dict.fromkeys(prompts):
        length = min(token_count, store.length(prompt))
        count += length
        if length < token_count:
            prompts_by_length.setdefault(length, []).append(prompt)
    report(count)
    for length, batch in sorted(prompts_by_length.items()):
        for group in groups(batch):
            store.put(_continue(store, compute, group, length, token_count, shift(report, count, len(group))))
            count += len(group) * (token_count - length)
    return [text for prompt in prompts if (text := store.get(prompt, token_count)) is not None]


def _continue(
    store: TextStore,
    compute: Compute,
    prompts: Sequence[Prefix],
    length: int,
    token_count: int,
    report: Report,
) -> list[GreedyText]:
    """Texts of prompts of which the first `length` tokens are stored."""
    texts = [store.get(prompt, length) or GreedyText(prompt) for prompt in prompts]
    tails = compute([text.prompt.extend(text.tokens) for text in texts], token_count - length, report)
    return [
        GreedyText(head.prompt, head.tokens + tail.tokens, head.rows + tail.rows)
        for head, tail in zip(texts, tails, strict=True)
    ]


def shift(report: Report, tokens_before: int, text_count: int) -> Report:
    """Progress of a group of texts, as that of all: `tokens_before` before, so many side by side."""
    return lambda tokens_each: report(tokens_before + tokens_each * text_count)
