"""The base class of scenarios: a checked configuration, a key, and a run that returns a record.

Owns the key with the versions that every cell has in it, the record and its provenance. Must not know what a
scenario computes, nor Hydra, other cells or where records are stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

from repro.core.registry import discover, lookup, names
from repro.core.typed import typed
from repro.data.config import readers
from repro.data.prompts import VERSION as PROMPTS
from repro.device import cost
from repro.device.products import PRODUCT
from repro.models.forward import network
from repro.models.runtime.model import Model
from repro.records.identity import cell_key, portable, portable_text, version_of
from repro.records.provenance import (
    Provenance,
    circumstances,
    layers_so_far,
    peak_resident_bytes,
    source_hash,
    source_of,
)
from repro.records.record import FEWEST, Record, Round, Scalar, Spread, content_hash
from repro.scenarios import laws
from repro.scenarios.sections import check_settings
from repro.scenarios.settings import own_labels

COST_VERSIONS = {"cost model": cost.VERSION}
WEIGHT_VERSIONS = {"model runtime": network.VERSION, "prompts": PROMPTS}
"""Versions of what decides the outcomes of cells that bill a device, and of all that compute."""

Progress = Callable[[str, int, int], None]
"""Progress callback: (stage, steps done, total steps)."""

MakeTimeline = Callable[[], str]


@dataclass(frozen=True)
class Findings:
    """The results of a run.

    Attributes:
        values: figures by name.
        uncertainty: standard errors or 95% intervals by figure.
        rounds: one line of detail for each round, example or request.
        timeline: makes the run's Chrome trace (JSON), for those who want it; None if there is none.
        provenance: fields of the record's provenance that are known only after the run.
        answers: one line for each generated answer (`generation.answers`).
    """

    values: Mapping[str, Scalar]
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    rounds: Sequence[Round] = ()
    timeline: MakeTimeline | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    answers: Sequence[Round] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run returns: a record, its lines of detail, what makes its Chrome trace, and its answers."""

    record: Record
    rounds: Sequence[Round]
    timeline: MakeTimeline | None
    answers: Sequence[Round] = ()


class Scenario(ABC):
    """One cell of a sweep: a resolved configuration, checked and keyed by its content.

    The constructor checks what is cheap to check; `check` also looks at checkpoints and examples.

    Attributes:
        version: the scenario's version, raised by hand when its outcomes change (docs/tables.md).
        group: the Hydra and registry group of the scenario's component.
        emulated: True if the cell runs on the virtual clock.
        config: the resolved configuration as plain dictionaries.
        name: the component's name.
        labels: short names for tables.
    """

    version: ClassVar[int] = 1
    group: ClassVar[str]

    emulated: bool = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check a resolved configuration, quickly.

        Raises:
            InputError: a setting is invalid.
        """
        check_settings(config)
        self.config = config
        self.name = str(config[self.group]["name"])
        self.labels = self.labels_of(config)
        self.labels |= own_labels(config, self.labels)

    @classmethod
    @abstractmethod
    def labels_of(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """The standard labels of a configuration, which need not be valid."""

    @property
    @abstractmethod
    def component(self) -> object:
        """The configured method, compression, probe or service."""

    @property
    @abstractmethod
    def asked(self) -> Mapping[str, Any]:
        """The settings that decide the outcome; they are part of the key."""

    @property
    def decisive_settings(self) -> Mapping[str, Any]:
        """What is `asked`, as far as the configuration alone says it; reads no checkpoint and no example."""
        return self.asked

    @property
    def unread(self) -> Mapping[str, str]:
        """Sections and settings (`sampling.top_p`) that this cell never looks at, with the reason."""
        return {}

    @property
    @abstractmethod
    def inputs(self) -> dict[str, str]:
        """Content hashes of the cell's inputs, by name."""

    @property
    @abstractmethod
    def versions(self) -> dict[str, int]:
        """Versions of the components that decide the outcome, by name."""

    @property
    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """Provenance fields that are known before the run: clock, weights, costs, fitted cells."""

    @abstractmethod
    def check(self) -> None:
        """Check before the run that it can succeed.

        Raises:
            InputError: it cannot.
        """

    @abstractmethod
    def find(self, progress: Progress) -> Findings:
        """Compute the figures."""

    @cached_property
    def own_sources(self) -> dict[str, str]:
        """Hashes of the files of components that are not ours, by name (`method lookup`)."""
        pairs = [name.partition(" ")[::2] for name in self.versions]
        classes = {f"{group} {name}": lookup(group, name) for group, name in pairs if name in names(group)}
        if dataset := getattr(self, "dataset", None):
            classes |= {f"{part} of dataset {dataset.name}": kind for part, kind in readers(dataset).items()}
        hashes = {name: source_of(component) for name, component in classes.items()}
        return {name: digest for name, digest in hashes.items() if digest}

    @cached_property
    def key(self) -> str:
        """The cell's key."""
        return cell_key(self.asked, self.inputs, self.versions)

    def run(self, progress: Progress) -> Outcome:
        """Compute the figures and return them as a record.

        Raises:
            Exception: any error of the run; `failure_record` turns it into a record.
        """
        started = _now()
        result = self.find(progress)
        provenance = self._provenance(started, {**result.provenance, "layers": layers_so_far()})
        record = Record(
            self.key, self.config["name"], self.labels, "done", result.values, provenance, result.uncertainty
        )
        laws.require(laws.broken_laws(record.values, result.rounds, result.answers))
        return Outcome(record, result.rounds, result.timeline, result.answers)

    def failure_record(self, error: str) -> Record:
        """The record of a failed cell; `error` is its traceback."""
        provenance = self._provenance(_now(), {})
        identity = (self.key, self.config["name"], self.labels)
        return Record(*identity, "failed", {}, provenance, error=portable_text(error))

    def _provenance(self, started: str, details: Mapping[str, Any]) -> Provenance:
        config = portable(self.config)
        memory = {"resident_set": peak_resident_bytes()} | details.get("memory", {})
        fields: dict[str, Any] = {
            "config": config,
            "config_hash": content_hash(config),
            "inputs": self.inputs,
            "versions": self.versions,
            "sources": source_hash(type(self.component).__module__.partition(".")[0]),
            "seed": self.config["seed"],
            "own_sources": self.own_sources,
            "started": started,
            "finished": _now(),
        }
        return Provenance(**fields | self.origin | dict(details) | circumstances() | {"memory": memory})


def appended_tokens(target: Model) -> dict[str, str]:
    """Hash of the tokens that a target's tokenizer appends, an input of its cells; empty if it appends none.

    Prompts leave them out, and had them at their ends before.
    """
    omitted_tokens = target.tokenizer.left_out if target.folder else ()
    return {"appended tokens": content_hash(omitted_tokens)} if omitted_tokens else {}


def component_version(group: str, name: str) -> dict[str, int]:
    """The version of the class registered as `name`."""
    return {f"{group} {name}": version_of(lookup(group, name))}


def metric_versions(names: Iterable[str]) -> dict[str, int]:
    """Versions of registered metrics."""
    discover("repro.metrics")
    return {f"metric {name}": version_of(lookup("metric", name)) for name in dict.fromkeys(names)}


def spreads(values: Mapping[str, Scalar], row_count: int) -> dict[str, Spread]:
    """95% intervals (`NAME_low`, `NAME_high`) or standard errors (`NAME_stderr`) among figures, by `NAME`.

    Figures of fewer than `FEWEST` rows have none.
    """
    spread_by_name: dict[str, Spread] = {}
    for name in values if row_count >= FEWEST else ():
        error, low, high = (values.get(f"{name}_{end}") for end in ("stderr", "low", "high"))
        if isinstance(low, float) and isinstance(high, float):
            spread_by_name[name] = (low, high)
        elif isinstance(error, float):
            spread_by_name[name] = error
    return spread_by_name


def silent(stage: str, done: int, total: int) -> None:
    """A progress callback that tells nobody."""


def component(group: str, section: Mapping[str, Any]) -> Any:
    """The component of a group, built from its section of the configuration; InputError if unknown."""
    fields = {name: value for name, value in section.items() if name not in ("name", "_target_")}
    return typed(lookup(group, str(section["name"])), fields, group)


def names_in(config: Mapping[str, Any], *groups: str) -> dict[str, str]:
    """The name selected in each group, of a device its product's; what is no mapping is made a text."""
    values = {group: config.get(group) for group in groups}
    return {
        group: str(value.get(PRODUCT, value.get("name")) if isinstance(value, Mapping) else value)
        for group, value in values.items()
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
