"""Finds the published values of a table's entries by the coordinates that both have.

Owns the rules of that join. Must not know records, nor what our values are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from repro.core.errors import InputError
from repro.libraries import pd
from repro.reports.reference.names import DisplayNames
from repro.reports.reference.reference import PublishedCell
from repro.reports.spec.units import factor

STRICT_FIELDS = ("system", "model", "dataset", "device")
"""Fields that a published cell must leave empty unless the entry says something about them."""

JOIN_FIELDS = (*STRICT_FIELDS, "paper", "artifact", "metric", "relative_to")
"""The columns that both frames have; an empty text of a published cell fits every entry."""

PREFERRED_FIELDS = ("draft_model", "section")
"""Fields that choose among several published cells that fit."""

CONDITION = "condition"

Texts = Mapping[str, tuple[str, ...]]
"""Accepted texts by field of a published cell."""


class EntryCoordinates(NamedTuple):
    """An entry of a table: a row's id, a column's key, what its published cell must say, and its unit.

    It names an artifact. The texts of `condition` are parts that a cell's condition must all have; without a
    unit any will do.
    """

    row: str
    column: str
    texts: Texts
    unit: str | None


def published_ids(
    entries: Sequence[EntryCoordinates], cells: Collection[PublishedCell], where: str
) -> list[str | None]:
    """The id of the published cell that fits each entry; None if none does.

    Raises:
        InputError: several cells fit an entry; `where` is the table.
    """
    if not entries:
        return []
    artifacts = {text for entry in entries for text in entry.texts["artifact"]}
    published = pd.DataFrame([vars(cell) for cell in cells if cell.artifact in artifacts])
    printed_texts = {name: published[name].unique() for name in JOIN_FIELDS}
    accepted = pd.DataFrame(
        [
            (entry_number, *texts)
            for entry_number, entry in enumerate(entries)
            for texts in product(
                *(_fitting_texts(entry.texts, name, printed_texts[name]) for name in JOIN_FIELDS)
            )
        ],
        columns=["entry", *JOIN_FIELDS],
    )
    matches = accepted.merge(published, on=[*JOIN_FIELDS])
    entry_series = matches["entry"].map(entries.__getitem__)
    fits = map(_fits, entry_series, matches["unit"], matches[CONDITION])
    matches = matches[pd.Series([*fits], matches.index, dtype=bool)]
    for name in PREFERRED_FIELDS:
        pairs = zip(entry_series[matches.index], matches[name], strict=True)
        has_text = [text in entry.texts.get(name, (text,)) for entry, text in pairs]
        is_preferred = pd.Series(has_text, matches.index, dtype=bool)
        matches = matches[is_preferred | ~is_preferred.groupby(matches["entry"]).transform("any")]
    ids = matches.groupby("entry")["id"].agg(list).to_dict()
    for entry_number, names in ids.items():
        if len(names) > 1:
            row, column = entries[entry_number][:2]
            raise InputError(
                f"{where}: {row}, column {column!r}, fits several published values: {', '.join(names)}; say "
                "more under `paper`"
            )
    return [ids[entry_number][0] if entry_number in ids else None for entry_number in range(len(entries))]


def coordinates(names: DisplayNames, paper: str, labels: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The texts of a published cell's fields that labels stand for; of two labels the texts that fit both."""
    by_field: dict[str, tuple[str, ...]] = {}
    for label, value in labels.items():
        for name, texts in names.find(paper, label, value).published.items():
            if name == CONDITION:
                by_field[name] = (*by_field.get(name, ()), *texts)
            else:
                common_texts = tuple(text for text in texts if text in by_field.get(name, texts))
                by_field[name] = common_texts or texts
    return by_field


def _fitting_texts(texts: Texts, name: str, printed: Collection[str]) -> list[str]:
    """The printed texts of a field that fit an entry."""
    fitting_texts = (*texts.get(name, () if name in STRICT_FIELDS else printed), "")
    return [text for text in printed if text in fitting_texts]


def _fits(entry: EntryCoordinates, unit: str, condition: str) -> bool:
    """Whether a unit can be the entry's, and a condition has all its parts; `-part` must not be in it."""
    if entry.unit is not None and factor(unit, entry.unit) is None:
        return False
    conditions = condition.split("; ")
    return all(
        (part[1:] not in conditions) if part.startswith("-") else (part in conditions)
        for part in entry.texts.get(CONDITION, ())
    )
