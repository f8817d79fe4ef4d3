"""The claims of the papers' abstracts and introductions, listed in `conf/reference/headlines.yaml`.

Owns the reading of that file. `comparison` decides the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.reports.reference.reference import PublishedCell, find


@dataclass(frozen=True)
class Headline:
    """A claim: the published value's id, what it says, and what our figure rests on."""

    id: str
    says: str
    about: str = ""


@dataclass(frozen=True)
class Headlines:
    """The claims, the name that each paper gives its own system, and models that are not at hand."""

    systems: Mapping[str, str]
    claims: tuple[Headline, ...]
    missing_models: tuple[str, ...] = ()


def read_headlines(path: Path, cells: Mapping[str, PublishedCell]) -> Headlines:
    """The claims and systems in a file.

    Raises:
        InputError: an entry is malformed, or names no published value, paper or system.
    """
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = typed(Headlines, plain, path.name)
    for claim in found.claims:
        find(cells, claim.id)
    for paper, system in found.systems.items():
        own = {cell.system for cell in cells.values() if cell.paper == paper}
        if not own:
            raise InputError(f"{path.name}: {unknown('paper', paper, {c.paper for c in cells.values()})}")
        if system not in own:
            raise InputError(f"{path.name}: {unknown(f'system of {paper}', system, own)}")
    return found
