"""Which file of a folder a tensor comes from: those that its index names, and never one of two."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from repro.models.checkpoints.safetensors_io import StoredTensors


def write(folder: Path, file: str, **values: float) -> None:
    save_file({name: torch.full((2,), value) for name, value in values.items()}, folder / file)


def index(folder: Path, **files: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")


def test_a_file_that_the_index_does_not_name_is_not_read(tmp_path: Path) -> None:
    """As in transformers: what an older download left behind gives no tensor, wherever it sorts."""
    write(tmp_path, "b.safetensors", w=1.0)
    for stale in ("a.safetensors", "c.safetensors"):
        write(tmp_path, stale, w=2.0, v=2.0)
    index(tmp_path, w="b.safetensors")
    stored = StoredTensors(tmp_path)
    assert stored.take("w", (2,)).tolist() == [1.0, 1.0]
    assert "v" not in stored
