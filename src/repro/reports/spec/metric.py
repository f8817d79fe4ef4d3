"""Metrics: what a record's value means, its unit, digits and direction, from `conf/metric/`.

Owns the reading of these files. Must not know records, tables or columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from repro.core.errors import InputError
from repro.core.paths import conf_entries
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from repro.core.typed import typed

PREFIX_FACTORS = {"u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
"""What the first letter of a scaled unit multiplies."""


@dataclass(frozen=True)
class MetricSpec:
    """A value of records, or a ratio of two, and how it is shown.

    Attributes:
        name: its name in columns; for a single value usually that of the value. An entry of `conf/metric/`
            whose name ends in `*` stands for all values that begin so.
        group: the file's name: `latency`, `memory`, ...
        heading: display name.
        definition: what it is, in one line.
        value: the record's value; None for a ratio.
        total: the ratio's numerator, summed over records.
        per: its denominator.
        scale: what the record's number is multiplied by.
        unit: of the number after scaling.
        digits: decimals.
        better: the better direction, "" if there is none.
        timed: false for values that need neither clock nor costs (accuracy, acceptance).
        sampled: false for values that are no statistic over prompts, rows or requests: what is settled before
            the first of them, and peaks.
        signed: true for a time, an amount or a count that may be negative, such as a difference; a record
            with another negative one is refused (`records/record.py`).
        published: what `conf/reference/cells.csv` calls it, in its column `metric`; default its own name.
    """

    name: str
    group: str
    heading: str
    definition: str
    value: str | None = None
    total: str | None = None
    per: str | None = None
    scale: float = 1.0
    unit: str = ""
    digits: int = 2
    better: Literal["higher", "lower", ""] = ""
    timed: bool = True
    sampled: bool = True
    signed: bool = False
    published: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.total is None) != (self.per is None) or (self.value is not None and self.total is not None):
            raise InputError(f"metric {self.name!r} needs either `value`, or `total` and `per`")

    @property
    def stored_unit(self) -> str:
        """The unit of the number as a record has it, before scaling: bytes for GB; "" if it has none."""
        if abs(self.scale) == 1:
            return self.unit
        if self.unit == "%" and self.scale == 100:
            return "share"
        prefix = PREFIX_FACTORS.get(self.unit[:1], 0.0)
        return self.unit[1:] if math.isclose(prefix * self.scale, 1) else f"{self.unit} / {self.scale:g}"


class MetricSpecs(Mapping[str, MetricSpec]):
    """All metrics by name; names that fit an entry with `*` are found too, but not listed."""

    def __init__(self, entries: Mapping[str, MetricSpec]) -> None:
        """MetricSpecs by name."""
        self._entries = entries

    def __getitem__(self, name: str) -> MetricSpec:
        if name in self._entries:
            return self._entries[name]
        for pattern, metric in self._entries.items():
            stem = pattern.removesuffix("*")
            if pattern != stem and name.startswith(stem) and name != stem:
                suffix = name.removeprefix(stem)
                heading, definition = (
                    text.replace("*", suffix) for text in (metric.heading, metric.definition)
                )
                return replace(metric, name=name, value=name, heading=heading, definition=definition)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> MetricSpec:
        """The metric with that name.

        Raises:
            InputError: there is none; the message has near misses and all names.
        """
        if name not in self:
            raise InputError(unknown("metric", name, self))
        return self[name]

    def of_value(self, name: str) -> MetricSpec | None:
        """The metric that shows this value of a record as it is; None for a value that nothing describes."""
        metric = self.get(name)
        return metric if metric and metric.value == name else None


def load_metrics(folders: Sequence[Path] | None = None) -> MetricSpecs:
    """The metrics of all `metric/*.yaml` below these `conf/` folders; default `conf_folders()`.

    Raises:
        InputError: a file of the project is malformed, or two files define the same metric.
    """
    return MetricSpecs(conf_entries("metric/*.yaml", _read, "metric", folders))


def _read(path: Path) -> dict[str, MetricSpec]:
    return {name: _metric(path, name, fields) for name, fields in read_mapping(path).items()}


def _metric(path: Path, name: str, fields: Any) -> MetricSpec:
    where = f"{path.name}, metric {name!r}"
    if not isinstance(fields, dict):
        raise InputError(f"{where}: {fields!r} must be a mapping with heading and definition")
    settings = {"name": name, "group": path.stem, **fields}
    if "value" not in settings and "total" not in settings:
        settings["value"] = name
    settings.setdefault("published", [name])
    return typed(MetricSpec, settings, where)
