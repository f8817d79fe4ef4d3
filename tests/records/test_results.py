"""Packed records: equal to what was stored, never lost, and damage is named with its line."""

from __future__ import annotations

import gzip
import lzma
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from records import record
from repro.core.errors import InputError
from repro.records.blocks import Blocks, split
from repro.records.packed import CELLS, PROVENANCE, Member, folders
from repro.records.record import Record, canonical
from repro.records.results import Results, open_results
from repro.reports.convert import convert

ROUNDS = [{"round": n, "rows": 4, "stop": None, "text": "ä\u2028"} for n in range(3)]
LARGE = {"device": {f"fact{n}": {"value": n, "note": "x" * 40} for n in range(20)}, "method": {"length": 8}}


def cell(method: str, speed: float = 1.5, **changes: object) -> Record:
    changes = {"uncertainty": {"speed": (1.0, 2.0), "joules": 0.25}, "config": LARGE, **changes}
    return record(method, {"speed": speed, "text": "ä\u2028", "none": None, "calls": 3}, **changes)


def members(*records: Record, **labels: str) -> list[Member]:
    return [Member(each.key, {**each.labels, **labels}) for each in records]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """A table of two cells, one with rounds."""
    made = Results(tmp_path / "results")
    made.put(cell("std"), ROUNDS)
    made.put(cell("edgellm", fitted=["speed"], notes=["n" * 200], memory={"resident_set": 5}))
    made.pack("lever/fig4", members(cell("std"), cell("edgellm")))
    return made


def loose(results: Results) -> list[str]:
    return sorted(path.name for path in results.loose.folder.glob("*.json*"))


def files(results: Results) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(results.root.rglob("*")) if p.is_file()}


def test_a_packed_record_is_the_one_that_was_stored(results: Results) -> None:
    stored = cell("edgellm", fitted=["speed"], notes=["n" * 200], memory={"resident_set": 5})
    assert results.get(stored.key) == stored
    assert results.get(stored.key).to_json() == stored.to_json()  # type: ignore[union-attr]
    assert results.rounds(cell("std").key) == ROUNDS
    assert results.rounds(stored.key) == []
    assert loose(results) == []
    assert [r.labels["method"] for r in results.read("lever/fig4")] == ["edgellm", "std"]
    assert {r.key for r in results.all()} == {cell("std").key, stored.key}
    assert results.problems() == []
    assert (results.root / PROVENANCE).stat().st_size < 3000


def test_a_failed_record_is_packed_with_its_traceback(results: Results) -> None:
    failed = cell("lever", status="failed", error="Traceback\nOSError: gone", uncertainty={})
    results.put(failed)
    results.pack("lever/fig5", members(failed))
    assert results.get(failed.key) == failed


def test_packing_again_changes_no_byte(results: Results) -> None:
    before = files(results)
    results.pack("lever/fig4", members(cell("edgellm"), cell("std")))
    assert files(results) == before


def test_two_tables_share_a_cell_under_their_own_labels(results: Results) -> None:
    results.pack("lever/fig5", members(cell("std"), row="one"))
    (shared,) = results.read("lever/fig5")
    assert shared.labels == {"method": "std", "row": "one"}
    assert results.get(shared.key) == cell("std"), "its own labels are those that it was stored with"
    results.put(cell("std", speed=9.0), ROUNDS[:1])
    results.pack("lever/fig5", members(cell("std"), row="one"))
    assert [r.values["speed"] for r in results.read("lever/fig4") if r.key == shared.key] == [9.0]
    assert Results(results.root).rounds(shared.key) == ROUNDS[:1], "both tables have the newer cell"
    assert loose(results) == [f"{shared.key}.1.json", f"{shared.key}.1.rounds.jsonl"], "the older is history"


def test_what_a_table_drops_is_loose_again(results: Results) -> None:
    results.pack("lever/fig4", members(cell("edgellm")))
    assert results.get(cell("std").key) == cell("std")
    assert results.rounds(cell("std").key) == ROUNDS
    record, rounds = sorted(loose(results), key=len)
    assert record == f"{cell('std').key}.json"
    assert rounds.startswith(cell("std").key)
    assert rounds.endswith(".rounds.jsonl")


def test_answers_are_packed_and_can_be_added_to_a_packed_record(results: Results) -> None:
    said = [{"request": "p/0", "text": "Gr\u00fc\u00dfe\u2028\n" * 300}, {"request": "p/1", "text": ""}]
    key, other = cell("std").key, cell("edgellm").key
    results.pack("lever/fig5", members(cell("std")))
    results.put_answers(key, said)
    assert results.answers(key) == said
    assert loose(results) == []
    packed = [results.root / "lever" / name / "answers.jsonl.xz" for name in ("fig4", "fig5")]
    assert len(packed[0].read_bytes()) < 350
    assert not packed[1].exists()  # the first table that has the cell keeps them
    results.put(cell("edgellm"), answers=said[:1])
    results.pack("lever/fig4", members(cell("edgellm"), cell("std")))
    assert (results.answers(other), results.answers(key)) == (said[:1], said)
    assert results.rounds(key) == ROUNDS
    absent = "0" * 64
    results.put_answers(absent, said)  # its record is in another folder
    assert results.answers(absent) == said
    assert results.problems() == []


def test_a_failure_never_replaces_a_packed_record(results: Results) -> None:
    results.put(replace(cell("std"), status="failed", error="Traceback", uncertainty={}))
    assert results.get(cell("std").key) == cell("std")
    assert loose(results) == [f"{cell('std').key}.1.json"]


def test_a_cell_without_a_record_is_an_error(results: Results) -> None:
    with pytest.raises(InputError, match=r"'lever/fig4' cannot have the cell 000000000000: it has no record"):
        results.pack("lever/fig4", [Member("0" * 64, {"method": "std"})])


def test_a_damaged_line_is_named_and_nothing_is_written_over_it(results: Results) -> None:
    path = results.root / "lever" / "fig4" / "cells.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace('"status"', '"sta', 1), encoding="utf-8")
    sentence = r"fig4/cells\.jsonl, line 1, is damaged"
    with pytest.raises(InputError, match=sentence):
        results.read("lever/fig4")
    with pytest.raises(InputError, match=sentence):
        results.get(cell("edgellm").key)
    assert results.get(cell("std").key) == cell("std")
    results.put(cell("lever"))
    with pytest.raises(InputError, match=sentence):
        results.pack("lever/fig4", members(cell("lever")))
    assert [s for s in results.problems() if "line 1, is damaged" in s]
    path.write_text(whole, encoding="utf-8")
    assert results.problems() == []


def test_damage_of_compressed_files_is_named(results: Results) -> None:
    blocks, rounds = results.root / PROVENANCE, results.root / "lever" / "fig4" / "rounds.jsonl.xz"
    whole, lines = blocks.read_bytes(), lzma.decompress(rounds.read_bytes())
    for damage in (b'"rounds":{{', b'"rounds":{"more":[1,2,3,4,5],'):
        rounds.write_bytes(lzma.compress(lines.replace(b'"rounds":{', damage)))
        with pytest.raises(InputError, match=r"rounds\.jsonl\.xz, line \d, is damaged"):
            results.rounds(cell("std").key)
    rounds.write_bytes(lzma.compress(lines)[:-9])
    with pytest.raises(InputError, match=r"rounds\.jsonl\.xz is damaged"):
        results.rounds(cell("std").key)
    blocks.write_bytes(gzip.compress(gzip.decompress(whole).replace(b"fact1", b"fict1", 1)))
    with pytest.raises(InputError, match=r"provenance\.jsonl\.gz, line \d+, is damaged"):
        results.get(cell("std").key)
    blocks.write_bytes(gzip.compress(gzip.decompress(whole).split(b"\n", 1)[1]))
    with pytest.raises(InputError, match=r"provenance\.jsonl\.gz lacks the block [0-9a-f]{16}"):
        results.read("lever/fig4")
    blocks.write_bytes(whole[:40])
    with pytest.raises(InputError, match=r"provenance\.jsonl\.gz is damaged"):
        results.get(cell("std").key)


def test_blocks_give_back_what_was_split() -> None:
    found: dict[str, str] = {}
    value = {"a": LARGE, "b": [LARGE, "x" * 300, 1, 1.0, None, True], "c": "é"}
    parts = split(value, found)
    assert Blocks(Path("b"), found).joined(parts) == value
    assert len(found) == 3, "the device once, the long text and the whole"
    assert Blocks(Path("b"), found).reach([parts["$block"]]) == found
    with pytest.raises(InputError, match=r"'\$block' is reserved"):
        split({"$block": 1}, found)


def test_the_older_layout_is_refused_and_converted(results: Results) -> None:
    results.pack("lever/fig5", members(cell("std")))
    before = {m: results.rounds(cell(m).key) for m in ("std", "edgellm")}
    (results.root / "lever" / "fig4" / "rounds.jsonl.xz").unlink()
    for table, methods in (("fig4", ("edgellm", "std")), ("fig5", ("std",))):
        lines = [canonical({"key": cell(m).key, "rounds": before[m]}) + "\n" for m in methods]
        path = results.root / "lever" / table / "rounds.jsonl.gz"
        path.write_bytes(gzip.compress("".join(lines).encode()))
    with pytest.raises(InputError, match=r"older layout.*`repro table --convert "):
        open_results(results.root)
    told: list[str] = []
    convert(results.root, told.append)
    assert told == ["lever/fig4", "lever/fig5"]
    made = open_results(results.root)
    assert {m: made.rounds(cell(m).key) for m in before} == before
    assert len(list(results.root.glob("lever/*/rounds.*"))) == 1
    with pytest.raises(InputError, match="nothing to convert"):
        convert(results.root)


def test_details_move_to_the_first_table_that_has_their_cell(results: Results) -> None:
    key = cell("std").key
    results.pack("lever/fig5", members(cell("std")))
    results.pack("lever/fig3", members(cell("std")))
    assert [path.parent.name for path in sorted(results.root.glob("lever/*/rounds.*"))] == ["fig3"]
    assert results.rounds(key) == ROUNDS
    results.put(cell("lever"), ROUNDS[:1])
    for table in ("lever/fig3", "lever/fig4"):
        results.pack(table, members(cell("lever")))
        assert results.rounds(key) == ROUNDS
    folders = {path.parent.name for path in results.root.glob("lever/*/rounds.*")}
    assert folders == {"fig3", "fig5"}
    assert results.rounds(cell("lever").key) == ROUNDS[:1]


def test_details_that_lack_entries_are_given_back_with_ten_digits(results: Results) -> None:
    rows = [{"a": 1, "b": None}, {"c": "x", "a": 1 / 3}, {"a": 2.0}]
    results.put(cell("lever"), rows)
    results.pack("lever/fig6", members(cell("lever")))
    assert results.rounds(cell("lever").key) == [
        {"a": 1, "b": None},
        {"c": "x", "a": 0.3333333333},
        {"a": 2.0},
    ]


PACK = """
    import sys
    from records import record
    from repro.records import packed, record as records
    from repro.records.packed import Member
    from repro.records.results import Results
    results = Results(sys.argv[1])
    left = int(sys.argv[2])
    whole = records.write_atomically
    def write(path, content):
        global left
        left -= 1
        if left < 0:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        whole(path, content)
    import repro.records.blocks, repro.records.store
    for module in (packed, repro.records.blocks, repro.records.store):
        module.write_atomically = write
    cells = [record(m, {"speed": 2.0}) for m in ("std", "lever")]
    results.pack("lever/fig4", [Member(c.key, c.labels) for c in cells])
"""


@pytest.mark.parametrize("writes", range(6))
def test_a_kill_at_any_write_loses_nothing(tmp_path: Path, writes: int) -> None:
    results = Results(tmp_path)
    results.put(record("std", {"speed": 1.0}), ROUNDS)
    results.put(record("edgellm", {"speed": 1.0}), ROUNDS)
    results.pack("lever/fig4", members(record("std", {}), record("edgellm", {})))
    results.pack("lever/fig5", members(record("std", {})))
    results.put(record("std", {"speed": 2.0}), ROUNDS[:2])
    results.put(record("lever", {"speed": 2.0}), ROUNDS)
    assert run_python(PACK, str(tmp_path), str(writes)) in (0, -signal.SIGKILL)
    results = Results(tmp_path)
    assert speeds(results) == {"std": 2.0, "edgellm": 1.0, "lever": 2.0}
    assert run_python(PACK, str(tmp_path), "99") == 0
    results = Results(tmp_path)
    assert speeds(results) == {"std": 2.0, "edgellm": 1.0, "lever": 2.0}
    assert {r.labels["method"] for r in results.read("lever/fig4")} == {"std", "lever"}
    assert [r.values["speed"] for r in results.read("lever/fig5")] == [2.0]
    std, edgellm = record("std", {}).key, record("edgellm", {}).key
    assert results.rounds(std) == ROUNDS[:2]
    assert results.rounds(edgellm) == ROUNDS
    kept = [name for name in loose(results) if name.endswith(".json")]
    assert kept == sorted([f"{std}.1.json", f"{edgellm}.json"])


def speeds(results: Results) -> dict[str, object]:
    return {r.labels["method"]: r.values["speed"] for r in results.all()}


def run_python(code: str, *arguments: str) -> int:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests.parent / "src"), str(tests)])
    command: Sequence[str] = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def test_tables_are_listed_once_and_those_that_come_and_go_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "paper" / "first", tmp_path / "paper" / "second"
    first.mkdir(parents=True)
    (first / CELLS).touch()
    for folder in (first, first.parent, tmp_path):
        os.utime(folder, (1e9, 1e9))
    assert folders(tmp_path) == ["paper/first"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "walk", None)
        assert folders(tmp_path) == ["paper/first"]
    second.mkdir()
    (second / CELLS).touch()
    assert folders(tmp_path) == ["paper/first", "paper/second"]
    (first / CELLS).unlink()
    assert folders(tmp_path) == ["paper/second"]
