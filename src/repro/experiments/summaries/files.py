"""Lists the files that a cell or a sweep has written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console


def show_files(console: Console, files: Mapping[str, Path]) -> None:
    """Print one line for each file."""
    names = {
        **{"md": "Markdown", "csv": "CSV", "tex": "LaTeX", "png": "picture", "wandb": "wandb run"},
        **{"pdf": "picture as PDF", "excerpt": "part of a timeline", "spans": "its spans"},
        **{"diagram": "its picture", "vector": "its picture as PDF"},
    }
    for kind, path in files.items():
        console.print(f"{names.get(kind, kind):<20} {path}", highlight=False, soft_wrap=True)
    if any(kind.startswith("timeline") for kind in files):
        console.print("Open a timeline in Perfetto (ui.perfetto.dev).", style="dim")
