"""Layers streamed from disk compared with layers in memory: overlap of reading and computing, and overhead.

python -m workshop.benchmarks.streaming                         SmolLM2-135M, fp32
python -m workshop.benchmarks.streaming --checkpoint qwen2_5_coder_0_5b_instruct --dtype bfloat16
python -m workshop.benchmarks.streaming --pace 0                as fast as the disk can
python -m workshop.benchmarks.streaming --limit 700             under a hard limit of 700 MB (cgroup v1, root)

For each number of tokens per pass a round times reading alone, computing alone and both, in turn. `overlap`
is the share of the ideal, the longer of the first two, that streaming reaches. `raised` is the slowdown of
the layers' computation while the disk writes to the same memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import torch

from repro.core.errors import InputError
from repro.device.clock import Future
from repro.device.local import LocalDevice, local_machine
from repro.device.op import CPU, FLASH, Op
from repro.device.probing.measure import launch_seconds
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.layer import LayerWeights
from repro.records.provenance import peak_resident_bytes
from workshop.benchmarks.alternating import checkpoint_folder, command_line

CGROUPS = Path("/sys/fs/cgroup/memory")
GIGA = 1e9


@dataclass(frozen=True)
class Arm:
    """One way to run passes: seconds per pass, and the busy seconds of each resource."""

    seconds: float
    computing: float
    reading: float


class Bench:
    """A decoder, its layers on disk, and the device that runs both."""

    def __init__(self, folder: Path, dtype: str, pace: float, resident: bool = True) -> None:
        budget = {"budget": {"value": 4, "unit": "GB", "source": "assumed"}}
        held = {"value": pace, "unit": "GB/s", "source": "assumed"} if pace else None
        self.device = LocalDevice(local_machine({"dram": budget, "pace": held}))
        self.file = layer_file(folder, dtype)
        self.reader = LayerReader(self.file, slots=2, memory=self.device.memory)
        self.decoder = weights.load(folder, dtype, packed=False, resident=resident)

    def read_alone(self, passes: int, rows: int) -> Arm:
        """Passes that read layers and compute nothing."""

        async def run() -> None:
            async for _ in self._streamed(passes):
                pass

        return self._timed(run(), passes)

    def compute_alone(self, passes: int, rows: int) -> Arm:
        """Passes over layers in memory."""

        async def run() -> None:
            layers = zip(range(passes * self.file.layers), cycle(self.decoder.layers), strict=False)
            await self._computed(_each(w for _, w in layers), passes, rows)

        return self._timed(run(), passes)

    def both(self, passes: int, rows: int) -> Arm:
        """Passes over layers streamed from disk."""
        return self._timed(self._computed(self._streamed(passes), passes, rows), passes)

    def _timed(self, work: Coroutine[Any, Any, None], passes: int) -> Arm:
        self.device.trace.spans.clear()
        start = self.device.now
        with torch.inference_mode():
            self.device.play(work)
        end, trace = self.device.now, self.device.trace
        busy = [trace.busy(on, start, end) / passes for on in (CPU, FLASH)]
        return Arm((end - start) / passes, *busy)

    async def _streamed(self, passes: int) -> AsyncIterator[LayerWeights]:
        """The layers of some passes, each read while the previous one computes.

        A layer's memory is freed when the next layer is requested.
        """
        order = [i for _ in range(passes) for i in range(self.file.layers)]
        coming = self._load(order[0])
        for layer, following in zip_longest(order, order[1:]):
            weights = await coming
            if following is not None:
                coming = self._load(following)
            yield weights
            self.reader.release(layer)

    def _load(self, layer: int) -> Future[LayerWeights]:
        fetch = partial(self.reader.fetch, layer)
        return self.device.run(Op(FLASH, "load", f"load {layer}", bytes=self.file.layer_bytes, compute=fetch))

    async def _computed(self, layers: AsyncIterator[LayerWeights], passes: int, rows: int) -> None:
        """Passes of `rows` tokens each over layers as they arrive."""
        cache = KVCache(self.decoder.config, passes * rows)
        for number in range(passes):
            positions = torch.arange(number * rows, (number + 1) * rows)
            x = self.decoder.embed(positions % self.decoder.config.vocab, positions)
            for i in range(self.file.layers):
                work = partial(self.decoder.layer, i, x, positions, None, cache, await anext(layers))
                x = await self.device.run(Op(CPU, "layer", f"layer {i}", rows=rows, compute=work))
            await self.device.run(Op(CPU, "head", "head", compute=partial(self.decoder.head, x[-1:])))
        await anext(layers, None)

    def close(self) -> None:
        """Release file, memory and threads."""
        self.reader.close()
        self.device.close()


async def _each(layers: Iterable[LayerWeights | None]) -> AsyncIterator[Any]:
    for layer in layers:
        yield layer


def compare(bench: Bench, rows: int, passes: int, rounds: int) -> str:
    """One line: medians over rounds in which the three arms take turns."""
    arms: list[tuple[Arm, Arm, Arm]] = []
    for number in range(rounds + 1):
        each = bench.read_alone(passes, rows), bench.compute_alone(passes, rows), bench.both(passes, rows)
        if number:  # the first round warms up
            arms.append(each)
    read, alone, both = (list(arm) for arm in zip(*arms, strict=True))
    ideal = median(max(r.seconds, c.seconds) / b.seconds for r, c, b in arms)
    speed = bench.file.layers * bench.file.layer_bytes / median(b.seconds for b in both) / GIGA
    raised = median(b.computing / c.computing for _, c, b in arms)
    python = median(1 - c.computing / c.seconds for c in alone)
    milliseconds = [1e3 * median(a.seconds for a in arm) for arm in (read, alone, both)]
    figures = "".join(f"{m:10.1f}" for m in milliseconds)
    return f"{rows:6}{figures}{ideal:9.1%}{speed:8.2f}{raised:8.2f}x{python:8.1%}"


HEAD = "  rows  read ms compute ms  both ms  overlap    GB/s  raised  python"


def run(folder: Path, chosen: argparse.Namespace) -> None:
    bench = Bench(folder, chosen.dtype, chosen.pace)
    size = bench.file.layers * bench.file.layer_bytes
    print(
        f"{folder.name} {chosen.dtype}: {bench.file.layers} layers, {size / 1e6:.0f} MB, "
        f"I/O {bench.reader.way}, flash {bench.device.flash_pacing}, {torch.get_num_threads()} threads"
    )
    print(HEAD)
    for rows in chosen.rows:
        print(compare(bench, rows, chosen.passes, chosen.rounds), flush=True)
    for on in (CPU, FLASH):
        print(f"dispatch of an empty op on {on}: {launch_seconds(bench.device, on) * 1e6:.1f} us")
    bench.close()


def run_limited(folder: Path, chosen: argparse.Namespace) -> None:
    """Passes within this process's memory limit, streamed or resident."""
    bench = Bench(folder, chosen.dtype, chosen.pace, resident=chosen.only == "compute")
    arm = (bench.compute_alone if chosen.only == "compute" else bench.both)(chosen.passes, 1)
    print(f"{arm.seconds * 1e3:.1f} ms a pass, peak resident set {peak_resident_bytes() / 1e6:.0f} MB")
    bench.close()


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
