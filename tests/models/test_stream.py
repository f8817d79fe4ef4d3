"""Layers from the disk: the same bits as in memory, in few slots, and no file that is half there."""

import errno
import os
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from repro.core.errors import InputError
from repro.device import direct_io
from repro.models.streaming import layer_streaming
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.transformer import weights

LAYERS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 101, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True}
    path = tmp_path_factory.mktemp("checkpoint")
    LlamaForCausalLM(LlamaConfig(**shape, **heads)).save_pretrained(path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_reader_needs_a_slot(folder: Path, cache: Path) -> None:
    with pytest.raises(InputError, match="0 slots"):
        LayerReader(layer_file(folder, "float32", cache), slot_count=0)


def test_another_runtime_builds_again(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = layer_file(folder, "float32", cache).path.read_bytes()
    monkeypatch.setattr(layer_streaming, "VERSION", layer_streaming.VERSION + 1)
    assert layer_file(folder, "float32", cache).path.read_bytes() != before


def test_without_direct_io_pages_are_dropped(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = layer_file(folder, "float32", cache)
    expected = LayerReader(file, slot_count=1).fetch(4).down.weight.clone()
    opened = os.open

    def refuse(path, flags: int, *rest: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "refused")
        return opened(path, flags, *rest)

    dropped: list[int] = []
    monkeypatch.setattr(direct_io.os, "open", refuse)
    monkeypatch.setattr(direct_io.os, "posix_fadvise", lambda _, start, size, how: dropped.append(size))
    reader = LayerReader(file, slot_count=1)
    assert reader.way == "dropped"
    assert torch.equal(reader.fetch(4).down.weight, expected)
    assert sum(dropped) == file.layer_bytes
    reader.close()


@pytest.mark.gpu
def test_streamed_to_a_gpu(folder: Path, cache: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    reader = LayerReader(layer_file(folder, "float32", cache), slot_count=2, device="cuda")
    for i, expected in enumerate(weights.layers(folder, "float32")):
        found = reader.fetch(i)
        assert found.up.weight.device.type == "cuda"
        assert torch.equal(found.up.weight.cpu(), expected.up.weight)
        reader.release(i)
    reader.close()
