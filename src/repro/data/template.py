"""Dotted paths into an example, and templates with them: `choices.text`, `{translation.de}`, `{turns.0}`.

Owns the template syntax. Must not know any dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from repro.core.errors import InputError

Row = Mapping[str, Any]


class _Filler(Formatter):
    """Formats with dotted paths; values are inserted verbatim, so braces in an example are harmless."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        value = at(kwargs, field_name)
        if value is None:
            raise InputError(f"a row's {field_name!r} is null, where a prompt needs a text")
        return value, field_name


def at(row: Row, path: str) -> Any:
    """The value at a dotted path; numbers are list indices.

    Raises:
        InputError: the example has no such path.
    """
    value: Any = row
    for step in path.split("."):
        try:
            value = value[int(step)] if isinstance(value, (list, tuple)) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            there = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)[:60]
            raise InputError(f"a row has no {path!r}: no {step!r} in {there}") from None
    return value


def fill(template: str, row: Row, extra: Mapping[str, str] | None = None) -> str:
    """The template with each `{path}` replaced by its value in `extra` or in the example.

    Raises:
        InputError: neither has a path, or its value is null.
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
        found = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise InputError(f"template {template!r}: {error}; write a literal brace twice") from None
    if "" in found:
        raise InputError(f"template {template!r} has an empty field {{}}; name a column, as in {{question}}")
    return found
