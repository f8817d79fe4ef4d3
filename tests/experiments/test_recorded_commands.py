"""The command that a table records, split as a shell does and run again, finds every cell that it made."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from repro import commands
from repro.reports.spec.beside import as_typed, carry_all
from tiny_project import Project, write_project

COMMANDS = {
    "deletions": (
        "method=std,flash_ar",
        "engine=lever_serial",
        "~engine.verifies",
        "+labels.x=1",
        "~sampling.top_p=1.0",
    ),
    "additions": ("method=std", "+labels.first=1,2", "++labels.second=b", "++prompts=1"),
    "text": (
        "method=std",
        "+labels.blanks='a  b'",
        '+labels.commas="a, b"',
        "+labels.signs='a=b{c}[d]'",
        r"+labels.quote='it\'s'",
        "+labels.bare=two words",
        "+labels.empty=''",
        "+labels.nothing=",
        "seed=0,1",
    ),
    "structures": (
        "method=std",
        "metrics=[exact_match,rouge_l_tokens]",
        "+dataset.max_words={prompt: 20},{prompt: 30}",
    ),
    "sweeps": ("method=choice(std,flash_ar)", "seed=range(0,4,2)", "prompt_tokens=null,4"),
    "references": ("method=std", "skip=${seed}", "+labels.said=${skip}", "seed=0,1"),
    "groups": ("method=chain_sd,std", "dataset=humaneval", "~trace", "chain_sd.length=2,3"),
    "beside": ("method=edgellm,std", "edgellm.update='printed'", "edgellm.length=2,3"),
}
"""Settings of a sweep by what they show, each as a shell hands it over."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("recorded"))


def recorded(page: Path) -> str:
    """The command of the line that says what made a table."""
    made = re.search("made by `([^`]+)`", page.read_text(encoding="utf-8"))
    assert made
    return made[1]


def states(screen: str) -> list[str]:
    """The state of each cell of a sweep, as it is printed."""
    return re.findall(r"\b(done|cached|failed)\b", screen)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_recorded_command_finds_the_cells_that_it_made(shared: Project, tmp_path: Path, kind: str) -> None:
    project, typed = shared.apart(tmp_path), COMMANDS[kind]
    first = project.here("-m", *typed)
    assert first.returncode == 0, first.stderr
    (page,) = (project.out / "results").rglob("table.md")
    tokens = shlex.split(recorded(page))
    assert tokens[:4] == ["python", "-m", "repro", "-m"]
    assert {*typed} <= {*tokens}
    keys = project.store.finished_keys()
    again = project.here(*tokens[3:])
    assert again.returncode == 0, again.stderr
    assert project.store.finished_keys() == keys
    assert {*states(again.stdout)} == {"cached"}
    written = json.loads(page.with_name("sweep.json").read_text(encoding="utf-8"))["overrides"]
    assert {
        key: value for key, value in (word.split("=", 1) for word in typed if "=" in word)
    }.items() <= written.items()


def test_an_experiments_command_is_recorded_as_it_was_typed(shared: Project, tmp_path: Path) -> None:
    typed = ("method=std", "engine=lever_serial", "~engine.verifies", "+labels.text='a, b'", "skip=${seed}")
    project = shared.apart(tmp_path)
    first = project.here("experiment=quickstart", *typed)
    assert first.returncode == 0, first.stderr
    (page,) = (project.out / "results").rglob("table.md")
    tokens = shlex.split(recorded(page))
    assert {*typed} <= {*tokens}
    keys = project.store.finished_keys()
    again = project.here(*tokens[3:])
    assert again.returncode == 0, again.stderr
    assert project.store.finished_keys() == keys
    results, before = project.out / "results", page.read_text(encoding="utf-8")
    assert (
        commands.run("table", [page.parent.relative_to(results).as_posix(), "--results", str(results)]) == 0
    )
    assert page.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("value", ["2,4", "'a b'", '"a, b"', r"'it\'s'", "{a: 1}", "[1,2]", "''", r"'a\\b'"])
def test_a_component_s_setting_comes_back_as_it_was_typed(value: str) -> None:
    (token,) = carry_all([f"chain_sd.length={value}"])
    (parsed,) = OverridesParser.create().parse_overrides([token])
    assert parsed.value() == value
    assert as_typed(token) == f"chain_sd.length={value}"
