"""What `conf/reference` says beside published values: headline claims, choices of ours that they rest on, and
reasons why predictions miss.

Owns the reading of `headlines.yaml`, `choices.yaml` and `reasons.yaml`, the envelope of a claim over the
alternatives of choices, and which reason a miss gets. `comparison` decides verdicts. Must not know records.
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
from repro.reports.claims.claims import ClaimSpec, CommittedDraws, claims_of, expand_entry
from repro.reports.comparison.comparison import Comparison, Figure
from repro.reports.files import path_of
from repro.reports.reference.reference import COLUMNS, PublishedCell, find


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
    comparison: Comparison


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
            if foreign_claims := [claim for claim in alternative.figures if claim not in choice.claims]:
                raise InputError(
                    f"{path.name}: {unknown(f'claim of {choice.id}', foreign_claims[0], choice.claims)}"
                )
    return choices


def readings(
    choices: Sequence[PaperChoice],
    folder: Path,
    cells: Mapping[str, PublishedCell],
    draws: CommittedDraws | None = None,
) -> dict[str, list[ClaimReading]]:
    """Each claim's comparisons under the alternatives whose tables a folder has, by the claim's id.

    Raises:
        InputError: a table of an alternative lacks the row or column.
    """
    alternatives: list[tuple[PaperChoice, Alternative]] = []
    specs: list[ClaimSpec] = []
    for choice in choices:
        for alternative in choice.alternatives:
            for claim_id, figures in alternative.figures.items():
                where = f"choice {choice.id!r}, {alternative.name!r}"
                (entry,) = expand_entry({"id": claim_id, **figures}, "", choice.paper, {}, where)
                spec = typed(ClaimSpec, entry, where)
                if all(path_of(folder, table, "csv").is_file() for table in spec.tables):
                    alternatives.append((choice, alternative))
                    specs.append(spec)
    all_readings: dict[str, list[ClaimReading]] = {}
    claims = claims_of(specs, folder, cells, draws)
    for (choice, alternative), claim in zip(alternatives, claims, strict=True):
        all_readings.setdefault(claim.spec.id, []).append(ClaimReading(choice, alternative, claim.comparison))
    return all_readings


def envelop(comparison: Comparison, readings: Sequence[ClaimReading]) -> Comparison:
    """A comparison whose figures reach over those of all alternatives, interval and band included."""
    variants = [comparison, *(reading.comparison for reading in readings if reading.comparison.ours)]
    figures = []
    for index, figure in enumerate(comparison.ours):
        hulls = [variant.ours[min(index, len(variant.ours) - 1)].hull for variant in variants]
        hull = min(low for low, _ in hulls), max(high for _, high in hulls)
        figures.append(Figure(figure.value, figure.interval, hull))
    return replace(comparison, ours=tuple(figures))


def deciding_readings(comparison: Comparison, readings: Sequence[ClaimReading]) -> list[ClaimReading]:
    """The readings that turn a claim: our figure alone has another verdict there than as we chose."""
    return [
        reading
        for reading in readings
        if reading.comparison.ours and reading.comparison.point != comparison.point
    ]


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
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    headlines = typed(Headlines, entries, path.name)
    for name in (*(claim.id for claim in headlines.claims), *headlines.rates.values()):
        find(cells, name)
    for paper, system in (*headlines.systems.items(), *headlines.baselines.items()):
        systems = {cell.system for cell in cells.values() if cell.paper == paper}
        if not systems:
            raise InputError(f"{path.name}: {unknown('paper', paper, {c.paper for c in cells.values()})}")
        if system not in systems:
            raise InputError(f"{path.name}: {unknown(f'system of {paper}', system, systems)}")
    return headlines


@dataclass(frozen=True)
class Reason:
    """Why our figures are off in one direction.

    Attributes:
        why: in a sentence.
        ours: whether it makes ours lie `above` the published value, or `below`.
        id: the only published cell that it is about; "" for a rule.
        rule: fields of published cells with the values that they must have.
    """

    why: str
    ours: Literal["above", "below"]
    id: str = ""
    rule: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def covers(self, cell: PublishedCell) -> bool:
        """Whether a published cell is in its scope."""
        if self.id:
            return cell.id == self.id
        return all(getattr(cell, name) in values for name, values in self.rule.items())

    def explains(self, c: Comparison) -> bool:
        """Whether it covers a comparison and pushes it in its direction."""
        return self.covers(c.cell) and c.error is not None and (c.error > 0) == (self.ours == "above")

    @property
    def scope(self) -> str:
        """What it is about, in words."""
        return self.id or ", ".join(f"{name} {' or '.join(values)}" for name, values in self.rule.items())


def read_reasons(path: Path, cells: Mapping[str, PublishedCell]) -> list[Reason]:
    """The reasons in a file.

    Raises:
        InputError: an entry is malformed, names no published cell, or covers none.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    if not isinstance(entries, list):
        raise InputError(f"{path.name} must be a list of reasons, each with `why`, `ours` and `id` or `rule`")
    return [_reason(entry, path.name, cells) for entry in entries]


def _reason(entry: object, where: str, cells: Mapping[str, PublishedCell]) -> Reason:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: {entry!r} must be a mapping with `why`, `ours` and `id` or `rule`")
    rule = {str(k): (v,) if isinstance(v, str) else tuple(v) for k, v in (entry.get("rule") or {}).items()}
    reason = typed(Reason, {**entry, "rule": rule}, f"{where}, {entry.get('id') or entry.get('rule')}")
    if bool(reason.id) == bool(reason.rule):
        raise InputError(f"{where}: {entry!r} needs either `id` or `rule`")
    if reason.id:
        find(cells, reason.id)
    fields = [name for name in COLUMNS if not name.startswith("value_")]
    for name, values in reason.rule.items():
        if name not in fields:
            raise InputError(f"{where}: {unknown('field of a published cell', name, fields)}")
        for value in values:
            if not any(getattr(cell, name) == value for cell in cells.values()):
                raise InputError(f"{where}: no published cell has {name} {value!r}")
    if not any(reason.covers(cell) for cell in cells.values()):
        raise InputError(f"{where}: no published cell has {reason.scope}")
    return reason


def reason_of(comparison: Comparison, reasons: Sequence[Reason]) -> str:
    """Why a miss is off: by its own reason, or the rule with the most fields; "" if nobody knows."""
    if not comparison.is_miss:
        return ""
    explanations = [reason for reason in reasons if reason.explains(comparison)]
    explanations.sort(key=lambda reason: (not reason.id, -len(reason.rule)))
    return explanations[0].why if explanations else ""


def count_explained(reason: Reason, comparisons: Sequence[Comparison]) -> tuple[int, int]:
    """How many misses in its scope a reason explains, and how many contradict it."""
    misses = [c for c in comparisons if c.is_miss and reason.covers(c.cell)]
    explained_count = sum(map(reason.explains, misses))
    return explained_count, len(misses) - explained_count
