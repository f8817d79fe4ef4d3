"""Choices of ours on which headline claims rest (`conf/reference/choices.yaml`), and what others would give.

Owns the reading of that file and the envelope of a claim over its alternatives. Must not know records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.reports.claims.claims import ClaimSpec, Draws, claims_of, written_out
from repro.reports.comparison.comparison import Compared, Figure
from repro.reports.files import path_of
from repro.reports.reference.reference import PublishedCell, find


@dataclass(frozen=True)
class Alternative:
    """Another way to decide a choice.

    Attributes:
        name: what it does, in a phrase.
        overrides: the settings that make it, as on the command line; "" if no setting does.
        figures: by a claim's id, which figures of ours it rests on then, as a claim's entry of a claims page.
        absent: why nothing of it was computed; "" if something was.
    """

    name: str
    overrides: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    absent: str = ""

    def __post_init__(self) -> None:
        if bool(self.figures) == bool(self.absent):
            raise InputError(f"alternative {self.name!r} needs either `figures` or `absent`")


@dataclass(frozen=True)
class PaperChoice:
    """A choice that a paper leaves to us.

    Attributes:
        id: its name.
        paper: whose.
        chosen: what we do, and what the paper says.
        after_misses: whether it was made after misses of ours had been seen.
        says: the page that says so.
        claims: ids of the headline claims that rest on it.
        alternatives: other ways to decide it; several choices decided otherwise at once are alternatives of
            the first.
    """

    id: str
    paper: str
    chosen: str
    after_misses: Literal["yes", "partly", "no"]
    says: str
    claims: tuple[str, ...]
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class ClaimReading:
    """A claim's comparison under an alternative."""

    choice: PaperChoice
    alternative: Alternative
    comparison: Compared


def read_choices(path: Path, cells: Mapping[str, PublishedCell]) -> tuple[PaperChoice, ...]:
    """The choices in a file.

    Raises:
        InputError: an entry is malformed or names no published value.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["choices"]
    choices = tuple(typed(PaperChoice, {"id": name, **entry}, path.name) for name, entry in entries.items())
    for choice in choices:
        for claim in choice.claims:
            find(cells, claim)
        for alternative in choice.alternatives:
            if strange := [claim for claim in alternative.figures if claim not in choice.claims]:
                raise InputError(
                    f"{path.name}: {unknown(f'claim of {choice.id}', strange[0], choice.claims)}"
                )
    return choices


def readings(
    choices: Sequence[PaperChoice],
    folder: Path,
    cells: Mapping[str, PublishedCell],
    draws: Draws | None = None,
) -> dict[str, list[ClaimReading]]:
    """Each claim's comparisons under the alternatives whose tables a folder has, by the claim's id.

    Raises:
        InputError: a table of an alternative lacks the row or column.
    """
    places: list[tuple[PaperChoice, Alternative]] = []
    specs: list[ClaimSpec] = []
    for choice in choices:
        for alternative in choice.alternatives:
            for claim_id, figures in alternative.figures.items():
                where = f"choice {choice.id!r}, {alternative.name!r}"
                (entry,) = written_out({"id": claim_id, **figures}, "", choice.paper, {}, where)
                spec = typed(ClaimSpec, entry, where)
                if all(path_of(folder, table, "csv").is_file() for table in spec.tables):
                    places.append((choice, alternative))
                    specs.append(spec)
    by_claim: dict[str, list[ClaimReading]] = {}
    claims = claims_of(specs, folder, cells, draws)
    for (choice, alternative), claim in zip(places, claims, strict=True):
        by_claim.setdefault(claim.spec.id, []).append(ClaimReading(choice, alternative, claim.comparison))
    return by_claim


def enveloped(comparison: Compared, others: Sequence[ClaimReading]) -> Compared:
    """A comparison whose figures reach over those of all alternatives, interval and band included."""
    every = [comparison, *(reading.comparison for reading in others if reading.comparison.ours)]
    figures = []
    for place, figure in enumerate(comparison.ours):
        wholes = [other.ours[min(place, len(other.ours) - 1)].whole for other in every]
        hull = min(low for low, _ in wholes), max(high for _, high in wholes)
        figures.append(Figure(figure.value, figure.interval, hull))
    return replace(comparison, ours=tuple(figures))


def deciding(comparison: Compared, others: Sequence[ClaimReading]) -> list[ClaimReading]:
    """The readings that turn a claim: our figure alone has another verdict there than as we chose."""
    return [
        reading
        for reading in others
        if reading.comparison.ours and reading.comparison.point != comparison.point
    ]
