"""A cell's answers beside the target's own and the dataset's references: the page of `repro show`.

Owns the choice of a record and the printed page. Must not know how answers come about. References are read
from the dataset, where this machine has it: a record holds what models said, and nothing of a dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from repro.scenarios.base import Scenario, silent
from repro.scenarios.generation.answers import first_difference, row_hash
from repro.scenarios.generation.scenario import GenerationScenario
from repro.scenarios.registry import made

LONGEST_TEXT = 800
"""Characters of a text that are printed without `--full`."""

MOST_LISTED = 8
"""Records of one name that an error lists."""

FIGURE_NAMES = ("task_score", "target_task_score", "task_score_difference", "exact_match", "rouge_l", "ties")
SETTING_NAMES = ("prompts", "skip", "max_tokens", "sampling", "seed")

Answer = Mapping[str, Scalar]
"""A stored line: an answer's text and tokens, the target's own, and scores."""


def show_answers(
    cell: str | None, folders: Sequence[Path], data_dir: str | None, compute: bool, full: bool
) -> None:
    """Print the page of a cell.

    Args:
        cell: a key's first digits, or EXPERIMENT/LABEL,LABEL; the newest record by default.
        folders: of results, of which the first counts that has such a record.
        data_dir: a folder of datasets.
        compute: run the cell again if it has no answers.
        full: whole texts, not `LONGEST_TEXT` characters of each.

    Raises:
        InputError: there is no such record, or its answers cannot be computed.
    """
    console = Console(highlight=False, soft_wrap=True)
    load_components()
    stores = [open_results(folder) for folder in folders]
    record, folder = find_record(cell, stores)
    answers: Sequence[Answer] = next((lines for s in stores if (lines := s.answers(record.key))), [])
    if compute and not answers:
        answers = compute_answers(record, stores[0], data_dir, console)
    for line in (*heading(record, folder), *page(record, answers, data_dir, None if full else LONGEST_TEXT)):
        console.print(line)


def find_record(cell: str | None, stores: Sequence[Results]) -> tuple[Record, Path]:
    """The record that a user names, the newest finished one without a name; and the folder that holds it.

    Raises:
        InputError: there is no such record, or there are several.
    """
    for store in stores:
        records = [record for record in store.all() if record.done]
        if cell is None:
            records = sorted(records, key=lambda record: record.provenance.finished)[-1:]
        else:
            key_matches = [record for record in records if record.key.startswith(cell)]
            records = key_matches or [record for record in records if _is_named(record, cell)]
        if len(records) > 1:
            listing = "; ".join(f"{record.key[:12]} ({_name(record)})" for record in records[:MOST_LISTED])
            more_records = f"; and {len(records) - MOST_LISTED} more" if len(records) > MOST_LISTED else ""
            raise InputError(f"{cell!r} is the name of {len(records)} records: {listing}{more_records}")
        if records:
            return records[0], store.root
    roots = " or ".join(str(store.root) for store in stores)
    subject = "a finished record" if cell is None else f"a finished record {cell!r}"
    raise InputError(f"{roots} does not hold {subject}; give a key, or EXPERIMENT/LABEL,LABEL, or --results")


def _is_named(record: Record, cell: str) -> bool:
    """Whether `cell` is the record's experiment, alone or with some of its labels behind a slash."""
    if not f"{cell}/".startswith(f"{record.experiment}/"):
        return False
    labels = cell.removeprefix(record.experiment).replace("/", ",").split(",")
    return {*filter(None, labels)} <= {record.experiment, *record.labels.values()}


def compute_answers(
    record: Record, store: Results, data_dir: str | None, console: Console
) -> Sequence[Answer]:
    """Run a cell again and store its answers in `store`; its record stays as it is.

    Raises:
        InputError: the cell cannot run here, is another one in this version, or has other figures now.
    """
    from repro.experiments.check import differences  # late, with torch

    require_registered(record.provenance.config.get("metrics") or (), f"record {record.key[:12]}")
    cell = _cell(record, data_dir)
    if cell.key != record.key:
        raise InputError(
            f"{record.key[:12]} was made by another version of its components or on other inputs: "
            "its answers cannot be computed again"
        )
    cell.check()
    with console.status("computing the answers"):
        outcome = cell.run(silent)
    if changes := [*differences(record, outcome.record, same_host=True)]:
        console.print(f"[yellow]The run's figures are not the record's: {'; '.join(changes[:3])}.[/]")
    else:
        store.put_answers(record.key, outcome.answers)
    return outcome.answers


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


# --- the page, in rich's markup -----------------------------------------------------------------------------


class Example(NamedTuple):
    """What the dataset says about an answer: the question, the references, and what scores expect."""

    question: str
    references: tuple[str, ...]
    answers: tuple[str, ...]


def heading(record: Record, folder: Path) -> Iterator[str]:
    """What the cell is, and its main figures."""
    config, values = record.provenance.config, known_values(record)
    labels = " ".join(f"{name}={value}" for name, value in record.labels.items())
    settings = ", ".join(f"{name} {_short(config[name])}" for name in SETTING_NAMES if name in config)
    figures = ", ".join(
        f"{name} {_short(values[name])}" for name in FIGURE_NAMES if values.get(name) is not None
    )
    yield f"[bold]{escape(_name(record))}[/]"
    yield f"  record      {record.key[:12]}, finished {record.provenance.finished}, in {folder}"
    yield f"  cell        {escape(labels)}"
    yield f"  settings    {escape(settings)}"
    if figures:
        yield f"  figures     {figures}"
    if arithmetic := other_arithmetic(record):
        yield f"  {not_compared(record.labels['method'], arithmetic)}"


def page(
    record: Record, answers: Sequence[Answer], data_dir: str | None, longest: int | None
) -> Iterator[str]:
    """The lines of the answers; a sentence where there are none.

    Args:
        record: of a finished cell.
        answers: its stored lines.
        data_dir: a folder of datasets, or None.
        longest: characters of a text to print; None for all.
    """
    cell = _cell(record, data_dir)
    if not isinstance(cell, GenerationScenario):
        yield "\nThis cell generates no text: it scores choices by likelihoods, or looks at activations."
        return
    if cell.cost_only:
        yield "\nThis cell computes costs only: its target has no checkpoint, so it says nothing."
        return
    if not answers:
        command = f"repro show {record.key[:12]} --compute"
        yield f"\nThis record holds no answers; `{command}` runs the cell for them."
        return
    rows: dict[str, Row] = {}
    try:
        rows = {row_hash(row): row for row in cell.rows.rows}
    except InputError as wrong:
        yield f"\nNo references: {escape(' '.join(str(wrong).split()))}"
    if rows and rows.keys().isdisjoint(str(answer["row_hash"]) for answer in answers):
        yield "\nNo references: the dataset at hand has other rows."
    for answer in answers:
        row = rows.get(str(answer["row_hash"]))
        yield from answer_lines(answer, cell, None if row is None else _example(cell, row), longest)


def answer_lines(
    answer: Answer, cell: GenerationScenario, example: Example | None, longest: int | None
) -> Iterator[str]:
    """One answer: where it leaves the target's own, its scores, and the texts below each other."""
    title = f"{answer['request']} (row {answer['row']})" + (", cut at max_tokens" if answer["cut"] else "")
    position = None
    if answer["target_tokens"] is None:
        verdict = "the target's own answer is not known"
    elif cell.computes_otherwise:
        verdict = "not compared with the target's own"
    else:
        position = first_difference(str(answer["tokens"]), str(answer["target_tokens"]))
        verdict = "as the target's own"
        if position is not None:
            verdict = f"[red]differs from the target's own at token {position}[/]"
    scores = _scores(answer, cell, example, differs=position is not None)
    yield f"\n[bold]{escape(title)}[/]: {', '.join([verdict, *scores])}"
    texts = {"question": example.question} if example else {}
    texts["answer"] = str(answer["text"])
    if position is not None:
        texts["target's"] = str(answer["target_text"])
    if example and any(example.references):
        texts["reference"] = " | ".join(dict.fromkeys(example.references))
    for name, text in texts.items():
        text = text.strip() or "(empty)"
        text = text if longest is None or len(text) <= longest else f"{text[:longest]} [...]"
        yield f"  {name:<11} " + escape(text).replace("\n", "\n" + " " * 14)


def _scores(
    answer: Answer, cell: GenerationScenario, example: Example | None, differs: bool
) -> Iterator[str]:
    """The answer's scores by the task: stored ones, else computed unless that would run code."""
    scoring = scoring_of(cell.dataset)
    for name in scoring.score.metrics if isinstance(scoring, GeneratedText) and scoring.score else ():
        metric, score, target_score = lookup("metric", name)(), answer.get(name), answer.get(f"target_{name}")
        if score is None and example is not None and not metric.runs_code:
            score = metric.score(str(answer["text"]), example.answers)
            if answer["target_text"] is not None:
                target_score = metric.score(str(answer["target_text"]), example.answers)
        if score is not None:
            is_shown = differs and target_score is not None
            yield f"{name} {_short(score)}" + (f" (the target's {_short(target_score)})" if is_shown else "")


def _example(cell: GenerationScenario, row: Row) -> Example:
    question, scoring = builder_of(cell.dataset).text(row), scoring_of(cell.dataset)
    if isinstance(scoring, GeneratedText):
        return Example(question, scoring.references(row), tuple(scoring.expected(row)))
    reference = scoring.target(row, "").reference
    return Example(question, (reference,), (reference,))


def _name(record: Record) -> str:
    labels = [record.labels[name] for name in ("method", "device", "dataset") if name in record.labels]
    return f"{record.experiment}/{','.join(labels)}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={inner}" for name, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
