"""Greedy decoding speed compared with another library: tokens per second, measured in turns.

python -m workshop.benchmarks.decode FOLDER                     # fp32 and bf16 beside transformers
python -m workshop.benchmarks.decode FOLDER --dtypes int4 --peer llama.cpp --gguf FILE [--peer-python PYTHON]
python -m workshop.benchmarks.decode FOLDER --rows              # milliseconds of one pass by number of tokens

FOLDER is a checkpoint folder of SmolLM2-135M-Instruct, or of any supported model. Each arm is a separate
process that sleeps while another one runs. Every arm stamps each token as it appears; throughput is the
number of tokens after the first over the time from the first to the last, so it excludes prefill and loading.
A second arm of ours, the null arm, shows how far a ratio of 1 varies here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

THREADS = 2
PROMPT = "def fibonacci(n):\n    '''Return the n-th Fibonacci number.'''\n"
TARGETS = {"transformers": 1.7, "llama.cpp": 2 / 3}
ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128)

# Tokens with their timestamps.
Generate = Callable[[int], list[tuple[int, float]]]


# Arms: each returns the bytes read per token and a function that generates `count` tokens.


def ours(args: argparse.Namespace) -> tuple[int, Generate]:
    """This project's decoder."""
    import torch

    from repro.models.transformer import weights
    from repro.models.transformer.cache import KVCache

    torch.set_num_threads(THREADS)
    decoder = weights.load(args.folder, args.dtype)
    prompt = torch.tensor(prompt_tokens(args.folder))

    @torch.inference_mode()
    def generate(count: int) -> list[tuple[int, float]]:
        cache = KVCache(decoder.config, len(prompt) + count)
        tokens, positions, stamped = prompt, torch.arange(len(prompt)), []
        for _ in range(count):
            tokens = decoder.forward(tokens, positions, None, cache)[-1:].argmax(-1)
            positions = positions[-1:] + 1
            stamped.append((int(tokens), time.perf_counter()))
        return stamped

    return decoder.weight_bytes, generate


def transformers(args: argparse.Namespace) -> tuple[int, Generate]:
    """`generate` of transformers, with timestamps from its streamer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=getattr(torch, args.dtype)).eval()
    prompt = torch.tensor([prompt_tokens(args.folder)])
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    read = sum(p.nbytes for p in model.parameters()) - (0 if tied else embedding.nbytes)

    class Stamped(list[tuple[int, float]]):
        """Streamer that stamps tokens and skips the prompt, which is passed as a 2-D tensor."""

        def put(self, value: torch.Tensor) -> None:
            if value.dim() == 1:
                self.append((int(value), time.perf_counter()))

        def end(self) -> None:
            """Does nothing, since no tokens are buffered."""

    def generate(count: int) -> list[tuple[int, float]]:
        stamped = Stamped()
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            streamer=stamped,
            pad_token_id=0,
        )
        return stamped

    return read, generate


def llama_cpp(args: argparse.Namespace) -> tuple[int, Generate]:
    """llama.cpp on a GGUF file; its interpreter needs llama-cpp-python, but not this project."""
    from llama_cpp import Llama

    model = Llama(args.gguf, n_ctx=512, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)
    prompt = model.tokenize(PROMPT.encode(), add_bos=False)

    def generate(count: int) -> list[tuple[int, float]]:
        model.reset()
        tokens = islice(model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0), count)
        return [(token, time.perf_counter()) for token in tokens]

    return Path(args.gguf).stat().st_size, generate


def bandwidth(args: argparse.Namespace) -> tuple[int, Generate]:
    """Read half a GiB a few times; the best bytes per second are returned as one token."""
    import torch

    torch.set_num_threads(THREADS)
    block = torch.ones(128 * 2**20)

    def generate(count: int) -> list[tuple[int, float]]:
        best = 0.0
        for _ in range(8):
            start = time.perf_counter()
            block.sum()
            best = max(best, block.nbytes / (time.perf_counter() - start))
        return [(int(best), 0.0)]

    return block.nbytes, generate


ARMS = {"ours": ours, "null": ours, "transformers": transformers, "llama.cpp": llama_cpp, "stream": bandwidth}


def prompt_tokens(folder: str) -> list[int]:
    """The prompt as token ids of the checkpoint."""
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(Path(folder) / "tokenizer.json")).encode(PROMPT).ids
    return ids


def serve(args: argparse.Namespace) -> None:
    """Worker process: load one arm, then answer each line on stdin (a count) with tokens and rate as JSON."""
    read, generate = ARMS[args.arm](args)
    print(json.dumps({"read": read}), flush=True)
    for line in sys.stdin:
        stamped = generate(int(line))
        tokens = [token for token, _ in stamped]
        span = stamped[-1][1] - stamped[0][1]
        rate = (len(stamped) - 1) / span if span else 0.0
        print(json.dumps({"tokens": tokens, "rate": rate}), flush=True)


# The parent process.


@dataclass
class Arm:
    """One worker process, idle until tokens are requested."""

    name: str
    process: subprocess.Popen[str]
    read: int
    rates: list[float]
    tokens: list[int]

    @classmethod
    def start(cls, name: str, dtype: str, args: argparse.Namespace) -> Arm:
        """Start the worker and wait until its model is loaded."""
        python = args.peer_python if name == "llama.cpp" else sys.executable
        command = [python, __file__, args.folder, "--arm", name, "--dtype", dtype, "--gguf", args.gguf]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )
        arm = cls(name, process, 0, [], [])
        arm.read = arm._answer()["read"]
        return arm

    def run(self, count: int) -> float:
        """Tokens per second for one run of `count` tokens."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.tokens = answer["tokens"]
        return float(answer["rate"])

    def stop(self) -> None:
        """Let the worker exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the {self.name} arm ended without an answer (exit {self.process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare(dtype: str, args: argparse.Namespace) -> dict[str, object]:
    """Run ours, the null arm and the peer in turn, and print rates, ratios and the share of bandwidth."""
    stream = Arm.start("stream", dtype, args)
    arms = [Arm.start(name, dtype, args) for name in ("ours", "null", args.peer)]
    peaks = []
    for round_ in range(args.rounds + 1):
        peaks.append((stream.run(1), stream.tokens[0])[1])
        for arm in arms:
            rate = arm.run(args.tokens if round_ else 8)
            if round_:  # the first round warms up
                arm.rates.append(rate)
    for arm in (stream, *arms):
        arm.stop()
    return report(dtype, arms, max(peaks), args.peer)


def report(dtype: str, arms: list[Arm], peak: float, peer: str) -> dict[str, object]:
    """Print one table and return its numbers."""
    mine, null, other = arms
    print(f"\n{dtype}: medians over {len(mine.rates)} rounds; memory reads {peak / 1e9:.1f} GB/s at best")
    for arm in arms:
        rate, share = median(arm.rates), arm.read * median(arm.rates) / peak
        spread = f"{min(arm.rates):.1f} to {max(arm.rates):.1f}"
        print(f"  {arm.name:14s}{rate:8.1f} tokens/s  ({spread}), {share:4.0%} of the memory bandwidth")
    ratio = median(a / b for a, b in zip(mine.rates, other.rates, strict=True))
    noise = median(a / b for a, b in zip(mine.rates, null.rates, strict=True))
    agreed = next(
        (i for i, (a, b) in enumerate(zip(mine.tokens, other.tokens, strict=False)) if a != b), None
    )
    said = "all tokens agree" if agreed is None else f"tokens agree up to {agreed}"
    goal = f"target {TARGETS[peer]:.2f} {'met' if ratio >= TARGETS[peer] else 'MISSED'}"
    print(f"  ours / {peer}: {ratio:.2f} ({goal}); ours / null: {noise:.2f}; {said}", flush=True)
    rates = {arm.name: arm.rates for arm in arms}
    return {"dtype": dtype, "ratio": ratio, "null": noise, "stream": peak, "read": mine.read, "rates": rates}


def by_rows(dtype: str, args: argparse.Namespace) -> dict[str, object]:
    """Best milliseconds of a pass after 128 cached tokens, by number of tokens; used to set thresholds."""
    import torch

    from repro.models.transformer import weights
    from repro.models.transformer.cache import KVCache

    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    decoder = weights.load(args.folder, dtype)
    cache = KVCache(decoder.config, 512)
    decoder.forward(torch.arange(128), torch.arange(128), None, cache)
    best = dict.fromkeys(ROWS, float("inf"))
    for _ in range(args.rounds):
        for rows in ROWS:
            start = time.perf_counter()
            decoder.forward(torch.arange(rows), torch.arange(128, 128 + rows), None, cache)
            best[rows] = min(best[rows], 1e3 * (time.perf_counter() - start))
            cache.truncate(128)
    print(f"{dtype:9s}" + "".join(f"{rows:5d}: {ms:6.1f}" for rows, ms in best.items()), flush=True)
    return {"dtype": dtype, "milliseconds": best}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", help="a checkpoint folder with config.json, *.safetensors and tokenizer.json"
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--peer", choices=sorted(TARGETS), default="transformers")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--gguf", default="", help="the 4-bit file for llama.cpp")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", action="store_true", help="time passes of ours by rows instead")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--arm", choices=sorted(ARMS), help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm:
        serve(args)
        return
    measure = by_rows if args.rows else compare
    found = [measure(dtype, args) for dtype in args.dtypes]
    if args.out:
        args.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
