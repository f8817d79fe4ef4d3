"""Runs batches of cells with Dask distributed: workers on this machine, a cluster's, or those of a queue.

Dask starts and keeps workers, hands batches out and says which are lost; each cell's outcome comes back as an
event of its own as soon as the cell ends. Workers need this package and their inputs, and no folder that they
share with the driver. Must not know what becomes of an outcome.
"""

from __future__ import annotations

import os
import pickle
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import dask
from dask.utils import import_required
from distributed import Client, Future, LocalCluster, get_worker
from distributed.utils import TimeoutError as DaskTimeout

from repro.core.errors import InputError, warn
from repro.core.registry import unknown
from repro.experiments.batches import Began, CellBatch, Doing, Ended, Event, Gone
from repro.experiments.composing import load_components
from repro.experiments.computing import Computed, computed
from repro.experiments.progress.timings import CellWork, stopwatch
from repro.records.provenance import usable_cores
from repro.scenarios.base import Progress
from repro.scenarios.registry import made

AHEAD = 2
"""Batches that are out for each worker, so that none waits for the driver."""

EVERY_S = 0.5
"""How often a running cell says at most what it is doing."""

LOOK_S = 2.0
"""How often the driver asks which workers there are."""

TELL_S = 30.0
"""After which a sweep says that no worker has come."""

GO_ON = "the same command goes on with what is done"

QUEUES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "lsf": "LSFCluster",
    "sge": "SGECluster",
    "oar": "OARCluster",
    "htcondor": "HTCondorCluster",
}
"""Classes of dask-jobqueue, by name of the queue."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

SETTINGS = {
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
    "distributed.dashboard.link": "",
}


@dataclass(frozen=True)
class Cluster:
    """Where workers are (`hydra.launcher.*`).

    Attributes:
        workers: how many processes compute; null on this machine is one a core, and of a queue one job.
        threads: of each worker; null divides this machine's cores, and is 1 elsewhere.
        address: of a scheduler that runs, as `tcp://HOST:8786`; its workers are used.
        queue: a queue in which jobs with workers are started: one of `QUEUES`.
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
        if self.queue is not None and self.queue not in QUEUES:
            raise InputError(unknown("hydra.launcher.queue", str(self.queue), QUEUES))
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


class DaskEngine:
    """A `CellEngine` of a cluster, which ends with the block."""

    def __init__(self, client: Client, threads: int, replace_lost: Callable[[], None] = lambda: None) -> None:
        """Use a cluster's workers.

        Args:
            client: knows them.
            threads: of each worker.
            replace_lost: asks for jobs in place of those that a queue has ended; called every `LOOK_S`.
        """
        self._client = client
        self._threads = threads
        self._replace_lost = replace_lost

    def run(self, next_batch: Callable[[int], CellBatch | None]) -> Iterator[Event]:
        """See `CellEngine`; InputError if the cluster cannot run cells, or is gone."""
        topic = f"repro-{uuid.uuid4().hex}"
        events: SimpleQueue[Any] = SimpleQueue()
        out: dict[int, SentBatch] = {}
        self._client.subscribe_topic(topic, lambda event: events.put(event[1]))
        try:
            yield from self._run(next_batch, topic, events, out)
        except (OSError, DaskTimeout) as wrong:
            raise InputError(f"the cluster does not answer any more: {wrong}; {GO_ON}") from wrong
        finally:
            with suppress(OSError, DaskTimeout):
                self._client.unsubscribe_topic(topic)
                for sent in out.values():
                    sent.future.cancel(force=True)

    def _run(
        self,
        next_batch: Callable[[int], CellBatch | None],
        topic: str,
        events: SimpleQueue[Any],
        out: dict[int, SentBatch],
    ) -> Iterator[Event]:
        clock, looked, told = stopwatch(), -LOOK_S, False
        there: set[str] = set()
        ready: CellBatch | None = None
        while True:
            if clock() - looked >= LOOK_S:
                looked, before, there = clock(), there, set(self._client.nthreads())
                self._replace_lost()
                if not there and not told and clock() > TELL_S:
                    told = True
                    warn("there is no worker yet; the sweep waits for the first")
                # one that was there a look ago is let go at the next: what it sent may be on its way
                for number in [n for n, sent in out.items() if sent.worker not in before | there]:
                    out.pop(number).future.cancel(force=True)
                    yield Gone(number, lost=True)
            while ready := ready or next_batch(max(1, len(there))):
                busy = Counter(sent.worker for sent in out.values())
                worker = min(sorted(there), key=lambda one: busy[one], default="")
                if not worker or busy[worker] >= AHEAD:
                    break
                out[ready.number] = SentBatch(self._submit(ready, topic, worker, events), worker)
                ready = None
            if not ready and not out:
                return
            try:
                item = events.get(timeout=1.0)
            except Empty:
                continue
            if isinstance(item, int):  # a future has ended; what it did has come as events
                if item in out:
                    _require_run(out[item].future)
                continue
            number, sent_together = pickle.loads(zlib.decompress(item))
            for event in sent_together:
                if not isinstance(event, Gone) or out.pop(number, None) is not None:
                    yield event

    def _submit(self, batch: CellBatch, topic: str, worker: str, events: SimpleQueue[Any]) -> Future:
        cells = [(cell.number, cell.config) for cell in batch.cells]
        payload = zlib.compress(pickle.dumps(cells), 1)
        key = f"{topic}-{batch.number}"
        # a batch whose worker dies waits for it, and is not run by another one from its first cell on
        future = self._client.submit(
            run_batch, payload, batch.number, topic, self._threads, pure=False, key=key, workers=[worker]
        )
        future.add_done_callback(lambda _: events.put(batch.number))
        return future


class SentBatch(NamedTuple):
    """A batch that is out, and the address of its worker."""

    future: Future
    worker: str


def _require_run(future: Future) -> None:
    """InputError if a worker could not run a batch, or its future was lost with the scheduler."""
    if future.status == "error":
        wrong = future.exception()
        raise InputError(f"a worker cannot run cells: {type(wrong).__name__}: {wrong}") from wrong
    if future.status != "finished":
        raise InputError(f"the cluster has lost what it was given ({future.status}); {GO_ON}")


@contextmanager
def dask_engine(cluster: Cluster) -> Iterator[DaskEngine]:
    """An engine with the workers of a cluster, which is ended unless it was there before.

    Raises:
        InputError: there is no cluster at the address, or dask-jobqueue is not installed.
    """
    threads = cluster.own_threads
    environment = {f"distributed.nanny.pre-spawn-environ.{name}": threads for name in THREADS}
    with dask.config.set({**SETTINGS, **environment}):
        if cluster.address:
            try:
                client = Client(cluster.address, timeout="20s", set_as_default=False)
            except (OSError, DaskTimeout, ValueError) as wrong:
                raise InputError(
                    f"no cluster answers at hydra.launcher.address={cluster.address}: {wrong}"
                ) from wrong
            with client:
                yield DaskEngine(client, threads)
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
                yield DaskEngine(client, threads)
            return
        with _queued(cluster, threads) as jobs, Client(jobs, set_as_default=False) as client:
            yield DaskEngine(client, threads, lambda: jobs.scale(cluster.workers or 1))


def _queued(cluster: Cluster, threads: int) -> Any:
    """A cluster of jobs with a worker each, of which none has been asked for."""
    jobqueue = import_required("dask_jobqueue", "`pip install 'repro[dask]'` brings hydra.launcher.queue")
    job = {"cores": 1, "memory": "8GB", **(cluster.job or {})}
    first = [f"export {name}={threads}" for name in THREADS]
    job["job_script_prologue"] = [*first, *job.get("job_script_prologue", ())]
    return getattr(jobqueue, QUEUES[str(cluster.queue)])(**job)


def run_batch(payload: bytes, batch: int, topic: str, threads: int) -> None:
    """Compute the cells of a batch on a worker; each outcome is sent when its cell ends.

    Args:
        payload: numbers and configurations of the cells, pickled and compressed.
        batch: its number.
        topic: the events' topic.
        threads: how many torch uses.
    """
    import torch

    torch.set_num_threads(threads)
    load_components()

    def send(*events: Event) -> None:
        get_worker().log_event(topic, zlib.compress(pickle.dumps((batch, events)), 1))

    cells = pickle.loads(zlib.decompress(payload))
    then: list[Event] = [*(Began(number) for number, _ in cells), Gone(batch)]
    send(then[0])
    for (number, config), following in zip(cells, then[1:], strict=True):
        try:
            outcome: Computed | str = computed(made(config), config, partial(_showing, send, number))
        except Exception as wrong:  # it cannot be made here, as without a dataset
            outcome = f"{type(wrong).__name__}: {wrong}"
        send(Ended(number, outcome), following)


@contextmanager
def _showing(send: Callable[[Event], None], number: int, work: CellWork) -> Iterator[Progress]:
    """A progress callback that sends what a cell does, not too often."""
    clock, last = stopwatch(), 0.0

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= EVERY_S:
            last = clock()
            send(Doing(number, stage, done, total))

    yield tell
