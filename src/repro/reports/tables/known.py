"""Which values of a record its run really computed.

Must not know tables or formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.core.registry import discover, lookup, names
from repro.core.remembered import remember
from repro.device.device_file import facts
from repro.device.engines.engine_file import device_in_use
from repro.device.facts.kinds import POWER
from repro.records.record import Record, Scalar

TARGET_COMPARISONS = ("exact_match", "rouge_l", "rouge_l_tokens", "ties")
"""Values that compare an answer's text with the target's own."""


def other_arithmetic(record: Record) -> str:
    """What the cell's method computes with, if the run computed its text with something else; else ""."""
    config = record.provenance.config
    method, target = ((config.get(section) or {}) for section in ("method", "target"))
    discover("repro.methods")
    if method.get("name") not in names("method"):
        return ""
    method_cls, compression = (
        lookup("method", method["name"]),
        (target.get("compression") or {}).get("name", ""),
    )
    is_computed = bool(compression) and compression == method_cls.arithmetic_by  # type: ignore[attr-defined]
    return "" if is_computed else str(getattr(method_cls, "arithmetic", ""))


def not_compared(method: str, arithmetic: str) -> str:
    """Why a method's text is not compared with the target's."""
    return (
        f"{method} computes with {arithmetic}, which did not run: its text is not compared with the target's."
    )


def known_values(record: Record) -> dict[str, Scalar]:
    """A record's values, without comparisons of a text that the method's own arithmetic did not compute."""
    hidden_names = TARGET_COMPARISONS if other_arithmetic(record) else ()
    return {name: value for name, value in record.values.items() if name not in hidden_names}


def assumed_watts(record: Record) -> list[str]:
    """The parts of a cell's machine whose watts are assumed, on which its joules rest: `cpu`, `idle`, ..."""
    provenance = record.provenance
    if provenance.clock == "wall" or "device" not in provenance.config:
        return []
    return _assumed_watts(device_in_use(provenance.config))


@remember(64)
def _assumed_watts(device: Mapping[str, Any]) -> list[str]:
    watts = {fact.path: fact for fact in facts(device) if fact.kind is POWER}
    counted_facts = [watts["power.constant"]] if "power.constant" in watts else list(watts.values())
    assumed_paths = [fact.path for fact in counted_facts if fact.source == "assumed"]
    return [path.removesuffix(".watts").rpartition(".")[2] for path in assumed_paths]


INPUT_WORDS = {
    "target predictor": "early-exit predictors",
    "elastic parts": "an order of units, adapters for each size",
    "trained heads": "score and decision heads",
}
"""What inputs of a cell are, beside models and rows."""

GRAPH_WORDS = {"graph_seconds": "graphs built for the NPU"}
"""What values of a record say that was made before the first request."""

NEEDS, PLACEMENT = "needs", "placement"


def needs(record: Record) -> str:
    """What a cell needed beside its target, as its inputs and figures say; "nothing" without anything."""
    config, inputs = record.provenance.config, record.provenance.inputs
    models = [
        str(config[role]["name"]) for role in inputs if role != "target" and _is_model(config.get(role))
    ]
    needed_texts = [text for name, text in INPUT_WORDS.items() if name in inputs]
    return (
        ", ".join(
            [*models, *needed_texts, *(text for name, text in GRAPH_WORDS.items() if name in record.values)]
        )
        or "nothing"
    )


def _is_model(section: object) -> bool:
    return isinstance(section, Mapping) and {"checkpoint", "shape"} <= section.keys()


def known_value(record: Record, name: str) -> Scalar:
    """One of `known_values`, what the cell needed (`needs`), its label `placement`, the peak bytes of a kind
    of memory, or what the whole answer cost."""
    if name == NEEDS:
        return needs(record)
    if name == PLACEMENT:
        return record.labels.get(PLACEMENT)
    return None if name in TARGET_COMPARISONS and other_arithmetic(record) else record.figure(name)
