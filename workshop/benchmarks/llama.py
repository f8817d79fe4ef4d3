"""llama.cpp itself on this machine, compared with its engine profile on the Xiaomi 14.

python -m workshop.benchmarks.llama                                      SmolLM2-135M, 4 bits, one thread
python -m workshop.benchmarks.llama --checkpoint qwen2_5_coder_0_5b_instruct --threads 2
python -m workshop.benchmarks.llama --lengths 64 600 1500 --rounds 2

Needs the extra `llama`. Only the profile's shape must agree, not its speed: whether prefill time grows with
the number of tokens, how much of the rate at 800 tokens is left at 1500, whether decoding is limited by
memory bandwidth, and the share of prefill in a request. Times are llama.cpp's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.device_file import machine
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import CPU
from repro.reports.reference.reference import find, load_cells
from workshop.benchmarks.alternating import command_line, read_seconds, show, take_turns
from workshop.validation.this_machine.gguf_files import packaged
from workshop.validation.this_machine.llama_cpp import LlamaCppPasses

ENGINE = "llama_cpp_cpu"
LENGTHS = (64, 256, 600, 800, 1024, 1500)
WORKLOADS = ("mllm_2wiki", "mllm_triviaqa", "mllm_clock", "mllm_applauncher")
TOKEN = "a token after 64"


def measure(path: Path, threads: int, lengths: list[int], rounds: int) -> pd.DataFrame:
    """Seconds of a prefill of each length, and of a token, in turns."""
    passes = LlamaCppPasses(path, threads, max(lengths))
    arms = {f"prefill of {tokens}": partial(passes.seconds, tokens, 0) for tokens in lengths}
    return take_turns({**arms, TOKEN: partial(passes.seconds, 1, 64)}, rounds)


def shape(seconds: pd.DataFrame, lengths: list[int], floor: float) -> Iterator[tuple[str, str, str]]:
    """What llama.cpp's profile assumes: a description, the value here, and the profile's on the Xiaomi 14."""
    left = machine(device_with_engine("xiaomi_14"), ENGINE).processors[CPU].efficiency
    token = seconds[TOKEN].median()
    prefill = {tokens: seconds[f"prefill of {tokens}"].median() for tokens in lengths}
    rates = {tokens: tokens / prefill[tokens] for tokens in lengths}
    pairs = [(1500, few) for few in (600, 800) if {few, 1500} <= set(lengths)]
    for many, few in (*pairs, (max(lengths), min(lengths))):
        profile = left.at(many) / left.at(few)
        yield f"rate at {many} tokens over that at {few}", f"{rates[many] / rates[few]:.3f}", f"{profile:.3f}"
    yield "decoding: share of what memory gives", f"{floor / token:.0%}", "100% (bound by bandwidth)"
    shares = [
        prefill[prompt] / (prefill[prompt] + (answer - 1) * token)
        for prompt, answer in requests()
        if prompt in prefill
    ]
    if shares:
        printed = find(load_cells(), "mllm_npu.fig1b.prefill_share")
        yield (
            "share of prefill, the lengths of Table 4",
            f"{min(shares):.1%} - {max(shares):.1%}",
            f"{printed.value_low}% - {printed.value_high}%",
        )


def requests() -> list[tuple[int, int]]:
    """Prompt and answer tokens of Table 4's datasets; the answer lengths are fitted."""
    setups = [read_mapping(conf_dir() / "setup" / f"{name}.yaml") for name in WORKLOADS]
    return [(int(setup["prompt_tokens"]), int(setup["max_tokens"])) for setup in setups]


def main() -> None:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--gguf", type=Path, help="a GGUF file in place of the checkpoint's")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        path = args.gguf or packaged(args.checkpoint)
        seconds = measure(path, args.threads, args.lengths, args.rounds)
    except InputError as wrong:
        sys.exit(f"error: {wrong}")
    floor = read_seconds(path.stat().st_size)
    print(f"{path.name}, {args.threads} threads; machine not known to be quiet")
    show(seconds, {TOKEN: floor}, ())
    for what, ours, profile in shape(seconds, args.lengths, floor):
        print(f"  {what:58} here {ours:>14}   profile {profile}")


if __name__ == "__main__":
    main()
