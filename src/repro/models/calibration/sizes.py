"""Which sizes are probed: as many as it takes until weights decide how long a pass takes.

On a fast GPU small layers take as long as their kernels take to launch, and no rate follows from them. Probes
grow in width, then passes in rows, until the largest takes twice as long as the smallest, whatever the noise.
Must not know how a pass is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from repro.core.errors import InputError
from repro.models.calibration.probe import LAYER, PartTiming
from repro.models.transformer.config import DecoderConfig

DECIDES = 2.0
"""How many times as long a pass of the largest probe takes as one of the smallest where weights decide."""
MORE_ROWS = 1024, 4096
"""Rows of a pass that are tried where one row never shows the weights."""
TRIES = 5
NOISE = 1.5
"""Upper over lower quartile of the same pass from which its time is noise."""


class TimedProbe(Protocol):
    """A decoder that is timed in passes (`probe.LayerProbe`).

    Attributes:
        config: its shape.
        contexts: numbers of cached tokens after which it can be timed.
    """

    config: DecoderConfig
    contexts: Sequence[int]

    def time(self, rows: int, context: int) -> Iterator[PartTiming]:
        """Time the parts of one pass."""


class Sizes(NamedTuple):
    """What is probed.

    Attributes:
        probes: from the smallest to the largest.
        rows: numbers of rows of a pass.
        hidden: rows below which launches hide the weights: 0 if they never do, None if they always do.
    """

    probes: list[TimedProbe]
    rows: tuple[int, ...]
    hidden: int | None

    @property
    def note(self) -> str:
        """What could not be told apart, for readers of the files; "" if launches and weights could."""
        if self.hidden == 0:
            return ""
        widths = f"layers of width {self.probes[0].config.hidden} to {self.probes[-1].config.hidden}"
        where = f"passes of fewer than {self.hidden} rows" if self.hidden else "all passes"
        return (
            f"of {where} only launches could be measured: {widths} took as long as one another. "
            "Rates there are the least that the hardware has"
        )


def grown(config: DecoderConfig) -> DecoderConfig:
    """A layer of twice the width, hence four times the weights."""
    widths = {name: 2 * getattr(config, name) for name in ("hidden", "heads", "kv_heads", "intermediate")}
    return replace(config, **widths)


def deciding_sizes(
    shapes: Sequence[DecoderConfig],
    rows: tuple[int, ...],
    opened: Callable[[DecoderConfig], TimedProbe],
    fits: Callable[[DecoderConfig], bool],
) -> Sizes:
    """Open a probe of each shape, and larger ones until weights decide.

    Args:
        shapes: from the smallest to the largest.
        rows: numbers of rows that are measured in any case; one more is added if only it shows weights.
        opened: opens a probe.
        fits: whether there is memory for a probe of a shape beside those before it.

    Raises:
        InputError: times of the same pass differ by more than sizes make of them.
    """
    probes = [opened(shape) for shape in shapes]
    while not _decides(probes, 1) and fits(grown(probes[-1].config)):
        probes.append(opened(grown(probes[-1].config)))
    if _decides(probes, 1):
        return Sizes(probes, rows, 0)
    for more in MORE_ROWS:
        if _decides(probes, more):
            return Sizes(probes, (*rows, more), more)
    _require_steady(probes)
    return Sizes(probes, rows, None)


def _quartiles(probe: TimedProbe, rows: int) -> tuple[float, float]:
    def seconds() -> float:
        return next(t.seconds for t in probe.time(rows, probe.contexts[0]) if t.part == LAYER)

    seconds()  # kernels are chosen, memory is taken
    taken = sorted(seconds() for _ in range(TRIES))
    return taken[TRIES // 4], taken[-1 - TRIES // 4]


def _decides(probes: Sequence[TimedProbe], rows: int) -> bool:
    (_, smallest), (largest, _) = _quartiles(probes[0], rows), _quartiles(probes[-1], rows)
    return largest >= DECIDES * smallest


def _require_steady(probes: Sequence[TimedProbe]) -> None:
    spread = [_quartiles(probe, 1) for probe in probes]
    if all(upper < NOISE * lower for lower, upper in spread):
        return
    low, high = min(lower for lower, _ in spread), max(upper for _, upper in spread)
    raise InputError(
        f"layers of width {probes[0].config.hidden} to {probes[-1].config.hidden}, in passes of 1 to "
        f"{MORE_ROWS[-1]} rows, did not take longer the larger they were, and equal passes took "
        f"{low * 1e6:.0f} to {high * 1e6:.0f} us: something else disturbs the measurement; measure again "
        "while nothing else runs"
    )
