"""Commands import nothing heavy that they do not use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from repro.core.paths import conf_dir
from repro.experiments import composing
from repro.experiments.hydra_private import get_yaml_loader
from tiny_project import Project

HEAVY = {
    *("torch", "transformers", "evaluate", "datasets", "numba", "matplotlib", "wandb", "accelerate"),
    *("pandas", "scipy", "pyarrow", "numpy", "httpx2", "gguf"),
}
"""Libraries that take long to import. `huggingface_hub` is not among them: it loads its own parts late."""

TELL = """
import json, sys
from repro.experiments.cli import main
try:
    main()
finally:
    json.dump(sorted({name.partition(".")[0] for name in sys.modules}), open(sys.argv.pop(0), "w"))
"""


def imported(project: Project, *arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The heavy libraries that a command has imported at its end, and how it ended."""
    told = project.out / "modules.json"
    code = TELL.replace("sys.argv.pop(0)", repr(str(told)))
    command = [sys.executable, "-c", code, *project.overrides, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=project.environment(), check=False, encoding="utf-8"
    )
    return HEAVY & set(json.loads(told.read_text(encoding="utf-8"))), done


def test_what_is_imported_is_seen(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TELL", f"import numpy\n{TELL}")
    assert imported(project, "--help")[0] == {"numpy"}


def test_help_imports_nothing_heavy(project: Project) -> None:
    heavy, done = imported(project, "--help")
    assert "  method  " in done.stdout
    assert heavy == set()


def test_a_finished_cell_and_its_list_import_nothing_heavy(project: Project) -> None:
    done = project.here("method=chain_sd")
    assert done.returncode == 0, done.stderr
    again, done = imported(project, "method=chain_sd")
    assert "Acceptance length" in done.stdout
    assert again == set()
    listed, done = imported(project, "hydra.mode=MULTIRUN", "method=chain_sd,std", "sweep=list")
    assert "1 of 2 cells to do" in done.stdout
    assert "left" not in done.stderr, "a list has no progress"
    assert "cells" not in done.stderr
    assert listed == set()


def test_the_c_parser_reads_every_file_as_omegaconf_does() -> None:
    files = sorted(conf_dir().rglob("*.yaml"))
    assert len(files) > 300
    for path in files[::7]:
        text = path.read_text(encoding="utf-8")
        ours, theirs = (yaml.load(text, Loader=of) for of in (composing._loader(), get_yaml_loader()))
        assert repr(ours) == repr(theirs), path
