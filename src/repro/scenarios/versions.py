"""Versions of the components that decide an outcome, by name, as used in a cell's key.

Owns the versions that every cell has. Must not know keys, nor how a changed outcome is detected.
"""

from __future__ import annotations

from collections.abc import Iterable

from repro.core.registry import discover, lookup
from repro.data.prompts import VERSION as PROMPTS
from repro.device import cost
from repro.models.forward import network
from repro.models.runtime.model import Model
from repro.records.identity import version_of
from repro.records.record import content_hash

COSTS = {"cost model": cost.VERSION}
WEIGHTS = {"model runtime": network.VERSION, "prompts": PROMPTS}


def appended(target: Model) -> dict[str, str]:
    """Hash of the tokens that a target's tokenizer appends, an input of its cells; empty if it appends none.

    Prompts leave them out, and had them at their ends before.
    """
    left_out = target.tokenizer.left_out if target.folder else ()
    return {"appended tokens": content_hash(left_out)} if left_out else {}


def of_component(group: str, name: str) -> dict[str, int]:
    """The version of the class registered as `name`."""
    return {f"{group} {name}": version_of(lookup(group, name))}


def of_metrics(names: Iterable[str]) -> dict[str, int]:
    """Versions of registered metrics."""
    discover("repro.metrics")
    return {f"metric {name}": version_of(lookup("metric", name)) for name in dict.fromkeys(names)}
