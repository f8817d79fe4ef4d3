"""Drawn machines: descriptions in which every assumed number that is no form is off by up to 30%.

Owns which numbers of a description are drawn, and their factors. Must not know cells, methods or results.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from repro.device.device_file import facts
from repro.device.engines.evidence import decides_costs, forms, numbers

DRAWS = 64
WITHIN = 0.3
"""How far an assumed number may be off: by a factor from 1 / 1.3 to 1.3, log-uniform."""


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
    else:
        table[last] = {**leaf, "value": float(leaf["value"]) * by}
