"""A tiny random checkpoint of every supported family, written by `transformers` itself.

Every parameter is random, norms and biases too, so that a part that is skipped or misplaced shows in logits.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers as hf

from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache

VOCAB = 131  # odd, so that kernels which compute in blocks have to pad
TOKENS = torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1))
WINDOW = 6

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
OPT_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LLAMA_31 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
STRETCHED = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
GEMMA_3 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
}
GPT2_SHAPE = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}

FAMILIES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama-1": lambda: hf.LlamaConfig(**SHAPE | {"num_key_value_heads": 4}),
    "llama-2": lambda: hf.LlamaConfig(**SHAPE),
    "llama-3.1": lambda: hf.LlamaConfig(**SHAPE, rope_parameters=LLAMA_31, tie_word_embeddings=True),
    "llama-biased": lambda: hf.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "vicuna": lambda: hf.LlamaConfig(**SHAPE | {"num_key_value_heads": 4}, rope_parameters=STRETCHED),
    "mistral": lambda: hf.MistralConfig(**SHAPE, sliding_window=WINDOW, head_dim=24),
    "qwen-1.5": lambda: hf.Qwen2Config(**SHAPE | {"num_key_value_heads": 4}),
    "qwen-2.5": lambda: hf.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2, tie_word_embeddings=True
    ),
    "qwen-3": lambda: hf.Qwen3Config(**SHAPE, head_dim=24),
    "gemma-1": lambda: hf.GemmaConfig(**SHAPE, head_dim=24),
    "gemma-2": lambda: hf.Gemma2Config(
        **SHAPE, head_dim=24, sliding_window=WINDOW, query_pre_attn_scalar=20, attn_logit_softcapping=4.0
    ),
    "gemma-3": lambda: hf.Gemma3TextConfig(
        **SHAPE, head_dim=24, sliding_window=WINDOW, sliding_window_pattern=2, rope_parameters=GEMMA_3
    ),
    "phi-2": lambda: hf.PhiConfig(**SHAPE | {"num_key_value_heads": 4}, partial_rotary_factor=0.5),
    "opt": lambda: hf.OPTConfig(**OPT_SHAPE, word_embed_proj_dim=64),
    "opt-350m": lambda: hf.OPTConfig(**OPT_SHAPE, word_embed_proj_dim=32, do_layer_norm_before=False),
    "gpt-2": lambda: hf.GPT2Config(**GPT2_SHAPE),
}


def build(name: str, seed: int = 0) -> hf.PreTrainedModel:
    """A random model of one family, fp32, in evaluation mode."""
    return noised(FAMILIES[name](), seed)


def noised(config: hf.PreTrainedConfig, seed: int) -> hf.PreTrainedModel:
    """A random model of a configuration, fp32, in evaluation mode."""
    config.pad_token_id = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # transformers draws first weights from a state that the tests before leave
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return model.eval()


def write(name: str, folder: Path, seed: int = 0) -> hf.PreTrainedModel:
    """Save a random model of one family in `folder` and return it."""
    model = build(name, seed)
    model.save_pretrained(folder)
    return model


def logits(folder: Path) -> torch.Tensor:
    """What our decoder of a folder says of `TOKENS`, `[tokens, vocab]`."""
    decoder = weights.load(folder)
    return decoder.forward(TOKENS, torch.arange(len(TOKENS)), None, KVCache(decoder.config, 8))


def of_transformers(folder: Path) -> torch.Tensor:
    """What transformers says of `TOKENS`, `[tokens, vocab]`."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(TOKENS[None]).logits[0]
