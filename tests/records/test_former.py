"""A folder of the former layout, written out here as its sweeps did, is converted by the command."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from records import record
from repro import commands
from repro.core.errors import InputError
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import open_results

ROUNDS = [{"drafted": 4, "seconds": 0.25}, {"drafted": 3}]
ANSWERS = [{"text": "né"}]
PACKED, SHARED, LOOSE, NEWER, FAILED = (f"{number:08x}" for number in range(5))
HISTORY = (f"{NEWER}.1.json", f"{NEWER}.1.rounds.jsonl")


def write_lines(path: Path, contents: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(content) + "\n" for content in contents).encode()
    packed = {".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)


def columns(key: str, kind: str, rows: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": key, kind: rows}


def line(cell: Record, labels: Mapping[str, str], *overrides: str) -> dict[str, Any]:
    """A cell's line in a table: its labels there, and a block instead of its provenance."""
    plain = cell.to_dict() | {"labels": {**cell.labels, **labels}, "provenance": "all"}
    return plain | {"own_labels": dict(cell.labels), "overrides": list(overrides)}


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """Two tables that share a cell, a loose record that is newer than a packed one, and a failed one."""
    root = tmp_path / "results"
    provenance = dict(cell(PACKED).to_dict()["provenance"])
    blocks = {"config": provenance["config"], "method": provenance["config"]["method"]}
    provenance["config"] = {"$block": "config"}
    blocks |= {"config": {"method": {"$block": "method"}}, "all": provenance}
    write_lines(
        root / "provenance.jsonl.gz", [{"id": name, "block": block} for name, block in blocks.items()]
    )
    newer = cell(NEWER, speed=8.0)
    lever, edgellm = root / "lever" / "fig4", root / "edgellm" / "fig3"
    write_lines(lever / "cells.jsonl", [line(cell(PACKED), {"row": "a"}, "method=std"), line(newer, {})])
    write_lines(edgellm / "cells.jsonl", [line(cell(SHARED), {}), line(cell(PACKED), {"row": "b"})])
    rows = {"drafted": [4, 3], "seconds": [0.25, {}]}
    write_lines(lever / "rounds.jsonl.xz", [columns(NEWER, "rounds", {"drafted": [9]})])
    write_lines(edgellm / "rounds.jsonl.xz", [columns(key, "rounds", rows) for key in (SHARED, PACKED)])
    write_lines(edgellm / "answers.jsonl.xz", [columns(SHARED, "answers", {"text": ["né"]})])
    loose = [cell(LOOSE), cell(NEWER), record("std", {}, key=FAILED, status="failed", error="Traceback")]
    for each in loose:
        path = root / "records" / f"{each.key}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(each.to_json(), encoding="utf-8")
    content = hashlib.sha256((root / "records" / f"{NEWER}.json").read_bytes()).hexdigest()[:16]
    write_lines(root / "records" / f"{NEWER}.{content}.rounds.jsonl", ROUNDS)
    write_lines(root / "records" / f"{LOOSE}.rounds.jsonl", ROUNDS)
    write_lines(root / "records" / f"{LOOSE}.answers.jsonl", ANSWERS)
    for name in (*HISTORY, f"{PACKED}.begun", f"{PACKED}.lock"):
        (root / "records" / name).write_text("", encoding="utf-8")
    return root


def cell(key: str, speed: float = 1.0) -> Record:
    return record("std", {"speed": speed}, key=key)


def test_a_folder_of_the_former_layout_is_refused_and_converted(
    former: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = re.escape(f"`repro table --convert {shlex.quote(str(former))}`")
    with pytest.raises(InputError, match=f"former layout .* {advice}"):
        open_results(former)
    assert commands.run("table", ["--convert", str(former)]) == 0
    assert capsys.readouterr().out.splitlines() == ["edgellm/fig3", "lever/fig4"]
    results = open_results(former)
    assert results.problems() == []
    done = [cell(key) for key in (PACKED, SHARED, LOOSE, NEWER)]
    assert [each for each in results.all() if each.done] == done
    assert [each.error for each in results.all() if not each.done] == ["Traceback"]
    assert [results.rounds(each.key) for each in done] == [ROUNDS] * 4
    assert [results.answers(each.key) for each in done] == [[], ANSWERS, ANSWERS, []]
    assert results.tables() == ["edgellm/fig3", "lever/fig4"]
    assert results.members("lever/fig4") == [
        Member(PACKED, {"method": "std", "row": "a"}, ("method=std",)),
        Member(NEWER, {"method": "std"}),
    ]
    ends = ("cells.jsonl", "details.xz")
    packed = {f"{group}.{end}" for group in ("edgellm", "lever", "untabled") for end in ends}
    assert {path.name for path in results.folder.iterdir()} == packed | set(HISTORY)
    assert {path.name for path in (former / "lever" / "fig4").iterdir()} == {"members.jsonl"}
    assert not (former / "provenance.jsonl.gz").exists()
    assert (former / "README.md").exists()


def test_a_conversion_that_was_killed_is_begun_again(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlinked, unlink = 0, Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal unlinked
        unlinked += former in path.parents
        if unlinked == stop:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    for stop in range(1, 40):  # noqa: B007
        unlinked = 0
        with suppress(KeyboardInterrupt):
            commands.run("table", ["--convert", str(former)])
            break
    assert stop > 5
    results = open_results(former)
    assert results.problems() == []
    assert [results.rounds(key) for key in (PACKED, SHARED, LOOSE, NEWER)] == [ROUNDS] * 4
    assert results.tables() == ["edgellm/fig3", "lever/fig4"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lever/fig4/cells.jsonl", b"{"),
        ("lever/fig4/cells.jsonl", b'{"key": 3}'),
        ("edgellm/fig3/rounds.jsonl.xz", b"no xz"),
        ("provenance.jsonl.gz", gzip.compress(b"[" * 200_000, mtime=0)),
        ("provenance.jsonl.gz", gzip.compress(b"", mtime=0)),
        (f"records/{LOOSE}.json", cell(LOOSE).to_json().replace("1.0", "2.0").encode()),
    ],
)
def test_what_is_damaged_is_named_and_stays(
    former: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (former / name).write_bytes(content)
    names = {path for path in former.rglob("*") if path.is_file()}
    assert commands.run("table", ["--convert", str(former)]) == 2
    said = capsys.readouterr().err
    assert Path(name).name in said
    assert "restore" in said
    assert names <= set(former.rglob("*"))
