"""The claims of the papers' abstracts and introductions, listed in `conf/reference/headlines.yaml`.

Owns the reading of that file. `comparison` decides the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.reports.reference.reference import PublishedCell, find


@dataclass(frozen=True)
class Headline:
    """A claim: the published value's id, what it says, and what stands in for models and machines."""

    id: str
    says: str
    about: str = ""


@dataclass(frozen=True)
class Headlines:
    """The claims, the name that each paper gives its own system, and models that are not at hand.

    `rates`, `baselines` and `weights` are what the trivial predictor takes for a paper's own system
    (`skill.TrivialPredictor`).
    """

    systems: Mapping[str, str]
    claims: tuple[Headline, ...]
    missing_models: tuple[str, ...] = ()
    rates: Mapping[str, str] = field(default_factory=dict)
    baselines: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


def read_headlines(path: Path, cells: Mapping[str, PublishedCell]) -> Headlines:
    """The claims and systems in a file.

    Raises:
        InputError: an entry is malformed, or names no published value, paper or system.
    """
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = typed(Headlines, plain, path.name)
    for name in (*(claim.id for claim in found.claims), *found.rates.values()):
        find(cells, name)
    for paper, system in (*found.systems.items(), *found.baselines.items()):
        own = {cell.system for cell in cells.values() if cell.paper == paper}
        if not own:
            raise InputError(f"{path.name}: {unknown('paper', paper, {c.paper for c in cells.values()})}")
        if system not in own:
            raise InputError(f"{path.name}: {unknown(f'system of {paper}', system, own)}")
    return found
