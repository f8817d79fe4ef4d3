"""Prefill in int8 compared with fp32 and bf16: the same layers on this machine, in turns, in one process.

python -m workshop.benchmarks.int8_prefill                                      SmolLM2-135M, 256 tokens
python -m workshop.benchmarks.int8_prefill --checkpoint qwen2_5_coder_0_5b_instruct --threads 2
python -m workshop.benchmarks.int8_prefill --llama                              with llama.cpp on its own file

Prompt and calibration texts are from wikitext-2. A prefill reads the prompt with an empty cache and gives the
logits of its last token. `ideal` is the time that the layers' matrix products alone would take at the best
rate of a large product of their kind in this run; the rest is attention, norms, rounding and Python. All
8-bit contenders keep embeddings and output projection in fp32.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.data.config import read_config
from repro.data.corpus import load_corpus
from repro.methods.compression.base import Compression
from repro.methods.compression.quantization.shadow import Shadow
from repro.methods.compression.quantization.w8a8 import W8A8
from repro.models.analysis.hooks import places
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint, tokenizer
from repro.models.quantization import w8a8
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, packed
from workshop.benchmarks.llama import LlamaCpp
from workshop.benchmarks.paired import ends, interval, mean_ratio
from workshop.validation.this_machine.gguf_files import packaged

Clocked = Callable[[], float]
"""Runs once and returns the seconds it took."""

COMPRESSIONS: Mapping[str, Compression] = {
    "int8": W8A8(),
    "int8 shadow, 85% pruned": Shadow(pruned=0.85),
    "int8 shadow, none pruned": Shadow(pruned=0.0),
}
CALIBRATION = 8
BIG = (2048, 8192)
"""Inputs and outputs of the matrix product that gives the peak rate."""


@dataclass(frozen=True)
class Contender:
    """An implementation of prefill; `kind` names its matrix products, empty where unknown."""

    prefill: Clocked
    kind: str = ""


@dataclass(frozen=True)
class Measured:
    """Timings of all rounds.

    Attributes:
        seconds: of each round, by contender.
        big: of each round's large product, by kind.
        kinds: by contender.
        operations: of all layers' matrix products in one prefill.
        tokens: of the prompt.
        threads: of torch.
    """

    seconds: dict[str, list[float]]
    big: dict[str, list[float]]
    kinds: dict[str, str]
    operations: float
    tokens: int
    threads: int = field(default_factory=torch.get_num_threads)

    def ideal(self, name: str) -> float | None:
        """Seconds that the matrix products of a contender's layers take at their kind's best rate."""
        if not self.kinds[name]:
            return None
        peak = big_operations(self.tokens) / min(self.big[self.kinds[name]])
        return self.operations / peak


def clocked(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def prefill(decoder: Decoder, prompt: Tensor) -> Tensor:
    """Logits after a prompt, `[1, vocab]`."""
    positions, cache = torch.arange(len(prompt)), KVCache(decoder.config, len(prompt))
    x = decoder.embed(prompt, positions)
    for i in range(decoder.config.layers):
        x = decoder.layer(i, x, positions, None, cache)
    return decoder.head(x[-1:])


def contenders(folder: Path, prompt: Tensor, corpus: Sequence[Tensor]) -> tuple[dict[str, Contender], float]:
    """Our contenders, and the operations of one prefill's matrix products; frees the uncompressed weights."""
    dense = weights.load(folder, "float32", packed=False)
    elements = sum(linear.tensors()["weight"].numel() for _, linear in places(dense))
    decoders = {"fp32": weights.load(folder, "float32"), "bf16": weights.load(folder, "bfloat16")}
    for name, compression in COMPRESSIONS.items():
        made = compression.compress(dense, corpus).decoder
        decoders[name] = Decoder(made.config, made.layers, decoders["fp32"].ends)
    return {
        name: Contender(partial(clocked, partial(prefill, decoder, prompt)), name.split()[0])
        for name, decoder in decoders.items()
    }, 2.0 * elements * len(prompt)


def big_products(rows: int) -> dict[str, Clocked]:
    """One large matrix product of each kind, with the kernels that the layers use."""
    inputs, outputs = BIG
    x, dense = torch.randn(rows, inputs), PlainLinear(torch.randn(outputs, inputs))
    half = packed(PlainLinear(dense.weight.bfloat16()))
    short = w8a8.Int8Weight.of(dense, w8a8.scale_per_output(dense.weight))
    codes = torch.randint(w8a8.LOW, w8a8.HIGH + 1, (rows, inputs), dtype=torch.int8)
    return {
        "fp32": partial(clocked, partial(packed(dense), x)),
        "bf16": partial(clocked, partial(half, x.bfloat16())),
        "int8": partial(clocked, partial(short.times, codes, 1.0)),
    }


def big_operations(rows: int) -> float:
    """Additions and multiplications of a large product."""
    return 2.0 * rows * BIG[0] * BIG[1]


def texts(folder: Path, tokens: int) -> tuple[Tensor, list[Tensor]]:
    """A prompt, and calibration texts from the dataset's other rows."""
    found = load_corpus(read_config("wikitext2_train"), tokenizer(folder), CALIBRATION + 1, tokens)
    first, *others = map(torch.tensor, found.sequences)
    return first, others


@torch.inference_mode()
def measure(runners: Mapping[str, Contender], operations: float, tokens: int, rounds: int) -> Measured:
    """Time all contenders and all large products in turns, after one warm-up round."""
    big = big_products(tokens)
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    peaks: dict[str, list[float]] = {kind: [] for kind in big}
    for round_ in range(rounds + 1):
        for name, runner in runners.items():
            taken = runner.prefill()
            if round_:
                seconds[name].append(taken)
        for kind, product in big.items():
            peaks[kind].append(product())
    return Measured(seconds, peaks, {name: one.kind for name, one in runners.items()}, operations, tokens)


# Output.


def report(found: Measured) -> None:
    """Times with their range, the share of the ideal, and ratios with confidence intervals."""
    rounds = len(next(iter(found.seconds.values())))
    print(f"{found.tokens} tokens, {found.threads} threads, {rounds} rounds; machine not known to be quiet")
    for kind, taken in found.big.items():
        peak = big_operations(found.tokens) / min(taken)
        print(f"  best product in {kind}: {peak / 1e9:.0f} G operations/s")
    for name, taken in found.seconds.items():
        ideal = found.ideal(name)
        share = "" if ideal is None else f", ideal {1e3 * ideal:6.1f} ms or {ideal / median(taken):4.0%}"
        low, middle, high = (1e3 * one for one in (min(taken), median(taken), max(taken)))
        rate = found.tokens / median(taken)
        print(f"  {name:26s}{middle:8.1f} ms ({low:.1f} - {high:.1f}), {rate:6.0f} tokens/s{share}")
    for base in ("fp32", "bf16"):
        for name, taken in found.seconds.items():
            if name == base:
                continue
            ratios = [[a / b for a, b in zip(found.seconds[base], taken, strict=True)]]
            spread = ends(interval(ratios, mean_ratio))
            print(f"  {base} / {name:26s}{mean_ratio(ratios):6.2f}  ({spread})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoint", default="smollm2_135m_instruct", help="a file of conf/model/checkpoint"
    )
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--llama", action="store_true", help="llama.cpp as well; needs the extra `llama`")
    parser.add_argument("--out", type=Path, help="also write the seconds as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        described = conf_dir() / "model" / "checkpoint" / f"{args.checkpoint}.yaml"
        folder = open_checkpoint(Checkpoint.from_yaml(described))
        prompt, corpus = texts(folder, args.tokens)
        runners, operations = contenders(folder, prompt, corpus)
        if args.llama:
            server = LlamaCpp(packaged(args.checkpoint), args.threads, args.tokens + 1)
            runners["llama.cpp"] = Contender(partial(server.prefill, args.tokens))
    except InputError as wrong:
        sys.exit(f"error: {wrong}")
    found = measure(runners, operations, args.tokens, args.rounds)
    report(found)
    if args.out:
        args.out.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
