"""Changing an elastic model's level: views compared with copies, and the cost of views in later passes.

python -m workshop.benchmarks.switching                          a 4096 x 4096 matrix, and SmolLM2-135M
python -m workshop.benchmarks.switching --checkpoint qwen2_5_coder_0_5b_instruct --rounds 30

ElastiLM 3.2's measurements of the matrix on a phone are in conf/reference (elastilm.text.3_2.switch_*).
`pointer` takes views; `gather` copies the kept rows, which are scattered before a reordering; `relay` also
packs them for the matrix product's kernel. Then a pass over views is compared with one over a contiguous copy
of the level. Must not know what a level is worth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.submodels import LayerSizes, Order, UnitDecoder, dense_copy, reorder, submodel
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, fastest_linear
from workshop.benchmarks.alternating import checkpoint_folder, command_line, show, take_turns, timed

Arms = Mapping[str, Callable[[], object]]

PASSES = (1, 64)
"""Tokens of the timed passes: a decoding step, a short prompt."""


def matrix_arms(size: int, dtype: torch.dtype) -> Arms:
    """Taking all rows of a square matrix, the worst case of a change."""
    chance = torch.Generator().manual_seed(0)
    weight = torch.randn(size, size, generator=chance).to(dtype)
    rows = torch.randperm(size, generator=chance)
    return {
        "pointer": lambda: weight.narrow(0, 0, size),
        "gather": lambda: weight.index_select(0, rows),
        "relay": lambda: fastest_linear(PlainLinear(weight.index_select(0, rows))),
    }


def random_order(decoder: Decoder) -> Order:
    """A random order of units; the timings do not depend on importance."""
    chance, config = torch.Generator().manual_seed(0), decoder.config
    units, neurons = (
        tuple(torch.randperm(count, generator=chance) for _ in range(config.layers))
        for count in (config.kv_heads, config.intermediate)
    )
    return Order(units, neurons)


def level_arms(whole: UnitDecoder, kept: LayerSizes) -> Arms:
    """Changing all layers to a level."""
    return {"pointer": lambda: submodel(whole, kept), "copy": lambda: dense_copy(submodel(whole, kept))}


def pass_arms(whole: UnitDecoder, kept: LayerSizes, rows: int) -> Arms:
    """A pass of `rows` tokens after a prompt of 64, over views and over a copy."""
    views = submodel(whole, kept)
    return {"views": _passing(views, rows), "copy": _passing(dense_copy(views), rows)}


def _passing(decoder: Decoder, rows: int, prompt: int = 64) -> Callable[[], Tensor]:
    cache = KVCache(decoder.config, prompt + rows)
    tokens = torch.arange(prompt + rows) % decoder.config.vocab
    decoder.forward(tokens[:prompt], torch.arange(prompt), None, cache)
    at = torch.arange(prompt, prompt + rows)

    def once() -> Tensor:
        cache.truncate(prompt)
        return decoder.forward(tokens[prompt:], at, None, cache)

    return once


@torch.inference_mode()
def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark and print."""
    parser = command_line(__doc__, rounds=20)
    add = parser.add_argument
    add("--levels", type=float, nargs="+", default=[0.3, 0.5, 0.8])
    add("--size", type=int, default=4096, help="of the matrix (4096)")
    add("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the matrix")
    add("--pause", type=float, default=0.2, help="seconds between rounds")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)

    def compare(what: str, arms: Arms, base: str) -> None:
        print(what)
        seconds = take_turns({name: timed(arm) for name, arm in arms.items()}, args.rounds, args.pause)
        show(seconds, {}, (base,))

    arms = matrix_arms(args.size, getattr(torch, args.dtype))
    compare(f"{args.size} x {args.size} matrix, {args.dtype}", arms, "pointer")
    try:
        decoder = weights.load(checkpoint_folder(args.checkpoint), "float32", is_packed=False)
    except InputError as wrong:
        sys.exit(f"error: {wrong}")
    whole = reorder(decoder, random_order(decoder))
    del decoder
    for level in args.levels:
        kept = sizes_at(whole.config, level, ())
        compare(f"{args.checkpoint}, level {level:g}", level_arms(whole, kept), "pointer")
        for rows in PASSES:
            compare(f"a pass of {rows} rows at level {level:g}", pass_arms(whole, kept, rows), "copy")


if __name__ == "__main__":
    main()
