"""The specification of the fit of classes: `conf/fit/classes/phones.yaml`.

Owns what may vary, within which bounds and around what. Must not know rows or chips.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.core.typed import typed


@dataclass(frozen=True)
class ClassNumber:
    """How one number of a class may vary.

    Attributes:
        name: its name.
        first: centre of the prior of a processor's number, and where searches begin.
        between: lower and upper bound.
        widths: standard deviations, in units of the natural logarithm: of a processor's number around
            `first`, of a class's around its processor's, of a chip's around its class's; 0 if a chip has
            none.
    """

    name: str
    first: float
    between: tuple[float, ...]
    widths: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.between) != 2 or not 0 < self.between[0] < self.between[1]:
            raise InputError(f"{self.name}: between is {list(self.between)}; it must be two rising numbers")
        if len(self.widths) != 3 or min(self.widths) < 0 or not all(self.widths[:2]):
            raise InputError(
                f"{self.name}: widths is {list(self.widths)}; it must be two numbers above 0 and a "
                "third that is at least 0"
            )


@dataclass(frozen=True)
class ClassSpecification:
    """What the classes are fitted by.

    Attributes:
        rows: files of `conf/reference/` with the measurements.
        numbers: what a class has: `start`, `start_exponent`, `token`, `bandwidth_share`, `rate` and
            `single_rate`.
        arithmetic: width of the factor on both rates in another arithmetic than int8.
        formats: widths of a format's factors on the rates: of a processor's, of a class's around it.
        builds: width of an older build's rates around its class's.
        added: processors that compute and move bytes one after the other.
        shapes: row counts that a class computes.
        unsupported: formats for which a class has no kernel.
        instead: the class that computes them.
        noise: of a measurement, in units of the natural logarithm.
        above_floor: why passes of a class may be far slower than bytes and operations need.
    """

    rows: tuple[str, ...]
    numbers: tuple[ClassNumber, ...]
    arithmetic: float
    formats: tuple[float, ...]
    builds: float
    added: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    unsupported: dict[str, tuple[str, ...]]
    instead: str
    noise: float
    above_floor: dict[str, str]


@cache
def class_specification() -> ClassSpecification:
    """The committed specification.

    Raises:
        InputError: it is malformed.
    """
    path = conf_dir() / "fit" / "classes" / "phones.yaml"
    return typed(ClassSpecification, read_mapping(path), "conf/fit/classes/phones.yaml")
