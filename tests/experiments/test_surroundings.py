"""What surrounds a command loses it nothing: streams that fail, notebooks, users' settings, other users."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_project import Project, write_project

FILES = {"table.md", "table.csv", "table.tex", "figure.png", "figure.pdf"}
SWEEP = ("-m", "method=std,draft", "prompts=1", "max_tokens=3")


@pytest.fixture(params=(pytest.param(0o002, marks=pytest.mark.slow), 0o077))
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def sweep(
    project: Project, out: Path, shell: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """A sweep in a shell that puts `"$@"`, the command, somewhere; both outputs as they were written."""
    command = project.apart(out).command(*SWEEP)
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}", "-", *command],
        cwd=project.root,
        env=project.environment() | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="strict",
    )


@pytest.mark.parametrize(
    ("shell", "environment", "warns"),
    [
        pytest.param('"$@" >&-', {}, False, marks=pytest.mark.slow),
        ('"$@" >/dev/full', {"PYTHONIOENCODING": "cp1252"}, True),
        ('"$@" | head -1', {"MPLBACKEND": "module://absent.backend"}, False),
        pytest.param('"$@" 2>&-', {"PYTHONIOENCODING": "ascii"}, False, marks=pytest.mark.slow),
    ],
)
def test_output_that_fails_loses_nothing(project, tmp_path, shell, environment, warns):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.dpi: 7\n", encoding="utf-8")
    done = sweep(project, tmp_path, shell, environment | {"MPLCONFIGDIR": str(tmp_path)})
    written = {path.name for path in (tmp_path / "results" / "sweeps").rglob("*.*")}
    assert (done.returncode, written >= FILES) == (0, True), done.stderr
    assert ("the rest of the output is lost" in done.stderr) == warns
    assert "Traceback" not in done.stderr


def test_files_follow_the_umask(project, tmp_path, umask):
    alone = write_project(tmp_path)
    assert alone.run(*SWEEP).returncode == 0
    made = [path for part in ("cache", "results", "outputs") for path in (tmp_path / part).rglob("*")]
    files = [path for path in made if path.is_file()]
    assert {"members.jsonl", "table.md", "README.md"} <= {path.name for path in files}
    assert {path.suffix for path in files} >= {".sqlite", ".json", ".jsonl", ".gz", ".png"}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files}
    assert {oct(mode) for mode in modes} == {oct(0o666 & ~umask)}


NOBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all")
"""Runs a command as root without root's right to read everything."""


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read anything")
def test_a_cached_file_of_another_user_is_named_with_the_variable(project, tmp_path):
    code = (
        "from pathlib import Path; from repro.records.build_cache import build_once; "
        "build_once(Path('cache/weights').absolute(), None)"
    )
    (tmp_path / "cache" / "weights").mkdir(parents=True)
    hidden = tmp_path / "cache" / "weights" / "model.safetensors"
    hidden.touch(0o000)
    environment = project.environment() | {"REPRO_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [*(NOBODY if os.geteuid() == 0 else ()), sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert f"{hidden}: Permission denied; its owner can let you read it, or set REPRO_CACHE" in done.stderr


def test_a_record_of_a_newer_version_is_said_to_be_newer_and_left_alone(project, tmp_path):
    mine = project.apart(tmp_path)
    assert mine.here("method=std", "prompts=1", "max_tokens=2").returncode == 0
    (path,) = (tmp_path / "results" / "records").glob("*.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    newer = "".join(f"{int(line[0]) + 1}{line[1:]}\n" for line in lines)
    path.write_text(newer, encoding="utf-8")
    done = mine.here("method=std", "prompts=1", "max_tokens=2")
    said = (done.stdout + done.stderr).replace(str(tmp_path), "")
    assert "newer version of repro" in said
    assert "damaged" not in said
    assert path.read_text(encoding="utf-8") == newer


def test_a_queue_that_refuses_all_jobs_ends_the_sweep_with_its_words(project, tmp_path):
    pytest.importorskip("dask_jobqueue")
    for name, text in {
        "sbatch": 'echo "sbatch: error: Invalid account" >&2; exit 1',
        "scancel": "exit 0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    queue = (
        "hydra/launcher=dask",
        "hydra.launcher.queue=slurm",
        "hydra.launcher.job={cores: 1, memory: 2GB}",
    )
    environment = project.environment() | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        project.apart(tmp_path / "out").command(*queue, *SWEEP),
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=90,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: the queue takes no job: sbatch: error: Invalid account"
    )
