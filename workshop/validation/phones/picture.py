"""The comparison as a picture: predicted over measured, one panel for each quantity."""

from __future__ import annotations

from repro.reports.figures.paint import canvas, drawn_alike, exported, tidy
from workshop.validation.phones.comparison import Comparison
from workshop.validation.phones.page import NAMES
from workshop.validation.phones.quantities import QUANTITIES, UNITS
from workshop.validation.phones.rows import DEFAULTS, FIT, PREDICT

SHOWN = (
    (FIT, "fitted", "#bbbbbb", "."),
    (DEFAULTS, "small group, class defaults", "#d95f02", "^"),
    (PREDICT, "held out", "#1b6ca8", "o"),
)


@drawn_alike
def draw_phones(found: Comparison, format: str = "png") -> bytes:
    """The picture as PNG or PDF; the same comparison gives the same bytes."""
    picture = canvas(10.5, 4.2)
    for panel, kind in zip(picture.subplots(1, len(QUANTITIES)), QUANTITIES, strict=True):
        own = [q for q in found.quantities if q.kind == kind and not q.row.apart]
        for role, label, color, marker in SHOWN:
            points = [q for q in own if found.roles.get(q.row.id) == role]
            panel.scatter(
                [q.measured for q in points],
                [found.predicted[q.id] for q in points],
                s=18 if marker != "." else 30,
                color=color,
                marker=marker,
                linewidths=0,
                alpha=0.85,
                label=label,
            )
        values = [q.measured for q in own] + [found.predicted[q.id] for q in own]
        ends = [min(values) / 1.3, max(values) * 1.3]
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
    return exported(picture, format)
