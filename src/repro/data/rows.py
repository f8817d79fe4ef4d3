"""The rows of a dataset that a run uses, and the digest that names them.

Owns the selection of rows and the check for their columns. Must not know tokenizers or models.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from repro.core.errors import InputError
from repro.data.config import DatasetConfig
from repro.data.sources import JsonRow, data_folder, read
from repro.records.record import content_hash


@dataclass(frozen=True)
class Rows:
    """Rows in use.

    Attributes:
        rows: the first ones that count, in the order of their source, with the needed columns only, and texts
            that are cut where `max_words` says so.
        digest: SHA-256 over these rows, the worked examples and the dataset's version; the same from
            whichever source they came.
        source: where they came from, in words.
        shots: the worked examples to choose from.
    """

    rows: tuple[JsonRow, ...]
    digest: str
    source: str
    shots: tuple[JsonRow, ...] = ()


def load_rows(config: DatasetConfig, limit: int | None = None, data_dir: Path | str | None = None) -> Rows:
    """The first `limit` rows of a dataset; fewer if it has fewer, all if there is no limit.

    Args:
        config: the dataset.
        limit: how many rows to use at most.
        data_dir: a local folder of `.jsonl` files; without one the variable REPRO_DATA names it.

    Raises:
        InputError: no source has the dataset, no row counts, a row lacks a needed column, `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise InputError(
            f"dataset {config.name!r}: limit is {limit}; it must be at least 1, or null for all rows"
        )
    folder = data_folder(data_dir)
    rows, source = read(config, lambda found: _select(config, found, limit), folder)
    if not rows:
        raise InputError(f"dataset {config.name!r} from {source}: no row counts{_conditions(config)}")
    shots: list[JsonRow] = []
    if config.shots is not None and config.shots.count:
        shots, _ = read(
            config.shots, lambda found: [_cut(config, _project(config, row)) for row in found], folder
        )
    return Rows(tuple(rows), digest(config, rows, shots), source, tuple(shots))


def digest(config: DatasetConfig, rows: Iterable[JsonRow], shots: Iterable[JsonRow] = ()) -> str:
    """SHA-256, in hexadecimal, over the canonical JSON of the rows and the dataset's version."""
    return content_hash({"version": config.version, "rows": list(rows), "shots": list(shots)})


def _select(config: DatasetConfig, found: Iterable[JsonRow], limit: int | None) -> list[JsonRow]:
    projected = (_project(config, row) for row in found)
    counting = (_cut(config, row) for row in projected if _counts(config, row))
    return list(itertools.islice(counting, limit))


def _project(config: DatasetConfig, row: JsonRow) -> JsonRow:
    if missing := [column for column in config.columns if column not in row]:
        raise InputError(
            f"dataset {config.name!r} needs the column {', '.join(missing)}; its rows have {', '.join(row)}"
        )
    return {column: row[column] for column in config.columns}


def _counts(config: DatasetConfig, row: JsonRow) -> bool:
    wanted = all(str(row[column]) == value for column, value in config.where.items())
    return wanted and all(len(str(row[column]).split()) >= n for column, n in config.min_words.items())


def _cut(config: DatasetConfig, row: JsonRow) -> JsonRow:
    return {**row, **{column: _first_words(config, row, column) for column in config.max_words}}


def _first_words(config: DatasetConfig, row: JsonRow, column: str) -> str:
    """A column's text up to the end of the last word that stays, blanks between the words as they were."""
    text, most = row[column], config.max_words[column]
    if not isinstance(text, str):
        raise InputError(
            f"dataset {config.name!r}: max_words.{column} cuts texts; a row has a {type(text).__name__} there"
        )
    words = list(itertools.islice(re.finditer(r"\S+", text), most))
    return text[: words[-1].end()] if len(words) == most else text


def _conditions(config: DatasetConfig) -> str:
    conditions = [f"{column} = {value!r}" for column, value in config.where.items()]
    conditions += [f"{column} has at least {n} words" for column, n in config.min_words.items()]
    return f" (where {' and '.join(conditions)})" if conditions else ""
