"""Every measured value beside predictions of fits that did not see it, and beside two trivial rules.

A fit sees no row of the value's chip, two of them, or nine; the rules scale the nearest measured row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from rich.progress import track

from repro.device.engines.bands import CLASS, NOTHING, ROWS
from workshop.validation.phones.chips import processor_of, sheets
from workshop.validation.phones.class_fit import fit_classes
from workshop.validation.phones.classes import class_of, computes
from workshop.validation.phones.quantities import UNITS, Quantity, quantities
from workshop.validation.phones.rows import PhoneRow, predictable
from workshop.validation.phones.trivial import RULES, trivial

WITHOUT, TWO, NINE, FITTED = COLUMNS = ("without_chip", "two_rows", "nine_rows", "fitted")
"""Predictions by a fit that saw no row of the chip, two or nine rows of its group and no other, or all."""

GIVEN = {TWO: 2, NINE: 9}
"""Rows of a new chip's group that a fit is given."""

Quantities = Sequence[Quantity]


def rule_column(rule: str, column: str) -> str:
    """The column of a rule that saw what the fit of another column saw."""
    return f"{rule}_rule_{column}"


def compare(rows: Iterable[PhoneRow]) -> pd.DataFrame:
    """A frame of everything measured, by id.

    Columns are the row's own, those of `COLUMNS` and of the rules beside them, and what the first knew
    (`known`); what is not predicted is NaN.

    Args:
        rows: all measured rows, those that stand apart too.
    """
    rows = list(rows)
    classes = {row.engine for row in rows if not row.apart}
    everything = list(quantities(row for row in rows if predictable(row, classes)))
    seen = [one for one in everything if not one.row.apart]
    measured = [one.row for one in everything]
    frame = pd.DataFrame(
        {
            "id": [row.id for row in measured],
            "soc": [row.soc for row in measured],
            "machine": [sheets()[row.soc]["kind"] for row in measured],
            "engine_class": [row.engine for row in measured],
            "processor": [processor_of(class_of(computing_class(one))) for one in everything],
            "format": [row.format for row in measured],
            "model": [row.model for row in measured],
            "of": [one.kind for one in everything],
            "phase": [one.phase for one in everything],
            "known": known(everything, seen),
            "apart": [row.apart for row in measured],
            "unit": [UNITS[one.kind] for one in everything],
            "measured": [one.measured for one in everything],
            "source": [row.source for row in measured],
        },
        index=[one.id for one in everything],
    )
    predicted: dict[str, dict[str, float]] = {}
    for column, wanted, given in track([*divided(everything, seen)], "fits of phones"):
        by_column = {column: fit_classes(given).predicted(wanted)}
        by_column |= {rule_column(rule, column): trivial(wanted, given, rule) for rule in RULES}
        for name, values in by_column.items():
            predicted.setdefault(name, {}).update(values)
    for name, values in predicted.items():
        frame[name] = [values.get(one.id, np.nan) for one in everything]
    return frame


def computing_class(one: Quantity) -> str:
    """The class that computes a value's format."""
    return computes(one.row.engine, one.row.format)


def divided(everything: Quantities, seen: Quantities) -> Iterator[tuple[str, Quantities, Quantities]]:
    """For every column, what a fit predicts and what it sees."""
    yield FITTED, everything, seen
    for chip in sorted({one.row.soc for one in everything}):
        others = [one for one in seen if one.row.soc != chip]
        yield WITHOUT, [one for one in everything if one.row.soc == chip], others
    for column, count in GIVEN.items():
        for group in sorted({one.row.group for one in seen}):
            own = [one for one in seen if one.row.group == group]
            given = spread([one.row.id for one in own], count)
            if given:
                kept = [one for one in seen if one.row.soc != group[0] or one.row.id in given]
                yield column, [one for one in own if one.row.id not in given], kept


def known(wanted: Quantities, seen: Quantities) -> list[str]:
    """What rows of other chips say of each value: its class in its format, or nothing."""
    chips: dict[tuple[str, str], set[str]] = {}
    for one in seen:
        chips.setdefault((class_of(computing_class(one)), one.row.format), set()).add(one.row.soc)
    found = [
        chips.get((class_of(computing_class(one)), one.row.format), set()) - {one.row.soc} for one in wanted
    ]
    return [CLASS if others else NOTHING for others in found]


def spread(ids: Sequence[str], count: int) -> list[str]:
    """That many of a group's rows, evenly spread over the order of their names; none of a smaller group."""
    own = sorted(set(ids))
    places = np.linspace(0, len(own) - 1, count).round().astype(int)
    return [own[place] for place in places] if len(own) > count else []


def blind_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors of predictions that saw no row of the chip, or two: a row for each, and what was known.

    Two rows say nothing of a format that neither they nor other chips have; these are left out.
    Columns `processor`, `phase`, `known`, `soc` and `error`, the logarithm of predicted over measured.
    """
    used = frame[frame["apart"] == ""]
    blind = used.assign(predicted=used[WITHOUT])
    in_known_format = used[used["known"] == CLASS]
    with_rows = in_known_format.assign(known=ROWS, predicted=in_known_format[TWO])
    both = pd.concat([blind, with_rows]).dropna(subset=["predicted"])
    both["error"] = np.log(both["predicted"] / both["measured"])
    return both[["processor", "phase", "known", "soc", "error"]].reset_index(drop=True)
