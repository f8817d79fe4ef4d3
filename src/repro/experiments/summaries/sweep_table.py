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
from repro.core.overrides import as_text
from repro.core.reading import JSON_BYTES, parse_json, read_text
from repro.core.registry import lookup
from repro.core.registry import names as registry_names
from repro.core.typed import typed
from repro.experiments.summaries.cell_screen import FIRST_LABELS
from repro.experiments.summaries.notes import Note
from repro.libraries import pd
from repro.metrics.evaluated import is_evaluated, stem_of
from repro.records.identity import RUN_SETTINGS, short_places, shorten
from repro.records.members import Member
from repro.records.record import Record, canonical, content_hash
from repro.records.results import Results
from repro.reports.files import SWEEPS_FOLDER, path_of, write_files
from repro.reports.formats.layout import decimals, printed_label
from repro.reports.reference.bibliography import papers_of
from repro.reports.spec.expand import COMMA, expand
from repro.reports.spec.metric import MetricSpec, load_metrics
from repro.reports.spec.spec import SEPARATOR, TableSpec
from repro.reports.tables.known import assumed_watts, known_value
from repro.reports.tables.table import is_number
from repro.scenarios.base import component, names_in

GENERATION_METRICS = (
    *("decode_tokens_per_s", "time_per_token", "ttft", "answer_seconds", "acceptance_length", "rouge_l"),
    *("joules_per_token", "answer_joules"),
    *("flash_bytes_per_token", "emulated_dram", "prompts"),
)
COMPARED_METRICS = {
    "compression": ("accuracy", "difference", "baseline_accuracy", "flips", "bits_per_weight", "rows"),
    "service": (
        *("met", "answer_seconds", "ttft", "tpot", "accuracy", "accuracy_in_time", "energy", "memory"),
        "requests",
    ),
    "probe": (),
}
"""Metrics that people compare, by the cell's configuration group; `GENERATION_METRICS` without any. A
probe's are all that it measured."""

PICTURE_METRICS = ("decode_tokens_per_s", "acceptance_length", "joules_per_token", "accuracy", "met", "ttft")
"""Metrics of the picture: the first `MOST_PANELS` of them that the table has."""

MOST_PANELS = 3
FEWEST_POINTS = 3
"""Numbers of a setting over which a line is drawn."""

TASK_SCORE = "task_score"

MOST_NAMED = 6
"""Values that a title or a folder's name lists; of more it gives the number."""

LACKING_TEXT = ""
"""The value of a setting in cells that lack it, since they are of another method."""

DELETED_VALUE = "null"
"""The value of an override that deletes a setting (`~NAME`), as Hydra and a grid read it."""

MOST_BARS, MOST_ON_LINES = 60, 1000
"""Rows of a table that a picture shows; as points of lines there may be more."""

LONGEST_NAME = 60
"""Characters of the readable part of a folder's name."""

TITLE_PREFIXES = {"method": "", "service": "", "compression": "", "device": "on ", "dataset": "on "}
"""What stands before a label's values in a title; of another label its name."""

SWEEP_FILE = "sweep.json"
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
        words = [
            key if key.startswith("~") and value == DELETED_VALUE else f"{key}={value}"
            for key, value in self.overrides.items()
        ]
        return shlex.join(["python", "-m", "repro", "-m", *words])

    def write(self, name: str, results: Path) -> None:
        """Write it beside a table's cells in a folder of results; InputError if that cannot be written."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        write_files(name, results, {SWEEP_FILE: f"{text}\n"})

    def in_order(self, records: Iterable[Record]) -> list[Record]:
        """The records of its cells in the order of the command's values."""
        ranking = {label: {value: i for i, value in enumerate(texts)} for label, texts in self.values.items()}
        return sorted(
            records,
            key=lambda record: [
                ranks.get(record.labels.get(label, ""), len(ranks)) for label, ranks in ranking.items()
            ],
        )

    @classmethod
    def read(cls, name: str, results: Path) -> SweepCommand:
        """The command of a sweep's table in a folder of results; InputError if its file is not as written."""
        path = path_of(results, name, SWEEP_FILE)
        try:
            return typed(cls, parse_json(read_text(path, JSON_BYTES)), str(path))
        except FileNotFoundError:
            raise InputError(f"there is no {path}; the sweep's own command makes its table again") from None
        except (InputError, ValueError) as wrong:
            raise InputError(f"{path} is no sweep's command: {wrong}") from wrong


@dataclass(frozen=True)
class SweepTable:
    """The table of a sweep without one of its own.

    Attributes:
        name: what it is stored as: `sweeps/<readable name>-<hash of the overrides>`.
        command: the sweep's command.
        table: what it shows.
        notes: the sweep's notes, whose labels name their rows.
    """

    name: str
    command: SweepCommand
    table: TableSpec
    notes: list[Note]


def sweep_table(notes: Sequence[Note], store: Results, overrides: Mapping[str, str]) -> SweepTable | None:
    """The table of a sweep's cells; `None` if no cell succeeded.

    Args:
        notes: notes of all its cells.
        store: where their records are.
        overrides: the command's overrides by key, as they were typed.
    """
    overrides = {key: text for key, text in overrides.items() if key.partition(".")[0] not in RUN_SETTINGS}
    texts = pd.DataFrame([{key: as_text(value) for key, value in note.chosen.items()} for note in notes])
    texts = texts.fillna(LACKING_TEXT)
    short_names = {key: short_places(texts[key]) for key in texts}  # no folders of this machine
    settings = pd.DataFrame({key: [shorten(text, short_names[key]) for text in texts[key]] for key in texts})
    overrides = {key: shorten(text, short_names.get(key, {})) for key, text in overrides.items()}
    labels = pd.DataFrame([note.labels for note in notes], columns=[*notes[0].labels]).fillna("")
    rows: dict[str, str] = {}
    labels_by_axis: dict[str, str] = {}
    for axis in (key for key in settings if settings[key].nunique() > 1):
        names = _standing_for(axis, settings[axis], labels)
        if not names:
            labels_by_axis[axis] = _label(axis, used_labels={*labels, *labels_by_axis.values()})
        rows |= {label: axis for label in names or [labels_by_axis[axis]] if label not in rows}
    labelled_notes = []
    for cell_number, note in enumerate(notes):
        additions = {label: settings.at[cell_number, axis] for axis, label in labels_by_axis.items()}
        label_texts = {label: text for label, text in additions.items() if text != LACKING_TEXT}
        labelled_notes.append(replace(note, labels=note.labels | label_texts))
    records = store.records(Member(note.key, note.labels) for note in labelled_notes if note.key)
    if not any(record.done for record in records):
        return None
    values = {row: [*dict.fromkeys(note.labels.get(row, "") for note in labelled_notes)] for row in rows}
    command = SweepCommand(overrides, rows, values)
    name = _name(settings, notes[0].labels.values(), overrides)
    return SweepTable(name, command, own_table(name, command, records), labelled_notes)


def _standing_for(axis: str, values: pd.Series[str], labels: pd.DataFrame) -> list[str]:
    """The labels that tell the values of an override apart: one if possible, else several together."""
    count = values.nunique()

    def determines(names: list[str]) -> bool:
        """Whether each value has one combination of these labels."""
        return bool(len(labels[names].assign(**{"value of": values}).drop_duplicates()) == count)

    def identifies(names: list[str]) -> bool:
        return determines(names) and bool(len(labels[names].drop_duplicates()) == count)

    varying = [name for name in labels if labels[name].nunique() > 1]
    # The label with the override's own name comes first, then an experiment's own ones, which are last.
    own_name = axis.rpartition("@")[2]
    for name in sorted(varying, key=lambda name: (name != own_name, -varying.index(name))):
        if identifies([name]):
            return [name]
    candidates = [name for name in varying if determines([name])]
    return candidates if candidates and identifies(candidates) else []


def _label(axis: str, used_labels: Collection[str]) -> str:
    """A label for an override: its last word, or all of them if that is taken."""
    words = [word for word in re.split(r"[.@]", axis.lstrip("+")) if word != "value"]
    return words[-1] if words[-1] not in used_labels else "_".join(words)


def _name(settings: pd.DataFrame, labels: Iterable[str], overrides: Mapping[str, str]) -> str:
    """A readable name of the sweep with a hash of its overrides; of many values it has their number."""
    parts = []
    for axis in settings:
        values = [value for value in settings[axis].unique() if value != LACKING_TEXT]
        if settings[axis].nunique() < 2:
            continue
        are_numbers = all(re.fullmatch(r"-?[0-9.]+(e-?\d+)?", value) for value in values)
        parts += [_label(axis, ())] if are_numbers or len(values) > MOST_NAMED else []
        parts += values if len(values) <= MOST_NAMED else [f"{len(values)}_values"]
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(parts or labels))
    return f"{SWEEPS_FOLDER}{readable[:LONGEST_NAME].strip('-.')}-{content_hash(dict(overrides))[:8]}"


def own_table(name: str, command: SweepCommand, records: Sequence[Record]) -> TableSpec:
    """The table of a sweep's cells.

    Args:
        name: of the table.
        command: of the sweep.
        records: of its cells, with the labels that name their rows.
    """
    rows, records = [*command.rows] or ["method"], command.in_order(records)
    labels = pd.DataFrame([record.labels for record in records])
    ids = labels.reindex(columns=rows).fillna("").drop_duplicates()
    texts = pd.DataFrame({label: [printed_label(label, value) for value in ids[label]] for label in rows})
    metrics = _metrics(records)
    columns = [_column(metric, records) for metric in metrics]
    if "decode_tokens_per_s" in {metric.name for metric in metrics} and (baseline := _baseline(ids)):
        heading = f"Speedup over {printed_label('method', baseline)}"
        speedup = {"key": "speedup", "heading": heading, "relative_to": {"method": baseline}}
        columns.insert(1, {"metric": "decode_speed", **speedup})
    title = _compared_words(texts)
    section: dict[str, Any] = {
        "title": f"{title} ({_circumstances(rows, labels, records)})",
        "rows": {
            "by": rows,
            "names": {
                SEPARATOR.join(row): COMMA.join(filter(None, label_texts))
                for row, label_texts in zip(ids.values, texts.values, strict=True)
            },
            "apart": True,
        },
        "columns": columns,
        "best": True,
        "cite": _citations(records),
    }
    notes = [*_without_effect(command.rows, records), *_placement_notes(records), *_watts_notes(records)]
    specs = load_metrics()
    if bare := dict.fromkeys(name for r in records for name in _asked_values(r) if not specs.of_value(name)):
        notes += [f"Not shown, as no file of conf/metric describes it: {', '.join(bare)}."]
    if panels := [name for name in PICTURE_METRICS if name in {metric.name for metric in metrics}][
        :MOST_PANELS
    ]:
        figure = _picture(panels, ids)
        if len(ids) > (MOST_ON_LINES if "x" in figure else MOST_BARS):
            notes += [f"No picture, as of {len(ids)} rows it would show nothing."]
        else:
            section["figure"] = {"title": title, **figure}
    if notes:
        section["notes"] = notes
    cells = [{f"labels.{label}": value for label, value in record.labels.items()} for record in records]
    stem = name.rpartition("/")[2]  # without a folder, which would name a paper
    return replace(expand(stem, section, {"grid": {"cells": cells}}), command=str(command))


def _citations(records: Iterable[Record]) -> list[str]:
    """The papers that the records' methods, compressions and services name, if these are still there."""
    groups = ("method", "compression", "service")
    choices = {choice for record in records for choice in names_in(record.provenance.config, *groups).items()}
    components = [(name, lookup(group, name)) for group, name in choices if name in registry_names(group)]
    return sorted({paper for name, component in components for paper in papers_of(name, component)})


# --- columns ------------------------------------------------------------------------------------------------


def _metrics(records: Sequence[Record]) -> list[MetricSpec]:
    """The metrics of these records that people compare and that at least one of them has."""
    names = dict.fromkeys(name for record in records for name in _compared_values(record))
    numbers = [
        name
        for name in names
        if any(isinstance(known_value(record, name), (int, float)) for record in records)
    ]
    metrics = [metric for metric in map(load_metrics().of_value, numbers) if metric]
    return sorted(metrics, key=lambda metric: metric.group == "counts")


def _compared_values(record: Record) -> Sequence[str]:
    config = record.provenance.config
    names = next(
        (names for group, names in COMPARED_METRICS.items() if config.get(group)), GENERATION_METRICS
    )
    return (*names, *_asked_values(record)) if names else [*record.values]


def _asked_values(record: Record) -> list[str]:
    """The values of the metrics that a run asked for by name: of that name, or all that begin with it.

    A dataset's own metric has its value under `task_score`.
    """
    names: list[str] = []
    for metric in map(str, record.provenance.config.get("metrics") or ()):
        metric = stem_of(metric) if is_evaluated(metric) else metric
        beginning = [name for name in record.values if name.startswith(f"{metric}_")]
        names += (
            [metric] if metric in record.values else beginning or [TASK_SCORE] * (TASK_SCORE in record.values)
        )
    return names


def _column(metric: MetricSpec, records: Sequence[Record]) -> str | dict[str, Any]:
    """A short column: the metric's name, with more decimals if small values need them."""
    digits = decimals(metric, [record.figure(metric.name) for record in records if record.done])
    options: dict[str, Any] = {} if digits == metric.digits else {"digits": digits}
    if metric.unit.startswith("J") and any(record.done and assumed_watts(record) for record in records):
        options["heading"] = f"{metric.heading}, watts assumed"
    if metric.name == TASK_SCORE and (heading := _task(records)):
        options["heading"] = heading
    return {"metric": metric.name, **options} if options else metric.name


def _task(records: Sequence[Record]) -> str:
    """The heading of the metric that these records asked for and have under `task_score`; "" for several."""
    metric_names = {str(name) for record in records for name in record.provenance.config.get("metrics") or ()}
    value_names, metrics = {name for record in records for name in record.values}, load_metrics()
    names = [name for name in metric_names - value_names - {TASK_SCORE} if name in metrics]
    return metrics[names[0]].heading if len(names) == 1 else ""


def _baseline(ids: pd.DataFrame) -> str:
    """The first method of the rows that decodes plainly, if others are there to compare with it; else ""."""
    methods = ids["method"].unique() if "method" in ids else ()
    registry = registry_names("method")
    bases = [name for name in methods if name in registry and getattr(lookup("method", name), "plain", False)]
    return bases[0] if bases and len(methods) > 1 else ""


# --- title, picture and notes -------------------------------------------------------------------------------


def _compared_words(printed_names: pd.DataFrame) -> str:
    """What the rows compare: `Flash-AR and Chain-SD, length 2 and 4, on Xiaomi 14 and OnePlus 12`."""
    phrases = []
    for label in printed_names:
        values = [value for value in printed_names[label].unique() if value]
        text = " and ".join(filter(None, (", ".join(values[:-1]), *values[-1:])))
        text = text if len(values) <= MOST_NAMED else f"{len(values)} values"
        phrases.append(f"{TITLE_PREFIXES.get(label, f'{label} ')}{text}")
    return ", ".join(phrases).replace(", on ", " on ")


def _circumstances(rows: Sequence[str], labels: pd.DataFrame, records: Sequence[Record]) -> str:
    """The labels and the amount of work that all cells share."""
    first_labels = labels.iloc[0].dropna()
    phrases = [
        printed_label(name, first_labels[name])
        for name in dict.fromkeys((*FIRST_LABELS, *sorted(first_labels.index)))
        if name in first_labels and labels[name].nunique(dropna=False) == 1
        if name not in (*rows, "agreement") and first_labels[name] not in ("none", "None")
    ]
    for setting, amount in (("prompts", "{} prompts"), ("max_tokens", "at most {} tokens")):
        values = {record.provenance.config.get(setting) for record in records}
        if len(values) == 1 and None not in values and setting not in rows:
            phrases.append(amount.format(values.pop()))
    return ", ".join(dict.fromkeys(phrases))


def _picture(names: Sequence[str], ids: pd.DataFrame) -> dict[str, Any]:
    """Lines of the first metric over the label with the most numbers, of three or more; else bars of all."""
    values = {label: ids[label].unique() for label in ids}
    counts = {
        label: len(texts)
        for label, texts in values.items()
        if all(is_number(text) and isfinite(float(text)) for text in texts)
    }
    x = max(counts, key=lambda label: counts[label], default="")
    if counts.get(x, 0) < FEWEST_POINTS:
        return {"columns": [*names]}
    metric = load_metrics()[names[0]]
    return {"columns": [names[0]], "kind": "lines", "x": x, "heading": f"{metric.heading} ({metric.unit})"}


def _without_effect(rows: Mapping[str, str], records: Sequence[Record]) -> Iterable[str]:
    """A sentence for each override that changes no figure of cells that differ in it alone."""
    cells = pd.DataFrame([record.labels for record in records]).reindex(columns=[*rows]).fillna("")
    cells["method of"] = [record.labels.get("method", "") for record in records]
    cells["figures of"] = [canonical(record.values) if record.done else record.key for record in records]
    cells["key of"] = [record.key for record in records]
    for axis in dict.fromkeys(rows.values()):
        other_labels = [label for label, key in rows.items() if key != axis]
        groups = cells.groupby(other_labels or (lambda number: 0), sort=False)
        is_unchanged = (groups["figures of"].nunique() == 1) & (groups["key of"].nunique() > 1)
        if methods := dict.fromkeys(groups["method of"].first()[is_unchanged]):
            method_names = ", ".join(printed_label("method", method) for method in methods)
            yield f"{axis} changes no figure of {method_names} here."


def _placement_notes(records: Sequence[Record]) -> list[str]:
    """A sentence on which methods hold the target in memory and which read it, if they differ in that."""
    methods: dict[str, dict[str, None]] = {}
    for record in records:
        if text := _place(record.provenance.config):
            methods.setdefault(text, {}).setdefault(printed_label("method", record.labels.get("method", "")))
    phrases = [f"{text} with {', '.join(names)}" for text, names in methods.items()]
    return [f"The target is {'; '.join(phrases)}."] if len(phrases) > 1 else []


def _place(config: Mapping[str, Any]) -> str:
    """Where a cell's target lies; "" of a cell without a method that places one."""
    if any(config.get(group) for group in COMPARED_METRICS) or "name" not in (config.get("method") or {}):
        return ""
    target = component("method", config["method"]).places().get("target")
    if target is None:
        return ""
    share = config.get("resident")
    if share is None and target.policy == "swap":
        return "mapped from flash as a whole"
    share = target.resident if share is None else share
    texts = {1: "resident in memory", 0: "streamed from flash"}
    return texts.get(share, f"resident by {100 * share:g}%, else streamed from flash")


def _watts_notes(records: Sequence[Record]) -> list[str]:
    """A sentence on the watts that joules rest on and that are assumed, by device."""
    by_device: dict[str, dict[str, None]] = {}
    for record in records:
        if record.done and record.figure("answer_joules") is not None:
            for part in assumed_watts(record):
                by_device.setdefault(str(record.provenance.config["device"].get("name")), {}).setdefault(part)
    devices = [f"of {device}: {', '.join(parts)}" for device, parts in by_device.items()]
    return [f"Joules rest on watts that are assumed, {'; '.join(devices)}."] if devices else []
