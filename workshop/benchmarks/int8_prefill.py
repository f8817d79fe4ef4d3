"""Prefill in int8 compared with fp32 and bf16: the same layers on this machine, in turns, in one process.

python -m workshop.benchmarks.int8_prefill                                      SmolLM2-135M, 256 tokens
python -m workshop.benchmarks.int8_prefill --checkpoint qwen2_5_coder_0_5b_instruct --threads 2
python -m workshop.benchmarks.int8_prefill --llama                              with llama.cpp on its own file

Prompt and calibration texts are from wikitext-2. A prefill reads the prompt with an empty cache and gives the
logits of its last token. The floor is the time that the layers' matrix products alone would take at the best
rate of a large product of their kind in this run; the rest is attention, norms, rounding and Python. All
8-bit contenders keep embeddings and output projection in fp32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.data.config import read_config
from repro.data.corpus import load_corpus
from repro.methods.compression.base import Compression
from repro.methods.compression.quantization.int8 import W8A8
from repro.methods.mllm_npu.shadow import Shadow
from repro.models.analysis.hooks import linears_of
from repro.models.checkpoints.checkpoint import tokenizer
from repro.models.quantization import w8a8
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, fastest_linear
from workshop.benchmarks.alternating import checkpoint_folder, command_line, show, take_turns, timed
from workshop.validation.this_machine.gguf_files import packaged
from workshop.validation.this_machine.llama_cpp import LlamaCppPasses

COMPRESSIONS: Mapping[str, Compression] = {
    "int8": W8A8(),
    "int8 shadow, 85% pruned": Shadow(pruned=0.85),
    "int8 shadow, none pruned": Shadow(pruned=0.0),
}
CALIBRATION = 8
BIG = (2048, 8192)
"""Inputs and outputs of the matrix product that gives the peak rate."""


def prefill(decoder: Decoder, prompt: Tensor) -> Tensor:
    """Logits after a prompt, `[1, vocab]`."""
    return decoder.head(decoder.hidden_rows(prompt)[-1:])


def contenders(folder: Path, prompt: Tensor, corpus: Sequence[Tensor]) -> tuple[dict[str, Decoder], float]:
    """Decoders by name, whose first word is the kind of their products; and operations of one prefill."""
    dense = weights.load(folder, "float32", is_packed=False)
    elements = sum(linear.tensors()["weight"].numel() for _, linear in linears_of(dense))
    decoders = {"fp32": weights.load(folder, "float32"), "bf16": weights.load(folder, "bfloat16")}
    for name, compression in COMPRESSIONS.items():
        made = compression.compress(dense, corpus).decoder
        decoders[name] = made.with_layers(made.layers, decoders["fp32"].ends)
    return decoders, 2.0 * elements * len(prompt)


def big_products(rows: int) -> dict[str, Callable[[], float]]:
    """Seconds of one large matrix product of each kind, with the kernels that the layers use."""
    inputs, outputs = BIG
    x, dense = torch.randn(rows, inputs), PlainLinear(torch.randn(outputs, inputs))
    half = fastest_linear(PlainLinear(dense.weight.bfloat16()))
    short = w8a8.Int8Weight.of(dense, w8a8.scale_per_output(dense.weight))
    codes = torch.randint(w8a8.LOW, w8a8.HIGH + 1, (rows, inputs), dtype=torch.int8)
    return {
        "fp32": timed(partial(fastest_linear(dense), x)),
        "bf16": timed(partial(half, x.bfloat16())),
        "int8": timed(partial(short.times, codes, 1.0)),
    }


def texts(folder: Path, tokens: int) -> tuple[Tensor, list[Tensor]]:
    """A prompt, and calibration texts from the dataset's other rows."""
    corpus = load_corpus(read_config("wikitext2_train"), tokenizer(folder), CALIBRATION + 1, tokens)
    first, *others = map(torch.tensor, corpus.sequences)
    return first, others


@torch.inference_mode()
def main() -> None:
    parser = command_line(__doc__, rounds=10)
    parser.add_argument("--tokens", type=int, default=256, help="of the prompt (256)")
    parser.add_argument("--llama", action="store_true", help="llama.cpp as well; needs the extra `llama`")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        folder = checkpoint_folder(args.checkpoint)
        prompt, corpus = texts(folder, args.tokens)
        decoders, operations = contenders(folder, prompt, corpus)
        arms = {name: timed(partial(prefill, decoder, prompt)) for name, decoder in decoders.items()}
        if args.llama:
            passes = LlamaCppPasses(packaged(args.checkpoint), args.threads, args.tokens)
            arms["llama.cpp"] = partial(passes.seconds, args.tokens, 0)
    except InputError as wrong:
        sys.exit(f"error: {wrong}")
    products = {f"a product in {kind}": product for kind, product in big_products(args.tokens).items()}
    seconds = take_turns({**arms, **products}, args.rounds)
    peaks = 2.0 * args.tokens * BIG[0] * BIG[1] / seconds[list(products)].min()
    print(f"{args.tokens} tokens, {args.threads} threads; machine not known to be quiet")
    for name, peak in peaks.items():
        print(f"  {name}, at best: {peak / 1e9:.0f} G operations/s")
    floors = {name: operations / peaks[f"a product in {name.split()[0]}"] for name in decoders}
    show(seconds[list(arms)], floors, ("fp32", "bf16"), args.tokens)


if __name__ == "__main__":
    main()
