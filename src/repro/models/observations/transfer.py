"""Observations between packs and the files of a machine: what a pack has is looked up as if computed here.

Owns which packs belong to a model, and what of a cache goes into a pack. Must not know datasets or methods.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.models.forward.logit_cache import LogitCache, parts_of, row_key
from repro.models.forward.side_by_side import GreedyText
from repro.models.observations.own_text import TextStore
from repro.models.observations.pack import (
    Facts,
    ObservedRow,
    Pack,
    checksum,
    digests,
    read,
    read_facts,
    source_of,
)
from repro.models.tokens.prefix import extend_digest
from repro.records.build_cache import cache_root, is_forgetting
from repro.records.row_file import RowFile

log = logging.getLogger(__name__)

TEXT_RANKS = 16
"""Ranks kept of a row on the own text."""

BRANCH_RANKS = 8
"""Ranks kept of a draft's row: those among which LEVER chooses. Of an early exit all scores are kept: how a
head goes on depends on where it began, so that more candidates than these are scored after one sequence."""

PACKS = "packs"
Ranked = tuple[Sequence[int], Sequence[float]]


def folders() -> list[Path]:
    """Where packs lie: those of the checkout, then imported ones."""
    return [project_root() / "assets" / "observations", cache_root() / "observations"]


def packs(model_id: str) -> Iterator[tuple[Path, Facts]]:
    """Packs of what a model computes. A damaged one is named in a warning and left out."""
    for folder in folders():
        for path in sorted(folder.glob("*.parquet")):
            file_stat = path.stat()
            facts = _facts(path, file_stat.st_mtime_ns, file_stat.st_size)
            if facts and facts.observed == model_id:
                yield path, facts


@cache
def _facts(path: Path, modified_ns: int, file_size: int) -> Facts | None:
    """A pack's facts, read once in a process while the file stays the same; None if it is damaged."""
    try:
        return read_facts(path)
    except InputError as error:
        log.warning("%s; until then its observations are computed", error)
        return None


def fill(memo: LogitCache, model_id: str) -> None:
    """Store the rows of all packs of a model in its cache; those stored before are skipped."""
    for facts, pack in _new(memo.file, model_id):
        rows = zip(digests(pack), pack.rows, strict=True)
        if facts.kind == "exit":
            memo.add_scores(
                (digest, dict(zip(row.tokens, row.scores, strict=True))) for (digest, _), row in rows
            )
        else:
            memo.put_first((row_key(*key_parts), row.tokens, row.scores) for key_parts, row in rows)


def fill_texts(store: TextStore, model_id: str) -> None:
    """Store the own texts of all packs of a model; those stored before are skipped."""
    for facts, pack in _new(store.file, model_id):
        if facts.kind != "text":
            continue
        rows = {prompt: list(group) for prompt, group in groupby(pack.rows, key=lambda row: row.prompt)}
        store.put_missing(
            (bytes.fromhex(digest), text, [(row.tokens, row.scores) for row in rows[i]])
            for i, ((digest, _), text) in enumerate(zip(facts.prompts, facts.texts, strict=True))
        )


def _new(file: RowFile, model_id: str) -> Iterator[tuple[Facts, Pack]]:
    """Packs of a model that a file has not taken in; each is noted after it was used."""
    if is_forgetting():
        return
    for path, facts in packs(model_id):
        file_sum = checksum(path)
        if file.get(PACKS, file_sum) is not None:
            continue
        try:
            pack = read(path)
        except InputError as error:
            log.warning("%s; until then its observations are computed", error)
            continue
        yield facts, pack
        file.put(PACKS, [(file_sum, b"")])


def text_pack(name: str, model_id: str, host: str, texts: Sequence[GreedyText]) -> Pack:
    """The pack of a model's own texts and the first ranks along them."""
    rows = [
        ObservedRow(prompt_number, position, -1, -1, 0, *row.top_ranks())
        for prompt_number, text in enumerate(texts)
        for position, row in enumerate(text.rows)
    ]
    return Pack(_facts_of(name, "text", model_id, TEXT_RANKS, host, texts), rows)


def branch_pack(
    name: str, kind: str, model_id: str, host: str, texts: Sequence[GreedyText], table: Mapping[bytes, Ranked]
) -> Pack:
    """The pack of what a cache knows along some texts and beside them.

    A row beside a text is reached by tokens that rows above it rank. Those may have another source: a head
    drafts on from a tree that it proposed before, when the target has verified more of it.

    Args:
        name: the pack's name.
        kind: see `Facts`.
        model_id: identity of the model whose rows these are.
        host: torch device that computed.
        texts: the target's own texts.
        table: all rows of the cache by key (`LogitCache.read_rows`).
    """
    most_ranks = max((len(tokens) for tokens, _ in table.values()), default=0)
    ranks = most_ranks if kind == "exit" else BRANCH_RANKS
    rows_of: dict[bytes, list[tuple[int, Ranked]]] = defaultdict(list)
    for key, ranked_row in table.items():
        digest, source_number = parts_of(key)
        rows_of[digest].append((source_number, ranked_row))
    rows: list[ObservedRow] = []
    for prompt_number, text in enumerate(texts):
        visited_digests: set[bytes] = set()
        for position, context in enumerate([*text.contexts(), text.prompt.extend(text.tokens)]):
            queue = [(context.digest, -1, -1)]
            for digest, parent, token in queue:
                if digest in visited_digests:
                    continue
                visited_digests.add(digest)
                for source_number, (tokens, scores) in sorted(rows_of.get(digest, ())):
                    source = source_of(kind, text.prompt.length, source_number)
                    first_ranks = tokens[:ranks], scores[:ranks]
                    rows.append(ObservedRow(prompt_number, position, parent, token, source, *first_ranks))
                    queue += [(extend_digest(digest, child), len(rows) - 1, child) for child in tokens]
    return Pack(_facts_of(name, kind, model_id, ranks, host, texts), rows)


def _facts_of(
    name: str, kind: str, model_id: str, ranks: int, host: str, texts: Sequence[GreedyText]
) -> Facts:
    prompts = tuple((text.prompt.digest.hex(), text.prompt.length) for text in texts)
    return Facts(name, kind, model_id, ranks, host, prompts, tuple(tuple(text.tokens) for text in texts))
