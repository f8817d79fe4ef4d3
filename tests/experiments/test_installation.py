"""The command, its verbs and its version; and what the two wheels carry, run where there is no checkout."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from repro import __main__ as command
from repro.commands import VERBS
from repro.core import version as versions
from repro.core.paths import project_root
from repro.core.version import RELEASE, Version, version

ROOT = project_root()
MOST_BYTES = 20_000_000
"""Of the wheel; a registry's users wait for it."""


def facts(*place: str) -> dict[str, object]:
    return tomllib.loads((ROOT.joinpath(*place, "pyproject.toml")).read_text(encoding="utf-8"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["repro", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    return int(end.value.code or 0)


def test_every_verb_says_what_it_takes(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    verbs = ["table", "errors", "cells", "show", "compare", "check", "list", "device", "fetch", "calibrate"]
    assert list(VERBS) == verbs
    for verb in verbs:
        assert run(monkeypatch, verb, "--help") == 0
        assert capsys.readouterr().out.startswith(f"usage: repro {verb} ")


def test_a_verb_that_is_none_has_the_nearest(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert run(monkeypatch, "tabel", "quickstart") == 2
    assert "there is no verb 'tabel'. Did you mean table?" in capsys.readouterr().err


def test_a_launcher_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("repro.experiments.guide.explaining.has_dask", lambda: False)
    assert run(monkeypatch, "-m", "hydra/launcher=dask", "method=std") == 2
    assert "`pip install 'repro[dask]'` brings it" in capsys.readouterr().err


def test_the_version_is_git_s_or_the_build_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["repro", "--version"])
    command.main()
    assert capsys.readouterr().out == f"repro {version()}\n"
    package = tmp_path / "lib" / "repro"
    monkeypatch.setattr(versions, "__file__", str(package / "core" / "version.py"))
    assert version.__wrapped__()[:3] == (RELEASE, None, None)
    package.mkdir(parents=True)
    built = {"commit": "42674def0f" * 4, "dirty": True}
    (package / "built_from.json").write_text(json.dumps(built), encoding="utf-8")
    assert str(version.__wrapped__()) == f"v{RELEASE}, commit 42674def0f, changed"


def test_what_to_cite_is_this_release() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == RELEASE
    assert re.fullmatch("[0-9a-f]{40}", cited["commit"])
    assert facts("packages", "assets")["project"]["version"] == RELEASE  # type: ignore[index]
    assert f"repro-assets=={RELEASE}" in str(facts()["project"]["optional-dependencies"])  # type: ignore[index]


def test_every_asset_is_in_one_of_the_wheels() -> None:
    """What the sdist leaves out, and so the wheel that is made from it, is what the other one brings."""
    left = facts()["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"]  # type: ignore[index]
    brought = facts("packages", "assets")["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]  # type: ignore[index]
    assert {f"../..{place}": f"repro{place}" for place in left} == brought
    assert all((ROOT / place.lstrip("/")).is_dir() for place in left)


def test_every_module_is_imported_without_what_linux_alone_has() -> None:
    code = """
import os, pkgutil, importlib, sys
import torch, transformers, numba, hydra, pandas, matplotlib
for name in ("O_DIRECT", "posix_fadvise", "sched_getaffinity", "unshare", "setns"):
    if hasattr(os, name):
        delattr(os, name)
os.process_cpu_count = os.cpu_count  # as Python 3.13 has it without sched_getaffinity
import repro
for module in pkgutil.walk_packages(repro.__path__, "repro."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
sys.platform = "darwin"
from repro.records.provenance import usable_cores
print(usable_cores() > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True")


METHODS = """
import json, sys
from repro.core.errors import InputError
from repro.core.registry import registered
from repro.experiments.cli import quiet
from repro.experiments.plan import cell_config
from repro.experiments.composing import publish
from repro.experiments.sweep import Sweep

INT8 = ("target.precision=int8", "draft.precision=int8")
publish()
quiet()
said = {}
for method in sorted(registered("method")):
    for more in ([], ["device=local_cpu"], [*INT8, "device=xiaomi_14"]):
        try:
            config = cell_config(
                f"method={method}", *more, "prompts=1", "max_tokens=4", "repeats=1", "wandb.mode=disabled"
            )
            note = Sweep(config).cell(config)
            said[method] = note.error or note.state
        except InputError as wrong:
            said[method] = str(wrong)
        if said[method] in ("done", "cached") or "repro[assets]" in said[method]:
            break
print(json.dumps(said))
"""


def built(folder: Path, source: Path, kind: str) -> Path:
    """The archive of a kind that hatchling makes of a project."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", kind]
    subprocess.run(build, cwd=source, check=True)
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def answers(site: Path, empty: Path, *command: str) -> str:
    """What a command prints in an empty folder, with the package of `site`."""
    environment = {name: value for name, value in os.environ.items() if name != "REPRO_DATA"}
    environment["PYTHONPATH"] = str(site)
    asked = [sys.executable, *command]
    done = subprocess.run(asked, cwd=empty, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_method_runs_by_name_from_the_wheels(tmp_path: Path) -> None:
    """From the first wheel those that need no trained heads; a sentence names the other wheel; then all."""
    shutil.unpack_archive(built(tmp_path / "sdist", ROOT, "sdist"), tmp_path / "source", filter="data")
    wheel = built(tmp_path / "wheel", next((tmp_path / "source").iterdir()), "wheel")
    assert wheel.stat().st_size < MOST_BYTES
    site, empty = tmp_path / "site", tmp_path / "empty"
    ZipFile(wheel).extractall(site)
    empty.mkdir()
    assert answers(site, empty, "-m", "repro", "--version") == f"repro {version()}\n"
    listed = answers(site, empty, "-m", "repro", "experiment=quickstart", "sweep=list")
    assert "7 of 7 cells to do" in listed
    said = json.loads(answers(site, empty, "-c", METHODS).splitlines()[-1])
    lacking = {method for method, state in said.items() if "`pip install 'repro[assets]'` brings it" in state}
    assert lacking == {"ghidorah", "medusa", "medusa_em", "tree_attention"}
    assert {method: state for method, state in said.items() if state != "done"}.keys() == lacking
    ZipFile(built(tmp_path / "assets", ROOT / "packages" / "assets", "wheel")).extractall(site)
    assert {*json.loads(answers(site, empty, "-c", METHODS).splitlines()[-1]).values()} <= {"done", "cached"}
    shutil.rmtree(site)


def test_an_archive_knows_its_commit_and_a_stranger_s_clone_says_why_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> bytes:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        command = ["git", "-C", str(clone), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def said(root: Path) -> Version:
        code = "from repro.core.version import version; print(tuple(version()))"
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", code]
        shown = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        return Version(*ast.literal_eval(shown.stdout.decode()))

    clone, archive = tmp_path / "clone", tmp_path / "archive"
    core = clone / "src" / "repro" / "core"
    core.mkdir(parents=True)
    (core.parent / "__init__.py").touch()
    for name in (".gitattributes", "src/repro/core/version.py"):
        shutil.copyfile(project_root() / name, clone / name)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD").decode().strip()
    archive.mkdir()
    subprocess.run(["tar", "x"], cwd=archive, input=git("archive", "HEAD"), check=True)
    assert said(clone) == (RELEASE, commit, False, "")
    assert said(archive) == (RELEASE, commit, None, "")
    (clone / "results").mkdir()
    (clone / "results" / "record.json").touch()
    assert said(clone).dirty is False, "results are no change of the code"
    (core / "more.py").touch()
    assert said(clone).dirty is True
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    refused = said(clone)
    assert refused.commit is None
    assert "commit unknown (fatal: detected dubious ownership in repository at" in str(refused)
