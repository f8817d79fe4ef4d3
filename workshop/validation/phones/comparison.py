"""Every prediction of the measured rows: by the fit to fitted rows, without a chip, and by the trivial
rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workshop.validation.phones.chips import sheets
from workshop.validation.phones.class_fit import ClassFit, fit_classes
from workshop.validation.phones.emulated_rows import emulated_values
from workshop.validation.phones.quantities import Quantity, quantities
from workshop.validation.phones.rows import FIT, PREDICT, PhoneRow, predictable
from workshop.validation.phones.trivial import RULES, trivial

DRAWS, SEED, WITHIN = 64, 20, 0.3
"""Draws of assumed facts, their seed, and how far a fact may be off."""

GIVEN = 2
"""Rows of a new chip that one column gives to the fit."""


@dataclass(frozen=True)
class Comparison:
    """Predictions in printed units by quantity id, beside what was measured.

    Attributes:
        quantities: everything measured, rows that stand apart included where they can be predicted.
        roles: by row id; empty for rows that stand apart.
        predicted: by the emulator, from the fit to fitted rows.
        left_out: of fitted rows, by a fit that saw nothing of their source and model.
        without_chip: by a fit that saw no row of the chip.
        two_rows: of predicted rows, by a fit that saw two rows of the chip.
        rules: by each trivial rule, from the fitted rows.
        rules_without_chip: the same, from the fitted rows of other chips.
        band: 2.5% and 97.5% quantiles over draws of the assumed facts.
        assumed: share of assumed facts among the data sheet's two that a prediction uses.
    """

    quantities: tuple[Quantity, ...]
    roles: Mapping[str, str]
    predicted: Mapping[str, float]
    left_out: Mapping[str, float]
    without_chip: Mapping[str, float]
    two_rows: Mapping[str, float]
    rules: Mapping[str, Mapping[str, float]]
    rules_without_chip: Mapping[str, Mapping[str, float]]
    band: Mapping[str, tuple[float, float]]
    assumed: Mapping[str, float]

    @property
    def measured(self) -> dict[str, float]:
        """What was printed, by quantity id."""
        return {one.id: one.measured for one in self.quantities}


def compare(rows: Sequence[PhoneRow], roles: Mapping[str, str], draws: int = DRAWS) -> Comparison:
    """Fit the fitted rows and predict all others.

    Args:
        rows: all measured rows.
        roles: roles by row id, as committed.
        draws: how often the assumed facts are drawn for the bands.
    """
    used = [row for row in rows if not row.apart]
    classes = {row.engine for row in used}
    everything = tuple(quantities(row for row in rows if predictable(row, classes)))
    fit = fit_classes(used, roles)
    seen = [q for q in everything if roles.get(q.row.id) == FIT]
    mine = [q for q in everything if not q.row.apart]
    return Comparison(
        quantities=everything,
        roles=roles,
        predicted=emulated_values(everything, fit.solution.values),
        left_out=fit.left_out(),
        without_chip=_without_chip(fit, seen, mine),
        two_rows=_two_rows(fit, seen, [q for q in mine if roles.get(q.row.id) == PREDICT]),
        rules={rule: trivial(everything, seen, rule) for rule in RULES},
        rules_without_chip={rule: _rules_without_chip(mine, seen, rule) for rule in RULES},
        band=_bands(used, roles, fit, everything, draws),
        assumed={q.id: 1.0 if sheets()[q.row.soc]["source"] == "assumed" else 0.0 for q in everything},
    )


def _chips(wanted: Iterable[Quantity]) -> list[str]:
    return sorted({q.row.soc for q in wanted})


def _without_chip(fit: ClassFit, seen: Sequence[Quantity], wanted: Sequence[Quantity]) -> dict[str, float]:
    found: dict[str, float] = {}
    for chip in _chips(wanted):
        blind = fit.without([q.id for q in seen if q.row.soc == chip])
        found |= emulated_values([q for q in wanted if q.row.soc == chip], blind.solution.values)
    return found


def _two_rows(fit: ClassFit, seen: Sequence[Quantity], wanted: Sequence[Quantity]) -> dict[str, float]:
    """Predictions of a group's predicted rows by a fit that saw two of its fitted rows and none else of the
    chip."""
    found: dict[str, float] = {}
    for group in sorted({q.row.group for q in wanted}):
        own = sorted({q.row.id for q in seen if q.row.group == group})
        kept = set(own[:: max(1, (len(own) - 1) // (GIVEN - 1))][:GIVEN])
        blind = fit.without([q.id for q in seen if q.row.soc == group[0] and q.row.id not in kept])
        found |= emulated_values([q for q in wanted if q.row.group == group], blind.solution.values)
    return found


def _rules_without_chip(wanted: Sequence[Quantity], seen: Sequence[Quantity], rule: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for chip in _chips(wanted):
        own = [q for q in wanted if q.row.soc == chip]
        found |= trivial(own, [q for q in seen if q.row.soc != chip], rule)
    return found


def _bands(
    rows: Sequence[PhoneRow],
    roles: Mapping[str, str],
    fit: ClassFit,
    wanted: Sequence[Quantity],
    draws: int,
) -> dict[str, tuple[float, float]]:
    """Bands of predictions: every assumed fact of a data sheet is drawn anew and the fit repeated."""
    facts = [
        f"{soc}/{what}"
        for soc, sheet in sheets().items()
        if sheet["source"] == "assumed"
        for what in ("bandwidth", "cpu", "gpu", "npu")
    ]
    random = np.random.default_rng(SEED)
    drawn: dict[str, list[float]] = {q.id: [] for q in wanted}
    for _ in range(draws):
        exponents = random.uniform(-1.0, 1.0, len(facts))
        factors = dict(zip(facts, np.exp(exponents * np.log(1 + WITHIN)), strict=True))
        for one, value in fit_classes(rows, roles, factors, fit.solution.values).predicted(wanted).items():
            drawn[one].append(value)
    return {
        one: (float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975)))
        for one, values in drawn.items()
        if values
    }
