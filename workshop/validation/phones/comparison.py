"""Every measured value beside predictions of fits that did not see it, and beside two trivial rules.

A fit sees no row of the value's chip, two of them, or nine; the rules scale the nearest measured row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from workshop.validation.phones.bands import CLASS, NOTHING, ROWS
from workshop.validation.phones.chips import processor_of, sheets
from workshop.validation.phones.class_fit import fit_classes
from workshop.validation.phones.classes import class_of, computes
from workshop.validation.phones.quantities import DECODE, UNITS, Quantity, quantities
from workshop.validation.phones.rows import PhoneRow, predictable
from workshop.validation.phones.trivial import RULES, trivial

GIVEN = (2, 9)
"""Rows of a new chip's group that columns give to the fit."""

BLIND = "_without_chip"
"""Ends the columns of rules that saw no row of the chip."""


def compare(rows: Iterable[PhoneRow]) -> pd.DataFrame:
    """A frame of everything measured, by id.

    Columns are the row's own, `fitted` (by the fit to all rows), `without_chip`, `two_rows`, `nine_rows`, what
    the first knew (`known`), and the rules; what is not predicted is NaN.

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
            "processor": [processor_of(class_of(computes(row.engine, row.format))) for row in measured],
            "format": [row.format for row in measured],
            "model": [row.model for row in measured],
            "of": [one.kind for one in everything],
            "phase": [DECODE if one.kind == DECODE else "prefill" for one in everything],
            "known": known(everything, seen),
            "apart": [row.apart for row in measured],
            "unit": [UNITS[one.kind] for one in everything],
            "measured": [one.measured for one in everything],
            "source": [row.source for row in measured],
        },
        index=[one.id for one in everything],
    )
    columns = {"fitted": fit_classes(seen).predicted(everything), **blind_fits(everything, seen)}
    for rule in RULES:
        columns[f"{rule}_rule"] = trivial(everything, seen, rule)
        columns[f"{rule}_rule{BLIND}"] = by_chip(
            everything, seen, lambda wanted, others, rule=rule: trivial(wanted, others, rule)
        )
    for name, values in columns.items():
        frame[name] = [values.get(one.id, np.nan) for one in everything]
    return frame


def known(wanted: Sequence[Quantity], seen: Sequence[Quantity]) -> list[str]:
    """What rows of other chips say of each value: its class in its format, or nothing."""
    chips: dict[tuple[str, str], set[str]] = {}
    for one in seen:
        key = class_of(computes(one.row.engine, one.row.format)), one.row.format
        chips.setdefault(key, set()).add(one.row.soc)
    return [
        CLASS if chips.get((class_of(computes(r.engine, r.format)), r.format), set()) - {r.soc} else NOTHING
        for r in (one.row for one in wanted)
    ]


def by_chip(
    wanted: Sequence[Quantity],
    seen: Sequence[Quantity],
    predict: Callable[[Sequence[Quantity], Sequence[Quantity]], dict[str, float]],
) -> dict[str, float]:
    """Predictions of each chip's values from what was seen of other chips."""
    found: dict[str, float] = {}
    for chip in sorted({one.row.soc for one in wanted}):
        own = [one for one in wanted if one.row.soc == chip]
        found |= predict(own, [one for one in seen if one.row.soc != chip])
    return found


def blind_fits(wanted: Sequence[Quantity], seen: Sequence[Quantity]) -> dict[str, dict[str, float]]:
    """Predictions by fits that saw no row of a value's chip, or some rows of its group alone."""
    progress = tqdm(desc="fits", unit="fit")

    def predict(own: Sequence[Quantity], others: Sequence[Quantity]) -> dict[str, float]:
        progress.update()
        return fit_classes(others).predicted(own)

    columns = {"without_chip": by_chip(wanted, seen, predict)}
    for name, count in zip(("two_rows", "nine_rows"), GIVEN, strict=True):
        columns[name] = {}
        for group in sorted({one.row.group for one in seen}):
            given = spread([one.row.id for one in seen if one.row.group == group], count)
            own = [one for one in wanted if one.row.group == group and one.row.id not in given]
            if given and own:
                kept = [one for one in seen if one.row.soc != group[0] or one.row.id in given]
                columns[name] |= predict(own, kept)
    progress.close()
    return columns


def spread(ids: Sequence[str], count: int) -> list[str]:
    """That many of a group's rows, evenly spread over the order of their names; none of a smaller group."""
    own = sorted(set(ids))
    places = np.linspace(0, len(own) - 1, count).round().astype(int)
    return [own[place] for place in places] if len(own) > count else []


def unknown(frame: pd.DataFrame) -> pd.DataFrame:
    """Predictions of which the error is taken: a row for each value and what was known of it.

    Columns `processor`, `phase`, `known`, `soc` and `error`, the logarithm of predicted over measured.
    """
    used = frame[frame["apart"] == ""]
    parts = [
        used.assign(known=used["known"] if column == "without_chip" else ROWS, predicted=used[column])
        for column in ("without_chip", "two_rows")
    ]
    both = pd.concat(parts).dropna(subset=["predicted"])
    both["error"] = np.log(both["predicted"] / both["measured"])
    return both[["processor", "phase", "known", "soc", "error"]].reset_index(drop=True)
