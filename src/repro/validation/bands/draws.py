"""Drawn machines: descriptions in which every assumed number is off by up to 30%.

Owns which numbers of a description are drawn, and their factors. Must not know cells, methods or results.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from repro.device.device_file import Fact, facts
from repro.records.record import canonical

DRAWS = 64
WITHIN = 0.3
"""How far an assumed number may be off: by a factor from 1 / 1.3 to 1.3, log-uniform."""

HELD = ("size",)
"""Dimensions of numbers that say what fits where: decisions, which a draw leaves as they are."""


def factor(name: str, path: str, draw: int) -> float:
    """The factor of a number in a draw; the same wherever the number stands.

    Args:
        name: of the device.
        path: the number's place in its description.
        draw: from 0.
    """
    digest = sha256(f"{name}\n{path}\n{draw}".encode()).digest()
    exponent = 2 * int.from_bytes(digest[:8], "big") / 2**64 - 1
    return float((1 + WITHIN) ** exponent)


def can_be_drawn(fact: Fact) -> bool:
    """Whether a number is one that costs depend on continuously: no size, no whole number, no zero."""
    numbers = [y for _, y in fact.points] or [fact.value]
    return fact.kind.dimension not in HELD and not fact.kind.range.whole and any(numbers)


def drawn(described: Mapping[str, Any], draw: int) -> dict[str, Any]:
    """A description with its assumed numbers multiplied by their factors; a curve has one factor.

    A number that has a largest value (a share's 1) does not exceed it.

    Args:
        described: a device file with an engine's numbers over it.
        draw: from 0.
    """
    found: dict[str, Any] = copy.deepcopy(dict(described))
    name = str(described.get("name", ""))
    for fact in facts(described):
        if fact.source == "assumed" and can_be_drawn(fact):
            largest = max([y for _, y in fact.points] or [fact.value])
            most = min(factor(name, fact.path, draw), fact.kind.range.most / largest)
            _multiply(found, fact.path, most)
    return found


def _multiply(described: dict[str, Any], path: str, by: float) -> None:
    *above, last = path.split(".")
    table = described
    for key in above:
        table = table[key]
    leaf = table[last]
    if "points" in leaf:
        table[last] = {**leaf, "points": [[x, float(y) * by] for x, y in leaf["points"]]}
    else:
        table[last] = {**leaf, "value": float(leaf["value"]) * by}


@dataclass(frozen=True)
class AssumedNumbers:
    """How many of the numbers that costs depend on are assumed."""

    assumed: int
    numbers: int

    @property
    def share(self) -> float:
        """Their share."""
        return self.assumed / self.numbers if self.numbers else 0.0


def assumed_numbers(described: Iterable[Mapping[str, Any]]) -> AssumedNumbers:
    """The counts over several descriptions, each place of a device counted once."""
    distinct = {canonical(one): one for one in described}
    sources = {
        (str(one.get("name", "")), fact.path): fact.source
        for one in distinct.values()
        for fact in facts(one)
        if can_be_drawn(fact)
    }
    return AssumedNumbers(sum(source == "assumed" for source in sources.values()), len(sources))
