"""Streams layers from disk while others compute: one file of all layers, and a reader with few slots.

Owns the file format and the buffers that layers are read into. Knows nothing of ops, placements or time.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any

from repro.core.errors import InputError
from repro.device.direct_io import DirectFile, page_aligned, page_aligned_memory
from repro.libraries import Tensor, torch
from repro.models.forward.network import VERSION
from repro.models.transformer import weights
from repro.models.transformer.layer import LayerWeights, buffer_bytes, layout
from repro.records.build_cache import build_once, cache_root

log = logging.getLogger(__name__)

FORM_VERSION = 1
HEADER_BYTES = 64 << 10
"""Bytes before the first layer: JSON, then zeros."""


@dataclass(frozen=True)
class LayerFile:
    """A file with a decoder's layers one after the other, each page-aligned.

    Attributes:
        path: the file; a header of 64 KiB, then the layers.
        layers: number of layers.
        layer_bytes: bytes per layer, a multiple of the page size.
        skeleton: a layer without memory, for the layout.
    """

    path: Path
    layers: int
    layer_bytes: int
    skeleton: LayerWeights

    def offset(self, layer: int) -> int:
        """Byte offset of a layer."""
        return HEADER_BYTES + layer * self.layer_bytes


def layer_file(folder: Path | str, dtype: str = "float32", cache: Path | None = None) -> LayerFile:
    """The layer file of a checkpoint folder in one of `weights.DTYPES`, built on first use.

    It is stored in the cache folder under the checkpoint's digest. All checksums are verified here, so later
    reads skip them; a file that is damaged or written by another version is rebuilt.

    Raises:
        InputError: unknown checkpoint or dtype; the disk is full or not writable.
    """
    folder = Path(folder)
    first_layer = next(weights.layers(folder, dtype))
    count = weights.decoder_config(folder).layers
    size = page_aligned(buffer_bytes(layout(first_layer)))
    path = cache_root(cache) / "layers" / f"{weights.digest(folder)[:16]}-{dtype}"
    file = LayerFile(path, count, size, first_layer.skeleton())
    expected_header = _identity(file)

    def build(scratch: Path) -> Path:
        log.info("writing %d layers of %s (%.0f MB) to %s", count, folder, count * size / 1e6, path)
        return write_layers(scratch / path.name, file, weights.layers(folder, dtype), expected_header)

    build_once(
        path, build, needed_bytes=file.offset(count), is_whole=lambda _: _is_whole(file, expected_header)
    )
    return file


def _identity(file: LayerFile) -> dict[str, Any]:
    """Header fields that must match for a file to be reused."""
    slots = [[slot.name, str(slot.dtype), list(slot.shape), slot.offset] for slot in layout(file.skeleton)]
    return {
        "form": FORM_VERSION,
        "layers": file.layers,
        "bytes": file.layer_bytes,
        "slots": slots,
        "runtime": VERSION,
    }


def write_layers(
    path: Path, file: LayerFile, layers: Iterator[LayerWeights], header_fields: Mapping[str, Any]
) -> Path:
    """Write all layers, then the header with their checksums, and drop the file from the page cache."""
    buffer = torch.zeros(file.layer_bytes, dtype=torch.uint8)
    checksums = []
    with path.open("wb") as out:
        out.seek(HEADER_BYTES)
        for layer in layers:
            layer.to_buffer(buffer)
            content = buffer.numpy().data
            checksums.append(zlib.crc32(content))
            out.write(content)
        header = json.dumps({**header_fields, "checks": checksums}).encode()
        out.seek(0)
        out.write(header.ljust(HEADER_BYTES, b"\0"))
        out.flush()
        os.fsync(out.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _is_whole(file: LayerFile, expected_header: Mapping[str, Any]) -> bool:
    """Whether the file exists, has this identity, and passes all checksums."""
    if not file.path.is_file():
        return False
    fault = _fault(file, expected_header)
    if fault:
        log.warning("%s %s", file.path, fault)
    return fault is None


def _fault(file: LayerFile, expected_header: Mapping[str, Any]) -> str | None:
    """The fault of a file, phrased as a predicate; `None` if it is intact."""
    size = file.path.stat().st_size
    if size != file.offset(file.layers):
        return f"has {size} bytes, not {file.offset(file.layers)}"
    disk = DirectFile(file.path)
    try:
        header = _header(disk)
        checksums = header.pop("checks", [])
        if header != expected_header or len(checksums) != file.layers:
            return "was written by other code or for another kind of layer"
        buffer = memoryview(page_aligned_memory(file.layer_bytes))
        for layer, checksum in enumerate(checksums):
            disk.read(buffer, file.offset(layer))
            if zlib.crc32(buffer) != checksum:
                return f"is damaged in layer {layer}"
    finally:
        disk.close()
    return None


def _header(disk: DirectFile) -> dict[str, Any]:
    """The header; empty if it cannot be parsed."""
    buffer = memoryview(page_aligned_memory(HEADER_BYTES))
    disk.read(buffer, 0)
    try:
        header = json.loads(bytes(buffer).rstrip(b"\0"))
    except ValueError:
        return {}
    return header if isinstance(header, dict) else {}


class LayerReader:
    """Reads layers of a file into a fixed number of reusable slots.

    Workers call `fetch`, the event loop's thread calls `release`. On a GPU a slot is a pinned host buffer and
    a device buffer; each piece is copied to the device while the next one is read from disk.

    Attributes:
        file: the layer file.
        way: I/O mode, see `DirectFile.way`.
        bytes_read: bytes read so far.
    """

    def __init__(self, file: LayerFile, slot_count: int = 2, device: torch.device | str = "cpu") -> None:
        """Open the file and allocate all slots; InputError if `slot_count` is below 1."""
        if slot_count < 1:
            raise InputError(
                f"{slot_count} slots for streamed layers; it takes 1, or 2 to read while computing"
            )
        self.file = file
        self.bytes_read = 0
        self._disk = DirectFile(file.path)
        self.way = self._disk.way
        self._free = [_slot(file, torch.device(device)) for _ in range(slot_count)]
        self._slots: dict[int, _Slot] = {}
        self._reading: set[int] = set()
        self._closed = False
        self._lock = Condition()

    @property
    def layer_bytes(self) -> int:
        """Bytes per read."""
        return self.file.layer_bytes

    def fetch(self, layer: int) -> LayerWeights:
        """Read a layer's weights into a free slot, valid until `release`; blocks.

        Raises:
            RuntimeError: no free slot, a layer that is held or does not exist, or a closed reader.
            OSError: the disk failed; the slot is free again.
        """
        slot = self._take(layer)
        is_whole = False
        try:
            slot.fill(self._disk, self.file.offset(layer))
            is_whole = True
        finally:
            self._end_reading(layer, is_whole)
        return slot.weights

    def release(self, layer: int) -> None:
        """Free the layer's slot after it has computed; its weights must not be used any more."""
        with self._lock:
            self._free.append(self._slots.pop(layer))

    def _take(self, layer: int) -> _Slot:
        if not 0 <= layer < self.file.layers:
            raise RuntimeError(f"layer {layer} was asked for; {self.file.path} has {self.file.layers}")
        with self._lock:
            if self._closed:
                raise RuntimeError(f"layer {layer} was asked for after the reader was closed")
            if layer in self._slots:
                raise RuntimeError(f"layer {layer} was fetched twice without a release")
            if not self._free:
                layers = ", ".join(map(str, sorted(self._slots)))
                raise RuntimeError(f"no slot is free for layer {layer}: release one of {layers} first")
            self._slots[layer] = self._free.pop()
            self._reading.add(layer)
            return self._slots[layer]

    def _end_reading(self, layer: int, is_whole: bool) -> None:
        with self._lock:
            if is_whole:
                self.bytes_read += self.file.layer_bytes
            else:
                self._free.append(self._slots.pop(layer))
            self._reading.remove(layer)
            self._lock.notify_all()

    def close(self) -> None:
        """Wait for running reads, close the file and drop the slots; idempotent.

        Fetched weights must not be used afterwards.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.wait_for(lambda: not self._reading)
        self._disk.close()
        self._free.clear()
        self._slots.clear()


class _Slot:
    """A buffer for one layer, and its weights as views."""

    def __init__(self, file: LayerFile, host_buffer: Tensor) -> None:
        self._bytes = host_buffer.numpy().data
        self.weights = file.skeleton.from_buffer(host_buffer)

    def fill(self, disk: DirectFile, offset: int) -> None:
        """Read a layer from `offset`."""
        disk.read(self._bytes, offset)


class _CudaSlot(_Slot):
    """A GPU buffer filled through a pinned host buffer."""

    def __init__(self, file: LayerFile, host_buffer: Tensor, device: torch.device) -> None:
        super().__init__(file, host_buffer)
        self._host = host_buffer
        self._on_gpu = torch.empty_like(host_buffer, device=device)
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.weights = file.skeleton.from_buffer(self._on_gpu)

    def fill(self, disk: DirectFile, offset: int) -> None:
        """Read a layer and copy it to the GPU piece by piece; returns after the last copy."""
        with torch.cuda.stream(self._copies):
            for bytes_slice in disk.read_into(self._bytes, offset):
                self._on_gpu[bytes_slice].copy_(self._host[bytes_slice], non_blocking=True)
        self._copies.synchronize()


def _slot(file: LayerFile, device: torch.device) -> _Slot:
    if device.type == "cpu":
        return _Slot(file, torch.frombuffer(page_aligned_memory(file.layer_bytes), dtype=torch.uint8))
    # CUDA pins whole pages, so direct I/O can write to them.
    host_buffer = torch.empty(file.layer_bytes, dtype=torch.uint8, pin_memory=True)
    return _CudaSlot(file, host_buffer, device)
