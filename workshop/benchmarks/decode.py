"""Greedy decoding on this machine's CPU beside another library, in turns.

python -m workshop.benchmarks.decode                                   fp32 and bf16 beside transformers
python -m workshop.benchmarks.decode --dtypes int4 --peer llama.cpp    beside the checkpoint's own GGUF file
python -m workshop.benchmarks.decode --rows                            one pass by number of tokens

Seconds are those of a token after the first one of an answer, without prefill and loading. The null arm is
ours a second time: how far its ratio is from 1 is noise. The floor of a token is reading all weights once, at
the bandwidth that memory gives here. llama.cpp needs the extra `llama`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from repro.core.errors import InputError
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from workshop.benchmarks.alternating import (
    checkpoint_folder,
    command_line,
    read_seconds,
    show,
    take_turns,
    timed,
    weights_read,
)
from workshop.validation.this_machine.gguf_files import packaged
from workshop.validation.this_machine.llama_cpp import LlamaCppPasses

PROMPT = 16
CONTEXT = 128
ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128)


def ours(decoder: Decoder, tokens: int) -> Callable[[], float]:
    """Seconds a token of this project's decoder."""

    def generate() -> float:
        cache = KVCache(decoder.config, PROMPT + tokens)
        token = decoder.forward(torch.arange(PROMPT), torch.arange(PROMPT), None, cache)[-1:].argmax(-1)

        def rest() -> None:
            last = token
            for at in range(PROMPT, PROMPT + tokens - 1):
                last = decoder.forward(last, torch.tensor([at]), None, cache).argmax(-1)

        return timed(rest)() / (tokens - 1)

    return generate


def transformers(folder: Path, dtype: str, tokens: int) -> Callable[[], float]:
    """Seconds a token of transformers' `generate`: of an answer less those of its first token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    prompt = torch.arange(PROMPT)[None]

    def seconds(count: int) -> float:
        length = {"max_new_tokens": count, "min_new_tokens": count}
        mask = torch.ones_like(prompt)
        return timed(
            lambda: model.generate(prompt, attention_mask=mask, do_sample=False, pad_token_id=0, **length)
        )()

    return lambda: (seconds(tokens) - seconds(1)) / (tokens - 1)


def llama_cpp(path: Path, threads: int, tokens: int) -> Callable[[], float]:
    """Seconds of llama.cpp's passes of one token, by its own clock."""
    opened = LlamaCppPasses(path, threads, PROMPT + tokens)
    return lambda: sum(opened.seconds(1, PROMPT) for _ in range(tokens - 1)) / (tokens - 1)


def pass_of(decoder: Decoder, cache: KVCache, rows: int) -> Callable[[], float]:
    """Seconds of a pass of so many tokens after `CONTEXT` cached ones."""

    def run() -> None:
        cache.truncate(CONTEXT)
        decoder.forward(torch.arange(rows), torch.arange(CONTEXT, CONTEXT + rows), None, cache)

    return timed(run)


def main() -> None:
    parser = command_line(__doc__, rounds=5, threads=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--peer", choices=("transformers", "llama.cpp"), default="transformers")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--rows", action="store_true", help="time passes by rows instead")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        folder = checkpoint_folder(args.checkpoint)
        for dtype in args.dtypes:
            decoder = weights.load(folder, dtype)
            floor = read_seconds(weights_read(decoder.config, dtype))
            print(f"{args.checkpoint}, {dtype}, {args.threads} threads")
            if args.rows:
                cache = KVCache(decoder.config, 2 * max(ROWS) + CONTEXT)
                decoder.forward(torch.arange(CONTEXT), torch.arange(CONTEXT), None, cache)
                arms = {f"{rows} rows": pass_of(decoder, cache, rows) for rows in ROWS}
                show(take_turns(arms, args.rounds), dict.fromkeys(arms, floor), ())
                continue
            arms = {"ours": ours(decoder, args.tokens), "null": ours(decoder, args.tokens)}
            arms[args.peer] = (
                transformers(folder, dtype, args.tokens)
                if args.peer == "transformers"
                else llama_cpp(packaged(args.checkpoint), args.threads, args.tokens)
            )
            show(take_turns(arms, args.rounds), {"ours": floor, "null": floor}, ("ours",))
    except InputError as wrong:
        sys.exit(f"error: {wrong}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
