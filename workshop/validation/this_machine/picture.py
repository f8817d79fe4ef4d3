"""Predicted against measured seconds of a pass, a panel for each engine and place of the layers."""

from __future__ import annotations

from collections.abc import Sequence

from repro.reports.figures.paint import GREY, canvas, colour, default_style, export, tidy
from workshop.validation.this_machine.cells import LLAMA_CPP, SHOWN
from workshop.validation.this_machine.predicting import PredictedPass

WITHIN = 0.25


@default_style
def draw(found: Sequence[PredictedPass], format: str = "png") -> bytes:
    """The picture as PNG or PDF; the same comparison gives the same bytes."""
    panels = {
        "ours, in memory": [
            c for c in found if c.cell.group.engine != LLAMA_CPP and not c.cell.group.streamed
        ],
        "ours, streamed": [c for c in found if c.cell.group.streamed],
        "llama.cpp, model left out": [c for c in found if c.cell.group.engine == LLAMA_CPP],
    }
    shown = {title: own for title, own in panels.items() if own}
    picture = canvas(3.5 * len(shown), 3.9)
    dtypes = list(SHOWN)
    for panel, (title, own) in zip(
        picture.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True
    ):
        for dtype in dict.fromkeys(c.cell.group.dtype for c in own):
            points = [c for c in own if c.cell.group.dtype == dtype]
            low, high = ([f(c.measured, c.null) * 1e3 for c in points] for f in (min, max))
            at = [1e3 * c.predicted for c in points]
            shade = colour(dtypes.index(dtype))
            panel.hlines(at, low, high, colors=shade, linewidth=0.8)
            panel.scatter(
                [1e3 * c.measured for c in points], at, s=16, color=shade, linewidths=0, label=SHOWN[dtype]
            )
        every = [1e3 * s for c in own for s in (c.measured, c.predicted)]
        ends = [min(every) / 1.3, max(every) * 1.3]
        panel.plot(ends, ends, color=GREY, linewidth=0.8)
        for factor in (1 + WITHIN, 1 / (1 + WITHIN)):
            panel.plot(ends, [factor * end for end in ends], color=GREY, linewidth=0.6, linestyle=":")
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        panel.set_title(title, fontsize=9.5)
        panel.set_xlabel("measured, ms a pass", fontsize=8.5)
        panel.set_ylabel("predicted, ms a pass", fontsize=8.5)
        panel.legend(frameon=False, fontsize=8, loc="upper left")
        panel.set_aspect("equal")
        tidy(panel, "both")
    picture.suptitle("Lines: to the null arm, the same cell measured again. Dotted: 25% off", fontsize=8.5)
    return export(picture, format)
