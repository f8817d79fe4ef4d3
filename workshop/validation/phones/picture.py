"""The comparison as a picture: predicted over measured, one panel for each quantity."""

from __future__ import annotations

import pandas as pd

from repro.reports.figures.paint import canvas, default_style, export, tidy
from workshop.validation.phones.comparison import FITTED, TWO, WITHOUT
from workshop.validation.phones.page import NAMES
from workshop.validation.phones.quantities import QUANTITIES, UNITS

SHOWN = (
    (FITTED, "fitted", "#bbbbbb", "."),
    (WITHOUT, "no row of the chip", "#d95f02", "^"),
    (TWO, "two rows of the chip", "#1b6ca8", "o"),
)


@default_style
def draw_phones(frame: pd.DataFrame, format: str = "png") -> bytes:
    """The picture of a frame of quantities as PNG or PDF; the same frame gives the same bytes."""
    picture = canvas(10.5, 4.2)
    for panel, kind in zip(picture.subplots(1, len(QUANTITIES)), QUANTITIES, strict=True):
        rows = frame[(frame["of"] == kind) & (frame["apart"] == "")]
        for column, label, color, marker in SHOWN:
            points = rows.dropna(subset=[column])
            panel.scatter(
                points["measured"],
                points[column],
                s=18 if marker != "." else 30,
                color=color,
                marker=marker,
                linewidths=0,
                alpha=0.85,
                label=label,
            )
        values = rows[["measured", WITHOUT]].to_numpy()
        ends = [values.min() / 1.3, values.max() * 1.3]
        panel.plot(ends, ends, color="#444444", linewidth=0.8)
        for factor in (1.25, 1 / 1.25):
            panel.plot(ends, [factor * end for end in ends], color="#999999", linewidth=0.6, linestyle=":")
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=NAMES[kind])
        panel.set_xlabel(f"measured, {UNITS[kind]}")
        panel.set_ylabel(f"predicted, {UNITS[kind]}")
        panel.set_aspect("equal")
        tidy(panel, "both")
    keys, labels = panel.get_legend_handles_labels()
    picture.legend(keys, labels, loc="outside lower center", ncols=len(SHOWN), frameon=False, fontsize=8)
    picture.suptitle("Public measurements of phones and boards (dotted: 25% off)", fontsize=10.5)
    return export(picture, format)
