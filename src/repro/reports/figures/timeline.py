"""Figure of a timeline excerpt: which lane is busy when, round by round.

Owns how it is drawn, and its files beside the table. Must not know how spans are produced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, parse_json, read_text, require_no_link
from repro.records.record import Record, Round, write_atomically
from repro.reports.figures.excerpt import (
    PREFILL,
    ROUNDS,
    Block,
    DrawnSpan,
    excerpt,
    lanes,
    read,
    spans_of,
    to_csv,
    windows_of,
)
from repro.reports.figures.figure import frame
from repro.reports.figures.paint import GREY, canvas, colour, drawn_alike, exported, pale, tidy
from repro.reports.figures.shown import figure_title, origin
from repro.reports.spec.spec import TimelineSpec, WindowSpec
from repro.reports.tables.table import Table


def write_timeline(
    table: Table,
    spec: TimelineSpec,
    records: Sequence[Record],
    rounds: Sequence[Round],
    folder: Path,
    outputs: Path | None = None,
    earlier: Path | None = None,
    formats: Collection[str] = ("png", "pdf"),
) -> dict[str, Path]:
    """Write the excerpt, its spans as CSV and its figure as `<experiment>/timeline.*`.

    The excerpt is cut from the timeline that the cell stored below `outputs`, or is the one written `earlier`
    to a folder of results, by default this one.

    Raises:
        InputError: the spec does not select exactly one record, or selects missing rounds or lanes without
            spans; or the timeline no longer exists.
    """
    record = chosen(spec, records)
    place = Path(table.experiment) / "timeline"
    path, kept = folder / place, (earlier or folder) / f"{place}.json"
    require_no_link(folder, path.parent).mkdir(parents=True, exist_ok=True)
    stored = outputs and outputs / (record.provenance.trace or "")
    if stored and stored.is_file():
        text = excerpt(read(stored), rounds, spec.windows, record.key)
    else:
        text = read_text(require_no_link(earlier or folder, kept), JSON_BYTES) if kept.exists() else "{}"
    if parse_json(text).get("otherData", {}).get("key") != record.key:
        raise InputError(f"the timeline of {table.experiment} is gone; make it again with sweep=force")
    blocks = lanes(text, spec.lanes)
    spec = replace(spec, windows=tuple(windows_of(text, spec.windows, rounds)))
    files = {"excerpt": Path(f"{path}.json"), "spans": Path(f"{path}.csv")}
    write_atomically(files["excerpt"], text)
    write_atomically(files["spans"], to_csv(blocks))
    for kind, format in (("diagram", "png"), ("vector", "pdf")):
        if format not in formats:
            continue
        try:
            picture = draw(table, spec, blocks, spans_of(text)[ROUNDS], format)
        except Exception as wrong:  # whatever a library of pictures or fonts lacks on this machine
            raise InputError(f"its {format} cannot be drawn: {type(wrong).__name__}: {wrong}") from wrong
        files[kind] = Path(f"{path}.{format}")
        write_atomically(files[kind], picture)
    return files


def chosen(spec: TimelineSpec, records: Sequence[Record]) -> Record:
    """The one finished record that the spec selects; InputError if there is none or more than one."""
    wanted = spec.where.items()
    found = [record for record in records if record.done and wanted <= record.labels.items()]
    if len(found) != 1:
        raise InputError(
            f"the timeline's `where` {dict(spec.where)} finds {len(found)} finished cells, not one"
        )
    return found[0]


@drawn_alike
def draw(
    table: Table,
    spec: TimelineSpec,
    blocks: Sequence[Block],
    rounds: Sequence[DrawnSpan],
    format: str = "png",
) -> bytes:
    """The figure as PNG or PDF: a panel per window, a row per lane, a dashed line at each round's end."""
    picture = canvas(9.0, 0.3 + (0.75 + 0.3 * len(spec.lanes)) * len(spec.windows))
    panels = picture.subplots(len(spec.windows), 1, squeeze=False)[:, 0]
    for panel, window in zip(panels, spec.windows, strict=True):
        own = [each for each in rounds if window.first <= int(each.name) <= window.last]
        _window(panel, spec, window, blocks, own)
    panels[-1].set_xlabel("seconds", fontsize=9)
    keys: list[Artist] = []
    for i, lane in enumerate(spec.lanes):
        keys.append(Patch(color=colour(i), label=lane.name))
        if lane.during:
            keys.append(Patch(color=pale(colour(i)), label=f"{lane.name}, while: {lane.during}"))
    frame(picture, figure_title(table, spec.title), keys, origin(table))
    return exported(picture, format)


def _words(each: DrawnSpan) -> str:
    if int(each.name) == PREFILL:
        return "prefill"
    return f"round {each.name}: {each.args['accepted']} of {each.args['drafted']} accepted"


def _window(
    panel: Axes, spec: TimelineSpec, window: WindowSpec, blocks: Sequence[Block], rounds: Sequence[DrawnSpan]
) -> None:
    start = rounds[0].start
    end = start + window.part * (rounds[-1].end - start)
    for i, lane in enumerate(spec.lanes):
        for shade, meanwhile in ((colour(i), False), (pale(colour(i)), True)):
            own = [b for b in blocks if b.lane == lane.name and b.meanwhile == meanwhile]
            bars = [(b.start - start, b.end - b.start) for b in own if b.start < end and b.end > start]
            panel.broken_barh(bars, (i - 0.34, 0.68), facecolor=shade, linewidth=0)
    for each in rounds:
        if each.start >= end:
            continue
        panel.text(
            (each.start + min(each.end, end)) / 2 - start,
            -0.62,
            _words(each),
            ha="center",
            fontsize=6.5,
            color=GREY,
        )
        panel.axvline(each.end - start, color=GREY, linewidth=0.7, linestyle="--")
    tidy(panel, "x")
    panel.set_xlim(0, end - start)
    panel.set_ylim(len(spec.lanes) - 0.5, -1.0)
    panel.set_yticks(range(len(spec.lanes)), [lane.name for lane in spec.lanes])
    panel.tick_params(axis="y", length=0)
    panel.set_title(window.title, fontsize=9, loc="left")
