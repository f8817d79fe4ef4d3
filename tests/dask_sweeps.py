"""Sweeps with Dask's workers, in whose fifth cell something is killed, once or each time."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping

from records import begun
from tiny_project import Project

CELLS = 20
KILLED = 5
"""The cell in which something is killed, by its tokens."""

PRELOAD = """
import os, signal, subprocess, time
from pathlib import Path
from repro.scenarios.generation.scenario import GenerationScenario

folder, whom = Path(os.environ["KILLED_FOLDER"]), os.environ["KILLED"]
find = getattr(GenerationScenario, "kept", GenerationScenario.find)  # this is read twice
GenerationScenario.kept = find

def kill():
    if whom == "job":  # as a queue does that needs the place for another one
        subprocess.run(["scancel", "--full", "--signal=KILL", os.environ["SLURM_JOB_ID"]])
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]])
        return
    if "worker" not in whom:  # a node has its nanny and its worker
        os.kill(os.getppid(), signal.SIGKILL)
    if whom != "driver":
        os.kill(os.getpid(), signal.SIGKILL)

def found(self, progress):
    tokens = self.config["max_tokens"]
    with (folder / "computed").open("a") as file:
        file.write(f"{tokens}\\n")
    if tokens == 5 and (whom == "each worker" or not (folder / "killed").exists()):
        (folder / "killed").touch()
        time.sleep(1.5)  # what was sent arrives
        files = (folder / "results" / "records").glob("*.jsonl")
        records = [line for path in files for line in path.read_text().splitlines() if '{"cell": ' in line]
        (folder / "kept").write_text(str(len(records)))
        kill()
        time.sleep(60)
    return find(self, progress)

GenerationScenario.find = found
"""


def environment(project: Project, killed: str) -> Mapping[str, str]:
    """Of driver and workers: what is killed."""
    preload, cache = project.out / "preload.py", project.out / "cache"
    preload.write_text(PRELOAD, encoding="utf-8")
    cache.mkdir(exist_ok=True)
    paths = [project.environment()["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    own = {
        "REPRO_CACHE": str(cache),
        "KILLED": killed,
        "KILLED_FOLDER": str(project.out),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps([str(preload)]),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return project.environment() | own


def sweep(project: Project, killed: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The sweep, in a process of its own."""
    return subprocess.run(
        project.command("-m", "method=std", f"max_tokens=range(1,{CELLS + 1})", *more),
        cwd=project.root,
        env=environment(project, killed),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def require_whole(project: Project, done: subprocess.CompletedProcess[str]) -> None:
    """The sweep ended well: a record a cell, each computed once but for the one in which something died."""
    assert done.returncode == 0, done.stderr
    assert computed(project) == Counter(range(1, CELLS + 1)) + Counter([KILLED])
    assert [record.status for record in project.store.all()] == ["done"] * CELLS
    assert begun(project.store) == []


def computed(project: Project) -> Counter[int]:
    """How often each cell was computed, by its tokens."""
    return Counter(map(int, (project.out / "computed").read_text(encoding="utf-8").split()))
