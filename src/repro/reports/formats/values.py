"""Single values of records as text, by the metric that describes them.

Owns how many digits a value gets. `layout` owns the text of tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from repro.records.record import Scalar
from repro.reports.formats.layout import ABSENT, UNITS
from repro.reports.spec.metric import MetricSpec

SIGNIFICANT = 3
"""Digits that the smallest of the values keeps, also if its metric has fewer decimals."""

MOST = 6
"""Decimals that no value exceeds."""


def decimals(metric: MetricSpec, values: Iterable[Scalar]) -> int:
    """Decimals for these values of records: the metric's, or more if a small value would lose its digits."""
    numbers = [abs(value * metric.scale) for value in values if isinstance(value, (int, float)) and value]
    if not numbers or metric.digits == 0:
        return metric.digits
    leading = math.floor(math.log10(min(numbers)))
    return max(metric.digits, min(MOST, SIGNIFICANT - 1 - leading))


def value_words(metric: MetricSpec, value: Scalar) -> str:
    """A record's value in the metric's unit, without the unit; a string as it is."""
    if value is None or isinstance(value, str):
        return ABSENT if value is None else value
    shown = value * metric.scale + 0.0  # never -0.0
    places = decimals(metric, [value])
    return f"{shown:.{SIGNIFICANT}g}" if 0 < abs(shown) < 10**-places else f"{shown:.{places}f}"


def unit_words(metric: MetricSpec) -> str:
    """The metric's unit as it is printed; "" if it has none."""
    return UNITS.get(metric.unit, metric.unit)
