"""Changing an elastic model's level: views compared with copies, and the cost of views in later passes.

python -m workshop.benchmarks.switching                          a 4096 x 4096 matrix, and SmolLM2-135M
python -m workshop.benchmarks.switching --checkpoint qwen2_5_coder_0_5b_instruct --rounds 30

ElastiLM 3.2's measurements of the matrix on a phone are in conf/reference (elastilm.text.3_2.switch_*).
`pointer` takes views; `gather` copies the kept rows, which are scattered before a reordering; `relay` also
packs them for the matrix product's kernel. Then a pass over views is compared with one over a contiguous copy
of the level. All arms of a round run in turn, in another order each round; ratios are taken within a round,
with a 95% interval over all rounds.
Owns the arms and their clock. Must not know what a level is worth.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.methods.compression.pruning.elastic_levels import kept_at
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from repro.models.elastic.submodels import Kept, Order, UnitDecoder, copied, reordered, submodel
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, packed
from workshop.benchmarks.paired import ends, interval, mean_ratio

Arms = Mapping[str, Callable[[], object]]
Seconds = dict[str, list[float]]

PASSES = (1, 64)
"""Tokens of the timed passes: a decoding step, a short prompt."""


def timed(arms: Arms, rounds: int, pause: float, seed: int = 0) -> Seconds:
    """Seconds of each arm in each round, after a warm-up round.

    An arm's result is freed within its time, because freeing memory is part of a change.
    """
    chance, found = random.Random(seed), Seconds({name: [] for name in arms})
    for number in range(rounds + 1):
        for name in chance.sample(sorted(arms), len(arms)):
            started = time.perf_counter()
            arms[name]()
            elapsed = time.perf_counter() - started
            if number:
                found[name].append(elapsed)
        time.sleep(pause)
    return found


def lines(what: str, found: Seconds, base: str) -> Iterator[str]:
    """The median of each arm, and its ratio to the base."""
    for name, seconds in found.items():
        line = f"{what:<34} {name:<8} {1e3 * median(seconds):>10.4f} ms"
        if name != base:
            ratios = [[a / b for a, b in zip(seconds, found[base], strict=True)]]
            line += f"   {mean_ratio(ratios):>10.2f} times {base} ({ends(interval(ratios, mean_ratio))})"
        yield line


def matrix_arms(size: int, dtype: torch.dtype) -> Arms:
    """Taking all rows of a square matrix, the worst case of a change."""
    chance = torch.Generator().manual_seed(0)
    weight = torch.randn(size, size, generator=chance).to(dtype)
    rows = torch.randperm(size, generator=chance)
    return {
        "pointer": lambda: weight.narrow(0, 0, size),
        "gather": lambda: weight.index_select(0, rows),
        "relay": lambda: packed(PlainLinear(weight.index_select(0, rows))),
    }


def random_order(decoder: Decoder) -> Order:
    """A random order of units; the timings do not depend on importance."""
    chance, config = torch.Generator().manual_seed(0), decoder.config
    units, neurons = (
        tuple(torch.randperm(count, generator=chance) for _ in range(config.layers))
        for count in (config.kv_heads, config.intermediate)
    )
    return Order(units, neurons)


def level_arms(whole: UnitDecoder, kept: Kept) -> Arms:
    """Changing all layers to a level."""
    return {"pointer": lambda: submodel(whole, kept), "copy": lambda: copied(submodel(whole, kept))}


def pass_arms(whole: UnitDecoder, kept: Kept, rows: int) -> Arms:
    """A pass of `rows` tokens after a prompt of 64, over views and over a copy."""
    views = submodel(whole, kept)
    return {"views": _passing(views, rows), "copy": _passing(copied(views), rows)}


def _passing(decoder: Decoder, rows: int, prompt: int = 64) -> Callable[[], Tensor]:
    cache = KVCache(decoder.config, prompt + rows)
    tokens = torch.arange(prompt + rows) % decoder.config.vocab
    decoder.forward(tokens[:prompt], torch.arange(prompt), None, cache)
    at = torch.arange(prompt, prompt + rows)

    def once() -> Tensor:
        cache.truncate(prompt)
        return decoder.forward(tokens[prompt:], at, None, cache)

    return once


def opened(name: str) -> Decoder:
    """A checkpoint of `conf/model/checkpoint`, dense in fp32."""
    path = conf_dir() / "model" / "checkpoint" / f"{name}.yaml"
    if not path.is_file():
        raise InputError(f"checkpoint {name!r} is not in {path.parent.name}; choose a file of it")
    return weights.load(open_checkpoint(Checkpoint.from_yaml(path)), "float32", packed=False)


@torch.inference_mode()
def report(args: argparse.Namespace) -> Iterator[str]:
    """All output lines."""
    dtype = getattr(torch, args.dtype)
    what = f"{args.size} x {args.size} matrix, {args.dtype}"
    yield from lines(what, timed(matrix_arms(args.size, dtype), args.rounds, args.pause), "pointer")
    decoder = opened(args.checkpoint)
    whole = reordered(decoder, random_order(decoder))
    del decoder
    for level in args.levels:
        kept = kept_at(whole.config, level, ())
        what = f"{args.checkpoint}, level {level:g}"
        yield from lines(what, timed(level_arms(whole, kept), args.rounds, args.pause), "pointer")
        for rows in PASSES:
            found = timed(pass_arms(whole, kept, rows), args.rounds, args.pause)
            yield from lines(f"  pass of {rows} rows", found, "copy")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--checkpoint", default="smollm2_135m_instruct", help="a name of conf/model/checkpoint")
    add("--levels", type=float, nargs="+", default=[0.3, 0.5, 0.8])
    add("--size", type=int, default=4096, help="of the matrix")
    add("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the matrix")
    add("--rounds", type=int, default=20)
    add("--pause", type=float, default=0.2, help="seconds between rounds")
    add("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    for line in report(args):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
