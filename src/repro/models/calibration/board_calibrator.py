#!/usr/bin/env python3
"""Measure a board that cannot install repro: one file, for Python 3.9 and numpy, that writes one JSON file.

    python3 board_calibrator.py --out board.json
    python3 board_calibrator.py --minutes 2 --threads 4 --busy

Where torch is installed its kernels are timed, otherwise numpy's in float32. On a machine with repro,
`repro calibrate --from-json board.json --name "My board"` makes a device and an engine of the file, and
`repro calibrate --ssh user@board` runs this program on the board and does the same.

Owns the invented shapes, rows and contexts of all probes, and what a board is asked. Must not import repro,
nor know fits and files: `board_files` turns its JSON into them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import random
import sys
import tempfile
import warnings
from datetime import datetime, timezone
from itertools import product
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any, Callable

VERSION = 1
"""Of the JSON file's form."""

SHAPES = {
    "narrow": {"hidden": 256, "heads": 16, "head_dim": 64, "intermediate": 512, "vocab": 4096},
    "small": {"hidden": 512, "heads": 8, "head_dim": 64, "intermediate": 1536, "vocab": 16384},
    "middle": {"hidden": 1024, "heads": 16, "head_dim": 64, "intermediate": 3072, "vocab": 32768},
    "large": {"hidden": 1536, "heads": 12, "head_dim": 128, "intermediate": 4608, "vocab": 16384},
}
"""The invented shapes: 1, 3, 12 and 27 million weights a layer; the first one is mostly attention and
start. No model of this project has one of them."""
QUERIES_PER_KEY = 4
"""Query heads that share a key-value head."""
ROWS = (1, 2, 4, 5, 8, 16, 32, 64, 256)
"""Tokens of a timed pass."""
CONTEXTS = (64, 1024)
"""Cached tokens before it."""

ROUNDS = 5
"""Passes of each setting, if the time suffices."""
LEAST_LAYERS, MOST_LAYERS = 2, 32
LAYERS_BYTES = 96e6
"""Of a probe's layers together, more than caches hold; on a small board less, by `LAYERS_SHARE`."""
LAYERS_SHARE = 0.025
MEMORY_SHARE = 0.25
"""Of the memory, for all probes together."""
BUFFER_BYTES = 256 << 20
"""That are read and copied to measure memory, and read from flash."""
REQUESTS = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
"""Bytes of a read request."""
BUILDING_SHARE = 0.2
"""Of the time of some kernels, after which no larger shape is begun."""
READING_SHARE = 0.02
"""Of the time, for reading with each of them."""
WRITING_SHARE = 0.1
"""Of the time, for writing the file that is read."""
QUIET_SHARE = 0.01
"""Of the time, for each look at the load."""

MOST_APART, MOST_SPREAD, MOST_FOREIGN, MOST_STOLEN = 0.05, 0.25, 0.15, 0.05
"""Above which a machine is busy; `device.probing.quiet` says of what."""
LEAST_SHAPES = 2
"""That tell what a pass takes before it works from what its weights take."""
LEAST_PYTHON = 3, 9
THREAD_VARIABLES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"


def say(text: str) -> None:
    """Print progress to stderr; stdout is for the JSON."""
    print(text, file=sys.stderr, flush=True)


# --- kernels ------------------------------------------------------------------------------------------------


class NumpyKernels:
    """Matrix products by numpy's BLAS in float32."""

    dtype, weight_bytes = "float32", 4

    def __init__(self) -> None:
        """Import numpy."""
        import numpy as np

        self.np = np
        self.version = f"numpy {np.__version__}"
        self._generator = np.random.default_rng(0)

    def random(self, *sizes: int) -> Any:
        """Random numbers around 0."""
        return self._generator.random(sizes, dtype="float32") - 0.5

    def weight(self, outputs: int, inputs: int) -> Any:
        """A random matrix that `linear` takes."""
        return self.random(outputs, inputs) * inputs**-0.5

    def copy(self, weight: Any) -> Any:
        """The same matrix in memory of its own."""
        return weight.copy()

    def linear(self, x: Any, weight: Any) -> Any:
        """Rows times a matrix: [rows, inputs] to [rows, outputs]."""
        return x @ weight.T

    def normalize(self, x: Any) -> Any:
        """Rows of unit mean square."""
        return x / self.np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)

    def softmax(self, scores: Any) -> Any:
        """Along the last axis."""
        exponentials = self.np.exp(scores - scores.max(axis=-1, keepdims=True))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)

    def silu(self, x: Any) -> Any:
        """x times its sigmoid."""
        return x / (1.0 + self.np.exp(-x))


class TorchKernels:
    """Matrix products by torch, in float32, bfloat16 or with weights of 8 bits; attention is in float32."""

    def __init__(self, dtype: str, threads: int) -> None:
        """Import torch; `dtype` is float32, bfloat16 or int8."""
        import torch

        warnings.filterwarnings("ignore", message=".*are deprecated", category=UserWarning)
        torch.set_num_threads(threads)
        self.torch, self.dtype = torch, dtype
        self.version = f"torch {torch.__version__}"
        self.weight_bytes = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]

    def random(self, *sizes: int) -> Any:
        """Random numbers around 0."""
        return self.torch.rand(*sizes) - 0.5

    def weight(self, outputs: int, inputs: int) -> Any:
        """A random matrix that `linear` takes."""
        weight = self.random(outputs, inputs) * inputs**-0.5
        if self.dtype != "int8":
            return weight.to(getattr(self.torch, self.dtype))
        scale = float(weight.abs().max()) / 127
        return self._packed(self.torch.quantize_per_tensor(weight, scale, 0, self.torch.qint8))

    def copy(self, weight: Any) -> Any:
        """The same matrix in memory of its own."""
        if self.dtype != "int8":
            return weight.clone()
        return self._packed(self.torch.ops.quantized.linear_unpack(weight)[0].clone())

    def linear(self, x: Any, weight: Any) -> Any:
        """Rows times a matrix: [rows, inputs] to [rows, outputs]."""
        if self.dtype == "int8":
            return self.torch.ops.quantized.linear_dynamic(x, weight)
        return self.torch.nn.functional.linear(x.to(weight.dtype), weight).float()

    def normalize(self, x: Any) -> Any:
        """Rows of unit mean square."""
        return x * self.torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def softmax(self, scores: Any) -> Any:
        """Along the last axis."""
        return self.torch.softmax(scores, -1)

    def silu(self, x: Any) -> Any:
        """x times its sigmoid."""
        return self.torch.nn.functional.silu(x)

    def _packed(self, weight: Any) -> Any:
        return self.torch.ops.quantized.linear_prepack(weight, None)


def kernels_here(threads: int, with_torch: bool = True) -> list[Any]:
    """Torch's kernels if torch is installed, those of 8 bits if they work here; otherwise numpy's."""
    if with_torch:
        try:
            kernels: list[Any] = [TorchKernels(dtype, threads) for dtype in ("float32", "bfloat16", "int8")]
        except ImportError:
            say("torch is not installed: numpy's products are timed, in float32 alone")
            return [NumpyKernels()]
        try:
            kernels[-1].linear(kernels[-1].random(1, 32), kernels[-1].weight(32, 32))
        except (AttributeError, NotImplementedError, RuntimeError) as wrong:
            say(f"torch has no products with 8-bit weights here ({str(wrong).splitlines()[0]})")
            return kernels[:-1]
        return kernels
    return [NumpyKernels()]


# --- passes -------------------------------------------------------------------------------------------------


class DecoderProbe:
    """A decoder of an invented shape with random weights: its layers, output projection and cache."""

    def __init__(self, kernels: Any, name: str, layers: int) -> None:
        """Make its weights; each layer has memory of its own, so that no cache holds the next one."""
        sizes = SHAPES[name]
        self.kernels, self.name = kernels, name
        self.hidden, self.width, self.inner = sizes["hidden"], sizes["head_dim"], sizes["intermediate"]
        self.heads, self.pairs = sizes["heads"], sizes["heads"] // QUERIES_PER_KEY
        matrices = layer_matrices(sizes)
        first_layer = {part: kernels.weight(*matrices[part]) for part in matrices}
        copies = [{part: kernels.copy(first_layer[part]) for part in matrices} for _ in range(layers - 1)]
        self.layers = [first_layer, *copies]
        self.table = kernels.weight(sizes["vocab"], self.hidden)
        slots = max(CONTEXTS) + max(ROWS)
        self.caches = [kernels.random(2, self.pairs, slots, self.width) for _ in self.layers]
        self.x = kernels.random(max(ROWS), self.hidden)

    def time(self, rows: int, context: int) -> tuple[float, float]:
        """Seconds of a layer, the mean over all, and of the output projection, of one pass."""
        x, kernels, mask = self.x[:rows], self.kernels, self._mask(rows, context)
        start = perf_counter()
        for layer, cache in zip(self.layers, self.caches):
            x = x + self._attention(kernels.normalize(x), layer, cache, context, mask)
            gate_and_up = kernels.linear(kernels.normalize(x), layer["up"])
            gated = kernels.silu(gate_and_up[:, : self.inner]) * gate_and_up[:, self.inner :]
            x = x + kernels.linear(gated, layer["down"])
        computed = perf_counter()
        kernels.linear(kernels.normalize(x), self.table)
        return (computed - start) / len(self.layers), perf_counter() - computed

    def _attention(self, x: Any, layer: dict[str, Any], cache: Any, context: int, mask: Any) -> Any:
        rows, queries, end = x.shape[0], self.heads * self.width, context + x.shape[0]
        mixed = self.kernels.linear(x, layer["qkv"])
        keys_and_values = mixed[:, queries:].reshape(rows, 2, self.pairs, self.width)
        for place in (0, 1):
            cache[place, :, context:end] = keys_and_values[:, place].swapaxes(0, 1)
        grouped = mixed[:, :queries].reshape(rows, self.pairs, QUERIES_PER_KEY, self.width).swapaxes(0, 1)
        query = grouped.reshape(self.pairs, rows * QUERIES_PER_KEY, self.width)
        scores = query @ cache[0, :, :end].swapaxes(1, 2) * self.width**-0.5 + mask
        attended = (self.kernels.softmax(scores) @ cache[1, :, :end]).reshape(
            self.pairs, rows, QUERIES_PER_KEY, self.width
        )
        return self.kernels.linear(attended.swapaxes(0, 1).reshape(rows, queries), layer["out"])

    def _mask(self, rows: int, context: int) -> Any:
        """Minus a lot where a row would see a later one: [rows * queries of a key, context + rows]."""
        mask = self.kernels.random(rows * QUERIES_PER_KEY, context + rows) * 0.0
        for row in range(rows):
            mask[row * QUERIES_PER_KEY : (row + 1) * QUERIES_PER_KEY, context + row + 1 :] = -1e9
        return mask


def layer_matrices(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a layer's matrices."""
    hidden, inner = sizes["hidden"], sizes["intermediate"]
    queries = sizes["heads"] * sizes["head_dim"]
    return {
        "qkv": (queries + 2 * queries // QUERIES_PER_KEY, hidden),
        "out": (hidden, queries),
        "up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def probe_layers(kernels: Any, memory_bytes: float) -> dict[str, int]:
    """Layers of each shape's probe, from the smallest on, as long as the memory has room for them."""
    layers_by_shape, used_bytes = {}, 0.0
    for name, sizes in SHAPES.items():
        layer_weights = sum(outputs * inputs for outputs, inputs in layer_matrices(sizes).values())
        layer_bytes = layer_weights * kernels.weight_bytes
        layers = round(min(LAYERS_BYTES, LAYERS_SHARE * memory_bytes) / layer_bytes)
        layers = min(MOST_LAYERS, max(LEAST_LAYERS, layers))
        slots, kv_width = max(CONTEXTS) + max(ROWS), sizes["heads"] * sizes["head_dim"] // QUERIES_PER_KEY
        table_bytes = sizes["vocab"] * sizes["hidden"] * kernels.weight_bytes
        used_bytes += layers * (layer_bytes + 8 * slots * kv_width) + table_bytes
        if used_bytes > MEMORY_SHARE * memory_bytes:
            break
        layers_by_shape[name] = layers
    return layers_by_shape


def time_passes(kernels: Any, seconds: float, memory_bytes: float) -> list[dict[str, Any]]:
    """Time passes of all probes for at most about `seconds`, the fast ones first, then in shuffled rounds."""
    begin = perf_counter()
    probes: list[DecoderProbe] = []
    for name, layers in probe_layers(kernels, memory_bytes).items():
        if len(probes) < LEAST_SHAPES or perf_counter() - begin < BUILDING_SHARE * seconds:
            probes.append(DecoderProbe(kernels, name, layers))
            probes[-1].time(4, min(CONTEXTS))  # memory is taken, kernels are chosen
    say(f"passes of {len(probes)} shapes, {kernels.version}, {kernels.dtype}")
    settings = sorted(product(probes, ROWS, CONTEXTS), key=lambda s: (_operations(*s), s[0].name, s[1:]))
    last_seconds: dict[Any, float] = {}
    passes: list[dict[str, Any]] = []
    least_each = 0.0  # seconds an operation; the larger a pass, the fewer it takes
    for round_number in range(ROUNDS):
        count_before = len(passes)
        for setting in settings:
            probe, rows, context = setting
            expected = last_seconds.get(setting, least_each * _operations(*setting))
            if perf_counter() + expected - begin > seconds:
                continue
            start = perf_counter()
            layer_s, head_s = probe.time(rows, context)
            last_seconds[setting] = perf_counter() - start
            seconds_each = last_seconds[setting] / _operations(*setting)
            least_each = min(least_each or seconds_each, seconds_each)
            timed = {"dtype": kernels.dtype, "shape": probe.name, "rows": rows, "context": context}
            passes.append({**timed, "layer_s": layer_s, "head_s": head_s})
        count = len(passes) - count_before
        if not count:
            break
        say(f"  round {round_number + 1} of {ROUNDS}: {count} of {len(settings)} settings")
        random.Random(round_number).shuffle(settings)
    return passes


def _operations(probe: DecoderProbe, rows: int, context: int) -> float:
    """FLOPs of a pass, as far as its time is foreseen by them."""
    sizes = SHAPES[probe.name]
    layer_weights = sum(outputs * inputs for outputs, inputs in layer_matrices(sizes).values())
    attention = 2.0 * (rows + context) * sizes["heads"] * sizes["head_dim"]
    return 2.0 * rows * (len(probe.layers) * (layer_weights + attention) + sizes["vocab"] * sizes["hidden"])


# --- memory, flash and load ---------------------------------------------------------------------------------


def physical_memory() -> float:
    """Bytes of memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def memory_bandwidth(memory_bytes: float, threads: int) -> float:
    """Bytes per second of reading or copying, whichever is faster, by all threads together."""
    import numpy as np

    size = int(min(BUFFER_BYTES, memory_bytes / 16)) // 4
    source, target = np.ones(size, "float32"), np.zeros(size, "float32")
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads)))

    def rate(moved_bytes: float, work: Callable[[Any, Any], object]) -> float:
        durations = []
        for _ in range(8):
            workers = [Thread(target=work, args=part) for part in parts]
            start = perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            durations.append(perf_counter() - start)
        return moved_bytes / sorted(durations)[2]  # others only slow it down

    reading = rate(source.nbytes, lambda a, _: np.dot(a, a))
    copying = rate(2.0 * source.nbytes, lambda a, b: np.copyto(b, a))
    return max(reading, copying)


def flash_reads(folder: str | None, seconds: float) -> dict[str, Any]:
    """Bytes per second of reading in order, by request size, past the cache; else a note that says why not.

    Takes its shares of `seconds`.
    """
    if not hasattr(os, "O_DIRECT") or not hasattr(os, "preadv"):
        return {"points": [], "note": "reads past the cache are not possible on this system"}
    try:
        descriptor, path = tempfile.mkstemp(dir=folder, prefix="board_calibrator.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                block, begin = os.urandom(max(REQUESTS)), perf_counter()
                while file.tell() < BUFFER_BYTES and perf_counter() - begin < WRITING_SHARE * seconds:
                    file.write(block)
                    file.flush()
                    os.fsync(file.fileno())
            reader = os.open(path, os.O_RDONLY | os.O_DIRECT)
        finally:
            os.unlink(path)  # what is opened stays readable
        try:
            size = os.fstat(reader).st_size
            points = [[r, _read_rate(reader, size, r, READING_SHARE * seconds)] for r in REQUESTS]
        finally:
            os.close(reader)
    except OSError as wrong:
        return {"points": [], "note": f"reads past the cache are not possible: {wrong.strerror}"}
    return {"points": points, "note": "one thread, in order, past the cache"}


def _read_rate(reader: int, size: int, request: int, seconds: float) -> float:
    buffer = memoryview(mmap.mmap(-1, request))  # page-aligned, as O_DIRECT asks
    done_bytes, offset, begin = 0, 0, perf_counter()
    while perf_counter() - begin < seconds:
        done_bytes += os.preadv(reader, [buffer], offset)
        offset = (offset + request) % (size // request * request)
    return done_bytes / (perf_counter() - begin)


def self_test(seconds: float) -> dict[str, float]:
    """One product timed in two arms, in turns, and what others did meanwhile; as `device.probing.quiet`."""
    import numpy as np

    x, weight = np.ones((4, 2048), "float32"), np.ones((4096, 2048), "float32")
    x @ weight.T
    before, cpu_seconds, begin = _busy_seconds(), sum(os.times()[:4]), perf_counter()
    durations: list[float] = []
    while perf_counter() - begin < seconds or len(durations) < 20:
        start = perf_counter()
        x @ weight.T
        durations.append(perf_counter() - start)
    elapsed, after = perf_counter() - begin, _busy_seconds()
    cpu_seconds = sum(os.times()[:4]) - cpu_seconds
    middle = median(durations)
    return {
        "first": median(durations[::2]),
        "second": median(durations[1::2]),
        "spread": sorted(durations)[int(0.9 * len(durations))] / middle - 1.0,
        "foreign": max(0.0, (after[0] - before[0] - cpu_seconds) / elapsed),
        "stolen": (after[1] - before[1]) / elapsed / (os.cpu_count() or 1),
    }


def busy_sentence(load: dict[str, float]) -> str:
    """Why a machine is too busy to be measured; "" if it is not."""
    apart = abs(load["second"] / load["first"] - 1.0)
    arms = f"{load['first'] * 1e3:.2f} and {load['second'] * 1e3:.2f} ms"
    signs = {
        f"the same product took {arms}": apart > MOST_APART,
        f"its slowest tenth takes {load['spread']:.0%} more than the median": load["spread"] > MOST_SPREAD,
        f"other programs keep {load['foreign']:.1f} cores busy": load["foreign"] > MOST_FOREIGN,
        f"the host takes {load['stolen']:.0%} of the time": load["stolen"] > MOST_STOLEN,
    }
    return ", ".join(sign for sign, is_seen in signs.items() if is_seen)


def _busy_seconds() -> tuple[float, float]:
    """Seconds that cores were busy, and that the host of a virtual machine took; 0 if nothing says so."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [float(word) for word in file.readline().split()[1:]] + [0.0] * 8
    except OSError:
        return 0.0, 0.0
    user, nice, system, _, _, irq, softirq, steal = ticks[:8]
    return (user + nice + system + irq + softirq) / 100.0, steal / 100.0


def processor_name() -> str:
    """What the board or its processor is called, as the system says it."""
    name = ""
    for path, label in (("/proc/device-tree/model", ""), ("/proc/cpuinfo", "model name")):
        if not name and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                lines = [line.strip("\0\n ") for line in file if line.startswith(label)]
            name = lines[0].partition(":")[2].strip() if label and lines else "".join(lines[:1])
    return name or platform.processor() or platform.machine()


# --- the command --------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_board(
    minutes: float, threads: int, busy: bool, folder: str | None = None, with_torch: bool = True
) -> dict[str, Any]:
    """Measure everything in about `minutes`.

    Exits with one sentence: the machine is busy and `busy` is not said; time or memory do not suffice.
    """
    begin, seconds, memory_bytes = perf_counter(), 60.0 * minutes, physical_memory()
    kernels = kernels_here(threads, with_torch)
    before = self_test(QUIET_SHARE * seconds)
    if (sentence := busy_sentence(before)) and not busy:
        sys.exit(f"this machine is too busy to measure: {sentence}; stop them, or add --busy")
    bandwidth = memory_bandwidth(memory_bytes, threads)
    say(f"memory: {memory_bytes / 1e9:.1f} GB, {bandwidth / 1e9:.1f} GB/s with {threads} threads")
    flash = flash_reads(folder, seconds)
    say(f"flash: {flash['points'][-1][1] / 1e9:.2f} GB/s" if flash["points"] else f"flash: {flash['note']}")
    passes: list[dict[str, Any]] = []
    for number, arithmetic in enumerate(kernels):
        left = begin + seconds - perf_counter()
        timed = time_passes(arithmetic, left / (len(kernels) - number), memory_bytes)
        if len({entry["shape"] for entry in timed}) >= LEAST_SHAPES:
            passes += timed
        else:
            say(f"{arithmetic.dtype}: too slow for {minutes:g} minutes; left out")
    if not passes:
        sys.exit(
            f"fewer than {LEAST_SHAPES} shapes could be timed in {minutes:g} minutes and "
            f"{memory_bytes / 1e9:.1f} GB of memory; give more --minutes"
        )
    return {
        "version": VERSION,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "processor": processor_name(),
        "library": kernels[0].version,
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "memory_bytes": memory_bytes,
        "memory_bandwidth": bandwidth,
        "flash": flash,
        "before": before,
        "after": self_test(QUIET_SHARE * seconds),
        "shapes": SHAPES,
        "passes": passes,
    }


def main(words: list[str] | None = None) -> None:
    """Measure this board by the command's options and write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", default="board.json", help="the JSON file; - for standard output")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it may take (5)")
    parser.add_argument("--threads", type=int, default=0, help="of the products; all cores by default")
    parser.add_argument("--busy", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--scratch", help="folder on the disk to measure")
    parser.add_argument("--numpy", action="store_true", help="time numpy's products even if torch is there")
    options = parser.parse_args(words)
    if sys.version_info < LEAST_PYTHON:
        sys.exit(f"this is Python {platform.python_version()}; 3.9 or newer is needed")
    if not 0.05 <= options.minutes <= 600:
        sys.exit(f"--minutes is {options.minutes:g}; it must be from 0.05 to 600")
    if not 0 <= options.threads <= 1024:
        sys.exit(f"--threads is {options.threads}; it must be from 1 to 1024, or 0 for all cores")
    threads = options.threads or usable_cores()
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    try:
        import numpy as _  # noqa: F401 - reads these variables
    except ImportError:
        sys.exit("numpy is not installed; install it with pip install numpy, or your system's packages")
    board = measure_board(options.minutes, threads, options.busy, options.scratch, not options.numpy)
    text = json.dumps(board) + "\n"
    if options.out == "-":
        sys.stdout.write(text)
        return
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(text)
    say(f"written to {options.out}; on a machine with repro: repro calibrate --from-json {options.out}")


if __name__ == "__main__":
    main()
