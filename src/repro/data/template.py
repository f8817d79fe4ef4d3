"""Dotted paths into an example, and templates with them: `choices.text`, `{translation.de}`, `{turns.0}`.

Owns the template syntax. Must not know any dataset.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from string import Formatter
from typing import Any

from repro.core.errors import InputError

Row = Mapping[str, Any]


class _Filler(Formatter):
    """Formats with dotted paths; values are inserted verbatim, so braces in an example are harmless."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        value = at(kwargs, field_name)
        as_text(value, field_name)
        return value, field_name


def at(row: Row, path: str) -> Any:
    """The value at a dotted path; numbers are list indices.

    Raises:
        InputError: the example has no such path.
    """
    value: Any = row
    for key in path.split("."):
        try:
            value = value[int(key)] if isinstance(value, (list, tuple)) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            contents = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)[:60]
            raise InputError(f"a row has no {path!r}: no {key!r} in {contents}") from None
    return value


def as_text(value: Any, path: str) -> str:
    """A value as text.

    Raises:
        InputError: it is null, true, NaN, a list or the like, of which no text is surely meant.
    """
    not_finite = isinstance(value, float) and not math.isfinite(value)
    if value is None or not_finite or isinstance(value, (bool, bytes, list, tuple, Mapping)):
        spelt = json.dumps(value, default=repr)[:60]
        raise InputError(f"a row's {path!r} is {spelt}, where a text is needed")
    return str(value)


def text_at(row: Row, path: str) -> str:
    """The text at a dotted path; errors as `at` and `as_text`."""
    return as_text(at(row, path), path)


def texts_at(row: Row, path: str) -> tuple[str, ...]:
    """The texts of a list at a dotted path, or the only one; errors as `at` and `as_text`."""
    value = at(row, path)
    return tuple(as_text(item, path) for item in (value if isinstance(value, (list, tuple)) else [value]))


def fill(template: str, row: Row, extra: Mapping[str, str] | None = None) -> str:
    """The template with each `{path}` replaced by its value in `extra` or in the example.

    Raises:
        InputError: neither has a path, or its value is no text (`as_text`).
    """
    return _Filler().vformat(template, (), {**row, **(extra or {})})


def names(template: str) -> set[str]:
    """The first part of every path: columns, or names that a builder adds; errors as in `paths`."""
    return {path.split(".")[0] for path in paths(template)}


def paths(template: str) -> list[str]:
    """Every path in a template.

    Raises:
        InputError: the braces do not match, or a field has no name.
    """
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise InputError(f"template {template!r}: {error}; write a literal brace twice") from None
    if "" in fields:
        raise InputError(f"template {template!r} has an empty field {{}}; name a column, as in {{question}}")
    return fields
