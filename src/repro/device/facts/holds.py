"""Where a processor's numbers hold: the rows and the sizes of layers at which they were measured or fitted.

Part of what explains numbers: no cost and no key depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from repro.core.errors import InputError

HOLDS_KEY = "holds"
"""The entry of a processor: `holds: {rows: [1, 512], layer_mb: [3, 130]}`."""

MEASURED = "measured"
"""What says on how many measured values a class's numbers rest on a chip: `{decode: 12, prefill: 12}`."""

UNITS = {"rows": "rows", "layer_mb": "MB a layer"}
"""Ranges that may be said, with their units."""

COUNTS_KEY = "counts"
"""The entry of `holds` that lists the numbers of rows that were measured."""

FAR_APART = 4
"""Ratio of two counts of rows above which the time of a pass between them is not known from theirs."""

UNMEASURED = "rows were not measured: the nearest counts that were are"
"""What is said of rows in a gap, by which a reader tells it from a range that was left."""


def require_holds(path: str, holds: Any) -> None:
    """InputError for a range that is malformed."""
    if not isinstance(holds, Mapping):
        raise InputError(f"{path} is {holds!r}; it must be a mapping of {', '.join(UNITS)}")
    for name, ends in holds.items():
        if name == "note" and isinstance(ends, str):
            continue
        if name == MEASURED and isinstance(ends, Mapping) and all(isinstance(n, int) for n in ends.values()):
            continue
        if name == COUNTS_KEY:
            _require_counts(f"{path}.{name}", ends)
            continue
        are_numbers = isinstance(ends, Sequence) and all(isinstance(end, int | float) for end in ends)
        if name not in UNITS or not are_numbers or len(ends) != 2 or not 0 < ends[0] <= ends[1]:
            raise InputError(
                f"{path}.{name} is {ends!r}; it must be [least, most] of {' or '.join(UNITS)}, or a note"
            )


def _require_counts(path: str, counts: Any) -> None:
    is_list = isinstance(counts, Sequence) and all(isinstance(count, int) and count > 0 for count in counts)
    if not is_list or any(a >= b for a, b in pairwise(counts)):
        raise InputError(f"{path} is {counts!r}; it must be a rising list of rows, as [1, 16, 512]")


def gaps(holds: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Neighbouring counts of rows that were measured and are far apart, from the fewest rows on."""
    return [(low, high) for low, high in pairwise(holds.get(COUNTS_KEY, ())) if high > FAR_APART * low]


def outside(holds: Mapping[str, Any], values: Mapping[str, Sequence[float]]) -> list[str]:
    """What leaves the ranges or lies in a gap: the values' ends, with the range or the counts around.

    Args:
        holds: ranges.
        values: by the name of a range.
    """
    sentences = []
    for name, unit in UNITS.items():
        if name in holds and values.get(name):
            (least, most), low, high = holds[name], min(values[name]), max(values[name])
            if low < least or high > most:
                sentences.append(f"{_ends(values[name])} {unit} (numbers hold for {least:g} to {most:g})")
    for fewer, more in gaps(holds):
        if inner := [rows for rows in values.get("rows", ()) if fewer < rows < more]:
            sentences.append(f"{_ends(inner)} {UNMEASURED} {fewer} and {more}")
    return sentences


def _ends(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
