"""Colours of systems: one for each name in all figures of a paper, from `conf/reference/colours.yaml`.

Owns which system has which colour. `paint` owns the colours themselves; must not know tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_folders, merged
from repro.core.reading import read_mapping
from repro.reports.figures.paint import BASELINES, OURS
from repro.reports.reference.names import FIELD_OF, load_names

SYSTEMS = tuple(label for label, field in FIELD_OF.items() if field == "system")
"""Labels whose values are systems."""


@dataclass(frozen=True)
class Palette:
    """The systems of a paper in the order of their colours, its own first; none without a list."""

    paper: str
    systems: tuple[str, ...] = ()

    @property
    def own(self) -> str:
        """Display name of the paper's own system, "" if nothing says which it is."""
        return self.systems[0] if self.systems else ""

    def systems_of(self, labels: Mapping[str, str]) -> list[str]:
        """Display names of the systems that these labels name."""
        names = load_names()
        return [names.find(self.paper, label, labels[label]).name for label in SYSTEMS if label in labels]

    def colours(self, systems: Sequence[str]) -> dict[str, str]:
        """The colour of each of these systems.

        One that the paper's list lacks takes the next colour after the list's last.
        """
        known = [*self.systems, *(one for one in dict.fromkeys(systems) if one not in self.systems)]
        order = known if self.own else ["", *known]
        return {one: _shade(order.index(one)) for one in systems}


def _shade(place: int) -> str:
    return BASELINES[(place - 1) % len(BASELINES)] if place else OURS


def load_palette(paper: str, folders: Sequence[Path] | None = None) -> Palette:
    """The palette of a paper, from all `reference/colours.yaml` of these folders; default `conf_folders()`.

    Raises:
        InputError: a file is malformed, or names a system of a paper twice.
    """
    lists = _lists(tuple(conf_folders() if folders is None else folders))
    return Palette(paper, lists.get(paper, ()))


@cache
def _lists(folders: tuple[Path, ...]) -> dict[str, tuple[str, ...]]:
    return merged(folders, lambda folder: [folder / "reference" / "colours.yaml"], _read, "list of colours")


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    found = {}
    for paper, systems in read_mapping(path).items():
        if not isinstance(systems, list):
            raise InputError(f"{path}, {paper}: {systems!r} must be a list of systems")
        names = tuple(map(str, systems))
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{path}, {paper}: {name!r} stands twice")
        found[str(paper)] = names
    return found
