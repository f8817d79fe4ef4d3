"""Owns reading MeetingBank as compressed by GPT-4 (LLMLingua-2), as marked texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro import data
from repro.core.errors import InputError
from repro.data.rows import Rows
from workshop.training.decision_heads.surprisal import Marked, matched

COLUMNS = ("prompt_list", "compressed_prompt_list")
"""A meeting's chunks and their compressed forms; `prompt` and `compressed_prompt` hold it whole."""


def read(source: str, rows: int, columns: Sequence[str] = COLUMNS) -> Rows:
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


def marked(row: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> list[Marked]:
    """A row's chunks, with the words marked that their compressed forms kept; a plain string is one chunk.

    Raises:
        InputError: the numbers of chunks and of compressed chunks differ.
    """
    whole, short = ([row[name]] if isinstance(row[name], str) else list(row[name]) for name in columns)
    if len(whole) != len(short):
        raise InputError(f"a row of MeetingBank has {len(whole)} chunks and {len(short)} compressed ones")
    return [matched(text, kept) for text, kept in zip(whole, short, strict=True)]
