"""Drawn machines: descriptions in which every assumed number that is no form is off by up to 30%.

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


PRINTED = ("paper", "datasheet")
"""Sources of rates that an engine need not reach, so that what share it reaches is an assumption."""


def can_be_drawn(fact: Fact) -> bool:
    """Whether a number is one that costs depend on continuously: no size, no whole number, no zero."""
    return fact.kind.dimension not in HELD and not fact.kind.range.whole and any(_numbers(fact))


def forms(known: Iterable[Fact]) -> set[str]:
    """Paths of the assumed numbers that are no statement about a machine, but the form of other numbers.

    - An exponent of 1: a cost in proportion to rows.
    - An efficiency, or a curve of it, whose largest value is 1 beside a rate that no paper or data sheet
      prints: what is said of speed is said by the rate.
    - A number equal to a fitted one of the same table (`start.fp32`, as `start.fp16`): the fit tied them.
    """
    facts_by_path = {fact.path: fact for fact in known}
    found = set()
    for path, fact in facts_by_path.items():
        table, _, name = path.rpartition(".")
        beside = [other for place, other in facts_by_path.items() if place.rpartition(".")[0] == table]
        rates = [other for place, other in facts_by_path.items() if place.startswith(f"{table}.peak.")]
        of_exponent = name.endswith("_exponent") and fact.value == 1
        whole = name == "efficiency" and max(_numbers(fact)) == 1 and rates
        tied = any(
            other.source == "fitted" and other.kind == fact.kind and _numbers(other) == _numbers(fact)
            for other in beside
        )
        if fact.source == "assumed" and (
            of_exponent or (whole and all(rate.source not in PRINTED for rate in rates)) or tied
        ):
            found.add(path)
    return found


def _numbers(fact: Fact) -> list[float]:
    return [y for _, y in fact.points] or [fact.value]


def drawn(described: Mapping[str, Any], draw: int) -> dict[str, Any]:
    """A description with its assumed numbers, but for `forms`, multiplied by their factors.

    A curve has one factor. A number that has a largest value (a share's 1) does not exceed it.

    Args:
        described: a device file with an engine's numbers over it.
        draw: from 0.
    """
    found: dict[str, Any] = copy.deepcopy(dict(described))
    name = str(described.get("name", ""))
    known = list(facts(described))
    held = forms(known)
    for fact in known:
        if fact.source == "assumed" and can_be_drawn(fact) and fact.path not in held:
            most = min(factor(name, fact.path, draw), fact.kind.range.most / max(_numbers(fact)))
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
    """The counts over several descriptions, each place of a device counted once, forms not."""
    distinct = {canonical(one): one for one in described}
    sources: dict[tuple[str, str], str] = {}
    for device in distinct.values():
        known = list(facts(device))
        held = forms(known)
        sources |= {
            (str(device.get("name", "")), fact.path): fact.source
            for fact in known
            if can_be_drawn(fact) and fact.path not in held
        }
    return AssumedNumbers(sum(source == "assumed" for source in sources.values()), len(sources))
