"""The error for invalid input, and warnings.

An error's message names the wrong value and the valid choices.
"""

from __future__ import annotations

import sys
from functools import cache


class InputError(ValueError):
    """The user gave an invalid value; raised before long work starts."""


@cache
def warn(sentence: str) -> None:
    """Print a warning to stderr; the same sentence only once in a process."""
    print(f"warning: {sentence}", file=sys.stderr)
