"""Whether a text is a committed one: its floats may differ in their last digits."""

from __future__ import annotations

import re
from itertools import zip_longest

from repro.core.digits import same_number

FRACTION = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+(?:e[-+]\d+)?|e[-+]\d+))(?![\w.])")
"""A number as `repr` writes a float; integers and keys are none."""


def same_text(first: str, second: str) -> bool:
    """Whether two texts are equal, their floats by value."""
    parts = zip_longest(FRACTION.split(first), FRACTION.split(second))
    return all(
        a == b or (i % 2 == 1 and a is not None and b is not None and same_number(float(a), float(b)))
        for i, (a, b) in enumerate(parts)
    )
