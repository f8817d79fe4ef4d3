"""What one cell prints: what it was, its figures by group, and where its files are.

Owns the order of groups and the layout on the terminal; `conf/metric/` says what a figure means. Must not
know how cells are computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from repro.experiments.summaries.files import show_files
from repro.experiments.summaries.notes import Note, in_words
from repro.records.record import Record, Round, Scalar, Spread, whole_answer
from repro.records.results import Results
from repro.reports.formats.layout import decimals, unit_words, value_words
from repro.reports.intervals.rounds import with_interval
from repro.reports.spec.metric import MetricSpec, load_metrics
from repro.reports.tables.known import assumed_watts, known_values, not_compared, other_arithmetic
from repro.scenarios.generation.bands import bands_of
from repro.scenarios.registry import CLASS_BY_GROUP

GROUPS = ("speed", "latency", "acceptance", "quality", "serving", "energy", "memory", "compression", "graphs")
"""Groups of metrics in the order of the screen; others follow, `counts` comes last."""

FIRST_LABELS = ("method", "device", "dataset", "target", "draft")
"""Labels in the order of the headline; others follow."""

EMPTY_LABELS = ("none", "None", "native")
"""Labels that say nothing."""

OTHER_GROUP = "other"
"""The group of values that no file in `conf/metric/` describes."""

ASSUMED_SUFFIX = ", watts assumed"
"""Stands behind joules."""

NUMBER_PATTERN = re.compile(r"-?\d+\.\d+(e-?\d+)?")
READABLE_WIDTH = 30
"""Characters below which there is no room for a definition."""

SHOWN_MEMORY = "emulated_dram"


def show_note(console: Console, store: Results, outputs: Path, note: Note, tracked: Path | None) -> None:
    """Print what a finished cell's note refers to; the traceback's place of a failed one.

    Args:
        console: the terminal.
        store: where its record is.
        outputs: the folder of its timeline.
        note: its result.
        tracked: its wandb run.
    """
    record = store.get(note.key)
    if record is None:
        return
    if not record.done:
        console.print(f"The traceback is in {store.place(record.key)}", highlight=False, soft_wrap=True)
        return
    files = {"record": store.place(record.key)}
    if record.provenance.trace:
        files["timeline"] = outputs / record.provenance.trace
    if tracked:
        files["wandb"] = tracked
    state = f"computed in {in_words(note.seconds or 0.0)}"
    if note.state == "cached":
        state = f"computed before, {record.provenance.finished[:16].replace('T', ' ')} UTC"
    details = store.rounds(record.key), store.answers(record.key)
    show_cell(console, record, *details, state, files)


def show_cell(
    console: Console,
    record: Record,
    rounds: Sequence[Round],
    answers: Sequence[Round],
    state: str,
    files: Mapping[str, Path],
) -> None:
    """Print a finished cell.

    Args:
        console: the terminal.
        record: its record.
        rounds: its stored lines of detail.
        answers: its stored answers.
        state: whether it was computed now, and how long that took.
        files: its files by kind.
    """
    console.print(Text(f"{headline(record)} ({state})", style="bold"))
    outcome = with_interval(record, rounds, answers)
    values = {name: value for name, value in known_values(outcome).items() if not _is_spread(name, outcome)}
    values |= (answer := whole_answer(outcome.values))
    if "answer_seconds" in answer:
        values.pop("latency", None)  # the same number
    if SHOWN_MEMORY in outcome.provenance.memory:
        values.setdefault(SHOWN_MEMORY, outcome.provenance.memory[SHOWN_MEMORY])
    watt_parts = assumed_watts(outcome)
    for line in _lines(values, outcome.uncertainty, console.width, bool(watt_parts)):
        console.print(line, soft_wrap=True)
    absent_headings = [metric.heading for metric in map(described_as, values) if values[metric.name] is None]
    if absent_headings:
        console.print(f"\nNot in this cell: {', '.join(absent_headings)}", style="dim")
    if watt_parts and any(described_as(name).unit.startswith("J") for name in values):
        console.print(f"\nJoules rest on watts that are assumed: of {', '.join(watt_parts)}.", style="dim")
    if arithmetic := other_arithmetic(record):
        console.print(f"\n{not_compared(record.labels['method'], arithmetic)}", style="dim")
    for note in (*record.provenance.notes, *bands_of(record)):
        console.print(f"\n{note}", style="dim", soft_wrap=True, highlight=False, markup=False)
    console.print()
    if "max_tokens" in _amounts(record):
        console.print(f"{'answers':<20} repro show {record.key[:12]}", highlight=False, soft_wrap=True)
    show_files(console, files)


def _is_spread(name: str, record: Record) -> bool:
    """Whether a value is the standard error, or an end of the interval, that another value is shown with."""
    value_name, _, kind = name.rpartition("_")
    return kind in ("stderr", "low", "high") and value_name in record.uncertainty


def headline(record: Record) -> str:
    """What a cell was: its labels, and how much it was asked."""
    config = record.provenance.config
    labels = {name: record.labels[name] for name in (*FIRST_LABELS, *record.labels) if name in record.labels}
    method, device = labels.pop("method"), labels.pop("device", "")
    amount = [f"{config[name]} {unit}" for name, unit in _amounts(record).items() if name in config]
    shown_labels = [label for label in labels.values() if label not in (*EMPTY_LABELS, method)]
    return f"{method} on {device}: " + ", ".join(dict.fromkeys([*shown_labels, *amount]))


def _amounts(record: Record) -> dict[str, str]:
    """Settings that say how much a cell was asked, in words."""
    if any(record.provenance.config.get(group) for group in CLASS_BY_GROUP):
        return {"prompts": "examples"}
    return {"prompts": "prompts", "max_tokens": "tokens at most"}


def order_of(metric: MetricSpec) -> tuple[int, int, str]:
    """Sort key of metrics: by group in the order of the screen, then as their file lists them."""
    ranks = {name: i for i, name in enumerate(load_metrics())}
    is_last = metric.group == "counts"
    group = GROUPS.index(metric.group) if metric.group in GROUPS else len(GROUPS) + is_last
    return group, ranks.get(metric.name, len(ranks)), metric.name


def described_as(name: str) -> MetricSpec:
    """The metric of a record's value; of one that nothing describes just its name."""
    return load_metrics().of_value(name) or MetricSpec(name, OTHER_GROUP, name, "", value=name)


def _lines(
    values: Mapping[str, Scalar], spreads: Mapping[str, Spread], width: int, are_watts_assumed: bool
) -> Iterator[Text]:
    """The lines of all groups, in common columns: heading, value, interval with unit, definition.

    With `assumed` joules are marked as resting on assumed watts.
    """
    known_metrics = [described_as(name) for name, value in values.items() if value is not None]
    metrics = sorted(known_metrics, key=order_of)
    texts = {m.name: _words(m, values[m.name]) for m in metrics}
    endings = {
        m.name: " ".join(filter(None, [_spread_words(m, values[m.name], spreads.get(m.name)), unit_words(m)]))
        + (ASSUMED_SUFFIX if are_watts_assumed and m.unit.startswith("J") else "")
        for m in metrics
    }
    numbers = [texts[m.name] for m in metrics if not isinstance(values[m.name], str)]
    heading_width = max(len(metric.heading) for metric in metrics)
    number_width, ending_width = max(map(len, numbers), default=0), max(map(len, endings.values()))
    for group, group_metrics in groupby(metrics, key=lambda metric: metric.group):
        yield Text(f"\n{group.capitalize()}", style="bold")
        for m in group_metrics:
            if isinstance(values[m.name], str):
                line = Text(f"  {m.heading:<{heading_width}}  {texts[m.name]}  ")
            else:
                number = f"{texts[m.name]:>{number_width}} {endings[m.name]:<{ending_width}}"
                line = Text(f"  {m.heading:<{heading_width}}  {number}  ")
            if width - line.cell_len >= READABLE_WIDTH:
                line.append(m.definition, style="dim")
            line.truncate(width, overflow="ellipsis")
            yield line


def _words(metric: MetricSpec, value: Scalar) -> str:
    """A value as text; of a list of numbers each with the metric's decimals."""
    if not isinstance(value, str):
        return value_words(metric, value)
    return " ".join(
        f"{float(word):.{metric.digits}f}" if NUMBER_PATTERN.fullmatch(word) else word
        for word in value.split()
    )


def _spread_words(metric: MetricSpec, value: Scalar, spread: Spread | None) -> str:
    """An interval or a standard error of a value, in its unit."""
    if spread is None:
        return ""
    ends = [end * metric.scale for end in (spread if isinstance(spread, tuple) else (spread,))]
    texts = [f"{end:.{decimals(metric, [value])}f}" for end in sorted(ends)]
    return f"[{', '.join(texts)}]" if isinstance(spread, tuple) else f"± {texts[0]}"
