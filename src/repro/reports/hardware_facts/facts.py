"""Published facts that no run measures, compared with our device files.

Owns which entry of a device file a fact is compared with. Must not know records, nor how a table looks.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.device.device_file import Fact, facts
from repro.device.engines.engine_file import OWN, device_in_use
from repro.reports.comparison.comparison import Published, in_unit
from repro.reports.reference.reference import PublishedCell, find

FACT = "fact"
"""Value of the `column` field of a fact in a CSV file."""
CAPACITY_UNIT = "billion_params"
"""Unit of the model size that fills a memory."""
NUMBER_UNIT = "tokens"
"""Unit of all other numbers that are compared."""
BITS_PER_BYTE, BILLION = 8, 1e9
TEXT_ENTRIES = ("name", "soc", "main")
"""Entries of a device file that are strings; all others are numbers with a source."""


@dataclass(frozen=True)
class FactSpec:
    """A published fact, with the device file entry to compare it with or the reason why there is none.

    Attributes:
        fact: what it is about, in words.
        id: of a published cell; give either this or `setting`.
        setting: component and name of a line of `settings.csv`.
        device: name of the device file in `conf/device/`.
        path: of the entry in that file, joined by dots: `soc`, `dram.capacity`.
        precision: for a published model size: storage precision of the weights that fill the memory at
            `path`.
        absent: why we have no entry.
        remark: doubts about it.
    """

    fact: str
    id: str = ""
    setting: tuple[str, ...] = ()
    device: str = ""
    path: str = ""
    precision: str = ""
    absent: str = ""
    remark: str = ""

    def __post_init__(self) -> None:
        if bool(self.id) == bool(self.setting) or len(self.setting) not in (0, 2):
            raise InputError(f"fact {self.fact!r} needs either `id`, or `setting: [component, name]`")
        if bool(self.device) == bool(self.absent) or bool(self.device) != bool(self.path):
            raise InputError(f"fact {self.fact!r} needs either `device` and `path`, or `absent`")
        if self.precision and not (self.id and self.device):
            raise InputError(
                f"fact {self.fact!r}: `precision` goes with `id` and `device`: a size in memory becomes a "
                "number of weights"
            )

    @property
    def reference(self) -> str:
        """Its name in the reference files."""
        return self.id or "/".join(self.setting)


@dataclass(frozen=True)
class FactsSpec:
    """The `table:` section of a facts experiment; if `picture` (a title) is given, our numbers are drawn."""

    experiment: str
    title: str
    paper: str
    facts: tuple[FactSpec, ...]
    footnotes: tuple[str, ...] = ()
    picture: str = ""

    def __post_init__(self) -> None:
        if self.picture and not any(fact.precision for fact in self.facts):
            raise InputError(
                f"the picture of table {self.experiment!r} has no number: no fact has a precision"
            )

    @classmethod
    def parse(cls, experiment: str, section: Mapping[str, Any]) -> FactsSpec:
        """Parse a section of plain dictionaries and lists; InputError if it is invalid.

        The section's `component` is that of every fact whose `setting` is a name alone.
        """
        return typed(cls, {"experiment": experiment, **expand_facts(section)}, f"table {experiment!r}")


def expand_facts(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section whose settings have their component."""
    content = dict(section)
    component = content.pop("component", None)
    if component is not None:
        content["facts"] = [_with_component(fact, str(component)) for fact in content.get("facts") or ()]
    return content


def _with_component(fact: Any, component: str) -> Any:
    if isinstance(fact, Mapping) and isinstance(fact.get("setting"), str):
        return {**fact, "setting": [component, fact["setting"]]}
    return fact


@dataclass(frozen=True)
class Statement:
    """A fact as the paper and our device file state it.

    Attributes:
        spec: the fact as configured.
        section: of the paper.
        published: the paper's value or words.
        unit: of a number.
        note: doubts from the reference file.
        ours: a number in that unit, or words; None if we have no entry.
        basis: the entry of our file, with its source.
        fitted: whether our number comes from a paper or a fit and therefore is not a prediction.
    """

    spec: FactSpec
    section: str
    published: Published | str
    unit: str
    note: str
    ours: float | str | None = None
    basis: str = ""
    fitted: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks of our value, as in any table."""
        return ("fitted",) if self.fitted else ()

    @property
    def ratio(self) -> float | None:
        """Our value divided by the published one, if both are numbers."""
        if isinstance(self.published, Published) and isinstance(self.ours, float):
            return self.published.ratio(self.ours)
        return None


@dataclass(frozen=True)
class Sources:
    """Everything that facts are read from.

    Attributes:
        cells: published cells by id.
        settings: lines of `settings.csv` by paper, component and name.
        devices: the folder of device files.
        bits: bits of a stored weight, by precision.
    """

    cells: Mapping[str, PublishedCell]
    settings: Mapping[tuple[str, str, str], Mapping[str, str]]
    devices: Path
    bits: Mapping[str, float]


def read_settings(path: Path) -> dict[tuple[str, str, str], Mapping[str, str]]:
    """Lines of `settings.csv` by paper, component and name."""
    with path.open(newline="", encoding="utf-8") as file:
        return {(row["paper"], row["component"], row["name"]): row for row in csv.DictReader(file)}


def read_facts(spec: FactsSpec, sources: Sources) -> list[Statement]:
    """Every fact with the paper's and our statement.

    Raises:
        InputError: a setting, published cell, device file, entry or precision does not exist; or a cell has a
            unit that cannot be converted, or belongs to another paper.
    """
    return [_statement(fact, spec.paper, sources) for fact in spec.facts]


def _statement(fact: FactSpec, paper: str, sources: Sources) -> Statement:
    ours, basis, fitted = _ours(fact, sources) if fact.device else (None, "", False)
    if fact.id:
        cell = find(sources.cells, fact.id)
        if cell.paper != paper:
            raise InputError(f"fact {fact.fact!r} is {cell.paper}'s, not {paper}'s")
        unit = CAPACITY_UNIT if fact.precision else NUMBER_UNIT if fact.device else cell.unit
        published = in_unit(cell, unit, f"fact {fact.fact!r}")
        return Statement(fact, cell.section, published, unit, cell.note, ours, basis, fitted)
    row = sources.settings.get((paper, *fact.setting))  # type: ignore[arg-type]  # two, checked by FactSpec
    if row is None:
        settings = [f"{component}/{name}" for p, component, name in sources.settings if p == paper]
        raise InputError(f"fact {fact.fact!r}: {unknown('setting', fact.reference, settings)}")
    row_text = f"{row['value']} {row['unit']}".strip()
    return Statement(fact, row["section"], row_text, "", "", ours, basis)


def _ours(fact: FactSpec, sources: Sources) -> tuple[float | str, str, bool]:
    """Our entry of the device or its own engine, its source, and whether that is a paper or a fit."""
    device = _device(sources.devices, fact.device)
    if fact.path in TEXT_ENTRIES:
        return str(device[fact.path]), f"{fact.device}: {fact.path}", False
    all_facts = {entry.path: entry for entry in facts(device)}
    if fact.path not in all_facts:
        raise InputError(
            f"in device file {fact.device}: {unknown('entry', fact.path, [*TEXT_ENTRIES, *all_facts])}"
        )
    entry = all_facts[fact.path]
    if not fact.precision:
        basis = f"{fact.device}: {fact.path} ({_source(entry)})"
        if fact.id:
            return entry.value, basis, entry.source in ("paper", "fitted")
        return entry.printed, basis, False
    if fact.precision not in sources.bits:
        raise InputError(f"fact {fact.fact!r}: {unknown('precision', fact.precision, sources.bits)}")
    bits = sources.bits[fact.precision]
    basis = f"{fact.device}: {fact.path} {entry.printed} ({_source(entry)}), {bits:.4g} bits a weight"
    return entry.value * BITS_PER_BYTE / bits / BILLION, basis, entry.source in ("paper", "fitted")


def _device(folder: Path, name: str) -> Mapping[str, Any]:
    device_names: Sequence[str] = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in device_names:
        raise InputError(unknown("device", name, device_names))
    device = read_mapping(folder / f"{name}.yaml")
    return device_in_use({"device": device, "engine": {"name": OWN}})


def _source(entry: Fact) -> str:
    return f"{entry.source}: {entry.note}" if entry.note else entry.source
