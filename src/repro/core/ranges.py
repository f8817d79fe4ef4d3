"""Ranges of numbers that a user sets, and the sentence about a number outside. Must not know any setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite

from repro.core.errors import InputError


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have; no range has NaN or an infinity.

    Attributes:
        least: smallest value; itself allowed unless `above`.
        above: whether the value must be larger than `least`.
        most: largest value.
        whole: whether it must be a whole number.
    """

    least: float = 0.0
    above: bool = False
    most: float = inf
    whole: bool = False

    @property
    def words(self) -> str:
        """What a value must be, such as "a whole number of at least 1"."""
        noun = "a whole number" if self.whole else "a number"
        least, most = _short(self.least), _short(self.most)
        if self.above:
            return f"{noun} above {least}" + (f" and at most {most}" if self.most < inf else "")
        return f"{noun} from {least} to {most}" if self.most < inf else f"{noun} of at least {least}"

    def over(self, scale: float) -> Range:
        """The same range in another unit, of which one is `scale` of this one's."""
        return replace(self, least=self.least / scale, most=self.most / scale)

    def wrong(self, value: object) -> str:
        """What a value must be, if it is not; "" for a value in range."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self.words
        if not isfinite(value):
            return f"{self.words}, and finite"
        fits = self.least <= value <= self.most and not (self.above and value == self.least)
        return "" if fits and (not self.whole or value == int(value)) else self.words

    def require(self, place: str, value: object) -> None:
        """InputError unless a value is in range; `place` is the setting's name."""
        if wrong := self.wrong(value):
            raise InputError(f"{place} is {value!r}; it must be {wrong}")


SHARE = Range(most=1.0)
COUNT = Range(least=1, whole=True)


def require(where: str, settings: object, ranges: Mapping[str, Range]) -> None:
    """InputError for the first attribute of `settings` that is out of its range; None is in every range.

    Args:
        where: name of the settings; a message says `where.attribute`.
        settings: an object with the attributes in `ranges`.
        ranges: the range of each attribute.
    """
    for name, allowed in ranges.items():
        value = getattr(settings, name)
        if value is not None:
            allowed.require(f"{where}.{name}", value)


def require_each(place: str, values: Iterable[object], allowed: Range) -> None:
    """InputError for the first of several values that is out of range."""
    for number, value in enumerate(values):
        allowed.require(f"{place}.{number}", value)


def _short(number: float) -> str:
    return str(int(number)) if isfinite(number) and number == int(number) and number < 1e15 else f"{number:g}"
