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
from repro.experiments.composing import ConfFolder
from tiny_project import PROMPTS, Project, write_project


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in which no cell may begin its work."""
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))

    def compute(*_: Any) -> None:
        raise AssertionError("long work began")

    monkeypatch.setattr("repro.scenarios.base.Scenario.run", compute)
    return shared.apart(tmp_path)


def complaint(project: Project, *overrides: str) -> str:
    """What a cell with bad input says."""
    try:
        note = project.cell("experiment=quickstart", "method=std", *overrides)
    except InputError as wrong:
        return str(wrong)
    assert note.state == "failed", "nothing was wrong"
    return note.error


# --- YAML ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: [broken", "is not YAML: while parsing"),
        ("name: Gerät".encode("latin-1"), "is not YAML: 'utf-8' codec can't decode byte"),
        (b"- a\n- b\n", "must be a mapping and is a list"),
        (b"just words", "must be a mapping and is a str"),
        (b"3", "must be a mapping and is a int"),
        (b"a: !!python/name:os.system", "is not YAML: could not determine a constructor for the tag"),
        (b"\x00\x01", "is not YAML: "),
    ],
)
def test_a_configuration_file_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "mine.yaml").write_bytes(content)
    with pytest.raises(InputError) as caught:
        ConfFolder("mine", f"conf://{tmp_path}").load_config("device/mine")
    assert f"{tmp_path}/device/mine.yaml {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_configuration_file_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "mine.yaml").write_bytes(b"")
    assert ConfFolder("mine", f"conf://{tmp_path}").load_config("device/mine").config == {}


# --- rows ---------------------------------------------------------------------------------------------------


def row(prompt: Any) -> dict[str, Any]:
    return {"task_id": "T", "prompt": prompt, "canonical_solution": "", "test": "", "entry_point": "f"}


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (None, "prompt humaneval/1: a row's 'prompt' is null, where a text is needed"),
        ("", "prompt humaneval/1 is empty, so nothing is asked; leave its row out"),
        (" \n\t", "prompt humaneval/1 is empty, so nothing is asked"),
        ("a\ud800b", "'\\ud800', is no Unicode"),
    ],
)
def test_a_row_that_asks_nothing(project: Project, tmp_path: Path, prompt: Any, said: str) -> None:
    rows = [row(PROMPTS[0]), row(prompt)]
    (tmp_path / "openai_humaneval.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8"
    )
    assert said in complaint(project, override("data_dir", tmp_path), "prompts=2")


def lines(path: Path, content: bytes) -> None:
    path.write_bytes(json.dumps(row("p")).encode() + b"\n" + content + b"\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "openai_humaneval.jsonl, line 2: not JSON"),
        (b"[1]", "openai_humaneval.jsonl, line 2: a list, not an object"),
        ("ä".encode("latin-1"), "not JSON ('utf-8' codec can't decode"),
        (b"\0\0", "openai_humaneval.jsonl, line 2: not JSON"),
        (b"", "prompts is 2, but dataset 'humaneval' has 1 rows; choose prompts=1 or fewer"),
    ],
)
def test_a_file_of_rows_that_is_damaged(project: Project, tmp_path: Path, content: bytes, said: str) -> None:
    lines(tmp_path / "openai_humaneval.jsonl", content)
    assert said in complaint(project, override("data_dir", tmp_path), "prompts=2")


DEEP = b"[" * 200_000
LONG = 17 << 20


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DEEP, "openai_humaneval.jsonl, line 2: not JSON (it is nested deeper than 100 levels)"),
        (b'{"a":' * 150 + b"1" + b"}" * 150, "line 2: not JSON (it is nested deeper than 100 levels)"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 2: not JSON (Exceeds the limit"),
        (b'"' + b"x" * LONG, "line 2: not JSON (it is too long)"),
    ],
    ids=["deep line", "deep object", "long number", "long line"],
)
def test_rows_are_read_under_limits(project: Project, tmp_path: Path, content: bytes, said: str) -> None:
    lines(tmp_path / "openai_humaneval.jsonl", content)
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


def test_how_many_rows_there_are_is_said(project: Project) -> None:
    said = complaint(project, "prompts=1000000000")
    assert said == "prompts is 1000000000, but dataset 'humaneval' has 3 rows; choose prompts=3 or fewer"


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


@pytest.mark.parametrize("setting", ["results", "outputs"])
@pytest.mark.parametrize("value", ["null", "3", "''"])
def test_a_folder_has_a_name(project: Project, setting: str, value: str) -> None:
    done = project.here("method=std", f"{setting}={value}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {setting} is ")
    assert done.stderr.count("\n") == 1
    assert not (project.root / "None").exists()
