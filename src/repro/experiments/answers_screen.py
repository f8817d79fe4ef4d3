"""A cell's answers beside the target's own and the dataset's references: the page of `repro show`.

Owns the choice of a record and the printed page. Must not know how answers come about. References are read
from the dataset, where this machine has it: a record holds what models said, and nothing of a dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from repro.core.errors import InputError
from repro.core.registry import lookup
from repro.data.config import builder_of, read_config, scoring_of
from repro.data.scoring import GeneratedText
from repro.data.template import Row
from repro.experiments.composing import load_components
from repro.metrics.evaluated import require_registered
from repro.records.record import Record, Scalar
from repro.records.results import Results, open_results
from repro.reports.tables.known import known_values, not_compared, other_arithmetic
from repro.scenarios.base import Scenario
from repro.scenarios.generation.answers import first_difference, row_hash
from repro.scenarios.generation.scenario import GenerationScenario
from repro.scenarios.registry import made

LONGEST = 800
"""Characters of a text that are printed without `--full`."""

FIGURES = ("task_score", "target_task_score", "task_score_difference", "exact_match", "rouge_l", "ties")
SETTINGS = ("prompts", "skip", "max_tokens", "sampling", "seed")


@dataclass(frozen=True)
class Found:
    """A record, the folder that holds it, and its answers' lines."""

    record: Record
    folder: Path
    answers: Sequence[Mapping[str, Scalar]]


def find(cell: str | None, stores: Sequence[Results]) -> Found:
    """The record that a user names; the newest finished one without a name.

    Args:
        cell: a key or its first digits, `EXPERIMENT/LABEL,LABEL`, or None.
        stores: where to look; the first one with such a record counts.

    Raises:
        InputError: there is no such record, or there are several.
    """
    for store in stores:
        records = [r for r in store.all() if r.done]
        if cell is None:
            matching = sorted(records, key=lambda r: r.provenance.finished)[-1:]
        else:
            matching = _matching(cell, records)
        if len(matching) > 1:
            named = "; ".join(f"{r.key[:12]} ({_name(r)})" for r in matching[:8])
            more = f"; and {len(matching) - 8} more" if len(matching) > 8 else ""
            raise InputError(f"{cell!r} is the name of {len(matching)} records: {named}{more}")
        if matching:
            key = matching[0].key
            kept = next((lines for one in stores if (lines := one.answers(key))), [])
            return Found(matching[0], store.root, kept)
    places = " or ".join(str(store.root) for store in stores)
    what = "a finished record" if cell is None else f"a finished record {cell!r}"
    raise InputError(f"{places} does not hold {what}; give a key, or EXPERIMENT/LABEL,LABEL, or --results")


def _matching(cell: str, records: Sequence[Record]) -> list[Record]:
    if by_key := [r for r in records if r.key.startswith(cell)]:
        return by_key
    found = []
    for record in records:
        experiment, rest = record.experiment, cell.removeprefix(record.experiment)
        if rest != cell and (not rest or rest.startswith("/")):
            words = rest.strip("/").replace("/", ",").split(",") if rest.strip("/") else []
            if set(words) <= {experiment, *record.labels.values()}:
                found.append(record)
    return found


def compute(found: Found, store: Results, data_dir: str | None, console: Console) -> Found:
    """Run a cell again and store its answers in `store`; its record stays as it is.

    Raises:
        InputError: the cell cannot run here, is another one in this version, or has other figures now.
    """
    from repro.experiments.check import differences  # late, with torch

    record = found.record
    require_registered(record.provenance.config.get("metrics") or (), f"record {record.key[:12]}")
    cell = _cell(record, data_dir)
    if cell.key != record.key:
        raise InputError(
            f"{record.key[:12]} was made by another version of its components or on other inputs: "
            "its answers cannot be computed again"
        )
    cell.check()
    with console.status("computing the answers"):
        outcome = cell.run(lambda what, done, total: None)
    changed = list(differences(record, outcome.record, same_host=True))
    if changed:
        console.print(f"[yellow]The run's figures are not the record's: {'; '.join(changed[:3])}.[/]")
    else:
        store.put_answers(record.key, outcome.answers)
    return Found(record, found.folder, outcome.answers)


def _cell(record: Record, data_dir: str | None) -> Scenario:
    """The record's cell; its dataset scores answers as its file says now, which is part of no key."""
    config = {**record.provenance.config, "data_dir": data_dir}
    dataset = config.get("dataset")
    if isinstance(dataset, Mapping) and "score" not in dataset.get("scoring", {}):
        try:
            score = read_config(str(dataset["name"])).scoring.get("score")
        except InputError:  # another package's dataset, or one that is gone
            score = None
        if score:
            config["dataset"] = {**dataset, "scoring": {**dataset["scoring"], "score": score}}
    return made(config)


# --- the page -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """What the dataset says about an answer: the question, the references, and what scores expect."""

    question: str
    references: tuple[str, ...]
    expected: tuple[str, ...]


def page(found: Found, data_dir: str | None, longest: int | None) -> Iterator[str]:
    """The lines of the page, in rich's markup.

    Args:
        found: the record.
        data_dir: a folder of datasets, or None.
        longest: characters of a text to print; None for all.
    """
    yield from heading(found)
    cell = _cell(found.record, data_dir)
    if not isinstance(cell, GenerationScenario):
        yield "\nThis cell generates no text: it scores choices by likelihoods, or looks at activations."
        return
    if cell.cost_only:
        yield "\nThis cell computes costs only: its target has no checkpoint, so it says nothing."
        return
    if not found.answers:
        yield (
            "\nThis record holds no answers; "
            f"`repro show {found.record.key[:12]} --compute` runs the cell for them."
        )
        return
    try:
        rows: Sequence[Row] = cell.rows.rows
    except InputError as wrong:
        rows = ()
        yield f"\nNo references: {escape(' '.join(str(wrong).split()))}"
    by_hash = {row_hash(row): row for row in rows}
    if rows and not any(line["row_hash"] in by_hash for line in found.answers):
        yield "\nNo references: the dataset at hand has other rows."
    for line in found.answers:
        row = by_hash.get(str(line["row_hash"]))
        yield from answer_lines(line, cell, None if row is None else _example(cell, row), longest)


def heading(found: Found) -> Iterator[str]:
    """What the cell is, and its main figures."""
    record, config = found.record, found.record.provenance.config
    labels = " ".join(f"{name}={value}" for name, value in record.labels.items())
    yield f"[bold]{escape(_name(record))}[/]"
    yield f"  record      {record.key[:12]}, finished {record.provenance.finished}, in {found.folder}"
    yield f"  cell        {escape(labels)}"
    settings = ", ".join(f"{name} {_short(config[name])}" for name in SETTINGS if name in config)
    yield f"  settings    {escape(settings)}"
    values = known_values(record)
    figures = ", ".join(f"{name} {_number(values[name])}" for name in FIGURES if values.get(name) is not None)
    if figures:
        yield f"  figures     {figures}"
    if arithmetic := other_arithmetic(record):
        yield f"  {not_compared(record.labels['method'], arithmetic)}"


def answer_lines(
    line: Mapping[str, Scalar], cell: GenerationScenario, example: Example | None, longest: int | None
) -> Iterator[str]:
    """One answer: where it leaves the target's own, its scores, and the texts below each other."""
    title = f"{line['request']} (row {line['row']})" + (", cut at max_tokens" if line["cut"] else "")
    at = None
    if line["target_tokens"] is None:
        verdict = "the target's own answer is not known"
    elif cell.computes_otherwise:
        verdict = "not compared with the target's own"
    else:
        at = first_difference(str(line["tokens"]), str(line["target_tokens"]))
        verdict = (
            "as the target's own" if at is None else f"[red]differs from the target's own at token {at}[/]"
        )
    scores = "".join(f", {text}" for text in _scores(line, cell, example, differs=at is not None))
    yield f"\n[bold]{escape(title)}[/]: {verdict}{scores}"
    if example is not None:
        yield _text("question", example.question, longest)
    yield _text("answer", str(line["text"]), longest)
    if at is not None:
        yield _text("target's", str(line["target_text"]), longest)
    if example is not None and any(example.references):
        yield _text("reference", " | ".join(dict.fromkeys(example.references)), longest)


def _scores(
    line: Mapping[str, Scalar], cell: GenerationScenario, example: Example | None, differs: bool
) -> Iterator[str]:
    """The answer's scores by the task: stored ones, else computed unless that would run code."""
    scoring = scoring_of(cell.dataset)
    names = scoring.score.metrics if isinstance(scoring, GeneratedText) and scoring.score else ()
    for name in names:
        metric = lookup("metric", name)()
        values = [line.get(name), line.get(f"target_{name}")]
        if values[0] is None and example is not None and not metric.runs_code:
            values = [metric.score(str(line[f"{who}text"]), example.expected) for who in _known(line)]
        if values[0] is not None:
            other = f" (the target's {_number(values[1])})" if differs and len(values) > 1 else ""
            yield f"{name} {_number(values[0])}{other}"


def _known(line: Mapping[str, Scalar]) -> tuple[str, ...]:
    return ("",) if line["target_text"] is None else ("", "target_")


def _example(cell: GenerationScenario, row: Row) -> Example:
    scoring = scoring_of(cell.dataset)
    if not isinstance(scoring, GeneratedText):
        reference = scoring.target(row, "").reference
        return Example(builder_of(cell.dataset).text(row), (reference,), (reference,))
    return Example(builder_of(cell.dataset).text(row), scoring.references(row), tuple(scoring.expected(row)))


def _text(name: str, text: str, longest: int | None) -> str:
    """A text under its name, indented; cut after `longest` characters."""
    whole = text.strip() or "(empty)"
    cut = whole if longest is None or len(whole) <= longest else f"{whole[:longest]} [...]"
    return f"  {name:<11} " + escape(cut).replace("\n", "\n" + " " * 14)


def _name(record: Record) -> str:
    labels = record.labels
    shown = [labels[name] for name in ("method", "device", "dataset") if name in labels]
    return f"{record.experiment}/{','.join(shown)}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={inner}" for name, inner in value.items())
    return str(value)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_answers(
    cell: str | None, folders: Sequence[Path], data_dir: str | None, again: bool, full: bool
) -> None:
    """Print the page of a cell.

    Args:
        cell: a key's first digits, or EXPERIMENT/LABEL,LABEL; the newest record by default.
        folders: of results, of which the first counts that has such a record.
        data_dir: a folder of datasets.
        again: run the cell again if it has no answers.
        full: whole texts, not `LONGEST` characters of each.

    Raises:
        InputError: there is no such record, or its answers cannot be computed.
    """
    console = Console(highlight=False, soft_wrap=True)
    load_components()
    stores = [open_results(folder) for folder in folders]
    shown = find(cell, stores)
    if again and not shown.answers:
        shown = compute(shown, stores[0], data_dir, console)
    for line in page(shown, data_dir, None if full else LONGEST):
        console.print(line)
