"""Files that are damaged or say nonsense: one sentence that names the file or the row, before long work."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.data.sources import read_jsonl
from tiny_project import PROMPTS, Project


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in which no cell may begin its work."""

    def compute(*_: Any) -> None:
        raise AssertionError("long work began")

    monkeypatch.setattr("repro.scenarios.base.Scenario.run", compute)
    return project


def complaint(project: Project, *overrides: str) -> str:
    """What a cell with bad input says."""
    try:
        note = project.cell("experiment=quickstart", "method=std", *overrides)
    except InputError as wrong:
        return str(wrong)
    assert note.state == "failed", "nothing was wrong"
    return note.error


# --- rows ---------------------------------------------------------------------------------------------------


def row(prompt: Any) -> bytes:
    fields = {"task_id": "T", "prompt": prompt, "canonical_solution": "", "test": "", "entry_point": "f"}
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (row(None), "prompt humaneval/1: a row's 'prompt' is null, where a text is needed"),
        (row(""), "prompt humaneval/1 is empty, so nothing is asked; leave its row out"),
        (row(" \n\t"), "prompt humaneval/1 is empty, so nothing is asked"),
        (row("a\ud800b"), "'\\ud800', is no Unicode"),
        (b"{", "openai_humaneval.jsonl, line 2: not JSON"),
        (b"[1]", "openai_humaneval.jsonl, line 2: a list, not an object"),
        ("ä".encode("latin-1"), "not JSON ('utf-8' codec can't decode"),
        (b"\0\0", "openai_humaneval.jsonl, line 2: not JSON"),
        (b"", "prompts is 2, but dataset 'humaneval' has 1 rows; choose prompts=1 or fewer"),
        (b"[" * 200_000, "openai_humaneval.jsonl, line 2: not JSON (it is nested deeper than 100 levels)"),
        (b'{"a":' * 150 + b"1" + b"}" * 150, "line 2: not JSON (it is nested deeper than 100 levels)"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 2: not JSON (Exceeds the limit"),
        (b'"' + b"x" * (17 << 20), "line 2: not JSON (it is too long)"),
    ],
    ids=[
        "null",
        "empty",
        "blank",
        "surrogate",
        "cut",
        "list",
        "latin",
        "zeros",
        "none",
        "deep",
        "object",
        "digits",
        "long",
    ],
)
def test_a_row_that_is_none(project: Project, tmp_path: Path, line: bytes, said: str) -> None:
    (tmp_path / "openai_humaneval.jsonl").write_bytes(row(PROMPTS[0]) + b"\n" + line + b"\n")
    assert said in complaint(project, override("data_dir", tmp_path), "prompts=2")


@pytest.mark.parametrize(
    ("content", "times", "said"),
    [
        (bytes(1 << 22), 1 << 10, "line 1: not JSON (it is too long)"),
        (b"\n" * (1 << 22), 1 << 6, "not JSON (the file unpacks to too much)"),
    ],
    ids=["one line", "blank lines"],
)
def test_rows_that_unpack_without_end(tmp_path: Path, content: bytes, times: int, said: str) -> None:
    """Four gigabytes in one line, or a quarter of one in blank lines."""
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(content, 1) * times)
    with pytest.raises(InputError) as caught:
        list(read_jsonl(path))
    assert said in str(caught.value)


def test_rows_that_are_a_pipe_are_not_taken_from_elsewhere(project: Project, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "openai_humaneval.jsonl")
    said = complaint(project, override("data_dir", tmp_path))
    assert said == f"{tmp_path}/openai_humaneval.jsonl is no regular file"


# --- checkpoints --------------------------------------------------------------------------------------------


def with_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def cut_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: with_config(f, num_attention_heads=0), "num_attention_heads=0; it must be a whole number"),
        (lambda f: with_config(f, hidden_size="64"), "hidden_size='64'; it must be a whole number"),
        (lambda f: with_config(f, vocab_size=None), "vocab_size=None; it must be a whole number"),
        (lambda f: with_config(f, num_hidden_layers=2.5), "num_hidden_layers=2.5; it must be a whole number"),
        (cut_tokenizer, "tokenizer.json is not valid JSON: "),
        (
            lambda f: (f / "config.json").write_text("{" * 100_000, encoding="utf-8"),
            "config.json is not valid JSON",
        ),
    ],
)
def test_a_checkpoint_that_makes_no_sense(
    project: Project, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(project.root / "target", folder)
    damage(folder)
    found = complaint(project, override("target.checkpoint.folder", folder))
    assert said in found
    assert "\n" not in found


# --- places -------------------------------------------------------------------------------------------------


NAMES = ("../../../esc", "/abs/esc", "a/../../esc", "..", "a//b", "", "x" * 300, "a\\nb", " ")


SWEEP = ("-m", "method=std,flash_ar")


@pytest.mark.parametrize(
    ("name", "more"), [*((name, ("method=std",)) for name in NAMES), ("../../../esc", SWEEP)]
)
def test_nothing_is_written_elsewhere(project: Project, name: str, more: tuple[str, ...]) -> None:
    before = {path for path in project.root.rglob("*") if "cache" not in path.parts}
    done = project.here(*more, f"name='{name}'")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: name is ")
    assert done.stderr.count("\n") == 1
    assert list(project.out.iterdir()) == []
    assert {path for path in project.root.rglob("*") if "cache" not in path.parts} == before
