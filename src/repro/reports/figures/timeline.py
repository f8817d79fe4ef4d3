"""Timelines beside a table: an excerpt of a cell's events and rounds, the lanes that show them, the figure.

Owns what is stored of a timeline, and how it is drawn. Must not know how spans are produced.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from repro.core.digits import csv_text, in_ten_digits
from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, LINES_BYTES, parse_json, read_text, require_no_link, unpack
from repro.device.timeline import micro
from repro.records.record import Record, Round, write_atomically
from repro.reports.figures.figure import frame
from repro.reports.figures.paint import GREY, canvas, colour, default_style, export, pale, tidy
from repro.reports.figures.shown import figure_title, origin
from repro.reports.spec.spec import LaneSpec, TimelineSpec, WindowSpec
from repro.reports.tables.table import Table

ROUNDS_ROW = "rounds"
"""Name of the excerpt's row that holds the rounds."""

PREFILL_ROUND = -1
"""Round number of the prefill."""

OUTER_KINDS = ("request", "round", "pass")
"""Kinds of slices that hold others; an excerpt has ops, phases, and rounds in a row of their own."""

TOUCH_SECONDS = 1e-8
"""Seconds by which neighbouring spans may overlap: what floating point makes of microseconds."""


@dataclass(frozen=True)
class Block:
    """A span in its lane; times in seconds on the device's clock.

    `meanwhile`: the lane's `during` lane had already begun in the same round.
    """

    lane: str
    name: str
    round: int
    start: float
    end: float
    meanwhile: bool


@dataclass(frozen=True)
class DrawnSpan:
    """An event of an excerpt, in seconds."""

    name: str
    start: float
    end: float
    args: Mapping[str, Any]


def excerpt(trace: str, rounds: Sequence[Round], windows: Sequence[WindowSpec], key: str) -> str:
    """Ops and phases of a timeline that lie in the windows, in Chrome's trace format, and a row of rounds.

    `otherData` has the cell's key and the rounds of each window.

    Raises:
        InputError: the first request has no such round.
    """
    rounds = [r for r in rounds if r["request"] == rounds[0]["request"]]
    windows = [_find_rounds(window, rounds) for window in windows]
    events, stretches = parse_json(trace)["traceEvents"], []
    spans = {i: (micro(_number(r, "start")), micro(_number(r, "end"))) for i, r in enumerate(rounds)}
    if any(window.first == PREFILL_ROUND for window in windows):
        spans |= _prefill(events, spans[0][0])
    for window in windows:
        first, last = window.first, window.last
        if first not in spans or last not in spans or last < first:
            raise InputError(
                f"the timeline's window {first} to {last} is none of rounds 0 to {len(rounds) - 1}"
            )
        start, end = spans[first][0], spans[last][1]
        stretches.append((start, start + window.part * (end - start)))
    lane_id = 1 + max(int(event.get("tid", 0)) for event in events)
    slices = [e for e in events if e["ph"] == "X" and e["cat"] not in OUTER_KINDS]
    slices += [_round_event(lane_id, i, dict(enumerate(rounds)).get(i, {}), *spans[i]) for i in sorted(spans)]
    slices = [
        e for e in slices if any(e["ts"] < end and e["ts"] + e["dur"] > start for start, end in stretches)
    ]
    names = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": lane_id, "args": {"name": ROUNDS_ROW}}]
    names = [e for e in events if e["name"] in ("process_name", "thread_name")] + names
    rows = {e["tid"] for e in slices}
    excerpt_events = [e for e in names if e["name"] == "process_name" or e["tid"] in rows] + slices
    other_data = {"key": key, "windows": [[window.first, window.last] for window in windows]}
    content = {"traceEvents": excerpt_events, "displayTimeUnit": "ms", "otherData": other_data}
    return json.dumps(in_ten_digits(content), separators=(",", ":"), sort_keys=True) + "\n"


def _find_rounds(window: WindowSpec, rounds: Sequence[Round]) -> WindowSpec:
    """The window with its rounds, if it is to be a typical stretch of them."""
    if not window.typical:
        return window
    count = min(window.typical, len(rounds))

    def deviation(start: int) -> float:
        """How far drafted and accepted tokens of a stretch are from the mean, each as a share of it."""
        stretch, total = rounds[start : start + count], 0.0
        for name in ("drafted", "accepted"):
            mean = sum(_number(r, name) for r in rounds) * count / len(rounds)
            total += abs(sum(_number(r, name) for r in stretch) - mean) / (mean or 1.0)
        return total

    first = min(range(len(rounds) - count + 1), key=deviation)
    return replace(window, first=first, last=first + count - 1, typical=0)


def windows_of(text: str, windows: Sequence[WindowSpec], rounds: Sequence[Round]) -> list[WindowSpec]:
    """The windows with the rounds that an excerpt holds for them, typical ones with the request's mean."""
    rounds = [r for r in rounds if r["request"] == rounds[0]["request"]]
    accepted, drafted = (sum(_number(r, n) for r in rounds) / len(rounds) for n in ("accepted", "drafted"))
    mean = f"mean of the request's {len(rounds)} rounds: {accepted:.1f} of {drafted:.1f} accepted"
    windows_with_rounds = []
    for window, (first, last) in zip(windows, parse_json(text)["otherData"]["windows"], strict=True):
        if window.typical:
            title = ", ".join(filter(None, (window.title, mean)))
            window = replace(window, first=first, last=last, typical=0, title=title)
        windows_with_rounds.append(window)
    return windows_with_rounds


def _prefill(events: Sequence[Mapping[str, Any]], first_start: int) -> dict[int, tuple[int, int]]:
    """Start and end in microseconds of the prefill, up to the first round, as round -1; empty without one."""
    phases = (e for e in events if e["ph"] == "X" and (e["cat"], e["name"]) == ("phase", "prefill"))
    times = [(e["ts"], min(first_start, e["ts"] + e["dur"])) for e in phases if e["ts"] < first_start]
    return {PREFILL_ROUND: max(times)} if times else {}


def _round_event(row: int, round_number: int, values: Round, start: int, end: int) -> dict[str, Any]:
    args = {name: values[name] for name in ("drafted", "accepted", "emitted") if name in values}
    times = {"ts": start, "dur": end - start}
    return {"ph": "X", "name": str(round_number), "cat": "round", "pid": 0, "tid": row, "args": args, **times}


def read(path: Path) -> str:
    """The text of a stored timeline, which may be compressed."""
    return unpack(path).decode() if path.suffix == ".gz" else read_text(path, LINES_BYTES)


def _number(values: Round, name: str) -> float:
    return float(values.get(name) or 0.0)


def spans_of(text: str) -> dict[str, list[DrawnSpan]]:
    """Spans of an excerpt by row, sorted by start."""
    events = parse_json(text)["traceEvents"]
    names = {e["tid"]: str(e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    rows: dict[str, list[DrawnSpan]] = {name: [] for name in names.values()}
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], e["dur"])):
        span = DrawnSpan(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"])
        rows[names[e["tid"]]].append(span)
    return rows


def lanes(text: str, specs: Sequence[LaneSpec]) -> list[Block]:
    """Spans of an excerpt by lane, lane after lane.

    Raises:
        InputError: a lane has no spans.
    """
    rows = spans_of(text)
    rounds = rows.pop(ROUNDS_ROW)
    spans = sorted((span for row in rows.values() for span in row), key=lambda s: (s.start, s.end))
    by_lane: dict[str, list[tuple[int, DrawnSpan]]] = {spec.name: [] for spec in specs}
    for span in spans:
        lane = next((spec for spec in specs if span.name.startswith(spec.spans)), None)
        overlaps = [r for r in rounds if min(r.end, span.end) - max(r.start, span.start) > TOUCH_SECONDS]
        if lane and overlaps:
            past_rounds = [e for e in overlaps if e.start <= span.start + TOUCH_SECONDS]
            by_lane[lane.name].append((int((past_rounds[-1] if past_rounds else overlaps[0]).name), span))
    blocks = []
    for spec in specs:
        if not by_lane[spec.name]:
            kinds = sorted({span.name.rstrip("0123456789 -") for span in spans})
            raise InputError(f"lane {spec.name!r} shows no span; spans begin with: {', '.join(kinds)}")
        starts: dict[int, float] = {}
        for round_number, span in by_lane.get(spec.during, []):
            starts.setdefault(round_number, span.start)
        for round_number, span in by_lane[spec.name]:
            meanwhile = round_number in starts and span.start >= starts[round_number]
            blocks.append(Block(spec.name, span.name, round_number, span.start, span.end, meanwhile))
    return blocks


def to_csv(blocks: Sequence[Block]) -> str:
    """CSV with one line per span; seconds on the device's clock."""
    headings = ("lane", "span", "round", "start", "end", "meanwhile")
    lines = [(b.lane, b.name, b.round, round(b.start, 9), round(b.end, 9), int(b.meanwhile)) for b in blocks]
    return csv_text([headings, *lines])


def write_timeline(
    table: Table,
    spec: TimelineSpec,
    records: Sequence[Record],
    rounds: Sequence[Round],
    folder: Path,
    outputs: Path | None = None,
    archive: Path | None = None,
    formats: Collection[str] = ("png", "pdf"),
) -> dict[str, Path]:
    """Write the excerpt, its spans as CSV and its figure as `<experiment>/timeline.*`.

    The excerpt is cut from the timeline that the cell stored below `outputs`, or is the one written `earlier`
    to a folder of results, by default this one.

    Raises:
        InputError: the spec does not select exactly one record, or selects missing rounds or lanes without
            spans; or the timeline no longer exists.
    """
    record = select_record(spec, records)
    stem = Path(table.experiment) / "timeline"
    path, stored_path = folder / stem, (archive or folder) / f"{stem}.json"
    require_no_link(folder, path.parent).mkdir(parents=True, exist_ok=True)
    trace = outputs and outputs / (record.provenance.trace or "")
    if trace and trace.is_file():
        text = excerpt(read(trace), rounds, spec.windows, record.key)
    else:
        text = (
            read_text(require_no_link(archive or folder, stored_path), JSON_BYTES)
            if stored_path.exists()
            else "{}"
        )
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
            picture = draw(table, spec, blocks, spans_of(text)[ROUNDS_ROW], format)
        except Exception as wrong:  # whatever a library of pictures or fonts lacks on this machine
            raise InputError(f"its {format} cannot be drawn: {type(wrong).__name__}: {wrong}") from wrong
        files[kind] = Path(f"{path}.{format}")
        write_atomically(files[kind], picture)
    return files


def select_record(spec: TimelineSpec, records: Sequence[Record]) -> Record:
    """The one finished record that the spec selects; InputError if there is none or more than one."""
    labels = spec.where.items()
    matches = [record for record in records if record.done and labels <= record.labels.items()]
    if len(matches) != 1:
        raise InputError(
            f"the timeline's `where` {dict(spec.where)} finds {len(matches)} finished cells, not one"
        )
    return matches[0]


@default_style
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
        in_window = [r for r in rounds if window.first <= int(r.name) <= window.last]
        _window(panel, spec, window, blocks, in_window)
    panels[-1].set_xlabel("seconds", fontsize=9)
    keys: list[Artist] = []
    for i, lane in enumerate(spec.lanes):
        keys.append(Patch(color=colour(i), label=lane.name))
        if lane.during:
            keys.append(Patch(color=pale(colour(i)), label=f"{lane.name}, while: {lane.during}"))
    frame(picture, figure_title(table, spec.title), keys, origin(table))
    return export(picture, format)


def _round_text(round_span: DrawnSpan) -> str:
    if int(round_span.name) == PREFILL_ROUND:
        return "prefill"
    return f"round {round_span.name}: {round_span.args['accepted']} of {round_span.args['drafted']} accepted"


def _window(
    panel: Axes, spec: TimelineSpec, window: WindowSpec, blocks: Sequence[Block], rounds: Sequence[DrawnSpan]
) -> None:
    start = rounds[0].start
    end = start + window.part * (rounds[-1].end - start)
    for i, lane in enumerate(spec.lanes):
        for shade, meanwhile in ((colour(i), False), (pale(colour(i)), True)):
            lane_parts = [b for b in blocks if b.lane == lane.name and b.meanwhile == meanwhile]
            bars = [(b.start - start, b.end - b.start) for b in lane_parts if b.start < end and b.end > start]
            panel.broken_barh(bars, (i - 0.34, 0.68), facecolor=shade, linewidth=0)
    for span in rounds:
        if span.start >= end:
            continue
        panel.text(
            (span.start + min(span.end, end)) / 2 - start,
            -0.62,
            _round_text(span),
            ha="center",
            fontsize=6.5,
            color=GREY,
        )
        panel.axvline(span.end - start, color=GREY, linewidth=0.7, linestyle="--")
    tidy(panel, "x")
    panel.set_xlim(0, end - start)
    panel.set_ylim(len(spec.lanes) - 0.5, -1.0)
    panel.set_yticks(range(len(spec.lanes)), [lane.name for lane in spec.lanes])
    panel.tick_params(axis="y", length=0)
    panel.set_title(window.title, fontsize=9, loc="left")
