"""Sweeps with Dask's workers: a worker, a node, a job or the driver dies, and every cell is computed once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dask_sweeps import CELLS, KILLED, computed, environment, require_whole, sweep
from records import begun
from tiny_project import Project

pytest.importorskip("distributed")

WORKERS = 2
QUEUE = {
    "sbatch": """
        echo job >>"${0%/*}/jobs" && cp "$1" "${0%/*}/$$.sh"
        setsid bash -c 'SLURM_JOB_ID=$$ exec bash "$0"' "${0%/*}/$$.sh" >/dev/null 2>&1 &
        echo "Submitted batch job $!"
    """,
    "scancel": 'kill -KILL -- "-${@: -1}"',
}
"""Commands of a queue that has a place for every job, by dask-jobqueue's names for SLURM."""
WITH_DASK = ("hydra/launcher=dask", "hydra.launcher.workers=1")


@pytest.fixture
def cluster(project: Project) -> Iterator[str]:
    """The address of a scheduler of two nodes, each a process that keeps a worker."""
    with ExitStack() as running:

        def start(module: str, *arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments]
            own = environment(project, "node")
            process = subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True, encoding="utf-8")
            running.callback(process.wait)
            running.callback(process.kill)
            return process

        scheduler = start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        said = iter(scheduler.stderr or ())
        address = next(found[0] for line in said if (found := re.search(r"tcp://[\d.]+:\d+", line)))
        for _ in range(2):
            start("dask_worker", address, "--nworkers", "1", "--nthreads", "1", "--no-dashboard")
        yield address


def test_a_worker_is_killed_in_the_fifth_cell(project: Project) -> None:
    require_whole(project, sweep(project, "worker", *WITH_DASK))
    assert (project.out / "kept").read_text(encoding="utf-8") == "4"


@pytest.mark.slow
def test_a_cell_that_kills_three_workers_costs_no_other_cell(project: Project) -> None:
    done = sweep(project, "each worker", "hydra/launcher=dask", "hydra.launcher.workers=2")
    assert done.returncode == 1
    assert "3 workers died in it" in done.stderr
    assert computed(project) == Counter(range(1, CELLS + 1)) + Counter([KILLED, KILLED])
    assert [record.status for record in project.store.all()] == ["done"] * (CELLS - 1)
    assert len(begun(project.store)) == 1


@pytest.mark.slow
def test_a_cluster_that_is_joined_loses_a_node(project: Project, cluster: str) -> None:
    done = sweep(project, "nobody", "hydra/launcher=dask", f"hydra.launcher.address={cluster}")
    require_whole(project, done)


@pytest.mark.slow
def test_the_driver_is_killed(project: Project) -> None:
    done = sweep(project, "driver", *WITH_DASK)
    assert done.returncode == -signal.SIGKILL
    assert [record.status for record in project.store.all()] == ["done"] * 4
    assert len(begun(project.store)) == 1
    assert sweep(project, "nobody", *WITH_DASK, "sweep=retry").returncode == 0
    assert computed(project) == Counter(range(1, KILLED + 1)) + Counter([KILLED]), "what was never tried"
    done = sweep(project, "nobody", *WITH_DASK)
    assert done.returncode == 0, done.stderr
    assert computed(project) == Counter(range(1, CELLS + 1)) + Counter([KILLED])
    assert [record.status for record in project.store.all()] == ["done"] * CELLS


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "most"), [("worker", WORKERS), ("job", WORKERS + 1)])
def test_a_sweep_in_jobs_of_a_queue_is_whole_whatever_is_killed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str, most: int
) -> None:
    """A job is taken from it as for one with a higher priority; the sweep asks for another in its place."""
    pytest.importorskip("dask_jobqueue")
    folder = tmp_path / "queue"
    folder.mkdir()
    for name, script in QUEUE.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    job = "{cores: 1, memory: 2GB, walltime: '00:20:00'}"
    asked = ("hydra.launcher.queue=slurm", f"hydra.launcher.workers={WORKERS}", f"hydra.launcher.job={job}")
    require_whole(project, sweep(project, killed, "hydra/launcher=dask", *asked))
    assert WORKERS <= (folder / "jobs").read_text(encoding="utf-8").count("job") <= most < CELLS
