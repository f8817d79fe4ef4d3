"""What a run leaves behind names no folder of the machine and no user: records, tables, wandb runs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from repro.records.identity import portable, portable_override, portable_text
from repro.scenarios.base import Scenario
from tiny_project import Project, write_project

pytestmark = pytest.mark.usefixtures("no_pictures")

USER = "sonja_quist"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in the home folder of a user whose name stands nowhere else."""
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, USER)
    monkeypatch.setenv("WANDB_API_KEY", "secret" * 8)
    monkeypatch.setenv("REPRO_CACHE", str(home / "cache"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    project = write_project(home / "work").apart(home / "work", "wandb.mode=offline")
    monkeypatch.chdir(project.out)  # wandb's files are named from here
    return project


def texts(folder: Path) -> dict[str, str]:
    """All files below a folder, unpacked, by their place in it."""
    found = {}
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        raw = path.read_bytes()
        whole = gzip.decompress(raw) if path.suffix == ".gz" else raw
        found[path.relative_to(folder).as_posix()] = whole.decode("utf-8", "replace")
    return found


def test_a_done_and_a_failed_cell_name_nobody(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [project.cell("experiment=quickstart", "method=chain_sd")]

    def fail(cell: Scenario, *_: Any) -> None:
        raise OSError(28, "No space left on device", f"{Path.home()}/some folder/{cell.name}.bin")

    monkeypatch.setattr("repro.scenarios.generation.scenario.GenerationScenario.find", fail)
    notes.append(project.cell("experiment=quickstart", "method=std"))
    assert [note.state for note in notes] == ["done", "failed"]
    project.table(notes[:1])
    found = {
        f"{top}/{name}": text
        for top in ("results", "outputs")
        for name, text in texts(project.out / top).items()
    }
    kinds = ("records/", "members.jsonl", "timelines/", "table.md", ".wandb")
    assert [kind for kind in kinds if not any(kind in name for name in found)] == []
    assert "No space left on device" in "".join(found.values())
    for private in (str(project.root), USER, "secretsecret", str(Path(__file__).parents[2])):
        named = {name for name, text in found.items() if private in text}
        assert not named, private


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("target.checkpoint.folder=/srv/models/x", "target.checkpoint.folder=x"),
        ("target.checkpoint.folder='/srv/my models/x'", "target.checkpoint.folder='x'"),
        ("metrics=[rouge_l,evaluate:/srv/me/mine,/srv/y]", "metrics=[rouge_l,evaluate:mine,y]"),
        ("dataset={name: own, folder: /srv/me/rows.jsonl}", "dataset={name: own, folder: rows.jsonl}"),
        ("'hydra.searchpath=[file:///srv/me/conf]'", "'hydra.searchpath=[file:conf]'"),
        ('+x={a: ["/srv/me/b", ~/c]}', '+x={a: ["b", c]}'),
        ("target.checkpoint.folder=/srv/x,/srv/y", "target.checkpoint.folder=x,y"),
        ("target.checkpoint.folder=assets/drafts/x", "target.checkpoint.folder=assets/drafts/x"),
        ("method=std,lever", "method=std,lever"),
        ("~model@draft", "~model@draft"),
    ],
)
def test_a_command_keeps_the_names_of_folders(override: str, kept: str) -> None:
    assert portable_override(override) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("{home}/models/x.bin is cut", "~/models/x.bin is cut"),
        ("'{home}'", "'~'"),
        ("{home}/a folder/x", "~/a folder/x"),
        ('File "{here}/src/mine.py", line 3', 'File "./src/mine.py", line 3'),
        ("/srv/data/rows.jsonl, line 2", "rows.jsonl, line 2"),
        ("file:///srv/data/rows.jsonl", "file://rows.jsonl"),
        ("tokens/s and 3/4 stay", "tokens/s and 3/4 stay"),
    ],
)
def test_a_message_keeps_what_is_useful(
    text: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home" / USER, tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert portable_text(text.format(home=home, here=here)) == kept


def test_a_configuration_keeps_the_names_of_folders() -> None:
    given = {"a": "/srv/models/x", "b": ["~/x", "../up/y", "assets/z"], "c": {"d": "two\nlines /srv/x"}}
    assert portable(given) == {"a": "x", "b": ["x", "y", "assets/z"], "c": {"d": "two\nlines /srv/x"}}
