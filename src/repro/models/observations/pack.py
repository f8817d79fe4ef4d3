"""The file format of packs: what one checkpoint said after some prefixes, in a parquet file.

Owns how prefixes are written down without prompts: a prompt is its hash, a row is a place in the model's own
text after it, or a token after another row. Must not know caches or models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from repro.core.errors import InputError
from repro.core.reading import parse_json
from repro.libraries import np, pa, parquet
from repro.models.tokens.prefix import extend_digest
from repro.records.record import write_atomically

FORMAT_VERSION = 2
NOTES_KEY = b"repro"
"""Key of a pack's facts in the file's metadata."""

SUM_KEY = b"repro.sha256"
"""Key of the SHA-256 over a pack's facts and rows."""


@dataclass(frozen=True)
class Facts:
    """What a pack is about.

    Attributes:
        name: the pack's name, also of its file.
        kind: `text`, a target's rows along its own text; `draft`, a draft's rows along and beside it;
            `eagle` and `medusa`, the same of draft heads; `exit`, an early exit's scores of candidates.
        observed: identity of what was computed (`Model.outputs_key`): content, precision, version.
        ranks: kept ranks of a row.
        host: torch device that computed.
        prompts: hash (hexadecimal) and length in tokens of each prompt.
        texts: the target's own tokens after each prompt.
        format: version of the file format.
    """

    name: str
    kind: str
    observed: str
    ranks: int
    host: str
    prompts: tuple[tuple[str, int], ...]
    texts: tuple[tuple[int, ...], ...]
    format: int = FORMAT_VERSION


class ObservedRow(NamedTuple):
    """What was said after one prefix.

    Attributes:
        prompt: index of the prompt.
        at: tokens of the own text that the prefix starts with, after the prompt.
        parent: index of the row whose prefix this one continues by `token`; -1 for a place in the text.
        token: the last token; -1 for a place in the text.
        source: `eagle`: length of the text, without the prompt, when the head drafted; `medusa`: number of
            the head, from 1; otherwise 0.
        tokens: the first ranks' tokens, most likely first.
        scores: their log-probabilities, or an early exit's scores.
    """

    prompt: int
    at: int
    parent: int
    token: int
    source: int
    tokens: Sequence[int]
    scores: Sequence[float]


COLUMNS = {
    "prompt": "uint16",
    "at": "uint16",
    "parent": "int32",
    "token": "int32",
    "source": "uint16",
}
"""Columns of a row beside its ranks, with pyarrow's names of their types."""


@dataclass(frozen=True)
class Pack:
    """A pack in memory: its facts and rows, parents first."""

    facts: Facts
    rows: Sequence[ObservedRow]

    def write(self, folder: Path) -> Path:
        """Write `NAME.parquet` and return its path."""
        facts, ranks = self.facts, self.facts.ranks
        columns: dict[str, Any] = {
            name: pa.array([getattr(row, name) for row in self.rows], kind) for name, kind in COLUMNS.items()
        }
        tokens = np.full((len(self.rows), ranks), -1, np.int32)
        scores = np.zeros((len(self.rows), ranks), np.float32)
        for i, row in enumerate(self.rows):
            count = min(ranks, len(row.tokens))
            tokens[i, :count], scores[i, :count] = row.tokens[:count], row.scores[:count]
        columns |= {f"token{k}": tokens[:, k] for k in range(ranks)}
        columns |= {f"score{k}": scores[:, k] for k in range(ranks)}
        table, notes = pa.table(columns), json.dumps(asdict(facts)).encode()
        table = table.replace_schema_metadata({NOTES_KEY: notes, SUM_KEY: _sum(notes, table)})
        stream = pa.BufferOutputStream()
        parquet.write_table(
            table,
            stream,
            compression="zstd",
            compression_level=19,
            use_dictionary=False,
            column_encoding={
                **{name: "DELTA_BINARY_PACKED" for name in COLUMNS},
                **{f"token{k}": "BYTE_STREAM_SPLIT" for k in range(ranks)},
                **{f"score{k}": "BYTE_STREAM_SPLIT" for k in range(ranks)},
            },
        )
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{facts.name}.parquet"
        write_atomically(path, stream.getvalue().to_pybytes())
        return path


def read_facts(path: Path) -> Facts:
    """A pack's facts, without reading its rows; InputError as `read`."""
    try:
        notes = parse_json(parquet.read_schema(path).metadata[NOTES_KEY])
        if notes["format"] != FORMAT_VERSION:
            raise InputError(
                f"{path} has format {notes['format']}, this version reads {FORMAT_VERSION}; make it again"
            )
        entries = {field.name: notes[field.name] for field in fields(Facts)}
        entries["prompts"] = tuple((digest, length) for digest, length in entries["prompts"])
        entries["texts"] = tuple(map(tuple, entries["texts"]))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as wrong:
        raise _damage(path, wrong) from wrong
    return Facts(**entries)


def read(path: Path) -> Pack:
    """Read a pack.

    Raises:
        InputError: the file is missing, damaged, no pack, or of another format.
    """
    facts = read_facts(path)
    try:
        table = parquet.read_table(path)
        metadata = table.schema.metadata
        if metadata[SUM_KEY] != _sum(metadata[NOTES_KEY], table):
            raise ValueError("its checksum is not that of its content")
        columns = [table[name].to_pylist() for name in COLUMNS]
        tokens = np.stack([table[f"token{k}"].to_numpy() for k in range(facts.ranks)], 1)
        scores = np.stack([table[f"score{k}"].to_numpy() for k in range(facts.ranks)], 1)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise _damage(path, error) from error
    counts = (tokens >= 0).sum(1).tolist()
    ranks = zip(counts, tokens.tolist(), scores.tolist(), strict=True)
    rows = [
        ObservedRow(prompt_number, position, parent, token, source, ids[:rank_count], values[:rank_count])
        for prompt_number, position, parent, token, source, (rank_count, ids, values) in zip(
            *columns, ranks, strict=True
        )
    ]
    return Pack(facts, rows)


def digests(pack: Pack) -> Iterator[tuple[bytes, int]]:
    """Hash of each row's prefix, and the source by which a cache keys the row."""
    texts = [
        list(_along(bytes.fromhex(digest), text))
        for (digest, _), text in zip(pack.facts.prompts, pack.facts.texts, strict=True)
    ]
    prefix_digests: list[bytes] = []
    for row in pack.rows:
        if row.parent < 0:
            prefix_digests.append(texts[row.prompt][row.at])
        else:
            prefix_digests.append(extend_digest(prefix_digests[row.parent], row.token))
        yield prefix_digests[-1], number_of(pack.facts.kind, pack.facts.prompts[row.prompt][1], row.source)


def number_of(kind: str, prompt_length: int, source: int) -> int:
    """The source by which a cache keys a row, for a prompt of so many tokens.

    An EAGLE head has the target's features of all tokens of the text but the last.
    """
    return prompt_length + source - 1 if kind == "eagle" else source


def source_of(kind: str, prompt_length: int, source_number: int) -> int:
    """The source of a row that a cache keys by a number (`number_of`)."""
    return source_number + 1 - prompt_length if kind == "eagle" else source_number


def _along(digest: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
    """The hash of a prompt and of each of its continuations by `tokens`."""
    yield digest
    for token in tokens:
        digest = extend_digest(digest, token)
        yield digest


def checksum(path: Path) -> bytes:
    """SHA-256 of a pack's file."""
    return sha256(path.read_bytes()).digest()


def _sum(notes: bytes, table: pa.Table) -> bytes:
    """SHA-256 over the facts and the rows of a pack."""
    hasher = sha256(notes)
    for name in table.column_names:
        column = table[name].to_numpy()
        hasher.update(f"{name} {column.dtype.str}".encode())
        hasher.update(column.tobytes())
    return hasher.digest()


def _damage(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(
        f"{path} is no whole pack of observations ({reason}); restore it, or delete it and run "
        "python -m workshop.packs compute"
    )
