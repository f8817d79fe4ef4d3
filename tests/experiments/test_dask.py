"""Sweeps with Dask's workers: a worker dies, the driver dies, and every cell is computed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from repro.experiments.progress.timings import Timing, work_of
from tiny_project import Project, write_project

pytest.importorskip("distributed")

CELLS = 20
KILLED = 5
"""The cell in which something is killed, by its tokens."""

PRELOAD = """
import os, signal, time
from pathlib import Path
from repro.scenarios.generation.scenario import GenerationScenario

folder, whom = Path(os.environ["KILLED_FOLDER"]), os.environ["KILLED"]
find = getattr(GenerationScenario, "kept", GenerationScenario.find)  # this is read twice
GenerationScenario.kept = find

def found(self, progress):
    tokens = self.config["max_tokens"]
    with (folder / "computed").open("a") as file:
        file.write(f"{tokens}\\n")
    if tokens == 5 and not (folder / "killed").exists():
        (folder / "killed").touch()
        time.sleep(1.5)  # what was sent arrives
        records = [*(folder / "results" / "records").glob("*.json")]
        (folder / "kept").write_text(str(len(records)))
        os.kill(os.getpid() if whom == "worker" else os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return find(self, progress)

GenerationScenario.find = found
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(shared: Project, tmp_path: Path) -> Project:
    """A project with timings by which ten cells are a batch."""
    project = shared.apart(tmp_path)
    (tmp_path / "preload.py").write_text(PRELOAD, encoding="utf-8")
    return project


def sweep(project: Project, killed: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The sweep in a process of its own, in which the fifth cell's worker or driver is killed once."""
    cache = project.out / "cache"
    cache.mkdir(exist_ok=True)
    timing = Timing(work_of(project.config("method=std")), 0.1, 1.0)
    (cache / "timings.jsonl").write_text(json.dumps(asdict(timing)) + "\n", encoding="utf-8")
    paths = [project.environment()["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    own = {
        "REPRO_CACHE": str(cache),
        "KILLED": killed,
        "KILLED_FOLDER": str(project.out),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps([str(project.out / "preload.py")]),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    axis = f"max_tokens=range(1,{CELLS + 1})"
    return subprocess.run(
        project.command("-m", "method=std", axis, *more),
        cwd=project.root,
        env=project.environment() | own,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


WITH_DASK = ("hydra/launcher=dask", "hydra.launcher.workers=1")


def computed(project: Project) -> Counter[int]:
    return Counter(map(int, (project.out / "computed").read_text(encoding="utf-8").split()))


def test_a_worker_is_killed_in_the_fifth_cell_of_a_batch_of_ten(project: Project) -> None:
    done = sweep(project, "worker", *WITH_DASK)
    assert done.returncode == 0, done.stderr
    assert (project.out / "kept").read_text(encoding="utf-8") == "4"
    assert computed(project) == Counter(range(1, CELLS + 1)) + Counter([KILLED])
    assert [record.status for record in project.store.all()] == ["done"] * CELLS
    assert not [*project.store.loose.folder.glob("*.begun")]


def test_the_driver_is_killed(project: Project) -> None:
    done = sweep(project, "driver", *WITH_DASK)
    assert done.returncode == -signal.SIGKILL
    assert [record.status for record in project.store.all()] == ["done"] * 4
    assert len([*project.store.loose.folder.glob("*.begun")]) == 1
    assert sweep(project, "nobody", *WITH_DASK, "sweep=retry").returncode == 0
    assert computed(project) == Counter(range(1, KILLED + 1)) + Counter([KILLED]), "what was never tried"
    done = sweep(project, "nobody", *WITH_DASK)
    assert done.returncode == 0, done.stderr
    assert computed(project) == Counter(range(1, CELLS + 1)) + Counter([KILLED])
    assert [record.status for record in project.store.all()] == ["done"] * CELLS
