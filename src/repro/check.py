"""`python -m repro.check`: compute committed cells again and compare what comes out with what is committed.

    python -m repro.check                           every cell of every table
    python -m repro.check lever/fig10 mllm_npu      of these tables, or of all tables of a paper
    python -m repro.check --sample 60               so many, drawn by the hashes of their keys
    python -m repro.check --fixed                   the short list of conf/check.yaml, which CI runs

Owns the selection of cells and the comparison. Must not know how a cell is computed. Nothing that was
computed before is read but the records: what a run would remember goes to a folder that is thrown away.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import yaml
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.core.registry import unknown
from repro.experiments.composing import load_components
from repro.models.forward.logit_cache import smallest_margin
from repro.records.build_cache import forgetting
from repro.records.provenance import host_kind
from repro.records.record import Record, Scalar, Spread, Store, canonical
from repro.reports.tables import members
from repro.scenarios.base import Scenario
from repro.scenarios.registry import made

EXACT = 1e-9
"""Relative difference of numbers on the same kind of host: sums may be taken in another order, no more."""

OTHER_HOST = 1e-3
"""The same on another kind of host, whose kernels round otherwise."""

TIE = 1e-4
"""Logits by which two choices may be apart that another kind of host exchanges, fp32."""

State = Literal["equal", "tie", "different", "not checkable here"]


@dataclass(frozen=True)
class CheckedCell:
    """What became of one cell: how it compares, and why or where it does not."""

    record: Record
    state: State
    reason: str = ""


def check(record: Record, data_dir: str | None) -> CheckedCell:
    """Compute one committed cell again and compare it.

    Args:
        record: what is committed.
        data_dir: a folder of dataset rows, or None.
    """
    if record.provenance.clock == "wall":
        return CheckedCell(
            record, "not checkable here", "its times are those of another machine's wall clock"
        )
    config = {**record.provenance.config, "data_dir": data_dir}
    try:
        cell = made(config)
        if cell.versions != record.provenance.versions:
            changes = _changes(record.provenance.versions, cell.versions)
            return CheckedCell(record, "different", f"versions: {changes}")
        if cell.inputs != record.provenance.inputs:
            changes = _changes(record.provenance.inputs, cell.inputs)
            return CheckedCell(record, "different", f"inputs: {changes}")
        if cell.key != record.key:
            return CheckedCell(record, "different", "what its configuration asks has another key now")
        cell.check()
    except InputError as wrong:
        return CheckedCell(record, "not checkable here", " ".join(str(wrong).split()))
    try:
        other = cell.run(_silent).record
    except Exception as wrong:
        return CheckedCell(record, "different", f"{type(wrong).__name__}: {wrong}")
    same_host = host_kind() == dict(record.provenance.host)
    found = list(differences(record, other, same_host))
    if not found:
        return CheckedCell(record, "equal")
    reason = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
    if same_host:
        return CheckedCell(record, "different", reason)
    if tie := _tie(cell, other):
        return CheckedCell(record, "tie", f"another kind of host, and {tie}: {reason}")
    return CheckedCell(record, "different", f"on another kind of host: {reason}")


def _tie(cell: Scenario, first: Record) -> str | None:
    """Whether rounding alone decides what a cell says, in words; None if it does not.

    It does where the first two choices of a model come as close as two orders of additions may differ, and
    where this very host says something else with another number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        with forgetting() as folder:
            second = cell.run(_silent).record
            margin = smallest_margin(folder / "memo")
    finally:
        torch.set_num_threads(threads)
    if margin is not None and margin <= TIE:
        return f"two first choices are {margin:.1g} apart in logits"
    changed = next(differences(first, second, same_host=True), None)
    return changed and f"another number of threads changes {changed} here"


def _silent(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


def differences(record: Record, other: Record, same_host: bool) -> Iterator[str]:
    """Committed figures that differ by more than is allowed; figures that came later are not looked at.

    On the same kind of host numbers agree to `EXACT` and all else is equal. On another kind numbers agree to
    `OTHER_HOST`; of a cell whose figures have standard errors or intervals these figures alone are compared,
    and may lie within the 95% interval of the difference of two such runs, since 8-bit rounding of
    activations makes other answers of the last bit of a sum.
    """
    drawn = record.uncertainty if not same_host else {}
    for name in sorted(drawn or record.values):
        before, after = record.values.get(name), other.values.get(name)
        apart = _apart(drawn[name], other.uncertainty.get(name)) if name in drawn else None
        if not _agree(before, after, apart, EXACT if same_host else OTHER_HOST):
            yield f"{name} {before} -> {after}"


def _apart(one: Spread, other: Spread | None) -> float:
    """By how much two runs may differ, from the standard errors or 95% intervals of both."""
    return math.hypot(_half(one), _half(one if other is None else other))


def _half(spread: Spread) -> float:
    """Half of a 95% interval."""
    return (spread[1] - spread[0]) / 2 if isinstance(spread, tuple) else 1.96 * spread


def _agree(before: Scalar, after: Scalar, apart: float | None, relative: float) -> bool:
    if isinstance(before, str) or isinstance(after, str) or before is None or after is None:
        return before == after
    if apart is not None:
        return abs(before - after) <= apart
    if isinstance(before, int) and isinstance(after, int):
        return before == after
    return math.isclose(before, after, rel_tol=relative, abs_tol=1e-15)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Entries of two mappings that are not the same, in words."""
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    return ", ".join(f"{n} {_short(before.get(n))} -> {_short(after.get(n))}" for n in names)


def _short(value: Any) -> str:
    return "none" if value is None else str(value)[:12]


# --- which cells --------------------------------------------------------------------------------------------


def artifacts(tables: Path) -> list[str]:
    """All tables that list their cells."""
    suffix = ".cells.json"
    found = sorted(tables.rglob(f"*{suffix}"))
    return [path.relative_to(tables).as_posix().removesuffix(suffix) for path in found]


def chosen(results: Path, names: Sequence[str]) -> dict[str, Record]:
    """The records of tables, or of all tables below a paper's name, by key; of all tables if none is named.

    Raises:
        InputError: nothing has one of the names.
    """
    known = artifacts(results / "tables")
    for name in names:
        if name not in known and not any(one.startswith(f"{name}/") for one in known):
            papers = {one.partition("/")[0] for one in known}
            raise InputError(unknown("table with cells", name, {*known, *papers}))
    wanted = [one for one in known if not names or one in names or one.partition("/")[0] in names]
    store = Store(results / "records")
    return {r.key: r for one in wanted for r in members.read(results / "tables", one, store)}


def fixed(results: Path, listed: Iterable[Mapping[str, Any]]) -> dict[str, Record]:
    """The records of a list of tables, each with labels that a record must have, and how many at most.

    Raises:
        InputError: an entry finds no record.
    """
    found: dict[str, Record] = {}
    for entry in listed:
        where = dict(entry.get("where", {})).items()
        records = chosen(results, [entry["table"]]).values()
        own = [r for r in in_order(records) if where <= dict(r.labels).items()][: entry.get("first")]
        if not own:
            raise InputError(f"conf/check.yaml: {entry} finds no cell in {results}")
        found |= {record.key: record for record in own}
    return found


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records in the order of their keys' hashes, which has nothing to do with what they say."""
    return sorted(records, key=lambda record: sha256(record.key.encode()).hexdigest())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. The exit status is 1 if a cell differs or too few were checked, 2 for bad input."""
    whole = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m repro.check", description=__doc__, formatter_class=whole)
    parser.add_argument("artifact", nargs="*", help="tables (lever/fig10) or papers (lever); all by default")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of their cells")
    parser.add_argument("--fixed", action="store_true", help="the list of conf/check.yaml")
    parser.add_argument("--data", default=os.environ.get("REPRO_DATA"), help="a folder of dataset rows")
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    given = parser.parse_args(arguments)
    try:
        load_components()
        if given.sample is not None and given.sample < 1:
            raise InputError(f"--sample is {given.sample}; it must be at least 1")
        listed = yaml.safe_load((conf_dir() / "check.yaml").read_text())
        found = fixed(given.results, listed) if given.fixed else chosen(given.results, given.artifact)
        records = in_order(found.values())[: given.sample]
        if not records:
            raise InputError(f"{given.results} has no table with cells; name another folder by --results")
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    with forgetting():
        return report(Console(), verdicts(records, given.data))


def verdicts(records: Sequence[Record], data_dir: str | None) -> Iterator[CheckedCell]:
    """Check cells one after the other under a bar of progress; cells of one model follow each other."""
    columns = (TextColumn("checking"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=len(records))
        for record in sorted(records, key=_likeness):
            yield check(record, data_dir)
            bar.advance(task)


def _likeness(record: Record) -> str:
    config = record.provenance.config
    return canonical([config["target"], config.get("compression"), config["dataset"], record.experiment])


def report(console: Console, found: Iterable[CheckedCell]) -> int:
    """Print every cell that is not equal and the tally, also when it is interrupted; the exit status."""
    tally: Counter[str] = Counter()
    whole = False
    try:
        for verdict in found:
            tally[verdict.state] += 1
            if verdict.state != "equal":
                record = verdict.record
                name = f"{record.experiment} {' '.join(record.labels.values())} ({record.key[:12]})"
                console.print(f"{verdict.state}: {name}: {verdict.reason}", highlight=False, soft_wrap=True)
        whole = True
    except KeyboardInterrupt:
        console.print("interrupted; of the cells so far:", style="red")
    asked, checked = tally.total(), tally.total() - tally["not checkable here"]
    counts = ", ".join(f"{tally[state]} {state}" for state in get_args(State))
    console.print(f"{checked} of {asked} cells checked: {counts}", highlight=False)
    if 2 * checked < asked:
        console.print("fewer than half of the cells could be checked", style="red")
    return int(not whole or tally["different"] > 0 or 2 * checked < asked)


if __name__ == "__main__":
    sys.exit(main())
