"""Writes a table's short columns out: what their metric says, one for each value of a label, comparisons.

Owns the fields of a short column. Must not know rows or published values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.reports.spec.metric import MetricSpec, MetricSpecs
from repro.reports.spec.units import factor

Labels = Mapping[str, Annotated[str, BeforeValidator(str)]]
"""Texts by label; a file may write them as numbers."""

VERSUS = "vs"
WORDS = {"over": "ratio", "less": "difference", "below": "reduction", VERSUS: "ratio"}
"""What the words of a pair mean, as in `edgellm over sp`: the column's `compare`.

`vs` is the ratio that is above 1 if the first is better.
"""
PAIR = re.compile(rf"(.+?) ({'|'.join(WORDS)}) (.+)")
BETTER = {"higher": "lower", "lower": "higher", "": ""}


@dataclass(frozen=True)
class ShortColumn:
    """An entry of `columns:`, which becomes one column or several.

    Attributes:
        metric: what is shown (`conf/metric/`).
        key: the column's name; `{}` stands for the value of `each`. Default: that value, or the metric.
        heading: display name; `{}` stands for the display name of the value of `each`.
        each: a label; there is one column for each of its values.
        of: the values of that label, in this order: a list, or a mapping from keys. Default: the grid's.
        pairs: comparisons of two values of `each` by key, such as `{gain: edgellm less draft}`.
        paper: fields of the published cells to compare with; false for none.
        reference: ids of published cells by row, or one id for all rows; then nothing is looked up.
        unit: another unit for the metric.

    The other fields are those of a column; they go before what the metric says.
    """

    metric: str = ""
    key: str = ""
    heading: str = ""
    each: str = ""
    of: Any = None
    pairs: Labels = field(default_factory=dict)
    paper: Any = None
    unit: str | None = None
    digits: int | None = None
    scale: float | None = None
    better: str | None = None
    timed: bool | None = None
    compare: str | None = None
    relative_to: str | None = None
    against: Labels = field(default_factory=dict)
    over: Labels = field(default_factory=dict)
    where: Labels = field(default_factory=dict)
    aggregate: str | None = None
    tolerance: float | None = None
    absent: str = ""
    reference: Any = None


@dataclass(frozen=True)
class Column:
    """A column written out, with what its published values are found by.

    Attributes:
        spec: its fields.
        published: what papers call its metric; empty for a comparison.
        paper: see `ShortColumn`.
        reference: see `ShortColumn`.
        cost: whether less of its metric is better, so that a ratio is a speedup of its baseline.
    """

    spec: dict[str, Any]
    published: tuple[str, ...]
    paper: Any
    reference: Any
    cost: bool


Name = Callable[[str, str], str]
"""The display name of a label's value."""


def columns_of(
    given: Any,
    metric: Any,
    metrics: MetricSpecs,
    name: Name,
    known: Mapping[str, Sequence[str]],
    where: str,
) -> list[Column]:
    """The columns of a section.

    Args:
        given: its `columns:`: a list of entries, or a label, that is, a column for each of its values.
        metric: its `metric:`, for columns that name none.
        metrics: all metrics.
        name: display names.
        known: values of the labels that the grid determines.
        where: the table, for error messages.
    """
    if isinstance(given, str):
        given = [{"each": given}]
    if not isinstance(given, list):
        raise InputError(f"{where}, columns: {given!r} must be a list, or a label")
    found: list[Column] = []
    entries = [one for entry in given for one in (entry if isinstance(entry, list) else [entry])]
    for number, entry in enumerate(entries):
        place = f"{where}, columns.{number}"
        if isinstance(entry, str):
            entry = {"metric": entry}
        if isinstance(entry, Mapping) and ("value" in entry or "total" in entry):
            raise InputError(f"{place}: `value`, `total` and `per` stand in conf/metric/; name a `metric`")
        short = typed(
            ShortColumn, {"metric": metric or "", **entry} if isinstance(entry, Mapping) else entry, place
        )
        if not short.metric:
            raise InputError(f"{place} names no metric; choices: {', '.join(metrics)}")
        found += _Writer(short, metrics.find(short.metric), name, known, place).columns()
    return found


@dataclass(frozen=True)
class _Writer:
    short: ShortColumn
    metric: MetricSpec
    name: Name
    known: Mapping[str, Sequence[str]]
    place: str

    def columns(self) -> list[Column]:
        short = self.short
        if short.pairs:
            return [self._pair(key, pair) for key, pair in short.pairs.items()]
        if not short.each:
            return [self._column(short.key or self.metric.name, short.heading, {}, {}, short.compare)]
        return [
            self._column(
                (short.key or "{}").format(key),
                (short.heading or "{}").format(self.name(short.each, value)),
                {short.each: value},
                {},
                short.compare,
            )
            for key, value in self._each()
        ]

    def _each(self) -> list[tuple[str, str]]:
        """Key and value of each column."""
        of, each = self.short.of, self.short.each
        if isinstance(of, Mapping):
            return [(str(key), str(value)) for key, value in of.items()]
        if of is None and each not in self.known:
            raise InputError(
                f"{self.place}: the grid does not tell the values of {each!r}; list them in `of`"
            )
        return [(str(value), str(value)) for value in (self.known[each] if of is None else of)]

    def _pair(self, key: str, pair: str) -> Column:
        each = self.short.each
        found = PAIR.fullmatch(pair)
        if not each or found is None:
            raise InputError(
                f"{self.place}: {pair!r} must be two values of the label `each`, such as "
                "'a over b' (ratio), 'a vs b' (how many times better), 'a less b' (difference) or "
                "'a below b' (by how many percent)"
            )
        one, word, base = found.groups()
        for value in (one, base):
            if each in self.known and value not in self.known[each]:
                raise InputError(f"{self.place}: {unknown(each, value, self.known[each])}")
        text = f"{self.name(each, one)} {'over' if word == VERSUS else word} {self.name(each, base)}"
        heading = self.short.heading.format(text) if self.short.heading else text
        versus = word == VERSUS and self.metric.better == "lower"
        where, over = ({each: base}, {each: one}) if versus else ({each: one}, {each: base})
        column = self._column(key, heading, where, over, WORDS[word])
        if word == VERSUS and self.short.better is None:
            column.spec["better"] = "higher"
        return column

    def _column(
        self,
        key: str,
        heading: str,
        where: Mapping[str, str],
        over: Mapping[str, str],
        compare: str | None,
    ) -> Column:
        short, metric = self.short, self.metric
        compared = bool(over or short.over or short.against or short.relative_to)
        how = (compare or "ratio") if compared else None
        spec: dict[str, Any] = {
            "key": key,
            "heading": heading or metric.heading,
            **{n: v for n in ("value", "total", "per") if (v := getattr(metric, n)) is not None},
            **self._shown(how),
            "where": {**short.where, **where},
            "over": {**short.over, **over},
            "timed": metric.timed if short.timed is None else short.timed,
            "sampled": metric.sampled,
        }
        if how:
            spec["compare"] = how
        for name in ("relative_to", "against", "aggregate", "tolerance", "absent"):
            if value := getattr(short, name):
                spec[name] = value
        published = () if how else metric.published
        return Column(spec, published, short.paper, short.reference, metric.better == "lower")

    def _shown(self, compare: str | None) -> dict[str, Any]:
        """Unit, scale, digits and direction, of a comparison if it is one."""
        short, metric = self.short, self.metric
        scale, unit, digits = metric.scale, metric.unit, metric.digits
        better: str = metric.better
        if short.unit is not None and compare in (None, "difference"):
            times = factor(metric.unit, short.unit)
            if times is None and not (compare and short.unit == _difference(unit)):
                raise InputError(f"{self.place}: {metric.name} is in {metric.unit!r}, not in {short.unit!r}")
            scale, unit = scale * (times or 1.0), short.unit
        if compare in ("ratio", "reduction"):
            scale = 1.0
        if compare == "ratio":
            unit, digits = "x", 2
        elif compare == "difference":
            unit = _difference(unit)
        elif compare == "reduction":
            unit, digits, better = "%", 1, BETTER[better]
        return {
            "scale": scale * (1.0 if short.scale is None else short.scale),
            "unit": unit,
            "digits": digits if short.digits is None else short.digits,
            "better": better if short.better is None else short.better,
        }


def _difference(unit: str) -> str:
    return "percentage_point" if unit == "%" else unit
