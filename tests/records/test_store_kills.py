"""Killed at any call of the store, a cell has its older or newer record, each with its own lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from killed import forked
from records import record
from repro.records.packed import Member
from repro.records.record import Record
from repro.records.results import Results

TABLE = "lever/fig4"
Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Version:
    """A record of the cell with its rounds and answers."""

    record: Record
    rounds: Lines
    answers: Lines

    def put(self, results: Results) -> None:
        results.put(self.record, self.rounds, self.answers)


def version(n: int, done: bool = True, rounds: int = 2, answers: int = 1) -> Version:
    status: dict[str, Any] = {} if done else {"status": "failed", "error": "Traceback\nOSError: gone"}
    values = {"speed": float(n)} if done else {}
    provenance = {"started": f"2026-01-01T00:00:{n:02}+00:00"}
    made = record("std", values, **status, **provenance)
    lines = [{"n": n, "i": i} for i in range(rounds)], [{"n": n, "a": i} for i in range(answers)]
    return Version(made, *lines)


OLD, NEW = version(1), version(2)
BARE_OLD, BARE_NEW = version(1, rounds=0, answers=0), version(2, rounds=0, answers=0)
FAILED = version(3, done=False, rounds=0, answers=0)
MEMBERS = [Member(OLD.record.key, dict(OLD.record.labels))]


def packed(before: Version) -> Callable[[Results], None]:
    def prepare(results: Results) -> None:
        before.put(results)
        results.pack(TABLE, MEMBERS)

    return prepare


def both(before: Version, after: Version) -> Callable[[Results], None]:
    def prepare(results: Results) -> None:
        packed(before)(results)
        after.put(results)

    return prepare


def older_layout(results: Results) -> None:
    """Details that are named by their key alone, as they were before."""
    OLD.put(results)
    for path in results.loose.folder.glob(f"{OLD.record.key}.*.jsonl"):
        path.rename(path.with_name(f"{OLD.record.key}.{path.name.split('.', 2)[2]}"))
    assert results.rounds(OLD.record.key) == OLD.rounds


@dataclass(frozen=True)
class Work:
    """What is there before, what is done, and which versions the cell may have then; at its end the last."""

    prepare: Callable[[Results], None]
    act: Callable[[Results], None]
    versions: tuple[Version | None, ...]
    kept: tuple[Version, ...] = ()
    """Versions that the history has at the end."""


def nothing(results: Results) -> None:
    pass


def pack(results: Results) -> None:
    results.pack(TABLE, MEMBERS)


WORKS = {
    "a first record": Work(nothing, NEW.put, (None, NEW)),
    "a retry": Work(FAILED.put, NEW.put, (FAILED, NEW), (FAILED,)),
    "force": Work(OLD.put, NEW.put, (OLD, NEW), (OLD,)),
    "force without lines after lines": Work(OLD.put, BARE_NEW.put, (OLD, BARE_NEW), (OLD,)),
    "force with lines after none": Work(BARE_OLD.put, NEW.put, (BARE_OLD, NEW), (BARE_OLD,)),
    "force over the older layout": Work(older_layout, BARE_NEW.put, (OLD, BARE_NEW), (OLD,)),
    "a failure after a result": Work(OLD.put, FAILED.put, (OLD,), (OLD, FAILED)),
    "packing": Work(OLD.put, pack, (OLD,)),
    "packing a newer record": Work(both(OLD, NEW), pack, (NEW,), (OLD,)),
    "a failure over a packed result": Work(packed(OLD), FAILED.put, (OLD,), (FAILED,)),
}


def present(results: Results) -> Version | None:
    key = OLD.record.key
    found = results.get(key)
    return found and Version(found, results.rounds(key), results.answers(key))


def history(results: Results) -> list[Version]:
    """The versions in the cell's history, with the lines beside each."""
    found = []
    for path in sorted(results.loose.folder.glob(f"{OLD.record.key}.*.json")):
        lines = [path.with_suffix(f".{kind}.jsonl") for kind in ("rounds", "answers")]
        texts = [place.read_text(encoding="utf-8").splitlines() if place.exists() else [] for place in lines]
        rounds, answers = ([json.loads(line) for line in text] for text in texts)
        found.append(Version(Record.from_json(path.read_text(encoding="utf-8")), rounds, answers))
    return found


def wrong(results: Results, work: Work) -> str:
    """What is wrong after a kill; "" if nothing is."""
    if present(results) not in work.versions:
        return f"the cell has {present(results)}"
    known = (OLD, NEW, BARE_OLD, BARE_NEW, FAILED)
    if foreign := [one for one in history(results) if one not in known]:
        return f"the history has {foreign}"
    if said := [one for one in results.problems() if not one.endswith("still writes")]:
        return said[0]
    return ""


def failures(work: Work, root: Path, every: int = 1) -> tuple[int, list[str]]:
    """Kill some work before and after each, or every so many, of its low-level calls; then do it to its end.

    Returns the number of kills, and a sentence for each thing that was wrong then.
    """
    before, kills, found = root / "before", 0, []
    before.mkdir()
    work.prepare(Results(before))
    shutil.copytree(before, root / "whole")
    _, calls = forked(lambda: work.act(Results(root / "whole")))
    assert calls > 10
    for at in range(0, calls, every):
        for after in (False, True):
            folder, when = root / f"{at}-{after}", f"{'after' if after else 'before'} call {at} of {calls}"
            shutil.copytree(before, folder)
            ended, _ = forked(lambda folder=folder: work.act(Results(folder)), at, after)  # type: ignore[misc]
            assert ended, f"it was over before it was killed {when}"
            kills += 1
            if said := wrong(Results(folder), work):
                found.append(f"{when}: {said}")
            again = Results(folder)
            work.act(again)
            if present(again) != work.versions[-1] or wrong(again, work):
                found.append(f"{when} and done again: {present(again)} {wrong(again, work)}")
            if lost := [one for one in work.kept if one not in [*history(again), present(again)]]:
                found.append(f"{when} and done again: lost {lost}")
            shutil.rmtree(folder)
    return kills, found


@pytest.mark.parametrize("name", ["force", "force without lines after lines"])
def test_killed_at_some_calls(name: str, tmp_path: Path) -> None:
    kills, found = failures(WORKS[name], tmp_path, every=4)
    assert kills > 10
    assert not found, "\n".join(found[:4])


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_killed_at_every_call(name: str, tmp_path: Path) -> None:
    kills, found = failures(WORKS[name], tmp_path)
    print(f"{name}: {kills} kills, {len(found)} failures")
    assert not found, "\n".join(found[:4])
