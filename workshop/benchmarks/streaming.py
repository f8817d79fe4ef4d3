"""Layers streamed from disk compared with layers in memory: overlap of reading and computing, and overhead.

python -m workshop.benchmarks.streaming                         SmolLM2-135M, fp32
python -m workshop.benchmarks.streaming --checkpoint qwen2_5_coder_0_5b_instruct --dtype bfloat16
python -m workshop.benchmarks.streaming --pace 0                as fast as the disk can
python -m workshop.benchmarks.streaming --limit 700             under a hard limit of 700 MB (cgroup v1, root)

For each number of tokens per pass a round times reading alone, computing alone and both, in turn. `overlap`
is the share of the ideal, the longer of the first two, that streaming reaches. `raised` is the slowdown of
the layers' computation while the disk writes to the same memory. Passes have 128 cached tokens before them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

import pandas as pd
import torch

from repro.core.errors import InputError
from repro.device.local import LocalDevice, local_machine
from repro.device.op import CPU, FLASH, Op
from repro.device.probing.measure import launch_seconds
from repro.models.calibration.passes import PassTime, PassTimer, cost_of
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.transformer import weights
from repro.records.provenance import peak_resident_bytes
from workshop.benchmarks.alternating import checkpoint_folder, command_line, take_turns

CGROUPS = Path("/sys/fs/cgroup/memory")
CONTEXT = 128
"""Cached tokens before a pass."""


class Bench:
    """A decoder, its layers on disk, and the device that runs both."""

    def __init__(self, folder: Path, dtype: str, pace: float, only: Literal["", "both", "compute"]) -> None:
        """Open what is needed of it; reads are held to `pace` GB/s, 0 for none."""
        budget = {"budget": {"value": 4, "unit": "GB", "source": "assumed"}}
        held = {"value": pace, "unit": "GB/s", "source": "assumed"} if pace else None
        self.device = LocalDevice(local_machine({"dram": budget, "pace": held}))
        self.file = layer_file(folder, dtype)
        self.reader = LayerReader(self.file, slot_count=2)
        self.bytes = self.file.layers * self.file.layer_bytes
        decoder = weights.load(folder, dtype, is_packed=False, is_resident=only != "both")
        timer = partial(PassTimer, self.device, cost_of(decoder.config, dtype), (CONTEXT,), decoder)
        if only != "both":
            self.resident = timer()
        if only != "compute":
            self.streamed = timer(self.reader, is_streamed=True)

    def read_alone(self) -> float:
        """Seconds of reading all layers once."""

        async def read() -> None:
            for layer in range(self.file.layers):
                fetch = partial(self.reader.fetch, layer)
                size = self.file.layer_bytes
                await self.device.run(Op(FLASH, "load", f"load {layer}", bytes=size, compute=fetch))
                self.reader.release(layer)

        start = self.device.now
        self.device.play(read())
        return self.device.now - start

    def close(self) -> None:
        """Release file, memory and threads."""
        self.reader.close()
        self.device.close()


def pass_times(timer: PassTimer, rows: int, passes: int) -> list[PassTime]:
    """Times of passes whose last row's logits are asked for."""
    with torch.inference_mode():
        return [timer.time(rows, CONTEXT, last_only=True) for _ in range(passes)]


def compare(bench: Bench, rows: int, passes: int, rounds: int) -> str:
    """One line: medians over rounds in which the three arms take turns."""
    computing: dict[str, list[float]] = {"compute": [], "both": []}
    rests = []

    def run(arm: str, timer: PassTimer) -> float:
        times = pass_times(timer, rows, passes)
        computing[arm].append(fmean(time.layers for time in times))
        if arm == "compute":
            rests.append(fmean(time.rest / time.seconds for time in times))
        return fmean(time.seconds for time in times)

    arms = {
        "read": lambda: fmean(bench.read_alone() for _ in range(passes)),
        "compute": lambda: run("compute", bench.resident),
        "both": lambda: run("both", bench.streamed),
    }
    seconds = take_turns(arms, rounds)
    ideal = (seconds[["read", "compute"]].max(axis=1) / seconds["both"]).median()
    raised = (pd.Series(computing["both"]) / pd.Series(computing["compute"]))[1:].median()
    figures = "".join(f"{1e3 * seconds[arm].median():10.1f}" for arm in arms)
    speed = bench.bytes / seconds["both"].median() / 1e9
    return f"{rows:6}{figures}{ideal:9.1%}{speed:8.2f}{raised:8.2f}x{pd.Series(rests)[1:].median():8.1%}"


HEAD = "  rows  read ms compute ms  both ms  overlap    GB/s  raised  python"


def run(folder: Path, chosen: argparse.Namespace) -> None:
    with closing(Bench(folder, chosen.dtype, chosen.pace, "")) as bench:
        print(
            f"{folder.name} {chosen.dtype}: {bench.file.layers} layers, {bench.bytes / 1e6:.0f} MB, "
            f"I/O {bench.reader.way}, flash {bench.device.flash_pacing}, {torch.get_num_threads()} threads"
        )
        print(HEAD)
        for rows in chosen.rows:
            print(compare(bench, rows, chosen.passes, chosen.rounds), flush=True)
        for on in (CPU, FLASH):
            print(f"dispatch of an empty op on {on}: {launch_seconds(bench.device, on) * 1e6:.1f} us")


def run_limited(folder: Path, chosen: argparse.Namespace) -> None:
    """Passes within this process's memory limit, streamed or resident."""
    with closing(Bench(folder, chosen.dtype, chosen.pace, chosen.only)) as bench:
        timer = bench.resident if chosen.only == "compute" else bench.streamed
        seconds = fmean(time.seconds for time in pass_times(timer, 1, chosen.passes))
        print(f"{seconds * 1e3:.1f} ms a pass, peak resident set {peak_resident_bytes() / 1e6:.0f} MB")


@contextmanager
def memory_limit(size: int) -> Iterator[Path]:
    """Create a memory cgroup (v1) for a child process; removed after the block."""
    group = CGROUPS / f"repro-streaming-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as refused:
        raise InputError(f"--limit needs cgroup v1 memory and root: {refused}") from refused
    try:
        (group / "memory.limit_in_bytes").write_text(str(size), encoding="utf-8")
        yield group
    finally:
        group.rmdir()


def under_limit(chosen: argparse.Namespace, given: Sequence[str]) -> None:
    """Run the same model streamed and resident, each in a child with that memory limit."""
    for only in ("both", "compute"):
        with memory_limit(chosen.limit * 10**6) as group:
            command = [sys.executable, __file__, *given, "--only", only]
            join = partial((group / "cgroup.procs").write_text, "0")
            done = subprocess.run(
                command, preexec_fn=join, capture_output=True, text=True, check=False, encoding="utf-8"
            )
        said = done.stdout.strip() or f"ended with {done.returncode} (-9: killed for its memory)"
        print(f"{'streamed' if only == 'both' else 'resident'} under {chosen.limit} MB: {said}", flush=True)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__, rounds=5, threads=torch.get_num_threads())
    parser.add_argument("--dtype", default="float32", choices=weights.DTYPES)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 128], help="rows of a pass")
    parser.add_argument("--passes", type=int, default=4, help="passes of one arm")
    parser.add_argument("--pace", type=float, default=1.0, help="GB/s that reads are held to; 0 for raw")
    parser.add_argument("--limit", type=int, help="MB that a child may hold")
    parser.add_argument("--only", choices=("both", "compute"), help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: Sequence[str]) -> None:
    chosen = arguments(given)
    torch.set_num_threads(chosen.threads)
    try:
        folder = checkpoint_folder(chosen.checkpoint)
        if chosen.only:
            run_limited(folder, chosen)
        elif chosen.limit:
            layer_file(folder, chosen.dtype)
            under_limit(chosen, given)
        else:
            run(folder, chosen)
    except InputError as wrong:
        sys.exit(f"streaming: {wrong}")


if __name__ == "__main__":
    main(sys.argv[1:])
