"""Every leaf of a configuration with values that make no sense there, and what is said about each.

A try changes one leaf of a valid configuration, composes nothing, and constructs the sweep and the cell. It
is right if one sentence names the leaf, or if the value is one of those that the leaf may have.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from repro.core.errors import InputError
from repro.experiments.sweep import Sweep
from repro.scenarios.registry import made

HUGE = 10**10

NUMBERS: dict[str, Any] = {
    "text": "x",
    "true": True,
    "zero": 0,
    "negative": -1,
    "broken": 1.5,
    "nan": math.nan,
    "infinite": math.inf,
    "huge": HUGE,
    "null": None,
    "list": [1],
}
SWITCHES: dict[str, Any] = {"text": "maybe", "number": 3, "null": None, "list": [True]}
WORDS: dict[str, Any] = {"number": 3, "misspelt": "xyzzy", "empty": "", "null": None, "list": ["x"]}
LISTS: dict[str, Any] = {"text": "x", "number": 3, "null": None, "nested": [[{}]], "empty": []}
MAPPINGS: dict[str, Any] = {"text": "x", "number": 3, "null": None, "list": []}

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Try:
    """A changed leaf: its path, what is wrong with it in a word, and its value."""

    path: Path
    kind: str
    value: Any

    @property
    def place(self) -> str:
        """The path as on the command line."""
        return ".".join(map(str, self.path))


def tries(value: Any, path: Path = ()) -> Iterator[Try]:
    """Every changed leaf below a part of a configuration."""
    if isinstance(value, Mapping):
        if path:
            yield from (Try(path, kind, wrong) for kind, wrong in MAPPINGS.items())
        yield Try((*path, "promts"), "unknown", 4)
        for name, below in value.items():
            yield from tries(below, (*path, name))
    elif isinstance(value, list):
        yield from (Try(path, kind, wrong) for kind, wrong in LISTS.items())
        for number, below in enumerate(value[:1]):
            yield from tries(below, (*path, number))
    else:
        kinds = SWITCHES if isinstance(value, bool) else NUMBERS if _is_number(value) else WORDS
        yield from (Try(path, kind, wrong) for kind, wrong in kinds.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def changed(config: Mapping[str, Any], one: Try) -> dict[str, Any]:
    """A configuration with one leaf changed."""
    out = copy.deepcopy(dict(config))
    at: Any = out
    for step in one.path[:-1]:
        at = at[step]
    at[one.path[-1]] = one.value
    return out


def said(config: Mapping[str, Any]) -> str | None:
    """The sentence about a configuration; None if it is accepted. Whatever else is raised is a fault."""
    try:
        Sweep(config, Console(file=io.StringIO()))
        made(config)
    except InputError as wrong:
        return str(wrong)
    return None


def faults(config: Mapping[str, Any], some: Iterator[Try], accepted: Callable[[str], str]) -> str:
    """What is wrong with the answers to some tries, one a line.

    Args:
        config: a valid configuration.
        some: changes of it.
        accepted: the kinds of values that a place may have, separated by blanks.
    """
    found = []
    for one in some:
        try:
            sentence = said(changed(config, one))
        except Exception as wrong:
            found.append(f"{one.place}={one.value!r} ({one.kind}) raises {type(wrong).__name__}: {wrong}")
            continue
        allowed = accepted(one.place).split()
        if sentence is None and one.kind not in allowed:
            found.append(f"{one.place}={one.value!r} ({one.kind}) is accepted")
        elif sentence is not None and not _names(one, sentence):
            found.append(f"{one.place}={one.value!r} ({one.kind}) is not named: {sentence}")
    return "\n".join(found)


def _names(one: Try, sentence: str) -> bool:
    """Whether a sentence is one line and names a leaf, or the part that it is the value of."""
    words = [str(step) for step in one.path if isinstance(step, str)]
    near = words[-1:] if one.kind == "unknown" else words[-2:]
    if one.kind == "misspelt":
        near.append(one.value)
    return "\n" not in sentence and any(word in sentence for word in near)
