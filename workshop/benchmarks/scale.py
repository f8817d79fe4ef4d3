"""What a sweep of many small cells costs its driver: CPU, memory, files, first record, and the whole time.

python -m workshop.benchmarks.scale                   # 100 and 500 cells, alone and with one and two workers
python -m workshop.benchmarks.scale --cells 10000 --workers 2 --kill-every 60
python -m workshop.benchmarks.scale --cells 300 --workers 1 2 --prompts 40      # cells of two seconds

Cells are costs alone (no weights are computed), some 30 to 70 ms of work for each prompt, so that what is
measured is what lies around a cell. `--kill-every` kills a worker that often. Each run has a fresh folder and
cache; its figures go to stdout as a line of CSV.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from repro.core.overrides import override

CELL = (
    *("device=xiaomi_14", "engine=mllm_npu", "method=mllm_npu", "model@target=qwen1_5_1_8b_int8"),
    *("target.checkpoint=null", "dataset=longbench_2wikimqa", "prompt_tokens=400", "max_tokens=1"),
    "wandb.mode=disabled",
)
LOOK_S = 0.2


@dataclass
class Run:
    """The figures of a run.

    Attributes:
        cells: number of cells.
        workers: 0 if the driver runs them itself.
        wall_s: from the command's start to its end.
        driver_cpu_s: CPU seconds of the driver's process alone.
        all_cpu_s: of the driver and its workers.
        driver_mb: the driver's peak memory.
        first_record_s: from the command's start to the first stored record.
        killed: workers that were killed.
        records: finished records at the end.
        files: files below the results and outputs.
        exit_code: of the command.
    """

    cells: int
    workers: int
    wall_s: float = 0.0
    driver_cpu_s: float = 0.0
    all_cpu_s: float = 0.0
    driver_mb: float = 0.0
    first_record_s: float = 0.0
    killed: int = 0
    records: int = 0
    files: int = 0
    exit_code: int = 0


def measured(cells: int, workers: int, prompts: int, kill_every_s: float | None) -> Run:
    """Run a sweep of so many cells, each of so many prompts."""
    run = Run(cells, workers)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        own = [override(name, root / name) for name in ("results", "outputs")] + [f"prompts={prompts}"]
        own += ["hydra/launcher=dask", f"hydra.launcher.workers={workers}"] if workers else []
        axis = f"seed=range(0,{cells})"
        command = [sys.executable, "-m", "repro", "-m", *CELL, axis, "hydra.sweeper.max_cells=null", *own]
        environment = {**os.environ, "REPRO_CACHE": str(root / "cache")}
        began = time.monotonic()
        with (root / "log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        killed_at = began
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            now = time.monotonic()
            if pid:
                break
            look(process.pid, run)
            if not run.first_record_s and has_record(root / "results" / "records"):
                run.first_record_s = now - began
            if kill_every_s and now - killed_at > kill_every_s:
                killed_at = now
                run.killed += kill_a_worker(process.pid)
            time.sleep(LOOK_S)
        run.wall_s, run.exit_code = now - began, os.waitstatus_to_exitcode(status)
        run.all_cpu_s = usage.ru_utime + usage.ru_stime
        run.files = sum(len(files) for name in ("results", "outputs") for *_, files in os.walk(root / name))
        tables = (root / "results").rglob("members.jsonl")
        run.records = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tables)
        if run.exit_code:
            print((root / "log").read_text(encoding="utf-8")[-3000:], file=sys.stderr)
    return run


def has_record(folder: Path) -> bool:
    """Whether a cell's line stands in a file of a folder of records."""
    return any(b'{"cell": ' in path.read_bytes() for path in folder.glob("*.jsonl"))


def look(pid: int, run: Run) -> None:
    """Note the CPU and the peak memory of the driver's process until now."""
    with suppress(OSError):
        fields_after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        run.driver_cpu_s = sum(map(int, fields_after_name[11:13])) / os.sysconf("SC_CLK_TCK")
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                run.driver_mb = int(line.split()[1]) / 1e3


def kill_a_worker(driver: int) -> int:
    """Kill a process that computes cells, with SIGKILL. Returns how many were killed."""
    for pid in workers_of(driver):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            return 1
    return 0


def workers_of(driver: int) -> Iterator[int]:
    """The processes below the driver that spawn gave a task."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(
                path.read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            )
    for pid in parents:
        above = pid
        while above in parents and above != driver:
            above = parents[above]
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
            if above == driver and pid != driver and "spawn_main" in command:
                yield pid


def main() -> None:
    """Measure each number of cells with each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=1, help="of each cell")
    parser.add_argument("--kill-every", type=float, default=None, help="seconds between two killed workers")
    options = parser.parse_args()
    writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Run)], lineterminator="\n")
    writer.writeheader()
    for cells in options.cells:
        for workers in options.workers:
            run = asdict(measured(cells, workers, options.prompts, options.kill_every))
            writer.writerow({name: round(value, 1) for name, value in run.items()})
            sys.stdout.flush()


if __name__ == "__main__":
    main()
