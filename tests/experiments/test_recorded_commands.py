"""The command that a table records, split as a shell does and run again, finds every cell that it made."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from repro import commands
from tiny_project import Project

pytestmark = pytest.mark.usefixtures("no_pictures")

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


def recorded(page: Path) -> str:
    """The command of the line that says what made a table."""
    made = re.search("made by `([^`]+)`", page.read_text(encoding="utf-8"))
    assert made
    return made[1]


def states(screen: str) -> list[str]:
    """The state of each cell of a sweep, as it is printed."""
    return re.findall(r"│ (done|cached|failed) +│", screen)


def require_again(project: Project, first: subprocess.CompletedProcess[str], typed: tuple[str, ...]) -> Path:
    """The page of a sweep's table, whose command finds all cells again, and which is made again as it was."""
    assert first.returncode == 0, first.stderr
    results = project.out / "results"
    (page,) = results.rglob("table.md")
    tokens = shlex.split(recorded(page))
    assert tokens[:3] == ["python", "-m", "repro"]
    assert {*typed} <= {*tokens}
    keys, before = project.store.finished_keys(), page.read_text(encoding="utf-8")
    again = project.here(*tokens[3:])
    assert again.returncode == 0, again.stderr
    assert project.store.finished_keys() == keys
    assert {*states(again.stdout)} == {"cached"}
    name = page.parent.relative_to(results).as_posix()
    assert commands.run("table", [name, "--results", str(results)]) == 0
    assert page.read_text(encoding="utf-8") == before
    return page


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_recorded_command_finds_the_cells_that_it_made(project: Project, kind: str) -> None:
    typed = COMMANDS[kind]
    page = require_again(project, project.here("-m", *typed), typed)
    written = json.loads(page.with_name("sweep.json").read_text(encoding="utf-8"))["overrides"]
    swept = dict(word.split("=", 1) for word in typed if "=" in word)
    assert swept.items() <= written.items()


def test_an_experiments_command_is_recorded_as_it_was_typed(project: Project) -> None:
    typed = ("method=std", "engine=lever_serial", "~engine.verifies", "+labels.text='a, b'", "skip=${seed}")
    require_again(project, project.here("experiment=quickstart", *typed), typed)
