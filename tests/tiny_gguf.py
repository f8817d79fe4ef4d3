"""A model written as a GGUF file, as llama.cpp's converter does."""

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import transformers as hf
from gguf import GGUFWriter

from tiny_checkpoints import CONTROL, CONTROL_TYPE, NORMAL, SPACED, byte_tokens

VOCAB = len(CONTROL) + 256 + len(SPACED)
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
Fields = Sequence[Callable[[GGUFWriter], None]]


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Queries or keys of a Llama: llama.cpp keeps the two dimensions of a rotated pair beside each other."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def byte_tokenizer(writer: GGUFWriter) -> None:
    """Write a tokenizer of bytes with two merges."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if writer.arch.startswith("qwen") else "gpt-2")
    writer.add_token_list([*CONTROL, *byte_tokens(), *SPACED])
    writer.add_token_types([CONTROL_TYPE] * len(CONTROL) + [NORMAL] * (256 + len(SPACED)))
    writer.add_token_merges(["Ġ Ġ", "Ġ 1"])
    writer.add_eos_token_id(0)


def write_model(
    path: Path,
    model: hf.PreTrainedModel,
    kind: str,
    fields: Fields = (),
    tensors: dict[str, np.ndarray] | None = None,
    tokens: Fields | None = None,
) -> Path:
    """Write a model, with further fields and tensors, and a tokenizer of its own if `tokens` write one."""
    c, writer = model.config, GGUFWriter(path, kind)
    width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer.add_name("tiny")
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    for field in fields:
        field(writer)
    for token in tokens or (byte_tokenizer,):
        token(writer)
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], c.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        rows = tensor.float().numpy()
        if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
            rows = _interleaved(rows, c.num_attention_heads if ".q_" in name else c.num_key_value_heads)
        if kind.startswith("gemma") and "norm" in name:
            rows = rows + 1
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(rows))
    for name, rows in (tensors or {}).items():
        writer.add_tensor(name, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
