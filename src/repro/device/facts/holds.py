"""Where a processor's numbers hold: the rows and the sizes of layers at which they were measured or fitted.

Part of what explains numbers: no cost and no key depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.core.errors import InputError

HOLDS_KEY = "holds"
"""The entry of a processor: `holds: {rows: [1, 512], layer_mb: [3, 130]}`."""

MEASURED = "measured"
"""What says on how many measured values a class's numbers rest on a chip: `{decode: 12, prefill: 12}`."""

UNITS = {"rows": "rows", "layer_mb": "MB a layer"}
"""What may be said, with its unit."""


def require_holds(path: str, holds: Any) -> None:
    """InputError for a range that is malformed."""
    if not isinstance(holds, Mapping):
        raise InputError(f"{path} is {holds!r}; it must be a mapping of {', '.join(UNITS)}")
    for name, ends in holds.items():
        if name == "note" and isinstance(ends, str):
            continue
        if name == MEASURED and isinstance(ends, Mapping) and all(isinstance(n, int) for n in ends.values()):
            continue
        are_numbers = isinstance(ends, Sequence) and all(isinstance(end, int | float) for end in ends)
        if name not in UNITS or not are_numbers or len(ends) != 2 or not 0 < ends[0] <= ends[1]:
            raise InputError(
                f"{path}.{name} is {ends!r}; it must be [least, most] of {' or '.join(UNITS)}, or a note"
            )


def outside(holds: Mapping[str, Any], values: Mapping[str, Sequence[float]]) -> list[str]:
    """What leaves the ranges: the values' ends with the range that does not have them.

    Args:
        holds: ranges.
        values: by the name of a range.
    """
    sentences = []
    for name, unit in UNITS.items():
        if name in holds and values.get(name):
            (least, most), low, high = holds[name], min(values[name]), max(values[name])
            if low < least or high > most:
                ends = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
                sentences.append(f"{ends} {unit} (numbers hold for {least:g} to {most:g})")
    return sentences
