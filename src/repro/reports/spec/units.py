"""Units that can be written as each other. Owns the factors between them."""

from __future__ import annotations

FACTORS = {
    ("ms", "s"): 1e-3,
    ("s", "ms"): 1e3,
    ("s", "us"): 1e6,
    ("s/token", "us/token"): 1e6,
    ("ms", "s/token"): 1e-3,
    ("s/token", "ms/token"): 1e3,
    ("s/token", "ms"): 1e3,
    ("s/token", "s"): 1.0,
    ("s", "s/token"): 1.0,
    ("s/token", "ms a level"): 1e3,
    ("s/round", "ms a round"): 1e3,
    ("hour", "GPU hours"): 1.0,
    ("%", "x"): 1e-2,
    ("J/token", "J"): 1.0,
    ("tokens", "tokens/step"): 1.0,
    ("tokens", "rows"): 1.0,
}
"""What a number is multiplied by, from the first unit to the second."""


def factor(unit: str, other_unit: str) -> float | None:
    """The factor from one unit to another; None if they do not measure the same."""
    return 1.0 if unit == other_unit else FACTORS.get((unit, other_unit))
