"""Numbers in committed files: ten significant digits, and compared by value.

The last digits of a sum depend on the processor (its BLAS kernel, its vectors): no committed file has them.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TOLERANCE = 2e-9
"""Relative difference up to which two numbers of ten digits may be the same one, rounded up and down."""


def in_ten_digits(value: Any) -> Any:
    """Plain data whose floats have ten significant digits; all else, integers included, is as before."""
    if isinstance(value, float):
        return float(f"{value:.10g}") + 0.0  # no -0.0
    if isinstance(value, Mapping):
        return {name: in_ten_digits(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([in_ten_digits(inner) for inner in value])
    return value


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """CSV whose floats have ten significant digits."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([in_ten_digits(value) for value in line] for line in lines)
    return out.getvalue()


def csv_of(header: Sequence[str], lines: Iterable[Mapping[str, object]]) -> str:
    """CSV of lines by column, whose floats have ten significant digits; what a line lacks is empty."""
    return csv_text([header, *([line.get(name, "") for name in header] for line in lines)])


def json_text(value: object, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON whose floats have ten significant digits.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(in_ten_digits(value), indent=indent, sort_keys=sort_keys, allow_nan=False)


def same_number(value: float, other_value: float) -> bool:
    """Whether two floats are equal within `TOLERANCE`."""
    return math.isclose(value, other_value, rel_tol=TOLERANCE, abs_tol=1e-15)
