"""Committed cells computed again and compared with their records: the work of `repro check`.

Owns the selection of cells and the comparison. Must not know how a cell is computed. Of earlier results only
the records are read: computed caches go to a temporary folder.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
import yaml
from rich.console import Console
from rich.progress import track

from repro.core.digits import TOLERANCE
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.experiments.composing import load_components
from repro.experiments.drift import find_drift
from repro.metrics.evaluated import is_evaluated
from repro.models.forward.logit_cache import smallest_margin
from repro.records.build_cache import forgetting
from repro.records.provenance import host_kind
from repro.records.record import Record, Round, Scalar, Spread, canonical
from repro.records.results import Results, open_results
from repro.scenarios.base import Scenario, silent
from repro.scenarios.generation.real_passes import RealPasses
from repro.scenarios.registry import made

OTHER_HOST_TOLERANCE = 1e-3
"""Relative tolerance on another kind of host, whose kernels round differently."""

TIE_MARGIN = 1e-4
"""Largest difference of two logits (fp32) whose order may change on another kind of host."""

State = Literal["equal", "tie", "different", "conf differs", "not checkable here"]


@dataclass(frozen=True)
class CheckedCell:
    """The result of checking one cell: its state, and the reason if it is not equal."""

    record: Record
    state: State
    reason: str = ""


class Beginning(NamedTuple):
    """The first answers of a cell, which are checked in place of all.

    Attributes:
        prompts: how many.
        rounds: the cell's committed rounds.
    """

    prompts: int
    rounds: Sequence[Round]


def check(
    record: Record,
    data_dir: str | None,
    beginning: Beginning | None = None,
    passes: RealPasses | None = None,
) -> CheckedCell:
    """Recompute one committed cell and compare it.

    Args:
        record: the committed record.
        data_dir: a folder of datasets, or None.
        beginning: its first answers, whose rounds are compared; by default all figures of the cell are.
        passes: compare the method's real passes too, unless they were.
    """
    config = {**record.provenance.config, "data_dir": data_dir}
    if record.provenance.clock == "wall":
        return CheckedCell(
            record, "not checkable here", "its times are those of another machine's wall clock"
        )
    if any(is_evaluated(str(name)) for name in config.get("metrics") or ()):
        return CheckedCell(record, "not checkable here", "its answers are scored by code of its user's")
    if beginning:
        config["prompts"] = beginning.prompts
    try:
        cell = made(config)
        if reason := _other_cell(record, cell, is_whole=beginning is None):
            return CheckedCell(record, "different", reason)
        cell.check()
    except InputError as wrong:
        return CheckedCell(record, "not checkable here", " ".join(str(wrong).split()))
    try:
        if passes is not None:
            passes.compare(cell)  # before the run, which replaces rows that have too few ranks
        outcome = cell.run(silent)
    except Exception as wrong:
        return CheckedCell(record, "different", f"{type(wrong).__name__}: {wrong}")
    same_host = host_kind() == dict(record.provenance.host)
    if beginning:
        changes = [*other_rounds(beginning.rounds, outcome.rounds, same_host)]
    else:
        changes = [*differences(record, outcome.record, same_host)]
    if not changes:
        return CheckedCell(record, "equal")
    reason = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
    if same_host:
        return CheckedCell(record, "different", reason)
    if tie := _tie(cell, outcome.record):
        return CheckedCell(record, "tie", f"another kind of host, and {tie}: {reason}")
    return CheckedCell(record, "different", f"on another kind of host: {reason}")


def _other_cell(record: Record, cell: Scenario, is_whole: bool) -> str:
    """What of a cell is not as its record has it, before anything runs; "" if nothing is."""
    parts: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "versions": (record.provenance.versions, cell.versions),
        "inputs": (record.provenance.inputs, cell.inputs),
    }
    unchecked = set() if is_whole else {"dataset"}  # a beginning reads fewer rows
    for part, (stored, actual) in parts.items():
        names = sorted(
            {n for n in stored.keys() | actual.keys() if stored.get(n) != actual.get(n)} - unchecked
        )
        changes = [
            f"{n} {str(stored.get(n, 'none'))[:12]} -> {str(actual.get(n, 'none'))[:12]}" for n in names
        ]
        if changes:
            return f"{part}: {', '.join(changes)}"
    return "what its configuration asks has another key now" if is_whole and cell.key != record.key else ""


def _tie(cell: Scenario, first_record: Record) -> str | None:
    """The reason why rounding alone may change a cell's figures; None if there is none.

    There is one if a model's top two logits are at most `TIE_MARGIN` apart, or if the figures change on this
    host with another number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        with forgetting() as folder:
            second_record = cell.run(silent).record
            margin = smallest_margin(folder / "memo")
    finally:
        torch.set_num_threads(threads)
    if margin is not None and margin <= TIE_MARGIN:
        return f"two first choices are {margin:.1g} apart in logits"
    difference = next(differences(first_record, second_record, same_host=True), None)
    return difference and f"another number of threads changes {difference} here"


def beside_conf(verdict: CheckedCell, drifts: Mapping[str, str]) -> CheckedCell:
    """A verdict that also says what today's `conf/` would set otherwise; `drifts` has that by key."""
    drift_sentence = drifts.get(verdict.record.key)
    if drift_sentence is None:
        return verdict
    if verdict.state == "different":
        return replace(verdict, reason=f"{verdict.reason}; and conf differs: {drift_sentence}")
    return replace(verdict, state="conf differs", reason=drift_sentence)


def differences(record: Record, other_record: Record, same_host: bool) -> Iterator[str]:
    """Committed figures that differ by more than the tolerance; figures missing in the record are ignored.

    On the same kind of host floats must agree to `TOLERANCE` and all other values be equal. On another kind
    the tolerance is `OTHER_HOST_TOLERANCE`. There, a cell that has figures with standard errors or intervals
    is compared by those alone, and they may differ by the 95% interval of the difference of two such runs:
    with 8-bit activations the last bit of a sum can change an answer.
    """
    errors = record.uncertainty if not same_host else {}
    for name in sorted(errors or record.values):
        recorded_value, computed_value = record.values.get(name), other_record.values.get(name)
        margin = None
        if name in errors:  # of two runs, by the 95% intervals of both
            margin = math.hypot(_half(errors[name]), _half(other_record.uncertainty.get(name, errors[name])))
        if not _agree(
            recorded_value, computed_value, margin, TOLERANCE if same_host else OTHER_HOST_TOLERANCE
        ):
            yield f"{name} {recorded_value} -> {computed_value}"


def other_rounds(
    recorded_rounds: Sequence[Round], computed_rounds: Sequence[Round], same_host: bool
) -> Iterator[str]:
    """Rounds of a cell's first answers that differ from the committed ones of the same requests.

    Fields that the committed rounds lack are ignored; a request whose rounds are not as many is named.
    """
    requests = {str(line["request"]) for line in computed_rounds}
    recorded_rounds = [line for line in recorded_rounds if str(line["request"]) in requests]
    if len(recorded_rounds) != len(computed_rounds) or not computed_rounds:
        yield f"{len(requests)} answers of {len(recorded_rounds)} rounds -> {len(computed_rounds)} rounds"
    for line, match in zip(recorded_rounds, computed_rounds, strict=False):
        for name, value in line.items():
            if not _agree(value, match.get(name), None, TOLERANCE if same_host else OTHER_HOST_TOLERANCE):
                yield f"{line['request']}, round {line['round']}: {name} {value} -> {match.get(name)}"


def _half(spread: Spread) -> float:
    """Half the width of a 95% interval; the interval is computed if a standard error is given."""
    return (spread[1] - spread[0]) / 2 if isinstance(spread, tuple) else 1.96 * spread


def _agree(recorded_value: Scalar, computed_value: Scalar, margin: float | None, tolerance: float) -> bool:
    if (
        isinstance(recorded_value, str)
        or isinstance(computed_value, str)
        or recorded_value is None
        or computed_value is None
    ):
        return recorded_value == computed_value
    if margin is not None:
        return abs(recorded_value - computed_value) <= margin
    if isinstance(recorded_value, int) and isinstance(computed_value, int):
        return recorded_value == computed_value
    return math.isclose(recorded_value, computed_value, rel_tol=tolerance, abs_tol=1e-15)


# --- which cells --------------------------------------------------------------------------------------------


def select_records(results: Path, names: Sequence[str]) -> dict[str, Record]:
    """Records by key, of the named tables and papers, or of all tables if none is named.

    Raises:
        InputError: a name is neither a table nor a paper.
    """
    store = open_results(results)
    papers = {table: table.partition("/")[0] for table in store.tables()}
    for name in names:
        if name not in papers and not any(table.startswith(f"{name}/") for table in papers):
            raise InputError(unknown("table with cells", name, {*papers, *papers.values()}))
    tables = [table for table in papers if not names or {table, papers[table]} & {*names}]
    return {record.key: record for table in tables for record in store.read(table)}


def select_cells(results: Path, entries: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Record, int | None]]:
    """Records by key, each with the number of its first answers to check, or None for the whole cell.

    They are selected by entries of table, required labels (`where`), maximum number (`first`) and `prompts`.

    Raises:
        InputError: an entry selects no record.
    """
    cells: dict[str, tuple[Record, int | None]] = {}
    for entry in entries:
        labels = dict(entry.get("where", {})).items()
        records = in_order(select_records(results, [entry["table"]]).values())
        records = [record for record in records if labels <= dict(record.labels).items()]
        if not records:
            raise InputError(f"conf/check.yaml: {entry} finds no cell in {results}")
        cells |= {record.key: (record, entry.get("prompts")) for record in records[: entry.get("first")]}
    return cells


def beginning(store: Results, record: Record, prompt_count: int | None) -> Beginning | None:
    """So many of a cell's first answers; None for all of it.

    All of it is checked if it has no more, or stored no rounds, or its draft is calibrated on the prompts
    behind its own, which would be others.
    """
    count = record.values.get("prompts")
    if prompt_count is None or not isinstance(count, int) or count <= prompt_count:
        return None
    if "calibration" in record.provenance.inputs:
        return None
    rounds = store.rounds(record.key)
    return Beginning(prompt_count, rounds) if rounds and "request" in rounds[0] else None


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records in the order of their keys' hashes: a fixed pseudo-random order."""
    return sorted(records, key=lambda record: sha256(record.key.encode()).hexdigest())


def check_results(
    results: Path, tables: Sequence[str] | None, sample: int | None, prompts: int | None, data_dir: str | None
) -> int:
    """Check cells of a folder of results and print the verdicts.

    Args:
        results: the folder.
        tables: names of tables or papers, all if it is empty; `None` for the list of conf/check.yaml.
        sample: so many of their cells.
        prompts: so many first answers of each cell; as the list says by default.
        data_dir: a folder of datasets.

    Returns:
        1 if a cell differs or too few were checked, else 0.

    Raises:
        InputError: there is no such table, or no cell.
    """
    load_components()
    if tables is None:
        cells = select_cells(results, yaml.safe_load((conf_dir() / "check.yaml").read_text(encoding="utf-8")))
    else:
        cells = {key: (record, None) for key, record in select_records(results, tables).items()}
    records = in_order(record for record, _ in cells.values())[:sample]
    if not records:
        raise InputError(f"{results} has no table with cells; name another folder by --results")
    store = open_results(results)

    def beginning_of(record: Record) -> Beginning | None:
        return beginning(store, record, prompts or cells[record.key][1])

    drifts, passes = find_drift(store, {record.key for record in records}), RealPasses()
    with forgetting():
        checked = verdicts(records, data_dir, beginning_of, passes)
        status = report(Console(), (beside_conf(verdict, drifts) for verdict in checked))
    report_passes(Console(), passes)
    return status


def verdicts(
    records: Sequence[Record],
    data_dir: str | None,
    beginning_of: Callable[[Record], Beginning | None],
    passes: RealPasses,
) -> Iterator[CheckedCell]:
    """Check cells one by one with a progress bar, grouped by model."""
    records = sorted(records, key=_likeness)
    for record in track(records, "checking", console=Console(stderr=True), transient=True):
        yield check(record, data_dir, beginning_of(record), passes)


def _likeness(record: Record) -> str:
    config = record.provenance.config
    return canonical([config["target"], config.get("compression"), config["dataset"], record.experiment])


def report(console: Console, verdicts: Iterable[CheckedCell]) -> int:
    """Print all cells that are not equal, and the tally even if interrupted; returns the exit status."""
    tally: Counter[str] = Counter()
    is_whole = False
    try:
        for verdict in verdicts:
            tally[verdict.state] += 1
            if verdict.state != "equal":
                record = verdict.record
                name = f"{record.experiment} {' '.join(record.labels.values())} ({record.key[:12]})"
                console.print(f"{verdict.state}: {name}: {verdict.reason}", highlight=False, soft_wrap=True)
        is_whole = True
    except KeyboardInterrupt:
        console.print("interrupted; of the cells so far:", style="red")
    count = tally.total() - tally["not checkable here"]
    state_texts = ", ".join(f"{tally[state]} {state}" for state in get_args(State))
    console.print(f"{count} of {tally.total()} cells checked: {state_texts}", highlight=False, soft_wrap=True)
    if too_few := 2 * count < tally.total():
        console.print("fewer than half of the cells could be checked", style="red")
    return int(not is_whole or too_few or tally["different"] + tally["conf differs"] > 0)


def report_passes(console: Console, passes: RealPasses) -> None:
    """Print how many rows came from passes of methods, through tree attention and compacted caches."""
    if counts := passes.rows:
        methods = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        console.print(
            f"{counts.total()} rows of real passes (tree attention, compacted caches) equal the targets' own "
            f"texts and cached rows: {methods}",
            highlight=False,
            soft_wrap=True,
        )
