"""What every scenario has: a checked configuration, a key, and a run that leaves a record.

Owns the key, the record and its provenance. Must not know what a scenario computes, nor Hydra, other cells or
where records lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

from repro.core.registry import lookup
from repro.core.typed import typed
from repro.records.code_version import source_hash
from repro.records.identity import cell_key, portable, portable_text
from repro.records.provenance import Provenance, circumstances, peak_resident_bytes
from repro.records.record import Record, Round, Scalar, Spread, content_hash
from repro.scenarios.settings import check_scalars, own_labels

Progress = Callable[[str, int, int], None]
"""Told what is under way, how many steps are done, and of how many."""


@dataclass(frozen=True)
class Findings:
    """What a run found.

    Attributes:
        values: figures by name.
        uncertainty: standard errors or 95% intervals of figures.
        rounds: lines of detail.
        timeline: of the first request, as Chrome's JSON; "" without a device.
        provenance: fields of the record's provenance that only the run tells.
    """

    values: Mapping[str, Scalar]
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    rounds: Sequence[Round] = ()
    timeline: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind: a record, its lines of detail, and a timeline as Chrome's JSON or ""."""

    record: Record
    rounds: Sequence[Round]
    timeline: str


class Scenario(ABC):
    """One cell of a sweep: a resolved configuration, checked and keyed by its content.

    Making one finds bad input that is cheap to find, `check` what takes a look at checkpoints and rows.

    Attributes:
        version: of the scenario, raised by hand when its outcomes change (docs/identity.md).
        group: the group of the configuration and of the registry that the scenario's component belongs to.
        emulated: nothing waits for the wall clock.
        config: the resolved configuration, plain.
        name: the component's.
        labels: short names for tables.
    """

    version: ClassVar[int] = 1
    group: ClassVar[str]

    emulated: bool = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check a resolved configuration; nothing long happens.

        Raises:
            InputError: a part of it cannot work.
        """
        check_scalars(config)
        self.config = config
        self.name = str(config[self.group]["name"])
        self.labels = self.labels_of(config)
        self.labels |= own_labels(config, taken=self.labels)

    @classmethod
    @abstractmethod
    def labels_of(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """The usual labels of a configuration, which may turn out to be bad input."""

    @property
    @abstractmethod
    def component(self) -> object:
        """What the configuration names: a method, compression, probe or service, with its fields."""

    @property
    @abstractmethod
    def asked(self) -> Mapping[str, Any]:
        """What of the configuration decides the outcome, and so the key."""

    @property
    @abstractmethod
    def inputs(self) -> dict[str, str]:
        """Content hashes of all that the cell is given."""

    @property
    @abstractmethod
    def versions(self) -> dict[str, int]:
        """Versions of the components that decide the outcome, by name."""

    @property
    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """The fields of the provenance that are known without a run: clock, weights, costs, fitted cells."""

    @staticmethod
    @abstractmethod
    def amount_of(config: Mapping[str, Any]) -> int:
        """How much work is asked for, in tokens or rows: estimates of time are proportional to it."""

    @abstractmethod
    def check(self) -> None:
        """Find out before the long work whether it can succeed.

        Raises:
            InputError: it cannot.
        """

    @abstractmethod
    def find(self, progress: Progress) -> Findings:
        """Do the work."""

    @cached_property
    def key(self) -> str:
        """The cell's identity."""
        return cell_key(self.asked, self.inputs, self.versions)

    def run(self, progress: Progress) -> Outcome:
        """Do the work and make a record of what was found.

        Raises:
            Exception: whatever went wrong; `failed` makes a record of it.
        """
        started = _now()
        found = self.find(progress)
        provenance = self._provenance(started, found.provenance)
        record = Record(
            self.key, self.config["name"], self.labels, "done", found.values, provenance, found.uncertainty
        )
        return Outcome(record, found.rounds, found.timeline)

    def failed(self, error: str) -> Record:
        """The record of a cell that could not be computed, from its traceback."""
        provenance = self._provenance(_now(), {})
        about = (self.key, self.config["name"], self.labels)
        return Record(*about, "failed", {}, provenance, error=portable_text(error))

    def _provenance(self, started: str, found: Mapping[str, Any]) -> Provenance:
        config = portable(self.config)
        memory = {"resident_set": peak_resident_bytes()} | found.get("memory", {})
        about: dict[str, Any] = {
            "config": config,
            "config_hash": content_hash(config),
            "inputs": self.inputs,
            "versions": self.versions,
            "sources": source_hash(type(self.component).__module__.partition(".")[0]),
            "seed": self.config["seed"],
            "started": started,
            "finished": _now(),
        }
        return Provenance(**about | self.origin | dict(found) | circumstances() | {"memory": memory})


def component(group: str, given: Mapping[str, Any]) -> Any:
    """The component that a part of the configuration names, with its fields; InputError for one unknown."""
    fields = {name: value for name, value in given.items() if name not in ("name", "_target_")}
    return typed(lookup(group, str(given["name"])), fields, f"{group} {given['name']}")


def named(config: Mapping[str, Any], *groups: str) -> dict[str, str]:
    """The name of what a configuration has in each group, also where it should not be there."""
    found = {group: config.get(group) for group in groups}
    return {g: str(one.get("name") if isinstance(one, Mapping) else one) for g, one in found.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
