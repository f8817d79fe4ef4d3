"""Sweeps in jobs of SLURM: of a queue on this machine alone, started by the test, without accounting."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dask_sweeps import CELLS, require_whole, sweep
from tiny_project import Project

pytest.importorskip("dask_jobqueue")

DAEMONS = ("munged", "slurmctld", "slurmd")
WORKERS = 2
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000
PartitionName=only Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def queue(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A queue of one node with as many places as cores."""
    if os.geteuid() != 0 or not all(map(shutil.which, DAEMONS)):
        pytest.skip(f"needs root and {', '.join(DAEMONS)} (Debian's slurm-wlm and munge)")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host, ports = socket.gethostname().partition(".")[0], _free_ports()
    text = CONF.format(folder=folder, host=host, ports=ports, cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munge = {"socket": "munge.socket", "key-file": key.name, "pid-file": "munge.pid", "log-file": "munge.log"}
    own = [f"--{option}={folder / name}" for option, name in {**munge, "seed-file": "munge.seed"}.items()]
    with ExitStack() as running:
        for command in (
            ["munged", "--foreground", "--force", *own],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", host],
        ):
            log = running.enter_context((folder / f"{command[0]}.log").open("w", encoding="utf-8"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)
            time.sleep(0.5)
        for _ in range(100):
            if "idle" in _said("sinfo", "--noheader"):
                break
            time.sleep(0.2)
        else:
            logs = [path.read_text(encoding="utf-8")[-1500:] for path in folder.glob("*.log")]
            pytest.fail("SLURM has no idle node:\n" + "\n".join(logs))
        yield
        _said("scancel", "--user=root")


def _free_ports() -> list[int]:
    with ExitStack() as held:
        opened = [held.enter_context(socket.socket()) for _ in range(2)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8").stdout


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "most"), [("worker", WORKERS), ("job", WORKERS + 1)])
def test_a_sweep_in_jobs_is_whole_whatever_is_killed(
    project: Project, queue: None, killed: str, most: int
) -> None:
    """A job is taken from it as for one with a higher priority; the sweep asks for another in its place."""
    job = "{cores: 1, memory: 2GB, walltime: '00:20:00'}"
    asked = ("hydra.launcher.queue=slurm", f"hydra.launcher.workers={WORKERS}", f"hydra.launcher.job={job}")
    require_whole(project, sweep(project, killed, "hydra/launcher=dask", *asked))
    jobs = _said("scontrol", "show", "jobs", "--oneliner").strip().splitlines()
    assert WORKERS <= len(jobs) <= most < CELLS
