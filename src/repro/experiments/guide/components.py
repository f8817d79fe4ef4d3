"""The settings of a component as its class says: defaults, what each may be, what each means.

Must not know groups.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

from repro.core.typed import words

ATTRIBUTE_PATTERN = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<!\bsec)(?<!\bFig)(?<!\bFigs)(?<!\bEq)(?<!\bAlg)\. (?=[A-Z`])")


@dataclass(frozen=True)
class Setting:
    """A field of a component: its default as Python writes it, what it may be, and its meaning."""

    name: str
    default: str
    values: str
    meaning: str


def settings_of(component: type) -> tuple[Setting, ...]:
    """The fields of a dataclass, those of its base classes first; none of another class."""
    if not is_dataclass(component):
        return ()
    kinds, meanings = get_type_hints(component, include_extras=True), dict[str, str]()
    for cls in reversed(component.__mro__):
        meanings |= dict(ATTRIBUTE_PATTERN.findall(inspect.cleandoc(cls.__doc__ or "")))
    return tuple(
        Setting(
            field.name,
            _default(field),
            words(kinds[field.name]),
            " ".join(meanings.get(field.name, "").split()),
        )
        for field in fields(component)
        if field.init
    )


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return repr(field.default_factory())
    return "required" if field.default is MISSING else repr(field.default)


def nested_settings(section: type, name: str) -> Iterator[Setting]:
    """The settings of a section called `name` and of the sections within it, each by its whole name."""
    kinds = get_type_hints(section, include_extras=True)
    for setting in settings_of(section):
        full_name = f"{name}.{setting.name}"
        yield replace(setting, name=full_name)
        for inner_section in _classes_in(kinds[setting.name]):
            yield from nested_settings(inner_section, full_name)


def _classes_in(kind: Any) -> Iterator[type]:
    """The dataclasses that a type names: itself, or those of its items or choices."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
    for part in get_args(kind):
        yield from _classes_in(part)


def first_sentence(text: str) -> str:
    """A text's first sentence or paragraph, on one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return SENTENCE_END.split(paragraph)[0].rstrip(".")
