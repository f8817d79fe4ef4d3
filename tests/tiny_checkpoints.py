"""Checkpoints of a few kilobytes, made on the spot: a folder, a snapshot in the hub's cache, a GGUF file."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from repro.models.checkpoints import hub
from repro.models.checkpoints.checkpoint import Checkpoint, Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = Checkpoint("tiny", None, None, None, "float32", None, "test")
REPO = Hub("org/tiny", None)
CONTROL = ["<|end|>", "<|user|>", "<|answer|>"]
CHAT = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}<|answer|>"
HIDDEN, HEADS, WIDE = 64, 4, 96
QUANTIZED = "blk.0.ffn_up.weight"
SPACED = ["ĠĠ", "Ġ1"]
NORMAL, CONTROL_TYPE = 1, 3


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No folder, cache or network but the test's own."""
    monkeypatch.delenv("REPRO_MODELS", raising=False)
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")


def byte_tokens() -> list[str]:
    """The 256 bytes as a byte-level vocabulary spells them, in a fixed order."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_tokenizer(folder: Path, control: list[str] = CONTROL, chat: str | None = CHAT) -> None:
    """A byte-level tokenizer without merges: one token a byte, after the control tokens."""
    vocabulary = {token: number for number, token in enumerate([*control, *byte_tokens()])}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(control)
    inner.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "TokenizersBackend", "eos_token": control[0]}
    if chat is not None:
        facts["chat_template"] = chat
    (folder / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")


def write_folder(folder: Path, **config: object) -> Path:
    """A folder with everything that a checkpoint needs; its weights mean nothing."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}), encoding="utf-8")
    save_file({"weight": torch.ones(4, 4)}, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A one-layer Llama whose feed-forward matrix is Q4_1; returns its tensors before quantization."""
    random = np.random.default_rng(0)
    tokens = [*CONTROL, *byte_tokens(), *SPACED]
    shapes = {
        "token_embd.weight": (len(tokens), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_v.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": (WIDE, HIDDEN),
        QUANTIZED: (WIDE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, WIDE),
    }
    tensors = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL_TYPE] * len(CONTROL) + [NORMAL] * (256 + len(SPACED)))
    writer.add_token_merges(["Ġ Ġ", "Ġ 1"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT)
    for name, tensor in tensors.items():
        if name == QUANTIZED:
            packed = quantize(tensor, GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def write_snapshot(home: Path) -> Path:
    """A repository as the hub's cache lays it out: links to blobs, the big one named by its sha256."""
    repo = home / "models--org--tiny"
    made = write_folder(repo / "made")
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for path in made.iterdir():
        content = path.read_bytes()
        is_big = path.suffix == ".safetensors"
        blob = repo / "blobs" / (hashlib.sha256 if is_big else hashlib.sha1)(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", blob.name))
    shutil.rmtree(made)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    return snapshot
