"""Invented records for tests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from repro.records.provenance import Provenance
from repro.records.record import Record, Scalar
from repro.records.store import Store

PROVENANCE: dict[str, Any] = {
    "config": {"method": {"length": 8}},
    "config_hash": "c0",
    "inputs": {"dataset": "d0"},
    "sources": "50",
    "seed": 0,
    "clock": "virtual",
    "weights": "real",
    "costs": "predicted",
    "started": "2026-01-01T10:00:00Z",
    "finished": "2026-01-01T11:00:00Z",
    "commit": "0123456789abcdef",
    "dirty": False,
    "packages": {"torch": "2.13.0"},
    "host": {"cores": 2},
}


def provenance(**changes: Any) -> Provenance:
    """An invented provenance, with changes."""
    return Provenance(**{**PROVENANCE, **changes})


def record(method: str, values: Mapping[str, Scalar], **changes: Any) -> Record:
    """An invented record of a method; changes go to the record or, by their name, to its provenance."""
    own = {f.name for f in fields(Record)}
    labels = {"method": method, **changes.pop("labels", {})}
    plain: dict[str, Any] = {
        "key": hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest(),
        "experiment": "table",
        "labels": labels,
        "status": "done",
        "values": values,
        "provenance": provenance(**{name: value for name, value in changes.items() if name not in own}),
    }
    return Record(**{**plain, **{name: value for name, value in changes.items() if name in own}})


def begun(store: Store) -> list[str]:
    """The cells that have begun and left no record."""
    texts = [path.read_text(encoding="utf-8") for path in store.folder.glob("*.jsonl")]
    keys = {key for text in texts for key in re.findall(r'{"begun": "([0-9a-f]+)"}', text)}
    return [key for key in keys if store.has_begun(key)]
