"""Finds the published value of a table entry by the coordinates that both have.

Owns the rules of that join. Must not know records, nor what our value is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.reports.reference.names import FIELDS, DisplayNames
from repro.reports.reference.reference import PublishedCell
from repro.reports.spec.units import factor

STRICT = ("system", "model", "dataset", "device", "condition")
"""Fields that a published cell must leave empty unless the entry says something about them."""

CONDITION = "condition"

Texts = Mapping[str, tuple[str, ...]]
"""Accepted texts by field of a published cell."""


@dataclass(frozen=True)
class Publication:
    """Where a column's published values are: accepted texts by field, `paper` and `artifact` among them."""

    texts: Texts

    @classmethod
    def of(cls, given: Mapping[str, Any], where: str) -> Publication:
        """Read a `paper:` mapping of texts or lists of texts; InputError for an unknown field."""
        for name in given:
            if name not in FIELDS:
                raise InputError(f"{where}: {unknown('field of a published cell', str(name), FIELDS)}")
        return cls(
            {
                name: tuple(map(str, text)) if isinstance(text, list | tuple) else (str(text),)
                for name, text in given.items()
            }
        )


def coordinates(names: DisplayNames, paper: str, labels: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The texts of a published cell's fields that labels stand for; of two labels the texts that fit both."""
    found: dict[str, tuple[str, ...]] = {}
    for label, value in labels.items():
        for name, texts in names.find(paper, label, value).published.items():
            if name == CONDITION:
                found[name] = (*found.get(name, ()), *texts)
            else:
                both = tuple(text for text in texts if text in found.get(name, texts))
                found[name] = both or texts
    return found


def match(
    cells: Collection[PublishedCell], known: Texts, asked: Texts, unit: str | None, where: str
) -> PublishedCell | None:
    """The one cell that fits; None if none does.

    Args:
        cells: the published cells.
        known: what the entry's labels say; `asked` goes before it.
        asked: what the column or table asks for.
        unit: the column's; None for any.
        where: the entry, for error messages.

    Raises:
        InputError: several cells fit.
    """
    texts = {**known, **asked}
    if CONDITION in known and CONDITION in asked:
        texts[CONDITION] = (*known[CONDITION], *asked[CONDITION])
    found = [cell for cell in cells if _fits(cell, texts)]
    if unit is not None:
        found = [cell for cell in found if factor(cell.unit, unit) is not None]
    for name in ("draft_model", "section"):
        if len(found) > 1 and name in texts:
            found = [cell for cell in found if getattr(cell, name) in texts[name]] or found
    if len(found) > 1:
        ids = ", ".join(cell.id for cell in found)
        raise InputError(f"{where} fits several published values: {ids}; say more under `paper`")
    return found[0] if found else None


def _fits(cell: PublishedCell, texts: Texts) -> bool:
    for name in (*STRICT, "paper", "artifact", "metric", "relative_to"):
        own = getattr(cell, name)
        if name == CONDITION:
            if not _holds(own, texts.get(name, ())):
                return False
        elif name in texts:
            if own and own not in texts[name]:
                return False
        elif own and name in STRICT:
            return False
    return True


def _holds(condition: str, wanted: Sequence[str]) -> bool:
    """Whether a cell's condition has all wanted parts; `-part` must not be in it."""
    parts = set(condition.split("; ")) if condition else set()
    return all((part[1:] not in parts) if part.startswith("-") else (part in parts) for part in wanted)
