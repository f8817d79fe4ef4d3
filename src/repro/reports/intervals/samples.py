"""Resampled figures of stored records: what a table's arithmetic needs to give intervals.

Owns which draws belong to a record. Must not know tables. The lines of a record are read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol

from repro.libraries import Array
from repro.records.record import Record
from repro.reports.intervals.bootstrap import Totals, resample
from repro.reports.intervals.rounds import totals

COUNT_NAMES = {"prompts": "prompts", "rows": "dataset rows", "requests": "requests"}
"""Values that count what a cell was asked, with their names."""

CACHED_DRAWS = 64
"""Drawn figures that are kept, of 80 kB each: those of a row of a table."""


class LineSource(Protocol):
    """Where lines of detail are stored: `records.results.Results`."""

    def rounds(self, key: str) -> list[dict[str, float | int | str | None]]:
        """The rounds, examples or requests of a cell."""

    def answers(self, key: str) -> list[dict[str, float | int | str | None]]:
        """The answers of a cell."""


CACHED_CELLS = 400
"""Cells whose lines are held at once: those of the largest table."""


class Samples:
    """The totals of records by prompt, and their resampled figures.

    `rounds` has the rounds, examples or requests of a cell by its key, `answers` what it answered.
    """

    def __init__(self, line_source: LineSource) -> None:
        self.rounds = lru_cache(CACHED_CELLS)(line_source.rounds)
        self.answers = lru_cache(CACHED_CELLS)(line_source.answers)
        self._totals: dict[str, dict[str, Totals]] = {}
        self._cached_draw = lru_cache(CACHED_DRAWS)(self._draw)
        self._examples = cache(self._count_examples)

    def totals(self, record: Record) -> dict[str, Totals]:
        """The totals of a record's figures by prompt."""
        if not record.done:
            return {}
        if record.key not in self._totals:
            self._totals[record.key] = totals(record, self.rounds(record.key), self.answers(record.key))
        return self._totals[record.key]

    def examples(self, record: Record) -> int:
        """Different examples that the record's answers are to; 0 if its lines do not name them."""
        return self._examples(record.key)

    def _count_examples(self, key: str) -> int:
        return len({line.get("row_hash") for line in self.answers(key)} - {None})

    def figure_draws(self, record: Record, name: str, prompts: Collection[str]) -> Array | None:
        """A figure of a record over each draw of some prompts; `None` if its lines do not give one.

        Nobody changes it: several columns have ratios of the same figure.
        """
        if name not in self.totals(record):
            return None
        return self._cached_draw(record.key, name, _source(record), frozenset(prompts))

    def _draw(self, key: str, name: str, dataset: str, prompts: frozenset[str]) -> Array | None:
        return resample(self._totals[key][name], dataset, prompts)

    def together(self, records: Iterable[Record]) -> JointSamples:
        """The records' figures, resampled over all their prompts at once."""
        prompts: dict[str, set[str]] = defaultdict(set)
        for record in records:
            for by_prompt in self.totals(record).values():
                prompts[_source(record)].update(by_prompt)
        return JointSamples(self, prompts)


@dataclass(frozen=True)
class JointSamples:
    """Resampled figures of several records: a prompt that several of them answered is drawn for all of them.

    Attributes:
        samples: has the records' totals.
        prompts: of all records, by source.
    """

    samples: Samples
    prompts: Mapping[str, Collection[str]]

    def figure_draws(self, record: Record, name: str) -> Array | None:
        """A figure of the record over each draw of all prompts; `None` if its lines do not give one."""
        return self.samples.figure_draws(record, name, self.prompts.get(_source(record), ()))


def _source(record: Record) -> str:
    """What a record's prompts are from: the digest of its dataset; requests name their applications."""
    return str(record.provenance.inputs.get("dataset", ""))


def distinct(records: Sequence[Record], samples: Samples | None = None) -> int | None:
    """Distinct texts, rows or requests behind records; `None` if they computed none.

    Records of the same rows and the same target read the same text, which counts once; so do equal examples
    of a record whose `samples` name them.
    """
    largest_counts: dict[tuple[str, str], int] = {}
    for record in records:
        counts = [value for name in COUNT_NAMES if isinstance(value := record.values.get(name), int)]
        if record.done and counts and record.provenance.weights != "none":
            inputs = record.provenance.inputs
            stream = (str(inputs.get("dataset")), str(inputs.get("target")))
            count = (samples.examples(record) if samples else 0) or max(counts)
            largest_counts[stream] = max(largest_counts.get(stream, 0), count)
    return sum(largest_counts.values()) or None
