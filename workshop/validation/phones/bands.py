"""How far predictions are off on chips that neither fit nor quantile saw: bands, and what share they hold.

Must not know fits or rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from repro.device.engines.bands import ALL, NOMINAL

LEAST = 30
"""Values of a group; a smaller one has the band of its parent, all processors together."""

DECIDES = "has_band"
"""Whether a group's own band is used: it has enough values, and holds its nominal shares."""

COLUMNS = (
    *("processor", "phase", "known", "values", "chips"),
    *(f"factor_{round(100 * share)}" for share in NOMINAL),
    *(f"seen_{round(100 * share)}" for share in NOMINAL),
    DECIDES,
)
"""Of the table of bands: factors by which measured values lie at most above or below, and shares seen."""


def bands(errors: pd.DataFrame) -> pd.DataFrame:
    """The bands of every group of at least `LEAST` values, and of the parents.

    One whose shares seen do not hold has no band of its own, a parent of which they do not has none at all.

    Args:
        errors: `processor`, `phase`, `known`, `soc`, and `error`, the logarithm of predicted over measured.
    """
    lines = []
    parents = errors.assign(processor=ALL)
    for (processor, phase, known), rows in pd.concat([errors, parents]).groupby(
        ["processor", "phase", "known"]
    ):
        if len(rows) >= LEAST or processor == ALL:
            factors = [np.exp(quantile(rows, share)) for share in NOMINAL]
            shares = [*seen(rows)]
            held = all(holds(share, own, len(rows)) for share, own in zip(NOMINAL, shares, strict=True))
            group = (processor, phase, known, len(rows), rows["soc"].nunique())
            lines.append((*group, *factors, *shares, "yes" if held else "no"))
    return pd.DataFrame(lines, columns=[*COLUMNS])


def quantile(rows: pd.DataFrame, share: float) -> float:
    """The size of error that a share of values does not exceed.

    The split-conformal quantile: of n values the ceil((n + 1) * share)-th, the largest where that is beyond.
    """
    sizes = np.sort(rows["error"].abs())
    return float(sizes[min(len(sizes), int(np.ceil((len(sizes) + 1) * share))) - 1])


def seen(rows: pd.DataFrame) -> Iterator[float]:
    """For each nominal share, the share of values within the band that the other chips give."""
    for share in NOMINAL:
        within = 0
        for chip, own in rows.groupby("soc"):
            others = rows[rows["soc"] != chip]
            if len(others):
                within += int((own["error"].abs() <= quantile(others, share)).sum())
        yield within / len(rows)


def holds(share: float, share_seen: float, values: int) -> bool:
    """Whether the 95% interval of the share seen, were values independent, has the nominal one."""
    interval = binomtest(round(share_seen * values), values).proportion_ci(0.95, "exact")
    return bool(interval.low <= share <= interval.high)
