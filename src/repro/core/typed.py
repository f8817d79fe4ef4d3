"""Check plain content against types, and build dataclasses from it.

A setting's type says what it may be: `Annotated[int, Interval(ge=1, le=16)]`, `Literal["full", "off"]`.
Pydantic checks; this module owns the sentences about what is wrong. Must not know what the fields mean.
"""

from __future__ import annotations

import json
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Interval, MinLen

from repro.core.errors import InputError
from repro.core.registry import unknown

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

NOUNS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
    list: "a list",
    dict: "a mapping",
    abc.Mapping: "a mapping",
    NoneType: "null",
}


def typed(cls: type[T], mapping: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from plain content.

    Args:
        cls: the dataclass.
        mapping: its fields by name.
        where: what is being read, for error messages: `method`, "dataset 'gsm8k'".

    Raises:
        InputError: a key is unknown or missing, a value is not what its field's type says, a number is not
            finite, or the class refuses its values itself.
    """
    instance: T = _validate(cls, mapping, where)
    return instance


def require(kind: Any, value: object, setting: str) -> None:
    """InputError unless a value is what a type says; `setting` is the setting's name."""
    _validate(kind, value, setting)


def _validate(kind: Any, value: object, where: str) -> Any:
    from pydantic import ValidationError  # late: 60 ms, and most commands read no settings

    text = json.dumps([value], default=_plain_mapping)  # in JSON lists are tuples, and mappings dataclasses
    try:
        return _adapter(kind).validate_json(text)[0]
    except ValidationError as wrong:
        errors = wrong.errors(include_url=False)
        error = next((e for e in errors if e["type"] == "unexpected_keyword_argument"), errors[0])
        if error["type"] == "value_error":  # a class's own sentence
            raise error["ctx"]["error"] from wrong
        raise InputError(_sentence(kind, error, where)) from wrong


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What checks a list of one value; a dataclass by itself would take no settings of how to check."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


def _plain_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"{value!r} is a {type(value).__name__}; quote it to make it a text")


def _sentence(kind: Any, error: ErrorDetails, where: str) -> str:
    """What is wrong: the setting, its value, and what it must be."""
    path = list(error["loc"][1:])
    if error["type"] in ("unexpected_keyword_argument", "missing"):
        name, (label, cls) = str(path.pop()), _at(kind, path, where)
        if error["type"] == "missing":
            return f"{label}: the field {name!r} is lacking; it has {', '.join(error['input']) or 'nothing'}"
        choices = [field.name for field in fields(_bare(cls)) if field.init]
        return f"{label}: {unknown('field', name, choices)}"
    label, kind = _at(kind, path, where)
    if error["type"] == "literal_error" and get_origin(kind) is Literal:
        if " " in label:
            return f"{label} is {error['input']!r}; choices: {', '.join(choices_of(kind))}"
        return unknown(label, error["input"], choices_of(kind))
    finite = ", and finite" if error["type"] == "finite_number" else ""
    return f"{label} is {error['input']!r}; it must be {words(kind)}{finite}"


def _at(kind: Any, path: Sequence[int | str], where: str) -> tuple[str, Any]:
    """The name of a place in a value, and the type of what is there."""
    names = []
    for name in path:
        inner = _bare(kind)
        if is_dataclass(inner):
            kind = get_type_hints(inner, include_extras=True)[str(name)]
        elif get_origin(inner) in (tuple, dict, abc.Mapping):
            kind = next(argument for argument in reversed(get_args(inner)) if argument is not ...)
        else:  # which of several types pydantic tried
            break
        names.append(str(name))
    return (": " if " " in where else ".").join(part for part in (where, ".".join(names)) if part), kind


def words(kind: Any) -> str:
    """What a value of a type must be, such as "a whole number from 1 to 16"."""
    if get_origin(kind) is Annotated:
        base_type, *bounds = get_args(kind)
        if MinLen(1) in bounds and base_type is not str:
            return f"{words(base_type)} that is not empty"
        return words(base_type) + "".join(_range(bound) for bound in bounds if isinstance(bound, Interval))
    if get_origin(kind) in (Union, UnionType):
        nullable = sorted(get_args(kind), key=lambda member: member is not NoneType)
        return " or ".join(map(words, nullable))
    if choices := choices_of(kind):
        return " or ".join(", ".join(choices).rsplit(", ", 1))
    kind = get_origin(kind) or kind
    return "a mapping" if is_dataclass(kind) else NOUNS.get(kind, f"a {getattr(kind, '__name__', kind)}")


def choices_of(kind: Any) -> tuple[str, ...]:
    """The values of a `Literal`; empty for another type."""
    return tuple(str(value) or "''" for value in get_args(kind)) if get_origin(kind) is Literal else ()


def _bare(kind: Any) -> Any:
    """A type without null and without its bounds."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _bare(next(member for member in get_args(kind) if member is not NoneType))
    return kind


def _range(bounds: Interval) -> str:
    if bounds.ge is not None and bounds.le is not None:
        return f" from {_short(bounds.ge)} to {_short(bounds.le)}"
    ends = {"above": bounds.gt, "of at least": bounds.ge, "below": bounds.lt, "at most": bounds.le}
    return " " + " and ".join(f"{side} {_short(end)}" for side, end in ends.items() if end is not None)


def _short(number: Any) -> str:
    return str(int(number)) if number == int(number) and number < 1e15 else f"{number:g}"
