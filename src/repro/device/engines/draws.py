"""Drawn machines: every assumed number that is no form is off by up to 30%, and a pass over a number of rows
that nobody measured takes what is known of fewer rows, of more, or something between.

Owns which numbers of a description are drawn, and how. Must not know cells, methods or results.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import ceil, log
from typing import Any

from repro.device.cost import Curve
from repro.device.device_file import facts, is_fact
from repro.device.engines.evidence import decides_costs, forms, numbers
from repro.device.facts.holds import HOLDS_KEY, gaps

DRAWS = 64
WITHIN = 0.3
"""How far an assumed number may be off: by a factor from 1 / 1.3 to 1.3, log-uniform."""


GRAIN = 1.1
"""Ratio of the rows of neighbouring points by which a power of rows is drawn."""
AS_FEWER, AS_MORE, STRAIGHT = range(3)
"""What a pass in a gap of rows takes: as the next measured smaller one, as the next larger, or between."""


def factor(name: str, path: str, draw: int) -> float:
    """The factor of a number in a draw; the same wherever the number stands.

    Args:
        name: of the device.
        path: the number's place in its description.
        draw: from 0.
    """
    return float((1 + WITHIN) ** (2 * chance(name, path, draw) - 1))


def chance(*words: object) -> float:
    """A number from 0 to below 1 that depends on some words alone."""
    digest = sha256("\n".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def drawn(described: Mapping[str, Any], draw: int) -> dict[str, Any]:
    """A description with its assumed numbers, but for `forms`, multiplied by their factors.

    A curve has one factor. A number that has a largest value (a share's 1) does not exceed it. The first two
    draws have the ends of all gaps of rows, later ones of each gap one of its ends or the line between.

    Args:
        described: a device file with an engine's numbers over it.
        draw: from 0.
    """
    found: dict[str, Any] = copy.deepcopy(dict(described))
    name = str(described.get("name", ""))
    known = list(facts(described))
    held = forms(known)
    for processor, table in (found.get("processors") or {}).items():
        for fewer, more in gaps((table or {}).get(HOLDS_KEY) or {}):
            end = draw if draw < STRAIGHT else int(3 * chance(name, f"{processor} {fewer} {more}", draw))
            if end != STRAIGHT:
                _bridge(table, fewer, more, end)
    for fact in known:
        if fact.source == "assumed" and decides_costs(fact) and fact.path not in held:
            most = min(factor(name, fact.path, draw), fact.kind.most / max(numbers(fact)))
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
    elif isinstance(leaf["value"], list):  # a rate for each core
        table[last] = {**leaf, "value": [float(rate) * by for rate in leaf["value"]]}
    else:
        table[last] = {**leaf, "value": float(leaf["value"]) * by}


def _bridge(table: Mapping[str, Any], fewer: int, more: int, end: int) -> None:
    """Let all passes between two counts of rows take as long as one of them."""
    growth = float((table.get("start_exponent") or {"value": 0.0})["value"])
    for entry, exponent in (("efficiency", 1.0), ("start", -growth)):  # as which power of rows time stays
        for fact in _curves(table.get(entry) or {}):
            points = fact.pop("points", None) or [[1, fact.pop("value")]]
            curve = Curve(tuple((float(x), float(y)) for x, y in points))
            kept = {x: y for x, y in curve.points if not fewer < x < more}
            kept |= {float(rows): curve.at(rows) for rows in (fewer, more)}
            like, first, last = (fewer, fewer, more - 1) if end == AS_FEWER else (more, fewer + 1, more)
            between = {min(last, round(first * GRAIN**i)) for i in range(ceil(log(last / first, GRAIN)) + 1)}
            kept |= {float(rows): kept[like] * (rows / like) ** exponent for rows in between}
            fact["points"] = [[x, kept[x]] for x in sorted(kept)]


def _curves(part: Any) -> Iterator[dict[str, Any]]:
    if is_fact(part):
        yield part
    else:
        for inner in part.values():
            yield from _curves(inner)
