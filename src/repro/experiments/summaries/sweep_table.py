"""The table of a sweep that has no `table:` section, and the experiment file that makes the same table.

Owns the choice of its rows and columns. Rows are named by what the sweep varies, columns are what people
compare in such cells. Must not know Hydra: the command's overrides come as text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from repro.core.overrides import shown
from repro.core.registry import lookup
from repro.core.registry import names as registry_names
from repro.core.yaml_file import parse_yaml, read_yaml
from repro.experiments.summaries.notes import Note
from repro.metrics.evaluated import is_evaluated, stem_of
from repro.records.identity import OF_THE_RUN, portable, short_places, shortened
from repro.records.packed import Member
from repro.records.record import Record, content_hash
from repro.records.results import Results
from repro.reports.files import path_of, write_files
from repro.reports.formats.values import decimals
from repro.reports.reference.names import ANY, load_names
from repro.reports.spec.beside import beside
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
"""Values that a title lists; of more it gives the number."""

LACKING = ""
"""The value of a setting in cells that lack it, since they are of another method."""

DELETED = "null"
"""The value of an override that deletes a setting (`~NAME`), as Hydra and a grid read it."""

MOST_DRAWN, MOST_ON_LINES = 60, 1000
"""Rows of a table that a picture shows; as points of lines there may be more."""

LONGEST = 60
"""Characters of the readable part of a folder's name."""


@dataclass(frozen=True)
class SweepTable:
    """The table of a sweep without one of its own.

    Attributes:
        name: the experiment that it is stored as: `sweeps/<readable name>-<hash of the overrides>`.
        section: its `table:` section, in the short form of experiment files.
        notes: the sweep's notes, whose labels name their rows.
        labels: labels that the experiment's file must give its cells, by name, as interpolations.
        overrides: the command's overrides, by key.
        cells: values of overrides that are mappings, lists or null, each with the label that names it.
    """

    name: str
    section: dict[str, Any]
    notes: list[Note]
    labels: dict[str, str]
    overrides: Mapping[str, str]
    cells: tuple[dict[str, Any], ...] = ()

    @property
    def command(self) -> str:
        """The command of the sweep."""
        typed = [
            key if key.startswith("~") and value == DELETED else f"{key}={value}"
            for key, value in self.overrides.items()
        ]
        return shlex.join(["python", "-m", "repro", "-m", *typed])

    def written_out(self) -> dict[str, Any]:
        """The section as `Sweep.finish` takes it, with the command."""
        content = {"grid": self.grid, "labels": self.labels}
        own = self.name.rpartition("/")[2]  # without a folder, which would name a paper
        return expand(own, self.section, content) | {"command": self.command}

    @property
    def grid(self) -> dict[str, Any]:
        """The grid of its experiment."""
        listed = {name for cell in self.cells for name in cell}
        axes = {key: value for key, value in self.overrides.items() if not beside(key)}
        grid: dict[str, Any] = {key: value for key, value in axes.items() if key not in listed}
        return grid | ({"cells": [*self.cells]} if self.cells else {})

    def write_experiment(self, results: Path) -> dict[str, Path]:
        """Write `experiment_file` beside the table in a folder of results; returns its path by kind.

        Raises:
            InputError: the folder cannot be written to.
        """
        return write_files(self.name, results, {"yaml": self.experiment_file()})

    def experiment_file(self) -> str:
        """The YAML of an experiment with the same cells and the same table.

        A sweep of an experiment without a table only lacks its `table:` section; that is what it gets.
        """
        table = {"table": self.section}
        if self.labels:
            table = {"labels": self.labels, **table}
        if base := self.overrides.get("experiment"):
            return (
                f"# The table of `{self.command}`.\n# Add it to conf/experiment/{base}.yaml.\n{_yaml(table)}"
            )
        return (
            f"# Made of `{self.command}`.\n"
            "# Copied to conf/experiment/NAME.yaml, `python -m repro experiment=NAME` makes this table.\n"
            f"{_yaml({'grid': self.grid} | table)}"
        )


def recorded_section(name: str, results: Path) -> dict[str, Any]:
    """The section of a sweep's table that was made before, written out, with the sweep's command.

    Raises:
        InputError: the file of its experiment is not there.
    """
    text = read_yaml(path_of(results, name, "yaml"))
    content = parse_yaml(text, f"{name}/experiment.yaml")
    command = re.search("`(.+)`", text)
    section = expand(name.rpartition("/")[2], content["table"], content)
    return section | ({"command": command[1]} if command else {})


def sweep_table(
    notes: Sequence[Note], store: Results, overrides: Mapping[str, str], groups: Collection[str]
) -> SweepTable | None:
    """The table of a sweep's cells; `None` if no cell succeeded.

    Args:
        notes: notes of all its cells.
        store: where their records are.
        overrides: the command's overrides by key, as they were typed.
        groups: the configuration groups.
    """
    records = store.records(Member(note.key, note.labels) for note in notes if note.key)
    if not any(record.done for record in records):
        return None
    overrides = {k: v for k, v in overrides.items() if k.partition(".")[0] not in OF_THE_RUN}
    keys = dict.fromkeys(key for note in notes for key in note.chosen)  # a cell lacks other methods' settings
    notes = [replace(note, chosen={key: note.chosen.get(key, LACKING) for key in keys}) for note in notes]
    plain = [note.chosen for note in notes]
    notes, overrides = _portable(notes, overrides)
    axes = [key for key in keys if len({note.chosen[key] for note in notes}) > 1]
    own, rows = _row_labels(axes, notes)
    labelled = [replace(note, labels={**note.labels, **_own_labels(note, own)}) for note in notes]
    rows = rows or ["method"]
    names = load_names()
    ids = dict.fromkeys(tuple(note.labels.get(name, "") for name in rows) for note in labelled)
    printed = [tuple(names.find(ANY, *pair).name for pair in zip(rows, row, strict=True)) for row in ids]
    metrics = load_metrics()
    compared_by = _metrics([record for record in records if record.done], metrics)
    columns = [_column(metric, records) for metric in compared_by]
    if "decode_tokens_per_s" in {metric.name for metric in compared_by} and (base := _baseline(rows, ids)):
        columns.insert(1, _speedup(base))
    bare = dict.fromkeys(name for record in records for name in _asked(record) if not metrics.of_value(name))
    drawn = [name for name in DRAWN if name in {metric.name for metric in compared_by}][:PANELS]
    compared, circumstances = _compared_words(rows, printed), _circumstances(rows, labelled, records)
    title = f"{compared} ({circumstances})"
    order = {
        SEPARATOR.join(row): COMMA.join(filter(None, name)) for row, name in zip(ids, printed, strict=True)
    }
    section: dict[str, Any] = {"title": title, "rows": {"by": rows, "names": order, "apart": True}}
    section["columns"] = columns
    section |= {"best": True}
    notes_below = _without_effect(axes, labelled, {record.key: record for record in records})
    notes_below += _placed(records) + _assumed(records)
    if bare:
        notes_below += [f"Not shown, as no file of conf/metric describes it: {', '.join(bare)}."]
    figure = {"title": compared, **_picture(drawn, rows, ids)}
    if drawn and len(ids) > (MOST_ON_LINES if "x" in figure else MOST_DRAWN):
        notes_below += [f"No picture, as of {len(ids)} rows it would show nothing."]
    elif drawn:
        section["figure"] = figure
    if notes_below:
        section["notes"] = notes_below
    nested = {} if "experiment" in overrides else _nested(own, plain)
    labels = {
        name: _interpolation(key, groups, "''" if any(each[key] == LACKING for each in plain) else "null")
        for key, name in own.items()
        if key not in nested
    }
    listed = [*keys] if any(map(beside, overrides)) else [*nested]
    listed = [key for key in listed if key.partition(".")[0] not in OF_THE_RUN]
    cells = _cells(listed, nested, plain, notes)
    return SweepTable(_name(axes, notes, overrides), section, labelled, labels, overrides, cells)


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


def _without_effect(axes: Sequence[str], notes: Sequence[Note], by_key: Mapping[str, Record]) -> list[str]:
    """A sentence for each override that changes no figure of cells that differ in it alone."""
    found: dict[str, dict[str, None]] = {}
    for axis in axes:
        alike: dict[tuple[object, ...], list[Note]] = {}
        for note in notes:
            rest = tuple(value for key, value in note.chosen.items() if key != axis)
            alike.setdefault(rest, []).append(note)
        for group in alike.values():
            records = [by_key[note.key] for note in group if note.key in by_key and by_key[note.key].done]
            values = {note.chosen[axis] for note in group}
            keys = {note.key for note in group}
            same = all(record.values == records[0].values for record in records)
            if len(values) > 1 and len(keys) > 1 and len(records) == len(group) and same:
                found.setdefault(axis, {}).setdefault(group[0].labels.get("method", ""))
    names = load_names()
    return [
        f"{axis} changes no figure of {', '.join(names.find(ANY, 'method', m).name for m in methods)} here."
        for axis, methods in found.items()
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


def _nested(own: Mapping[str, str], chosen: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Those overrides with a label of its own that have a mapping, a list or null, which are no labels."""
    other = (dict, list, type(None))
    return {key: name for key, name in own.items() if any(isinstance(each[key], other) for each in chosen)}


def _cells(
    keys: Sequence[str],
    nested: Mapping[str, str],
    chosen: Sequence[Mapping[str, Any]],
    notes: Sequence[Note],
) -> tuple[dict[str, Any], ...]:
    """The entries of a grid's `cells`: values of the overrides `keys`, with the labels of `nested` ones."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for each, note in zip(chosen, notes, strict=True):
        values = portable({key: each[key] for key in keys if each[key] != LACKING})
        listed = {key: [value] if isinstance(value, list) else value for key, value in values.items()}
        labels = {f"labels.{nested[key]}": note.chosen[key] for key in nested}
        found.setdefault(tuple(note.chosen[key] for key in keys), {**listed, **labels})
    return tuple(found.values()) if keys else ()


def _row_labels(axes: Sequence[str], notes: Sequence[Note]) -> tuple[dict[str, str], list[str]]:
    """Labels of its own for each override that no label stands for, and the labels that name the rows."""
    own: dict[str, str] = {}
    rows: list[str] = []
    for axis in axes:
        known = _standing_for(axis, notes)
        if not known:
            known = [_label(axis, taken={*notes[0].labels, *own.values()})]
            own[axis] = known[0]
        rows += [name for name in known if name not in rows]
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


def _interpolation(key: str, groups: Collection[str], otherwise: str) -> str:
    """What an experiment's file writes for the label of an override; `otherwise` where a cell lacks it."""
    key = key.lstrip("+")
    if key in groups and "@" not in key:
        return f"${{hydra:runtime.choices.{key}}}"
    setting = f"{key.rpartition('@')[2]}.name" if "@" in key else key
    return f"${{oc.select:{setting},{otherwise}}}"


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


def _circumstances(rows: Sequence[str], notes: Sequence[Note], records: Sequence[Record]) -> str:
    """The labels and the amount of work that all cells share."""
    first = notes[0].labels
    shared = [name for name in first if len({note.labels.get(name) for note in notes}) == 1]
    words = [
        load_names().find(ANY, name, first[name]).name
        for name in shared
        if name not in (*rows, "agreement") and first[name] not in ("none", "None")
    ]
    for setting, amount in (("prompts", "{} prompts"), ("max_tokens", "at most {} tokens")):
        given = {record.provenance.config.get(setting) for record in records}
        if len(given) == 1 and None not in given and setting not in rows:
            words.append(amount.format(given.pop()))
    return ", ".join(dict.fromkeys(words))


def _name(axes: Sequence[str], notes: Sequence[Note], overrides: Mapping[str, str]) -> str:
    """A readable name of the sweep with a hash of its overrides."""
    words = []
    for axis in axes:
        values = [v for v in dict.fromkeys(note.chosen[axis] for note in notes) if v != LACKING]
        words += [*([_label(axis, ())] if all(map(_is_numeric, values)) else []), *values]
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words or notes[0].labels.values()))[:LONGEST].strip(
        "-."
    )
    return f"{SWEEPS}{readable}-{content_hash(dict(overrides))[:8]}"


def _is_numeric(text: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e-?\d+)?", text) is not None


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(
        dict(content), sort_keys=False, width=110, default_flow_style=None, allow_unicode=True
    )
