"""Which file of a folder counts, and which output projection: what transformers reads of the same folder."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.weight_files import header, read_json
from repro.models.runtime.model import Model, ModelConfig
from repro.models.transformer import weights
from tiny_checkpoints import NOWHERE, write_tokenizer
from tiny_families import FAMILIES, build, logits, of_transformers, write

INDEX = "model.safetensors.index.json"
TIED = ("llama-2", "qwen-2.5", "qwen-3", "gemma-1", "gemma-2", "gemma-3", "phi-2", "opt", "gpt-2")


def same(folder: Path) -> None:
    torch.testing.assert_close(logits(folder), of_transformers(folder), atol=1e-4, rtol=0)


def shards(folder: Path, seed: int, size: str) -> Path:
    build("llama-2", seed).save_pretrained(folder, max_shard_size=size)
    write_tokenizer(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_shards_of_an_older_revision_are_not_read(tmp_path: Path) -> None:
    new, old = shards(tmp_path / "new", 0, "300KB"), shards(tmp_path / "old", 5, "150KB")
    alone = digest(new)
    for path in old.glob("*.safetensors"):
        shutil.copy(path, new)
    assert len(list(new.glob("*.safetensors"))) == 6
    same(open_checkpoint(replace(NOWHERE, folder=str(new))))
    assert digest(new) == alone, "the key of a cell is that of the weights that are read"
    shutil.copy(old / INDEX, new)
    same(new)
    assert digest(new) == digest(old)


def test_the_single_file_goes_before_an_index(tmp_path: Path) -> None:
    folder = shards(tmp_path / "folder", 5, "150KB")
    write("llama-2", tmp_path / "single")
    shutil.copy(tmp_path / "single" / "model.safetensors", folder)
    same(folder)
    torch.testing.assert_close(logits(folder), logits(tmp_path / "single"), atol=0, rtol=0)


def test_each_tensor_is_read_from_the_file_that_the_index_names(tmp_path: Path) -> None:
    write("llama-2", tmp_path)
    expected, tensors = of_transformers(tmp_path), load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    save_file({name: tensor + 1.0 for name, tensor in tensors.items()}, tmp_path / "b.safetensors")
    (tmp_path / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(tensors, "a.safetensors")}), encoding="utf-8"
    )
    torch.testing.assert_close(logits(tmp_path), expected, atol=1e-4, rtol=0)
    first = digest(tmp_path)
    some = dict.fromkeys(tensors, "a.safetensors") | {"lm_head.weight": "b.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": some}), encoding="utf-8")
    assert (logits(tmp_path) - expected).abs().max() > 1.0
    assert digest(tmp_path) != first
    (tmp_path / INDEX).write_text(
        json.dumps({"weight_map": some | {"absent": "a.safetensors"}}), encoding="utf-8"
    )
    with pytest.raises(InputError, match=rf"absent is missing from .*a.safetensors, where {INDEX} has it"):
        weights.load(tmp_path)


def test_without_either_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    write("llama-2", tmp_path)
    expected = logits(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "new.safetensors")
    assert torch.equal(logits(tmp_path), expected)  # one file of any name is the model
    shutil.copy(tmp_path / "new.safetensors", tmp_path / "old.safetensors")
    with pytest.raises(InputError, match=r"is in new.safetensors and in old.safetensors of .*, and neither"):
        logits(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_pipe_among_the_files_is_refused(name: str, tmp_path: Path) -> None:
    write("llama-2", tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")  # a tokenizer of another kind
    (tmp_path / "other.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=rf"{name} is no regular file"):
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path)))


@pytest.mark.parametrize("name", TIED)
def test_an_output_projection_in_the_file_decides_against_the_tie(name: str, tmp_path: Path) -> None:
    config = FAMILIES[name]()
    config.tie_word_embeddings = True
    config.pad_token_id = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = next(t for n, t in tensors.items() if n.endswith(("embed_tokens.weight", "wte.weight")))
    description = {"name": "tiny", "folder": str(tmp_path), "hub": None, "wheel": None, "store": "float32"}
    description |= {"shares_embeddings_with": None, "licence": "test"}
    write_tokenizer(tmp_path)
    for head, tied in ((embedding.clone(), True), (embedding.flip(0).contiguous(), False)):
        save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
        same(tmp_path)
        assert weights.decoder_config(tmp_path).tied == tied
        facts = {"name": "tiny", "checkpoint": description, "shape": None, "precision": None}
        assert Model(ModelConfig.parse(facts | {"dtype": "float32"})).own_shape.tied == tied


@pytest.mark.parametrize(
    ("length", "content", "said"),
    [
        (1 << 33, b"{", "its header does not parse (8589934592 bytes; at most 100000000 are read)"),
        (200_000, b"[" * 200_000, "its header does not parse (it is nested deeper than 100 levels)"),
    ],
    ids=["large", "deep"],
)
def test_a_header_is_read_under_limits(tmp_path: Path, length: int, content: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + content)
    os.truncate(path, 8 + length)
    with pytest.raises(InputError) as caught:
        header(path)
    assert said in str(caught.value)


def test_a_header_is_that_of_the_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2)}, path)
    assert [*header(path)] == ["a"]
    save_file({"b": torch.zeros(2)}, path)  # at once, and of the same size
    assert [*header(path)] == ["b"]
    monkeypatch.setattr("repro.core.reading.SETTLED_NS", -(10**18))  # as after a while
    assert header(path) is header(path)
    save_file({"c": torch.zeros(2)}, path)
    os.utime(path, ns=(0, 0))
    assert [*header(path)] == ["c"]


def test_settings_of_a_checkpoint_are_read_under_limits(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"config\.json is no regular file"):
        read_json(path)
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 32)
    with pytest.raises(InputError, match=r"config\.json has 4096 MB; at most 128 MB are read"):
        read_json(path)
