"""Build dataclasses from YAML content, checking every key and type.

Owns the errors for unknown or missing keys and for values of the wrong type. Must not know what the fields
mean.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from repro.core.errors import InputError
from repro.core.registry import unknown

T = TypeVar("T")

_hints: dict[type, dict[str, Any]] = {}
"""The types of dataclasses' fields; resolving them takes longer than reading the fields."""

_KINDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
    list: "a list",
    dict: "a mapping",
    abc.Mapping: "a mapping",
    NoneType: "nothing",
}


def typed(cls: type[T], mapping: Mapping[str, Any], where: str) -> T:
    """Build a dataclass whose fields are plain values, tuples, dicts, dataclasses, or optional ones of these.

    Args:
        cls: the dataclass.
        mapping: its fields by name.
        where: what is being read, for error messages.

    Raises:
        InputError: a key is unknown or missing, a value has the wrong type, or a number is not finite.
    """
    if not isinstance(mapping, Mapping):
        raise InputError(f"{where}: {mapping!r} is {_kind(type(mapping))}; it must be a mapping")
    hints = _hints.get(cls) or _hints.setdefault(cls, get_type_hints(cls))
    wanted = {field.name: field for field in fields(cls) if field.init}  # type: ignore[arg-type]
    for key in mapping:
        if key not in wanted:
            raise InputError(f"{where}: {unknown('field', str(key), wanted)}")
    for name, field in wanted.items():
        if name not in mapping and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(
                f"{where}: the field {name!r} is lacking; it has {', '.join(mapping) or 'nothing'}"
            )
    return cls(**{key: _value(hints[key], value, f"{where}, {key}") for key, value in mapping.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        return _value(next(kind for kind in arguments if kind is not NoneType), value, where)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_value(arguments[0], item, f"{where}.{i}") for i, item in enumerate(value))
    if origin is Literal and value in arguments:
        return value
    if origin is Literal:
        raise InputError(f"{where} is {value!r}; choices: {', '.join(map(repr, arguments))}")
    if origin is abc.Mapping and isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    if origin is dict and isinstance(value, Mapping):
        return {str(key): _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return typed(hint, value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(value, where)
    # bool is an int to Python, yet `version: true` is a mistake.
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise InputError(f"{where}: {value!r} is {_kind(type(value))}; it must be {_kind(origin or hint)}")


def _finite(value: float, where: str) -> float:
    """A number that is finite, also as a float."""
    try:
        if isfinite(value):
            return float(value)
    except OverflowError as wrong:
        raise InputError(f"{where}: {value!r} is larger than any float") from wrong
    raise InputError(f"{where}: {value!r} is not a finite number")


def _kind(cls: type) -> str:
    return "a mapping" if is_dataclass(cls) else _KINDS.get(cls, f"a {cls.__name__}")
