"""The table of a sweep that has no `table:` section.

Owns the choice of its rows and columns. Rows are named by what the sweep varies, columns are what people
compare in such cells. Must not know Hydra: the command's overrides come as text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.overrides import shown
from repro.core.reading import JSON_BYTES, parse_json, read_text
from repro.core.registry import lookup
from repro.core.registry import names as registry_names
from repro.experiments.summaries.cell_screen import FIRST
from repro.experiments.summaries.notes import Note
from repro.metrics.evaluated import is_evaluated, stem_of
from repro.records.identity import OF_THE_RUN, short_places, shortened
from repro.records.members import Member
from repro.records.record import Record, content_hash
from repro.records.results import Results
from repro.reports.files import path_of, write_files
from repro.reports.formats.values import decimals
from repro.reports.reference.names import ANY, load_names
from repro.reports.spec.expand import COMMA, expand
from repro.reports.spec.metric import MetricSpec, MetricSpecs, load_metrics
from repro.reports.spec.spec import SEPARATOR
from repro.reports.tables.known import assumed_watts, known_value
from repro.reports.tables.table import is_number
from repro.scenarios.base import component

GENERATION = (
    *("decode_tokens_per_s", "time_per_token", "ttft", "answer_seconds", "acceptance_length", "rouge_l"),
    *("joules_per_token", "answer_joules"),
    *("flash_bytes_per_token", "emulated_dram", "prompts"),
)
COMPARED = {
    "compression": ("accuracy", "difference", "baseline_accuracy", "flips", "bits_per_weight", "rows"),
    "service": (
        "met",
        "answer_seconds",
        "ttft",
        "tpot",
        "accuracy",
        "accuracy_in_time",
        "energy",
        "memory",
        "requests",
    ),
    "probe": (),
}
"""Metrics that people compare, by the configuration group of a cell; `GENERATION` without any of these. A
probe's are all that it measured."""

DRAWN = ("decode_tokens_per_s", "acceptance_length", "joules_per_token", "accuracy", "met", "ttft")
"""Metrics of the picture: the first `PANELS` of them that the table has."""

PANELS = 3
FEWEST_POINTS = 3
"""Numbers of a setting over which a line is drawn."""

SWEEPS = "sweeps/"
"""Begins the names of these tables."""

TASK = "task_score"

MOST_NAMED = 6
"""Values that a title or a folder's name lists; of more it gives the number."""

LACKING = ""
"""The value of a setting in cells that lack it, since they are of another method."""

DELETED = "null"
"""The value of an override that deletes a setting (`~NAME`), as Hydra and a grid read it."""

MOST_DRAWN, MOST_ON_LINES = 60, 1000
"""Rows of a table that a picture shows; as points of lines there may be more."""

LONGEST = 60
"""Characters of the readable part of a folder's name."""


SWEEP = "sweep.json"
"""The file of a sweep's command, beside its cells."""


@dataclass(frozen=True)
class SweepCommand:
    """What a sweep's table is made from beside its cells.

    Attributes:
        overrides: the command's overrides, by key.
        rows: the labels that name the rows, each with the override whose values it tells apart.
        values: of these labels, in the order of the command's.
    """

    overrides: Mapping[str, str]
    rows: Mapping[str, str]
    values: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        typed = [
            key if key.startswith("~") and value == DELETED else f"{key}={value}"
            for key, value in self.overrides.items()
        ]
        return shlex.join(["python", "-m", "repro", "-m", *typed])

    def write(self, name: str, results: Path) -> None:
        """Write it beside a table's cells in a folder of results; InputError if that cannot be written."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        write_files(name, results, {SWEEP: f"{text}\n"})

    def ordered(self, records: Iterable[Record]) -> list[Record]:
        """The records of its cells in the order of the command's values."""
        places = {label: {value: i for i, value in enumerate(own)} for label, own in self.values.items()}

        def place(record: Record) -> list[int]:
            return [own.get(record.labels.get(label, ""), len(own)) for label, own in places.items()]

        return sorted(records, key=place)

    @classmethod
    def read(cls, name: str, results: Path) -> SweepCommand:
        """The command of a sweep's table in a folder of results; InputError if its file is not as written."""
        path = path_of(results, name, SWEEP)
        try:
            content = parse_json(read_text(path, JSON_BYTES))
            named = content["overrides"], content["rows"]
            overrides, rows = ({str(key): str(value) for key, value in part.items()} for part in named)
            values = {str(label): [*map(str, own)] for label, own in content["values"].items()}
        except FileNotFoundError:
            raise InputError(f"there is no {path}; the sweep's own command makes its table again") from None
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise InputError(f"{path} is no sweep's command: {wrong}") from wrong
        return cls(overrides, rows, values)


@dataclass(frozen=True)
class SweepTable:
    """The table of a sweep without one of its own.

    Attributes:
        name: what it is stored as: `sweeps/<readable name>-<hash of the overrides>`.
        command: the sweep's command.
        section: its `table:` section, written out.
        notes: the sweep's notes, whose labels name their rows.
    """

    name: str
    command: SweepCommand
    section: dict[str, Any]
    notes: list[Note]


def sweep_table(notes: Sequence[Note], store: Results, overrides: Mapping[str, str]) -> SweepTable | None:
    """The table of a sweep's cells; `None` if no cell succeeded.

    Args:
        notes: notes of all its cells.
        store: where their records are.
        overrides: the command's overrides by key, as they were typed.
    """
    overrides = {k: v for k, v in overrides.items() if k.partition(".")[0] not in OF_THE_RUN}
    keys = dict.fromkeys(key for note in notes for key in note.chosen)  # a cell lacks other methods' settings
    notes = [replace(note, chosen={key: note.chosen.get(key, LACKING) for key in keys}) for note in notes]
    notes, overrides = _portable(notes, overrides)
    axes = [key for key in keys if len({note.chosen[key] for note in notes}) > 1]
    own, rows = _row_labels(axes, notes)
    labelled = [replace(note, labels={**note.labels, **_own_labels(note, own)}) for note in notes]
    records = store.records(Member(note.key, note.labels) for note in labelled if note.key)
    if not any(record.done for record in records):
        return None
    values = {row: [*dict.fromkeys(note.labels.get(row, "") for note in labelled)] for row in rows}
    name, command = _name(axes, notes, overrides), SweepCommand(overrides, rows, values)
    return SweepTable(name, command, sweep_section(name, command, records), labelled)


def sweep_section(name: str, command: SweepCommand, records: Sequence[Record]) -> dict[str, Any]:
    """The `table:` section of a sweep's cells, written out.

    Args:
        name: of the table.
        command: of the sweep.
        records: of its cells, with the labels that name their rows.
    """
    rows, names, metrics = [*command.rows] or ["method"], load_names(), load_metrics()
    records = command.ordered(records)
    ids = [*dict.fromkeys(tuple(record.labels.get(label, "") for label in rows) for record in records)]
    printed = [tuple(names.find(ANY, *pair).name for pair in zip(rows, row, strict=True)) for row in ids]
    order = {
        SEPARATOR.join(row): COMMA.join(filter(None, words)) for row, words in zip(ids, printed, strict=True)
    }
    compared_by = _metrics([record for record in records if record.done], metrics)
    columns = [_column(metric, records) for metric in compared_by]
    if "decode_tokens_per_s" in {metric.name for metric in compared_by} and (base := _baseline(rows, ids)):
        columns.insert(1, _speedup(base))
    compared = _compared_words(rows, printed)
    section: dict[str, Any] = {
        "title": f"{compared} ({_circumstances(rows, records)})",
        "rows": {"by": rows, "names": order, "apart": True},
        "columns": columns,
        "best": True,
    }
    notes = _without_effect(command.rows, records) + _placed(records) + _assumed(records)
    bare = dict.fromkeys(name for record in records for name in _asked(record) if not metrics.of_value(name))
    if bare:
        notes += [f"Not shown, as no file of conf/metric describes it: {', '.join(bare)}."]
    drawn = [metric for metric in DRAWN if metric in {metric.name for metric in compared_by}][:PANELS]
    figure = {"title": compared, **_picture(drawn, rows, ids)}
    if drawn and len(ids) > (MOST_ON_LINES if "x" in figure else MOST_DRAWN):
        notes += [f"No picture, as of {len(ids)} rows it would show nothing."]
    elif drawn:
        section["figure"] = figure
    if notes:
        section["notes"] = notes
    cells = [{f"labels.{label}": value for label, value in record.labels.items()} for record in records]
    own = name.rpartition("/")[2]  # without a folder, which would name a paper
    return expand(own, section, {"grid": {"cells": cells}}) | {"command": str(command)}


def _baseline(rows: Sequence[str], ids: Iterable[tuple[str, ...]]) -> str:
    """The first method of the rows that decodes plainly, if others are there to compare with it; else ""."""
    if "method" not in rows:
        return ""
    methods = dict.fromkeys(row[rows.index("method")] for row in ids)
    known = registry_names("method")
    plain = [name for name in methods if name in known and getattr(lookup("method", name), "plain", False)]
    return plain[0] if plain and len(methods) > 1 else ""


def _speedup(method: str) -> dict[str, Any]:
    """The column of the speedup over a method in the same circumstances."""
    heading = f"Speedup over {load_names().find(ANY, 'method', method).name}"
    return {"metric": "decode_speed", "key": "speedup", "heading": heading, "against": {"method": method}}


def _picture(drawn: Sequence[str], rows: Sequence[str], ids: Collection[tuple[str, ...]]) -> dict[str, Any]:
    """Lines of the first metric over the label with the most numbers, of three or more; else bars of all."""
    values = {name: {row[i] for row in ids} for i, name in enumerate(rows)}
    numbers = {
        name: len(texts)
        for name, texts in values.items()
        if all(is_number(text) and isfinite(float(text)) for text in texts)
    }
    x = max(numbers, key=lambda name: numbers[name], default="")
    if numbers.get(x, 0) < FEWEST_POINTS:
        return {"columns": [*drawn]}
    metric = load_metrics()[drawn[0]] if drawn else None
    heading = {"heading": f"{metric.heading} ({metric.unit})"} if metric else {}
    return {"columns": [*drawn[:1]], "kind": "lines", "x": x, **heading}


def _placed(records: Sequence[Record]) -> list[str]:
    """A sentence on which methods hold the target in memory and which read it, if they differ in that."""
    methods: dict[str, dict[str, None]] = {}
    for record in records:
        if place := _place(record.provenance.config):
            name = load_names().find(ANY, "method", record.labels.get("method", "")).name
            methods.setdefault(place, {}).setdefault(name)
    said = [f"{place} with {', '.join(names)}" for place, names in methods.items()]
    return [f"The target is {'; '.join(said)}."] if len(said) > 1 else []


def _place(config: Mapping[str, Any]) -> str:
    """Where a cell's target lies; "" of a cell without a method that places one."""
    if any(config.get(group) for group in COMPARED) or "name" not in (config.get("method") or {}):
        return ""
    target = component("method", config["method"]).places().get("target")
    if target is None:
        return ""
    share = config.get("resident")
    if share is None and target.policy == "swap":
        return "mapped from flash as a whole"
    share = target.resident if share is None else share
    words = {1: "resident in memory", 0: "streamed from flash"}
    return words.get(share, f"resident by {100 * share:g}%, else streamed from flash")


def _assumed(records: Sequence[Record]) -> list[str]:
    """A sentence on the watts that joules rest on and that are assumed, by device."""
    by_device: dict[str, dict[str, None]] = {}
    for record in records:
        if record.done and record.figure("answer_joules") is not None:
            for part in assumed_watts(record):
                by_device.setdefault(str(record.provenance.config["device"].get("name")), {}).setdefault(part)
    said = [f"of {device}: {', '.join(parts)}" for device, parts in by_device.items()]
    return [f"Joules rest on watts that are assumed, {'; '.join(said)}."] if said else []


def _compared_words(rows: Sequence[str], printed: Sequence[tuple[str, ...]]) -> str:
    """What the rows compare: `Flash-AR and Chain-SD, length 2 and 4, on Xiaomi 14 and OnePlus 12`."""
    words = []
    for i, name in enumerate(rows):
        values = [value for value in dict.fromkeys(row[i] for row in printed) if value]
        listed = (
            f"{len(values)} values"
            if len(values) > MOST_NAMED
            else " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))
        )
        before = {"method": "", "service": "", "compression": "", "device": "on ", "dataset": "on "}
        words.append(f"{before.get(name, f'{name} ')}{listed}")
    return ", ".join(words).replace(", on ", " on ")


def _without_effect(rows: Mapping[str, str], records: Sequence[Record]) -> list[str]:
    """A sentence for each override that changes no figure of cells that differ in it alone."""
    methods: dict[str, dict[str, None]] = {}
    for axis in dict.fromkeys(rows.values()):
        alike: dict[tuple[str, ...], list[Record]] = {}
        for record in records:
            rest = tuple(record.labels.get(label, "") for label, key in rows.items() if key != axis)
            alike.setdefault(rest, []).append(record)
        for group in alike.values():
            same = all(record.done and record.values == group[0].values for record in group)
            if same and len({record.key for record in group}) > 1:
                methods.setdefault(axis, {}).setdefault(group[0].labels.get("method", ""))
    names = load_names()
    return [
        f"{axis} changes no figure of {', '.join(names.find(ANY, 'method', m).name for m in own)} here."
        for axis, own in methods.items()
    ]


def _portable(notes: Sequence[Note], overrides: Mapping[str, str]) -> tuple[list[Note], dict[str, str]]:
    """Notes with what was chosen as text, and the overrides, both without folders of this machine."""
    texts = [{key: shown(value) for key, value in note.chosen.items()} for note in notes]
    keys = dict.fromkeys(key for each in (*texts, overrides) for key in each)
    short = {key: short_places(each[key] for each in texts if key in each) for key in keys}

    def shorter(values: Mapping[str, str]) -> dict[str, str]:
        return {key: shortened(value, short[key]) for key, value in values.items()}

    told = [replace(note, chosen=shorter(each)) for note, each in zip(notes, texts, strict=True)]
    return told, shorter(overrides)


def _row_labels(axes: Sequence[str], notes: Sequence[Note]) -> tuple[dict[str, str], dict[str, str]]:
    """Labels of its own for each override that no label stands for, and the rows' labels with overrides."""
    own: dict[str, str] = {}
    rows: dict[str, str] = {}
    for axis in axes:
        labels = _standing_for(axis, notes)
        if not labels:
            labels = [_label(axis, taken={*notes[0].labels, *own.values()})]
            own[axis] = labels[0]
        rows |= {label: axis for label in labels if label not in rows}
    return own, rows


def _standing_for(axis: str, notes: Sequence[Note]) -> list[str]:
    """The labels that tell the values of an override apart: one if possible, else several together."""
    values = {note.chosen[axis] for note in notes}

    def pairs(names: Sequence[str]) -> set[tuple[str, ...]]:
        return {(note.chosen[axis], *(note.labels.get(name, "") for name in names)) for note in notes}

    def told(names: Sequence[str]) -> bool:
        return len(pairs(names)) == len(values) == len({pair[1:] for pair in pairs(names)})

    varying = [name for name in notes[0].labels if len({note.labels.get(name) for note in notes}) > 1]
    # The label with the override's own name comes first, then an experiment's own ones, which are last.
    named = axis.rpartition("@")[2]
    for name in sorted(varying, key=lambda name: (name != named, -varying.index(name))):
        if told([name]):
            return [name]
    depending = [name for name in varying if len(pairs([name])) == len(values)]
    return depending if told(depending) else []


def _label(axis: str, taken: Collection[str]) -> str:
    """A label for an override: its last word, or all of them if that is taken."""
    words = [word for word in re.split(r"[.@]", axis.lstrip("+")) if word != "value"]
    return words[-1] if words[-1] not in taken else "_".join(words)


def _own_labels(note: Note, own: Mapping[str, str]) -> dict[str, str]:
    return {name: value for key, name in own.items() if (value := note.chosen[key]) != LACKING}


def _metrics(records: Sequence[Record], metrics: MetricSpecs) -> list[MetricSpec]:
    """The metrics of these records that people compare and that at least one of them has."""
    names = dict.fromkeys(name for record in records for name in _compared(record, metrics))
    there = [name for name in names if any(_is_number(known_value(record, name)) for record in records)]
    found = [metric for metric in map(metrics.of_value, there) if metric]
    return sorted(found, key=lambda metric: metric.group == "counts")


def _compared(record: Record, metrics: MetricSpecs) -> Sequence[str]:
    config = record.provenance.config
    names = next((names for group, names in COMPARED.items() if config.get(group)), GENERATION)
    return (*names, *_asked(record)) if names else [n for n in record.values if metrics.of_value(n)]


def _asked(record: Record) -> list[str]:
    """The values of the metrics that a run asked for by name: of that name, or all that begin with it.

    A dataset's own metric has its value under `task_score`.
    """
    found: list[str] = []
    for metric in map(str, record.provenance.config.get("metrics") or ()):
        metric = stem_of(metric) if is_evaluated(metric) else metric
        named = [metric] if metric in record.values else []
        named = named or [name for name in record.values if name.startswith(f"{metric}_")]
        found += named or [name for name in record.values if name == TASK]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _column(metric: MetricSpec, records: Sequence[Record]) -> str | dict[str, Any]:
    """A short column: the metric's name, with more decimals if small values need them."""
    digits = decimals(metric, [record.figure(metric.name) for record in records if record.done])
    more: dict[str, Any] = {} if digits == metric.digits else {"digits": digits}
    if metric.unit.startswith("J") and any(record.done and assumed_watts(record) for record in records):
        more["heading"] = f"{metric.heading}, watts assumed"
    if metric.name == TASK and (heading := _task(records)):
        more["heading"] = heading
    return {"metric": metric.name, **more} if more else metric.name


def _task(records: Sequence[Record]) -> str:
    """The heading of the metric that these records asked for and have under `task_score`; "" for several."""
    asked = {str(n) for record in records for n in record.provenance.config.get("metrics") or ()}
    known, metrics = {name for record in records for name in record.values}, load_metrics()
    names = [name for name in sorted(asked - known - {TASK}) if name in metrics]
    return metrics[names[0]].heading if len(names) == 1 else ""


def _circumstances(rows: Sequence[str], records: Sequence[Record]) -> str:
    """The labels and the amount of work that all cells share."""
    first = records[0].labels
    shared = [
        name
        for name in dict.fromkeys((*FIRST, *sorted(first)))
        if name in first and len({record.labels.get(name) for record in records}) == 1
    ]
    words = [
        load_names().find(ANY, name, first[name]).name
        for name in shared
        if name not in (*rows, "agreement") and first[name] not in ("none", "None")
    ]
    for setting, amount in (("prompts", "{} prompts"), ("max_tokens", "at most {} tokens")):
        values = {record.provenance.config.get(setting) for record in records}
        if len(values) == 1 and None not in values and setting not in rows:
            words.append(amount.format(values.pop()))
    return ", ".join(dict.fromkeys(words))


def _name(axes: Sequence[str], notes: Sequence[Note], overrides: Mapping[str, str]) -> str:
    """A readable name of the sweep with a hash of its overrides; of many values it has their number."""
    words = []
    for axis in axes:
        values = [v for v in dict.fromkeys(note.chosen[axis] for note in notes) if v != LACKING]
        if len(values) > MOST_NAMED:
            words += [_label(axis, ()), f"{len(values)}_values"]
        else:
            words += [*([_label(axis, ())] if all(map(_is_numeric, values)) else []), *values]
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words or notes[0].labels.values()))
    return f"{SWEEPS}{readable[:LONGEST].strip('-.')}-{content_hash(dict(overrides))[:8]}"


def _is_numeric(text: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e-?\d+)?", text) is not None
