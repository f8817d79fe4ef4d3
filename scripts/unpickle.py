"""Convert a folder's pickled weights to safetensors, once and by hand: runs never load a pickle.

python scripts/unpickle.py FOLDER

Reads FOLDER/pytorch_model.bin, the format of EAGLE's published heads, with torch's weights-only loader, which
runs no code of the file; writes FOLDER/model.safetensors beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from safetensors.torch import save_file

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import unpickle_tensors

PICKLED, SAFE = "pytorch_model.bin", "model.safetensors"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 1 if there is nothing to write or the output exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder: Path = parser.parse_args(arguments).folder
    try:
        print(f"{unpickle(folder)} tensors in {folder / SAFE}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def unpickle(folder: Path) -> int:
    """Convert a folder's weights; returns the number of tensors.

    Raises:
        InputError: there is no such file, it holds more than tensors, or safetensors exist already.
    """
    source, target = folder / PICKLED, folder / SAFE
    if not source.is_file():
        raise InputError(f"{folder} has no {PICKLED}")
    if target.exists():
        raise InputError(f"{target} is there already; remove it to write it anew")
    found = unpickle_tensors(source)
    # safetensors does not store tensors that share memory, so they are copied.
    save_file({name: value.clone().contiguous() for name, value in found.items()}, target)
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
