"""Records as lines: what was said to be stored is read, whoever is killed and whatever is damaged."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from records import record
from repro.core.errors import InputError
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import Results, open_results

ROUNDS = [{"drafted": 4, "accepted": 2, "seconds": 1 / 3}, {"drafted": 3}]
STORED = [{"drafted": 4, "accepted": 2, "seconds": 0.3333333333}, {"drafted": 3}]
ANSWERS = [{"text": "né\n\udc80"}]


def cell(number: int, **changes: Any) -> Record:
    values = changes.pop("values", {"speed": float(number)})
    return record("std", values, key=hashlib.sha256(b"%d" % number).hexdigest(), **changes)


def member(of: Record, row: str = "a") -> Member:
    return Member(of.key, {**of.labels, "row": row}, ("method=std",))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Three tables of two papers, and a cell in none."""
    results = Results(tmp_path / "results")
    for number in range(4):
        results.put(cell(number), ROUNDS, ANSWERS)
    results.set_members("lever/fig4", [member(cell(0)), member(cell(1))])
    results.set_members("lever/fig5", [member(cell(1), "b")])
    results.set_members("edgellm/fig3", [member(cell(1), "c"), member(cell(2))])
    return results


def files(results: Results) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in results.folder.iterdir()}


def only_file(results: Results) -> Path:
    (path,) = results.folder.glob("*.jsonl")
    return path


def test_packed_records_are_those_that_were_stored_and_packing_again_changes_no_byte(
    results: Results,
) -> None:
    results.pack()
    groups = {"edgellm", "lever", "untabled"}
    before = files(results)
    assert before.keys() == {f"{group}.{end}" for group in groups for end in ("cells.jsonl", "details.xz")}
    for store in (results, open_results(results.root)):
        assert store.all() == sorted((cell(n) for n in range(4)), key=lambda record: record.key)
        assert all(store.rounds(cell(n).key) == STORED for n in range(4))
        assert all(store.answers(cell(n).key) == ANSWERS for n in range(4))
        assert store.place(cell(1).key).name == "edgellm.cells.jsonl", "the first by name of two papers"
        assert [record.labels["row"] for record in store.read("lever/fig5")] == ["b"]
        assert store.problems() == []
    results.put(cell(3), ROUNDS, ANSWERS)
    results.pack()
    assert files(results) == before


def test_a_finished_record_counts_before_a_failed_one_and_then_the_latest(results: Results) -> None:
    key = cell(0).key
    results.put(cell(0, status="failed", values={}, error="Traceback", finished="2026-01-02T00:00:00Z"))
    assert results.get(key) == cell(0)
    results.pack()
    newer = record("std", {"speed": 9.0}, key=key, finished="2026-01-03T00:00:00Z")
    Results(results.root).put(newer, ROUNDS[:1])
    assert results.get(key) == newer
    assert results.rounds(key) == STORED[:1]
    results.put_answers(key, ANSWERS)
    assert results.get(key) == newer
    results.pack()
    assert (results.get(key), results.rounds(key), results.answers(key)) == (newer, STORED[:1], ANSWERS)


def test_a_table_of_changed_settings_lies_with_its_paper_and_names_may_have_dots(results: Results) -> None:
    results.set_members("quick.start@t=0.5", [member(cell(0))])
    results.set_members("quick.start@t=0.7", [member(cell(1))])
    results.set_members("quick.en@t=0.7", [member(cell(2))])
    for table in ("lever/fig4", "lever/fig5", "edgellm/fig3"):
        results.set_members(table, [])
    results.pack()
    assert [results.place(cell(n).key).name for n in range(3)] == [
        *["quick.start.cells.jsonl"] * 2,
        "quick.en.cells.jsonl",
    ]
    assert [open_results(results.root).rounds(cell(n).key) for n in range(4)] == [STORED] * 4


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_a_damaged_line_is_named_and_the_rest_is_read(
    results: Results, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = only_file(results)
    lines = path.read_bytes().splitlines(keepends=True)
    number %= len(lines)
    lines[number] = lines[number].replace(b'"', b"'", 1)
    path.write_bytes(b"".join(lines))
    reader = open_results(results.root)
    place = f"{path}, line {number + 1}, is damaged"
    assert any(said.startswith(place) for said in reader.problems())
    assert place in capsys.readouterr().err
    assert len(reader.all()) >= (0 if b'"part"' in lines[number].replace(b"'", b'"') else 3)
    with pytest.raises(InputError, match="is damaged"):
        reader.pack()
    assert path.exists()


def test_an_unfinished_last_line_waits(results: Results) -> None:
    path, reader = only_file(results), open_results(results.root)
    whole = path.read_bytes()
    results.put(cell(7))
    added = path.read_bytes()
    for end in range(len(whole), len(added), 97):
        path.write_bytes(added[:end])
        assert len(reader.finished_keys()) == 4
        assert reader.problems() == []
    path.write_bytes(added)
    assert cell(7).key in reader.finished_keys()


@pytest.mark.parametrize("at", range(6))
def test_a_full_disk_at_each_write(results: Results, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a part of what is written, and says no error."""
    writes, write = 0, os.write

    def short(handle: int, data: bytes) -> int:
        nonlocal writes
        writes += 1
        return write(handle, data[: len(data) // 2] if writes == at + 1 else data)

    monkeypatch.setattr(os, "write", short)
    stored = set()
    for number in range(10, 16):
        if number - 10 == at:
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                results.put(cell(number), ROUNDS)
        else:
            results.put(cell(number), ROUNDS)
            stored.add(cell(number).key)
    reader = open_results(results.root)
    assert len(stored) == 5
    assert stored < reader.finished_keys()
    assert len(reader.all()) == 9
    assert reader.problems() == []
    assert all(reader.rounds(key) == STORED for key in stored)


def test_a_writer_goes_on_while_another_packs(results: Results) -> None:
    other = Results(results.root)
    for number in range(20, 40):
        results.put(cell(number), ROUNDS)
        other.pack()
    assert len(open_results(results.root).all()) == 24
    assert all(other.rounds(cell(number).key) == STORED for number in range(20, 40))


def test_a_read_only_folder_is_read_and_cannot_be_written(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.pack()
    before, really_open = files(results), os.open

    def read_only(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(results.root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really_open(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", read_only)
    reader = open_results(results.root)
    assert len(reader.all()) == 4
    assert reader.rounds(cell(1).key) == STORED
    assert [record.labels["row"] for record in reader.read("lever/fig5")] == ["b"]
    with pytest.raises(InputError, match=r"results cannot be written to .*: Read-only file system; choose"):
        reader.check_writable()
    acts: list[Callable[[], object]] = [
        lambda: reader.put(cell(9)),
        lambda: reader.begin(cell(9).key),
        lambda: reader.put_answers(cell(1).key, ANSWERS),
        lambda: reader.set_members("lever/fig5", [member(cell(0))]),
        reader.pack,
    ]
    for act in acts:
        with pytest.raises(OSError, match="Read-only file system"):
            act()
    assert files(results) == before


STEPS = ("fsync", "replace", "rename", "unlink")
"""Calls of `os` that change what lies in a folder of records, or wait until it is on the disk."""


def pack_until(results: Results, step: int) -> bool:
    """Pack in a process that is killed before a step, of those in `STEPS`. Returns whether it had ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        left = step

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*arguments: Any, **more: Any) -> Any:
                nonlocal left
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return call(*arguments, **more)

            return counting

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        Results(results.root).pack()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_at_any_step_of_packing_loses_nothing(results: Results, tmp_path: Path) -> None:
    results.pack()
    results.set_members("edgellm/fig3", [member(cell(2))])  # so that a cell changes its group
    for number in (4, 5):
        Results(results.root).put(cell(number), ROUNDS, ANSWERS)
    whole = tmp_path / "whole"
    shutil.copytree(results.root, whole)
    Results(whole).pack()
    expected, steps = files(Results(whole)), 0
    while True:
        root = tmp_path / f"{steps}"
        shutil.copytree(results.root, root)
        has_ended = pack_until(Results(root), steps)
        reader = open_results(root)
        assert reader.all() == sorted((cell(n) for n in range(6)), key=lambda record: record.key)
        assert all(reader.rounds(cell(n).key) == STORED for n in range(6))
        assert all(reader.answers(cell(n).key) == ANSWERS for n in range(6))
        reader.pack()
        assert files(reader) == expected
        if has_ended:
            break
        steps += 1
    assert steps > 15


def test_rounds_of_a_record_that_was_not_written_belong_to_no_other(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer is killed between the rounds and the record that replaces an earlier one."""
    newer = record("std", {"speed": 9.0}, key=cell(0).key, finished="2026-01-03T00:00:00Z")
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda handle, data: write(handle, data[: data.rindex(b"\n", 0, -1) + 1])
    )
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        results.put(newer, [{"round": 7}])
    monkeypatch.undo()
    reader = open_results(results.root)
    assert reader.get(cell(0).key) == cell(0)
    assert reader.rounds(cell(0).key) == STORED
