"""Writes a table's columns out: what their metric says, one for each value of a label, comparisons.

Must not know rows or published values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.reports.spec.metric import MetricSpec
from repro.reports.spec.section import ColumnSettings
from repro.reports.spec.spec import ColumnSpec
from repro.reports.spec.units import factor

VERSUS = "vs"
WORDS = {"over": "ratio", "less": "difference", "below": "reduction", VERSUS: "ratio"}
"""What the words of a pair mean, as in `edgellm over sp`: the column's `compare`.

`vs` is the ratio that is above 1 if the first is better.
"""
PAIR = re.compile(rf"(.+?) ({'|'.join(WORDS)}) (.+)")
BETTER = {"higher": "lower", "lower": "higher", "": ""}


class Column(NamedTuple):
    """A column written out, with the entry of `columns:` and the metric that it is from."""

    spec: ColumnSpec
    settings: ColumnSettings
    metric: MetricSpec


class KnownLabels(NamedTuple):
    """What is known of labels: values that the grid determines, and display names by label and value."""

    values: Mapping[str, Sequence[str]]
    name: Callable[[str, str], str]


def columns_of(
    settings: ColumnSettings, metric: MetricSpec, labels: KnownLabels, place: str
) -> Iterator[Column]:
    """The columns of an entry; `place` is the entry, for error messages.

    Raises:
        InputError: a pair or a unit is none, or the values of `each` are not known.
    """
    each = settings.each
    if settings.pairs:
        for key, pair in settings.pairs.items():
            yield _pair(key, pair, settings, metric, labels, place)
    elif not each:
        yield _column(settings.key or metric.name, settings.heading, settings, metric, place)
    else:
        for key, value in _values(settings, labels, place).items():
            heading = (settings.heading or "{}").format(labels.name(each, value))
            key = (settings.key or "{}").format(key)
            yield _column(key, heading, settings, metric, place, where={each: value})


def _values(settings: ColumnSettings, labels: KnownLabels, place: str) -> Mapping[str, str]:
    """The values of `each` by the key of their column."""
    each, of = settings.each, settings.of
    if isinstance(of, Mapping):
        return of
    if of is None and each not in labels.values:
        raise InputError(f"{place}: the grid does not tell the values of {each!r}; list them in `of`")
    return {value: value for value in (labels.values[each] if of is None else of)}


def _pair(
    key: str, pair: str, settings: ColumnSettings, metric: MetricSpec, labels: KnownLabels, place: str
) -> Column:
    each, parts = settings.each, PAIR.fullmatch(pair)
    if not each or parts is None:
        raise InputError(
            f"{place}: {pair!r} must be two values of the label `each`, such as 'a over b' (ratio), 'a vs b' "
            "(how many times better), 'a less b' (difference) or 'a below b' (by how many percent)"
        )
    first, word, base = parts.groups()
    for value in (first, base):
        if value not in labels.values.get(each, (value,)):
            raise InputError(f"{place}: {unknown(each, value, labels.values[each])}")
    text = f"{labels.name(each, first)} {'over' if word == VERSUS else word} {labels.name(each, base)}"
    heading = settings.heading.format(text) if settings.heading else text
    better = settings.better
    if word == VERSUS:
        better = "higher" if better is None else better
        if metric.better == "lower":
            first, base = base, first
    sides = {"where": {each: first}, "over": {each: base}}
    return _column(key, heading, settings, metric, place, **sides, compare=WORDS[word], better=better)


def _column(
    key: str, heading: str, settings: ColumnSettings, metric: MetricSpec, place: str, **changes: Any
) -> Column:
    """The column of a metric; `changes` go before the settings, and labels beside theirs."""
    where, over = ({**getattr(settings, side), **changes.get(side, {})} for side in ("where", "over"))
    compare = changes.get("compare", settings.compare)
    is_compared = bool(over or settings.relative_to)
    scale, unit, digits, better = _shown(settings, metric, compare or "ratio" if is_compared else "", place)
    wished = changes.get("better", settings.better)
    spec = ColumnSpec(
        key=key,
        heading=heading or metric.heading,
        value=metric.value,
        total=metric.total,
        per=metric.per,
        unit=unit,
        digits=digits if settings.digits is None else settings.digits,
        scale=scale * settings.scale,
        better=better if wished is None else wished,
        relative_to=settings.relative_to,
        over=over,
        compare=compare or "ratio",
        aggregate=settings.aggregate,
        where=where,
        tolerance=settings.tolerance,
        timed=metric.timed if settings.timed is None else settings.timed,
        sampled=metric.sampled,
        absent=settings.absent,
    )
    return Column(spec, settings, metric)


def _shown(
    settings: ColumnSettings, metric: MetricSpec, compare: str, place: str
) -> tuple[float, str, int, Any]:
    """Scale, unit, digits and direction of the metric, or of a comparison of two of its values."""
    if compare == "ratio":
        return 1.0, "x", 2, metric.better
    if compare == "reduction":
        return 1.0, "%", 1, BETTER[metric.better]
    scale, unit, wished = metric.scale, metric.unit, settings.unit
    difference = "percentage_point" if compare and unit == "%" else unit
    if wished is None or wished == difference:
        return scale, difference, metric.digits, metric.better
    times = factor(unit, wished)
    if times is None:
        raise InputError(f"{place}: {metric.name} is in {unit!r}, not in {wished!r}")
    wished = "percentage_point" if compare and wished == "%" else wished
    return scale * times, wished, metric.digits, metric.better
