"""What the numbers of a machine rest on: measured, printed, fitted or assumed.

Owns which numbers count, and which are the form of others. Must not know cells, methods or results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from repro.device.device_file import Fact, facts

SIZE_DIMENSIONS = ("size",)
"""Dimensions of numbers that say what fits where: decisions, which a draw leaves as they are."""


PRINTED_SOURCES = ("paper", "datasheet")
"""Sources of rates that an engine need not reach, so that what share it reaches is an assumption."""


def decides_costs(fact: Fact) -> bool:
    """Whether costs depend on a number, and continuously: no size, no whole number, no zero."""
    return fact.kind.dimension not in SIZE_DIMENSIONS and not fact.kind.whole and any(numbers(fact))


def forms(all_facts: Iterable[Fact]) -> set[str]:
    """Paths of the assumed numbers that are no statement about a machine, but the form of other numbers.

    - An exponent of 1: a cost in proportion to rows.
    - An efficiency, or a curve of it, whose largest value is 1 beside a rate that no paper or data sheet
      prints: what is said of speed is said by the rate.
    - A number equal to a fitted one of the same table (`start.fp32`, as `start.fp16`): the fit tied them.
    """
    facts_by_path = {fact.path: fact for fact in all_facts}
    paths = set()
    for path, fact in facts_by_path.items():
        table, _, name = path.rpartition(".")
        same_table = [sibling for key, sibling in facts_by_path.items() if key.rpartition(".")[0] == table]
        rates = [sibling for key, sibling in facts_by_path.items() if key.startswith(f"{table}.peak.")]
        is_exponent = name.endswith("_exponent") and fact.value == 1
        is_full = name == "efficiency" and max(numbers(fact)) == 1 and rates
        is_tied = any(
            sibling.source == "fitted" and sibling.kind == fact.kind and numbers(sibling) == numbers(fact)
            for sibling in same_table
        )
        if fact.source == "assumed" and (
            is_exponent or (is_full and all(rate.source not in PRINTED_SOURCES for rate in rates)) or is_tied
        ):
            paths.add(path)
    return paths


def numbers(fact: Fact) -> list[float]:
    """A fact's values: a curve's, or its own."""
    return [y for _, y in fact.points] or [fact.value]


def sources(device_files: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many numbers of these machines come from each source, a place of a device once, forms not.

    Args:
        device_files: device files with their engines' numbers over them.
    """
    distinct_devices = {id(device): device for device in device_files}  # equal ones are mostly one object
    source_by_fact: dict[tuple[str, str], str] = {}
    for device in distinct_devices.values():
        device_facts = list(facts(device))
        form_paths = forms(device_facts)
        source_by_fact |= {
            (str(device.get("name", "")), fact.path): fact.source
            for fact in device_facts
            if decides_costs(fact) and fact.path not in form_paths
        }
    return Counter(source_by_fact.values())
