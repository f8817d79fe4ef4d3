"""Runs cells with Dask distributed: workers on this machine, a cluster's, or those of a queue.

A cell is a task. Dask starts and keeps workers, gives the cell of one that died to another, and gives a cell
up in which several have died. Workers need this package and their inputs, and no folder that they share with
the driver. Must not know what becomes of an outcome.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import dask
from dask.utils import import_required
from distributed import Client, Future, KilledWorker, LocalCluster, Status
from distributed.utils import TimeoutError as DaskTimeout

from repro.core.errors import InputError, warn
from repro.core.registry import unknown
from repro.experiments.composing import load_components
from repro.experiments.sweep import Cell, Engine, Lost, Outcome, compute
from repro.records.provenance import usable_cores

MOST_LOSSES = 3
"""Workers that may die in a cell before it is given up."""

LOOK_S = 2.0
"""How often the driver asks which workers there are."""

TELL_S = 30.0
"""After which a sweep says that no worker has come."""

GO_ON_HINT = "the same command goes on with what is done"

QUEUE_CLASSES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "lsf": "LSFCluster",
    "sge": "SGECluster",
    "oar": "OARCluster",
    "htcondor": "HTCondorCluster",
}
"""Classes of dask-jobqueue, by name of the queue."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

DASK_SETTINGS = {
    "distributed.comm.timeouts.connect": "30s",
    "distributed.worker.memory.terminate": False,  # the system ends who takes too much
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 100,
    "distributed.admin.tick.interval": "1s",  # by default it looks at itself fifty times a second
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": MOST_LOSSES - 1,
    "distributed.dashboard.link": "",
}


@dataclass(frozen=True)
class Cluster:
    """Where workers are (`hydra.launcher.*`).

    Attributes:
        workers: how many processes compute; null on this machine is one a core, and of a queue one job.
        threads: of each worker; null divides this machine's cores, and is 1 elsewhere.
        address: of a scheduler that runs, as `tcp://HOST:8786`; its workers are used.
        queue: a queue in which jobs with workers are started: one of `QUEUE_CLASSES`.
        job: arguments of that queue's class in dask-jobqueue, as `{cores: 4, memory: 16GB}`.
    """

    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    queue: str | None = None
    job: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"hydra.launcher.{name} is {value!r}; it must be a number from 1, or null")
        if self.queue is not None and self.queue not in QUEUE_CLASSES:
            raise InputError(unknown("hydra.launcher.queue", str(self.queue), QUEUE_CLASSES))
        if self.address and (self.queue or self.workers):
            raise InputError(
                "hydra.launcher.address joins a cluster with its own workers; leave out the rest"
            )

    @property
    def own_threads(self) -> int:
        """Threads of each worker."""
        if self.threads:
            return self.threads
        if "OMP_NUM_THREADS" in os.environ:
            return int(os.environ["OMP_NUM_THREADS"].partition(",")[0])
        return 1 if self.address or self.queue else max(1, usable_cores() // self.local_workers)

    @property
    def local_workers(self) -> int:
        """Workers on this machine."""
        return self.workers or usable_cores()


def run(
    client: Client, threads: int, queue: QueueAnswers | None, cells: Iterator[Cell]
) -> Iterator[tuple[str, Outcome | None]]:
    """An `Engine`: cells on a cluster's workers, each with so many threads, of which `queue` may start jobs.

    A worker has one cell at a time, so that no other cell is lost with it.

    Raises:
        InputError: the cluster cannot run cells, or is gone.
    """
    ended_keys: SimpleQueue[str] = SimpleQueue()
    futures: dict[str, Future] = {}
    begun_s, looked_s, worker_count, has_warned = time.monotonic(), -LOOK_S, 0, False
    try:
        while True:
            if time.monotonic() - looked_s >= LOOK_S:
                looked_s, worker_count = time.monotonic(), sum(client.nthreads().values())
            if queue and not worker_count:
                queue.require_any_taken()
            if not worker_count and not has_warned and time.monotonic() - begun_s > TELL_S:
                has_warned = True
                warn("there is no worker yet; the sweep waits for the first")
            while len(futures) < max(1, worker_count) and (cell := next(cells, None)):
                key, config = cell
                futures[key] = _submit(client, config, threads)
                futures[key].add_done_callback(lambda _, key=key: ended_keys.put(key))
                yield key, None
            if not futures:
                return
            try:
                key = ended_keys.get(timeout=LOOK_S)
            except Empty:
                continue
            yield key, _outcome(futures.pop(key))
    except (OSError, DaskTimeout) as wrong:
        raise InputError(f"the cluster does not answer any more: {wrong}; {GO_ON_HINT}") from wrong
    finally:
        for future in futures.values():
            future.cancel(force=True)


def _submit(client: Client, config: Mapping[str, Any], threads: int) -> Future:
    payload = zlib.compress(pickle.dumps(config), 1)
    return client.submit(run_cell, payload, threads, pure=False, key=f"cell-{uuid.uuid4().hex}")


@dataclass
class QueueAnswers:
    """What a queue has answered to the jobs that it was given.

    Attributes:
        requested: jobs that are asked for.
        accepted: jobs that it took.
        refusals: its words to those that it did not take.
    """

    requested: int
    accepted: int = 0
    refusals: list[str] = field(default_factory=list)

    def require_any_taken(self) -> None:
        """InputError if the queue has refused as many jobs as were asked for and taken none."""
        if not self.accepted and len(self.refusals) >= self.requested:
            raise InputError(f"the queue takes no job: {self.refusals[-1]}; see hydra.launcher.job")

    def noting(self, job: type[Any]) -> type[Any]:
        """A class of dask-jobqueue's jobs whose starts are noted here."""
        answers = self

        class NotedJob(job):  # type: ignore[misc]
            """A job whose start is noted."""

            async def start(self) -> None:
                """Give the job to the queue."""
                try:
                    await super().start()
                except Exception as wrong:
                    message = str(wrong).rpartition("stderr:")[2] or str(wrong)
                    answers.refusals.append(" ".join(message.split()))
                    self.status = Status.failed  # so that the cluster may be closed
                    raise
                answers.accepted += 1

        return NotedJob


def _outcome(future: Future) -> Outcome:
    """What came of a task; InputError if a worker could not run it, or it was lost with the scheduler."""
    if future.status == "finished":
        return pickle.loads(zlib.decompress(future.result()))  # type: ignore[no-any-return]
    if future.status != "error":
        raise InputError(f"the cluster has lost what it was given ({future.status}); {GO_ON_HINT}")
    wrong = future.exception()
    if isinstance(wrong, KilledWorker):
        return Lost(f"{MOST_LOSSES} workers died in it (killed, or out of memory or time)")
    raise InputError(f"a worker cannot run cells: {type(wrong).__name__}: {wrong}") from wrong


@contextmanager
def dask_engine(cluster: Cluster) -> Iterator[Engine]:
    """An engine with the workers of a cluster, which is ended unless it was there before.

    Raises:
        InputError: there is no cluster at the address, or dask-jobqueue is not installed.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)  # its comings and goings are no news
    threads = cluster.own_threads
    environment = {f"distributed.nanny.pre-spawn-environ.{name}": threads for name in THREAD_VARIABLES}
    with dask.config.set({**DASK_SETTINGS, **environment}):
        if cluster.address:
            try:
                client = Client(cluster.address, timeout="20s", set_as_default=False)
            except (OSError, DaskTimeout, ValueError) as wrong:
                raise InputError(
                    f"no cluster answers at hydra.launcher.address={cluster.address}: {wrong}"
                ) from wrong
            with client:
                yield partial(run, client, threads, None)
            return
        if cluster.queue is None:
            local = LocalCluster(
                n_workers=cluster.local_workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                memory_limit=None,
                silence_logs="CRITICAL",
            )
            with local, Client(local, set_as_default=False) as client:
                yield partial(run, client, threads, None)
            return
        count = cluster.workers or 1
        answers = QueueAnswers(count)
        with _job_cluster(cluster, threads, answers) as jobs, Client(jobs, set_as_default=False) as client:
            jobs.adapt(minimum=count, maximum=count)
            yield partial(run, client, threads, answers)


def _job_cluster(cluster: Cluster, threads: int, answers: QueueAnswers) -> Any:
    """A cluster of jobs with a worker each, of which none has been asked for."""
    jobqueue = import_required("dask_jobqueue", "`pip install 'repro[dask]'` brings hydra.launcher.queue")
    job = {"cores": 1, "memory": "8GB", **(cluster.job or {})}
    exports = [f"export {name}={threads}" for name in THREAD_VARIABLES]
    job["job_script_prologue"] = [*exports, *job.get("job_script_prologue", ())]
    cluster_class = getattr(jobqueue, QUEUE_CLASSES[str(cluster.queue)])
    return cluster_class(job_cls=answers.noting(cluster_class.job_cls), **job)


def run_cell(payload: bytes, threads: int) -> bytes:
    """Compute a cell on a worker, with so many threads; what comes and goes is pickled and compressed."""
    import torch

    torch.set_num_threads(threads)
    load_components()
    try:
        outcome: Outcome = compute(pickle.loads(zlib.decompress(payload)))
    except Exception as wrong:  # it cannot be made here, as without a dataset
        outcome = f"{type(wrong).__name__}: {wrong}"
    return zlib.compress(pickle.dumps(outcome), 1)
