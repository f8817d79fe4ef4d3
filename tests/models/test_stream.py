"""Layers from the disk: the same bits as in memory, in few slots, and no file that is half there."""

import errno
import os
import shutil
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from concurrency import most_at_once
from repro.core.errors import InputError
from repro.device import direct_io
from repro.device.local import LocalDevice, LocalMachine
from repro.device.memory import Memory
from repro.device.op import Op
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import DecoderNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, STREAMED, Placement
from repro.models.runtime.session import Session
from repro.models.streaming import layer_streaming
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.layer import layout
from repro.records import build_cache

LAYERS = 5
AHEAD = Placement(resident=0.0, prefetch=2, preload=True)


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


def files_in(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


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


def test_every_tensor_comes_back(folder: Path, cache: Path) -> None:
    file = layer_file(folder, "bfloat16", cache)
    reader = LayerReader(file, slots=1)
    for i, expected in enumerate(weights.layers(folder, "bfloat16")):
        found = reader.fetch(i)
        assert layout(found) == layout(expected)
        assert torch.equal(found.qkv.weight, expected.qkv.weight)
        assert torch.equal(found.qkv.bias, expected.qkv.bias)
        assert torch.equal(found.down.weight, expected.down.weight)
        assert torch.equal(found.before_mlp.weight, expected.before_mlp.weight)
        reader.release(i)
    reader.close()


def test_slots_are_few_and_used_again(folder: Path, cache: Path) -> None:
    reader = LayerReader(layer_file(folder, "float32", cache), slots=2)
    first, second = reader.fetch(0), reader.fetch(1)
    with pytest.raises(RuntimeError, match="no slot is free for layer 2: release one of 0, 1"):
        reader.fetch(2)
    reader.release(0)
    third = reader.fetch(2)
    assert third.qkv.weight.data_ptr() == first.qkv.weight.data_ptr() != second.qkv.weight.data_ptr()
    with pytest.raises(RuntimeError, match="layer 2 was fetched twice"):
        reader.fetch(2)
    with pytest.raises(RuntimeError, match="layer 5 was asked for"):
        reader.fetch(LAYERS)
    reader.close()


def test_slots_count_against_the_budget(folder: Path, cache: Path) -> None:
    file = layer_file(folder, "float32", cache)
    memory = Memory(2.5 * file.layer_bytes, "here")
    with pytest.raises(InputError, match=r"3 slots for streamed layers .* budget"):
        LayerReader(file, slots=3, memory=memory)
    reader = LayerReader(file, slots=2, memory=memory)
    assert memory.in_use == 2 * file.layer_bytes
    reader.close()
    assert memory.in_use == 0
    with pytest.raises(InputError, match="0 slots"):
        LayerReader(file, slots=0)


def test_a_failed_read_gives_its_slot_back(folder: Path, cache: Path) -> None:
    file = layer_file(folder, "float32", cache)
    reader = LayerReader(file, slots=1)
    with file.path.open("r+b") as damaged:
        damaged.truncate(file.offset(3))
    with pytest.raises(OSError, match="ends at byte"):
        reader.fetch(3)
    reader.fetch(2)
    reader.close()


def test_closing_waits_for_a_read_and_refuses_later_ones(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LayerReader(layer_file(folder, "float32", cache), slots=2)
    begun, go_on, found = Event(), Event(), []
    read = direct_io.DirectFile.read

    def slow(*given: object) -> None:
        begun.set()
        go_on.wait()
        read(*given)

    monkeypatch.setattr(direct_io.DirectFile, "read", slow)
    reading = Thread(target=lambda: found.append(reader.fetch(0)))
    closing = Thread(target=reader.close)
    reading.start()
    begun.wait()
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join()
    reading.join()
    assert len(found) == 1
    with pytest.raises(RuntimeError, match="after the reader was closed"):
        reader.fetch(1)
    reader.close()


@pytest.mark.parametrize("placement", [STREAMED, Placement(resident=0.0, prefetch=0), AHEAD])
def test_a_session_streams_its_layers_and_says_the_same(
    folder: Path, cache: Path, placement: Placement
) -> None:
    shape = Shape(LAYERS, 64, 4, 2, 16, 96, 101)
    expected, resident = said_by(folder, None, shape, RESIDENT)
    assert not resident
    reader = LayerReader(layer_file(folder, "float32", cache), slots=placement.prefetch + 1)
    tokens, loads = said_by(folder, reader, shape, placement)
    assert tokens == expected
    assert loads[: 2 * LAYERS] == [f"target load {i}" for i in range(LAYERS)] * 2


def said_by(
    folder: Path, reader: LayerReader | None, shape: Shape, placement: Placement
) -> tuple[list[int], list[str]]:
    """Eight greedy tokens, and the names of the reads in their order."""
    device = LocalDevice(LocalMachine("here", frozenset({"cpu", "flash"}), 1e9))
    decoder = weights.load(folder, packed=False, resident=reader is None)
    model_cost = ModelCost(shape, precision("fp32"))
    session = Session(Engine("target", device, model_cost, DecoderNetwork(decoder), placement, reader))

    async def run() -> list[int]:
        text = Prefix.of([5, 17, 3])
        for _ in range(8):
            (row,) = await session.forward([text])
            session.keep(text)
            text = text.then(row.choice)
        return text.tokens()

    tokens = device.play(run())
    session.engine.close()
    device.close()
    return tokens, [span.name for span in device.trace if span.on == "flash"]


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


def damage_layer(file: layer_streaming.LayerFile, content: bytearray) -> None:
    content[file.offset(3) + 100] ^= 1


def damage_header(file: layer_streaming.LayerFile, content: bytearray) -> None:
    content[10] ^= 1


def damage_end(file: layer_streaming.LayerFile, content: bytearray) -> None:
    del content[-4096:]


def damage_checks(file: layer_streaming.LayerFile, content: bytearray) -> None:
    at = content.index(b'"checks"')
    content[at + 3] ^= 1


@pytest.mark.parametrize("damage", [damage_layer, damage_header, damage_end, damage_checks])
def test_a_damaged_file_is_built_again(
    folder: Path, cache: Path, damage, caplog: pytest.LogCaptureFixture
) -> None:
    file = layer_file(folder, "float32", cache)
    whole = file.path.read_bytes()
    content = bytearray(whole)
    damage(file, content)
    file.path.write_bytes(content)
    assert layer_file(folder, "float32", cache).path.read_bytes() == whole
    assert "it is made again" in caplog.text


def test_another_runtime_builds_again(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = layer_file(folder, "float32", cache).path.read_bytes()
    monkeypatch.setattr(layer_streaming, "VERSION", layer_streaming.VERSION + 1)
    assert layer_file(folder, "float32", cache).path.read_bytes() != before


def test_an_interrupted_build_leaves_nothing(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def interrupt(content: memoryview) -> int:
        written.append(len(content))
        if len(written) == 3:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(layer_streaming.zlib, "crc32", interrupt)
    with pytest.raises(KeyboardInterrupt):
        layer_file(folder, "float32", cache)
    assert len(written) == 3
    assert files_in(cache) == []


def test_a_full_disk_is_said_before_building(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(build_cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputError, match="disk too full"):
        layer_file(folder, "float32", cache)
    assert files_in(cache) == []


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


def test_reads_are_whole_requests(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(10 * 4096)
    path.write_bytes(content)
    source = direct_io.DirectFile(path)
    buffer = memoryview(direct_io.page_aligned_memory(8 * 4096))
    pieces = list(source.read_into(buffer, 4096, request=3 * 4096))
    assert [(p.start // 4096, p.stop // 4096) for p in pieces] == [(0, 3), (3, 6), (6, 8)]
    assert bytes(buffer) == content[4096 : 9 * 4096]
    source.close()


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
