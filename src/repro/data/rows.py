"""The examples of a dataset that a run uses, and their digest.

Owns the selection of examples and the check of their columns. Must not know tokenizers or models.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from repro.core.errors import InputError
from repro.data.config import DatasetConfig
from repro.data.sources import JsonRow, data_folder, files, read
from repro.data.template import at
from repro.records.build_cache import cache_root
from repro.records.record import content_hash


@dataclass(frozen=True)
class Rows:
    """The examples in use.

    Attributes:
        rows: the selected examples in the order of use: required columns only, truncated by `max_words`.
        digest: SHA-256 over the examples, the few-shot pool and the dataset's version; independent of the
            source.
        source: a description of the source.
        shots: the pool of few-shot examples.
    """

    rows: tuple[JsonRow, ...]
    digest: str
    source: str
    shots: tuple[JsonRow, ...] = ()


def load_rows(config: DatasetConfig, limit: int | None = None, data_dir: Path | str | None = None) -> Rows:
    """The first `limit` examples of a dataset; fewer if it has fewer, all if there is no limit.

    They are read once a process, as long as the files that they may come from stay as they are.

    Args:
        config: the dataset.
        limit: maximum number of examples.
        data_dir: a local folder of `.jsonl` files; defaults to $REPRO_DATA.

    Raises:
        InputError: no source has the dataset, no example meets the conditions, one lacks a required column,
            or `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise InputError(
            f"dataset {config.name!r}: limit is {limit}; it must be at least 1, or null for all rows"
        )
    folder = data_folder(data_dir)
    shots = () if config.shots is None else files(config.shots, folder)
    key = repr(config), limit, folder, files(config, folder), shots, cache_root()
    if key not in _rows_by_selection:
        if len(_rows_by_selection) >= MOST_SELECTIONS:
            _rows_by_selection.clear()
        _rows_by_selection[key] = _load(config, limit, folder)
    return _rows_by_selection[key]


MOST_SELECTIONS = 64
"""Selections of examples that a process keeps."""

_rows_by_selection: dict[tuple[object, ...], Rows] = {}
"""The examples that this process has read, by what was asked of which files."""


def _load(config: DatasetConfig, limit: int | None, folder: Path | None) -> Rows:
    rows, source = read(config, lambda examples: _select(config, examples, limit), folder)
    if not rows:
        raise InputError(f"dataset {config.name!r} from {source}: no row counts{_conditions(config)}")
    shots: list[JsonRow] = []
    if config.shots is not None and config.shots.count:
        shots, _ = read(
            config.shots, lambda examples: [_cut(config, _project(config, row)) for row in examples], folder
        )
    return Rows(tuple(rows), digest(config, rows, shots), source, tuple(shots))


def rows_in_use(config: DatasetConfig, skip: int, count: int, data_dir: Path | str | None = None) -> Rows:
    """`count` examples of a dataset after the first `skip`.

    Raises:
        InputError: as `load_rows`, or there are fewer.
    """
    rows = load_rows(config, skip + count, data_dir)
    row_count = len(rows.rows)
    if row_count < skip + count:
        skipped = f" after skip={skip}" if skip else ""
        advice = (
            f"choose prompts={row_count - skip} or fewer"
            if row_count > skip
            else f"skip fewer than {row_count}"
        )
        raise InputError(
            f"prompts is {count}{skipped}, but dataset {config.name!r} has {row_count} rows; {advice}"
        )
    return rows_after(config, rows, skip)


def rows_after(config: DatasetConfig, rows: Rows, skip: int) -> Rows:
    """The examples after the first `skip`, with a digest of their own."""
    if not skip:
        return rows
    later_rows = rows.rows[skip:]
    return replace(rows, rows=later_rows, digest=digest(config, later_rows, rows.shots))


def digest(config: DatasetConfig, rows: Iterable[JsonRow], shots: Iterable[JsonRow] = ()) -> str:
    """SHA-256 in hexadecimal of the examples, the few-shot pool and the dataset's version."""
    return content_hash({"version": config.version, "rows": list(rows), "shots": list(shots)})


def _select(config: DatasetConfig, examples: Iterable[JsonRow], limit: int | None) -> list[JsonRow]:
    projected_rows = (_project(config, row) for row in examples)
    matching_rows = (_cut(config, row) for row in projected_rows if _meets_conditions(config, row))
    return list(itertools.islice(_spread(config, matching_rows), limit))


def _spread(config: DatasetConfig, rows: Iterable[JsonRow]) -> Iterable[JsonRow]:
    """The examples in the order in which a run takes them."""
    if config.spread is None:
        return rows
    groups: dict[str, list[JsonRow]] = {}
    for row in rows:
        groups.setdefault(str(row[config.spread]), []).append(row)
    turns = itertools.zip_longest(*groups.values())
    return (row for turn in turns for row in turn if row is not None)


def _project(config: DatasetConfig, row: JsonRow) -> JsonRow:
    if missing := [column for column in config.columns if column not in row]:
        raise InputError(
            f"dataset {config.name!r} needs the column {', '.join(missing)}; its rows have {', '.join(row)}"
        )
    return {column: row[column] for column in config.columns}


def _meets_conditions(config: DatasetConfig, row: JsonRow) -> bool:
    has_values = all(
        row[column] is not None and str(row[column]) == value for column, value in config.where.items()
    )
    return has_values and all(_words(at(row, path)) >= n for path, n in config.min_words.items())


def _words(value: object) -> int:
    """The number of words in a text, or in all texts of a list; null has none."""
    if isinstance(value, list | tuple):
        return sum(map(_words, value))
    return 0 if value is None else len(str(value).split())


def _cut(config: DatasetConfig, row: JsonRow) -> JsonRow:
    return {**row, **{column: _first_words(config, row, column) for column in config.max_words}}


def _first_words(config: DatasetConfig, row: JsonRow, column: str) -> str:
    """A column's text truncated after `max_words` words; whitespace between words is unchanged."""
    text, most_words = row[column], config.max_words[column]
    if not isinstance(text, str):
        raise InputError(
            f"dataset {config.name!r}: max_words.{column} cuts texts; a row has a {type(text).__name__} there"
        )
    words = list(itertools.islice(re.finditer(r"\S+", text), most_words))
    return text[: words[-1].end()] if len(words) == most_words else text


def _conditions(config: DatasetConfig) -> str:
    conditions = [f"{column} = {value!r}" for column, value in config.where.items()]
    conditions += [f"{path} has at least {n} words" for path, n in config.min_words.items()]
    return f" (where {' and '.join(conditions)})" if conditions else ""
