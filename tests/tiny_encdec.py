"""A tiny random checkpoint of every supported encoder-decoder, written by `transformers` itself.

Encoder and decoder differ in depth, T5's heads are narrower than its rows, and every parameter is random.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers as hf

from tiny_checkpoints import CONTROL, write_tokenizer

VOCAB = len(CONTROL) + 256
ENDS = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1}
T5_SHAPE = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
BART_SHAPE = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 160,
    "encoder_layers": 2,
    "encoder_ffn_dim": 80,
    "encoder_attention_heads": 2,
    "decoder_layers": 3,
    "decoder_ffn_dim": 96,
    "decoder_attention_heads": 4,
    "d_model": 64,
}

NOISE = 0.03
"""Of a draft's weights, in standard deviations of each parameter."""

FAMILIES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "t5": lambda: hf.T5Config(**T5_SHAPE, **ENDS),
    "mt5": lambda: hf.MT5Config(**T5_SHAPE, **ENDS),
    "bart": lambda: hf.BartConfig(**BART_SHAPE, **ENDS | {"forced_eos_token_id": None}),
}


def build(name: str, seed: int = 0) -> hf.PreTrainedModel:
    """A random model of one family, fp32; one of another `seed` is a little off the first, as a draft is.

    mT5's and BART's output projections are their own, T5's is its embedding table; small embeddings keep its
    text from standing still.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same first weights whatever tests ran before
        model = hf.AutoModelForSeq2SeqLM.from_config(FAMILIES[name](), dtype=torch.float32)
    if name != "t5":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    if name == "mt5":
        model.config.tie_word_embeddings = False  # as its published configuration says
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_first(part, parameter, noise, 4.0 if name == "t5" else 1.0))
        generator.manual_seed(seed)
        for parameter in model.parameters() if seed else ():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * parameter.std() * NOISE)
    return model.eval()


def _first(part: str, parameter: torch.Tensor, noise: torch.Tensor, spread: float) -> torch.Tensor:
    """A parameter by its part: norms near one, biases small, linears as wide as `spread` says."""
    if parameter.dim() == 1:
        return 0.1 * noise if part.endswith("bias") else 1 + 0.3 * noise
    if "lm_head" in part or "positions" in part or "relative" in part:
        return noise
    if "shared" in part:
        return 0.3 * noise
    return noise * spread * parameter.shape[-1] ** -0.5


def write(name: str, folder: Path, seed: int = 0) -> hf.PreTrainedModel:
    """Save a random model of one family in `folder`, with a tokenizer of bytes, and return it."""
    model = build(name, seed)
    model.save_pretrained(folder)
    write_tokenizer(folder, chat=None)
    return model
