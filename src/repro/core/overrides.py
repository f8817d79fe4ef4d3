"""Settings as overrides of the command line write them, quoted where Hydra would misread them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.core.errors import InputError

PLAIN_TEXT = re.compile(r"[\w.@/+:-]+", re.ASCII)
"""Text that needs no quotes; a space, a comma or a letter beyond ASCII does."""

BACKSLASHES = re.compile(r"(\\*)('|$)")
"""Backslashes before a quote or the end, where Hydra reads two as one."""


def override(name: str, value: Any) -> str:
    """`name=value` for the command line; InputError if the value is no plain data."""
    return f"{name}={word(value)}"


def as_text(value: Any) -> str:
    """A setting as a table shows it: mappings and lists as the command line writes them, null as none."""
    if value is None:
        return "none"  # as a label's text; "null" would be no label
    return word(value) if isinstance(value, (Mapping, list, tuple)) else str(value)


def word(value: Any) -> str:
    """A value as the command line writes it.

    Raises:
        InputError: it is not plain data, or a number or array of NumPy or PyTorch.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, Path)):
        text = str(value)
        return text if PLAIN_TEXT.fullmatch(text) else _quote(text)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{word(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(word, value)) + "]"
    raise InputError(f"{value!r} is a {type(value).__name__}; settings are numbers, text, lists and mappings")


def _quote(text: str) -> str:
    """A text in single quotes; Hydra reads backslashes as they are, except before a quote."""
    return "'" + BACKSLASHES.sub(lambda match: match[1] * 2 + "\\" * bool(match[2]) + match[2], text) + "'"


def unquote(literal: str) -> str:
    """The text of which `word` has made this."""
    if not literal.startswith("'"):
        return literal
    return BACKSLASHES.sub(lambda match: match[1][: len(match[1]) // 2] + match[2], literal[1:-1])
