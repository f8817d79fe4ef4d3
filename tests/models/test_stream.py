"""Layers from the disk: the same bits as in memory, in few slots, and no file that is half there."""

import errno
import os
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from concurrency import most_at_once
from repro.core.errors import InputError
from repro.device import direct_io
from repro.device.local import LocalDevice, LocalMachine
from repro.device.memory import Memory
from repro.device.op import Op
from repro.models.streaming import layer_streaming
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache

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


def streamed_logits(folder: Path, reader: LayerReader, device: LocalDevice, dtype: str) -> torch.Tensor:
    """One pass of 7 rows, reading one layer ahead of the one that computes."""
    decoder = weights.load(folder, dtype, packed=False, resident=False)
    kv = KVCache(decoder.config, 16)
    positions = torch.arange(7)

    def load(i: int) -> Op:
        size = reader.file.layer_bytes
        return Op("flash", "load", f"load {i}", bytes=size, compute=lambda: reader.fetch(i))

    async def run() -> torch.Tensor:
        x = decoder.embed(torch.arange(7), positions)
        coming = device.run(load(0))
        for i in range(LAYERS):
            layer = await coming
            if i + 1 < LAYERS:
                coming = device.run(load(i + 1))
            work = lambda i=i, x=x, w=layer: decoder.layer(i, x, positions, None, kv, w)  # noqa: E731
            x = await device.run(Op("cpu", "layer", f"layer {i}", compute=work))
            reader.release(i)
        return decoder.head(x)

    with torch.inference_mode():
        return device.play(run())


@pytest.mark.parametrize("dtype", weights.DTYPES)
def test_streamed_equals_resident_bit_for_bit(folder: Path, cache: Path, dtype: str) -> None:
    decoder = weights.load(folder, dtype, packed=False)
    with torch.inference_mode():
        expected = decoder.forward(torch.arange(7), torch.arange(7), None, KVCache(decoder.config, 16))
    reader = LayerReader(layer_file(folder, dtype, cache), slots=2)
    device = LocalDevice(LocalMachine("here", frozenset({"cpu", "flash"}), 1e9))
    for _ in range(3):
        assert torch.equal(streamed_logits(folder, reader, device, dtype), expected)
    spans = [span for span in device.trace if span.on == "flash"]
    assert sum(span.bytes for span in spans) == reader.bytes_read == 3 * LAYERS * reader.file.layer_bytes
    assert most_at_once(spans) == 1
    device.close()
    reader.close()


def test_slots_count_against_the_budget(folder: Path, cache: Path) -> None:
    file = layer_file(folder, "float32", cache)
    memory = Memory(2.5 * file.layer_bytes, "here")
    with pytest.raises(InputError, match=r"3 slots for streamed layers .* budget"):
        LayerReader(file, slots=3, memory=memory)
    reader = LayerReader(file, slots=2, memory=memory)
    assert memory.held == 2 * file.layer_bytes
    reader.close()
    assert memory.held == 0
    with pytest.raises(InputError, match="0 slots"):
        LayerReader(file, slots=0)


def test_a_file_is_built_once(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = layer_file(folder, "float32", cache)
    before = first.path.stat()
    monkeypatch.setattr(layer_streaming, "write_layers", None)
    second = layer_file(folder, "float32", cache)
    after = second.path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert before.st_size == second.offset(LAYERS)
    monkeypatch.undo()
    assert layer_file(folder, "bfloat16", cache).path != first.path


def test_another_runtime_builds_again(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = layer_file(folder, "float32", cache).path.read_bytes()
    monkeypatch.setattr(layer_streaming, "VERSION", layer_streaming.VERSION + 1)
    assert layer_file(folder, "float32", cache).path.read_bytes() != before


def test_without_direct_io_pages_are_dropped(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = layer_file(folder, "float32", cache)
    expected = LayerReader(file, slots=1).fetch(4).down.weight.clone()
    opened = os.open

    def refuse(path, flags: int, *rest: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "refused")
        return opened(path, flags, *rest)

    dropped: list[int] = []
    monkeypatch.setattr(direct_io.os, "open", refuse)
    monkeypatch.setattr(direct_io.os, "posix_fadvise", lambda _, start, size, how: dropped.append(size))
    reader = LayerReader(file, slots=1)
    assert reader.way == "dropped"
    assert torch.equal(reader.fetch(4).down.weight, expected)
    assert sum(dropped) == file.layer_bytes
    reader.close()


@pytest.mark.gpu
def test_streamed_to_a_gpu(folder: Path, cache: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    reader = LayerReader(layer_file(folder, "float32", cache), slots=2, device="cuda")
    for i, expected in enumerate(weights.layers(folder, "float32")):
        found = reader.fetch(i)
        assert found.up.weight.device.type == "cuda"
        assert torch.equal(found.up.weight.cpu(), expected.up.weight)
        reader.release(i)
    reader.close()
