"""Every setting of every component says what it may be, and refuses all else in a sentence that names it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from annotated_types import MinLen

from repro.core import registry
from repro.core.errors import InputError
from repro.core.typed import choices_of, require, words

GROUPS = ("method", "compression", "probe", "service", "metric", "prompt", "scoring", "source")

registry.discover("repro.methods", "repro.data", "repro.metrics")


def settings() -> Iterator[Any]:
    """The type and the name of each setting, and of the elements of lists."""
    for group in GROUPS:
        for name, cls in registry.registered(group).items():
            kinds = get_type_hints(cls, include_extras=True)
            for field in fields(cls) if is_dataclass(cls) else ():
                if field.init:
                    place = f"{group}.{field.name}"
                    kind = kinds[field.name]
                    yield pytest.param(kind, place, id=f"{name}-{place}")
                    if get_origin(kind) is tuple:
                        yield pytest.param(get_args(kind)[0], f"{place}.0", id=f"{name}-{place}.0")


def wrong_values(kind: Any) -> Iterator[Any]:
    """Values that are not of a type: the next ones beyond its bounds, and other kinds."""
    if get_origin(kind) is Annotated:
        base, bounds = get_args(kind)
        step = 1 if base is int else 1e-6
        if isinstance(bounds, MinLen):
            yield []
            yield from wrong_values(base)
            return
        ends = {bounds.gt: 0, bounds.ge: -step, bounds.lt: 0, bounds.le: max(step, (bounds.le or 0) * 1e-6)}
        yield from (base(end + beyond) for end, beyond in ends.items() if end is not None)
        yield from wrong_values(base)
    elif kind in (int, float):
        yield from ("7", True, math.nan, math.inf, [1], *([1.5] if kind is int else []))
    elif kind is str:
        yield from (7, True, ["a"])
    elif kind is bool:
        yield from (1, "true", [True])
    elif get_origin(kind) is Literal:
        yield from ("xyzzy", 7, None, [choices_of(kind)[0]])
    elif get_origin(kind) is tuple:
        yield from ("abc", 7)


@pytest.mark.parametrize(("kind", "place"), [*settings()])
def test_a_wrong_value_is_refused_and_named(kind: Any, place: str) -> None:
    for value in wrong_values(kind):
        with pytest.raises(InputError) as error:
            require(kind, value, place)
        said = str(error.value)
        assert place in said
        assert all(right in said for right in choices_of(kind) or [words(kind)])


@pytest.mark.parametrize(
    ("kind", "phrase"),
    [
        (int, "a whole number"),
        (float | None, "null or a number"),
        (bool, "true or false"),
        (tuple[int, ...], "a list"),
        (dict[str, float], "a mapping"),
        (Literal["a", "b", "c"], "a, b or c"),
    ],
)
def test_words_of_types(kind: Any, phrase: str) -> None:
    assert words(kind) == phrase
