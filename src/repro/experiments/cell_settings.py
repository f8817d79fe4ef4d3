"""The settings of a cell as its record has them, compared without datasets and checkpoints.

A key also has content hashes of these, which a machine without them cannot know. Must not know Hydra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.core.errors import InputError
from repro.records.identity import portable
from repro.records.provenance import host_kind
from repro.records.record import Record, content_hash
from repro.records.results import Results
from repro.scenarios.base import Scenario
from repro.scenarios.registry import made

CALIBRATION_SETTINGS = {
    "match": ("calibrate_draft_to",),
    "confidences": ("draft_calibration",),
    "calibration": ("calibration_prompts",),
}
"""Entries of a draft's calibration in what is asked, which are derived from these settings."""


def decisive_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration that can change an outcome, as records have them."""
    settings = dict(made({**portable(config), "labels": {}, "data_dir": None}).decisive_settings)
    derived = [name for name in CALIBRATION_SETTINGS if settings.pop(name, None) is not None]
    return settings | {setting: config[setting] for name in derived for setting in CALIBRATION_SETTINGS[name]}


class RecordsBySettings:
    """The records of results by their settings, component versions and kind of machine.

    Datasets and checkpoints count by what `conf/` says of them. Records are read when a cell like them is
    looked up first.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self._known: dict[frozenset[tuple[str, str]], dict[str, Record]] = {}

    def record_like(self, cell: Scenario) -> Record | None:
        """The record of a cell's settings, a finished one before a failed one; `None` if there is none."""
        machine = None if cell.emulated else content_hash(host_kind())
        labels = {name: cell.labels[name] for name in cell.labels_of(cell.config)}
        label_set = frozenset(labels.items())
        if label_set not in self._known:
            records_by_hash = self._known[label_set] = {}
            for record in sorted(self._results.with_labels(labels), key=lambda record: not record.done):
                records_by_hash.setdefault(_hash_of(record), record)
        return self._known[label_set].get(_hash(cell.config, cell.versions, machine))


def _hash_of(record: Record) -> str:
    provenance = record.provenance
    try:
        return _hash(provenance.config, provenance.versions, provenance.inputs.get("machine"))
    except (InputError, KeyError):  # a component or a setting of it is gone
        return ""


def _hash(config: Mapping[str, Any], versions: Mapping[str, int], machine: str | None) -> str:
    settings = decisive_settings(config)
    sections = {name: value for name, value in portable(config).items() if name in settings}
    checkpoints = {
        n: s["checkpoint"] for n, s in sections.items() if isinstance(s, Mapping) and "checkpoint" in s
    }
    return content_hash([settings, checkpoints, versions, machine])
