"""llama.cpp itself on this machine, compared with its engine profile on the Xiaomi 14.

python -m workshop.benchmarks.llama                                      SmolLM2-135M, 4 bits, 1 and 2 threads
python -m workshop.benchmarks.llama --checkpoint qwen2_5_coder_0_5b_instruct --threads 2
python -m workshop.benchmarks.llama --lengths 64 600 1500 --rounds 2

Needs the extra `llama`. Only the profile's shape must agree, not its speed: whether prefill time grows with
the number of tokens, how much of the rate at 800 tokens is left at 1500, whether decoding is limited by
memory bandwidth, and the share of prefill in a request. Each round runs every length once; times are
llama.cpp's own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.device_file import machine
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import CPU
from repro.reports.reference.reference import find, load_cells
from workshop.validation.this_machine.gguf_files import packaged

ENGINE = "llama_cpp_cpu"
LENGTHS = (64, 256, 600, 800, 1024, 1500)
WORKLOADS = ("mllm_2wiki", "mllm_triviaqa", "mllm_clock", "mllm_applauncher")
ANSWER = 64
PASS = 512
"""Prefill tokens per batch, llama.cpp's default."""


class LlamaCpp:
    """A GGUF file opened by llama.cpp, on the CPU only."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        """Open a file.

        Raises:
            InputError: the package is not installed, or the file does not exist.
        """
        if find_spec("xllamacpp") is None:
            raise InputError("llama.cpp is not installed; pip install -e '.[llama]'")
        if not path.is_file():
            raise InputError(f"{path} is no GGUF file")
        import xllamacpp

        asked = xllamacpp.CommonParams()
        asked.model.path = str(path)
        asked.n_ctx, asked.n_batch, asked.n_ubatch = context, context, PASS
        asked.n_parallel, asked.n_gpu_layers, asked.verbosity = 1, 0, -1
        asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = threads
        asked.cache_ram_mib = 0
        self.threads = threads
        self.built: str = xllamacpp.get_system_info()
        self._server = xllamacpp.Server(asked)

    def prefill(self, tokens: int) -> float:
        """Seconds of a prefill of `tokens` tokens, none of them cached."""
        return float(self._timings(tokens, 1)["prompt_ms"]) / 1e3

    def decode(self, tokens: int, after: int = 64) -> float:
        """Seconds per token, over an answer of `after` tokens after its first."""
        return float(self._timings(after, tokens + 1)["predicted_per_token_ms"]) / 1e3

    def _timings(self, prompt: int, answer: int) -> dict[str, Any]:
        asked = {
            "prompt": [100 + 7 * i % 4000 for i in range(prompt)],
            "n_predict": answer,
            "cache_prompt": False,
            "temperature": 0,
            "ignore_eos": True,
        }
        timings: dict[str, Any] = self._server.handle_completions(asked)["timings"]
        got = (timings["cache_n"], timings["prompt_n"], timings["predicted_n"])
        if got != (0, prompt, answer):
            raise InputError(
                f"llama.cpp timed {got} remembered, read and answered tokens, not {prompt}, {answer}"
            )
        return timings


@dataclass(frozen=True)
class Measured:
    """Timings for one number of threads.

    Attributes:
        threads: of llama.cpp, and of the memory read.
        prefill: seconds of each round, by prompt tokens.
        decode: seconds per token of each round.
        bandwidth: best memory bandwidth in bytes per second.
    """

    threads: int
    prefill: dict[int, list[float]]
    decode: list[float]
    bandwidth: float

    def rate(self, tokens: int) -> float:
        """Prompt tokens per second in the median round."""
        return tokens / median(self.prefill[tokens])

    def share(self, prompt: int, answer: int) -> float:
        """Share of prefill in a request."""
        first = prompt / self.rate(prompt)
        return first / (first + (answer - 1) * median(self.decode))


def measure(path: Path, threads: int, lengths: Sequence[int], rounds: int) -> Measured:
    """Time all lengths and an answer in turns, after a warm-up of each."""
    opened = LlamaCpp(path, threads, max(lengths) + ANSWER + 2)
    prefill: dict[int, list[float]] = {tokens: [] for tokens in lengths}
    decode = []
    best = 0.0
    for round_ in range(rounds + 1):
        best = max(best, bandwidth(threads))
        for tokens in lengths:
            prefill[tokens].append(opened.prefill(tokens))
        decode.append(opened.decode(ANSWER if round_ else 8))
    return Measured(threads, {tokens: taken[1:] for tokens, taken in prefill.items()}, decode[1:], best)


def bandwidth(threads: int) -> float:
    """Bytes per second of reading a quarter of a GiB, best of several reads."""
    torch.set_num_threads(threads)
    block = torch.ones(64 * 2**20)
    taken = []
    for _ in range(4):
        start = time.perf_counter()
        block.sum()
        taken.append(time.perf_counter() - start)
    return block.nbytes / min(taken)


# Output.


def report(found: Measured, path: Path) -> None:
    """Speeds, then the shape compared with the profile's."""
    print(f"\n{path.name}, {found.threads} thread{'s' * (found.threads > 1)}; machine not known to be quiet")
    for tokens, taken in found.prefill.items():
        print(f"  prefill {tokens:5d} tokens {_spread([tokens / t for t in taken])} tokens/s")
    print(f"  decode  {ANSWER:5d} tokens {_spread([1 / t for t in found.decode])} tokens/s")
    for what, ours, profile in shape(found, path.stat().st_size):
        print(f"  {what:58s} here {ours:>14s}   profile {profile}")


def shape(found: Measured, size: int) -> list[tuple[str, str, str]]:
    """Assumptions of llama.cpp's profile: their description, the value here, and on the Xiaomi 14."""
    left = machine(device_with_engine("xiaomi_14"), ENGINE).processors[CPU].efficiency
    lengths = sorted(found.prefill)
    out = []
    for few in (600, 800):
        if {few, 1500} <= set(lengths):
            ours, profile = found.rate(1500) / found.rate(few), left.at(1500) / left.at(few)
            out.append((f"rate at 1500 tokens over that at {few}", f"{ours:.3f}", f"{profile:.3f}"))
    first, last = lengths[0], lengths[-1]
    ours, profile = found.rate(first) / found.rate(last), left.at(first) / left.at(last)
    out.append((f"seconds a token at {last} tokens over those at {first}", f"{ours:.3f}", f"{profile:.3f}"))
    taken = size / median(found.decode) / found.bandwidth
    out.append(
        ("decode: bytes of the file over what memory gives", f"{taken:.0%}", "100% (bound by bandwidth)")
    )
    if shares := [found.share(*request) for request in requests() if request[0] in found.prefill]:
        printed = find(load_cells(), "mllm_npu.fig1b.prefill_share")
        ours_range = f"{min(shares):.1%} - {max(shares):.1%}"
        out.append(
            (
                "share of prefill, the lengths of Table 4",
                ours_range,
                f"{printed.value_low}% - {printed.value_high}%",
            )
        )
    return out


def requests() -> list[tuple[int, int]]:
    """Prompt and answer tokens of Table 4's datasets; the answer lengths are fitted."""
    files = [conf_dir() / "setup" / f"{name}.yaml" for name in WORKLOADS]
    found = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return [(int(one["prompt_tokens"]), int(one["max_tokens"])) for one in found]


def _spread(rates: Sequence[float]) -> str:
    return f"{median(rates):8.1f} ({min(rates):.1f} - {max(rates):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoint", default="smollm2_135m_instruct", help="a file of conf/model/checkpoint"
    )
    parser.add_argument("--gguf", type=Path, help="a GGUF file in its place")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the seconds as JSON")
    args = parser.parse_args()
    try:
        path = args.gguf or packaged(args.checkpoint)
        found = [measure(path, threads, args.lengths, args.rounds) for threads in args.threads]
    except InputError as wrong:
        sys.exit(f"error: {wrong}")
    for one in found:
        report(one, path)
    if args.out:
        args.out.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
