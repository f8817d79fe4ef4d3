"""BibTeX entries by key, for citing papers.

Finds where an entry begins, its key and who names it; does not parse its fields.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_folders, merge_entries
from repro.core.registry import unknown

OWN_KEY = "repro"


def load_bibliography(folders: Sequence[Path] | None = None) -> dict[str, str]:
    """The entries of all `reference/papers.bib` below these `conf/` folders; default `conf_folders()`.

    Raises:
        InputError: two entries have the same key.
    """
    conf_dirs = conf_folders() if folders is None else folders
    return merge_entries(conf_dirs, "reference/papers.bib", read_entries, "BibTeX entry")


def read_entries(path: Path) -> dict[str, str]:
    """Entries of a BibTeX file by key; every entry starts with `@` at the beginning of a line.

    Raises:
        InputError: two entries have the same key.
    """
    entries: dict[str, str] = {}
    for text in re.split(r"^(?=@)", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        match = re.match(r"@\w+\{([^,\s]+),", text)
        if match is None:
            continue
        if match[1] in entries:
            raise InputError(f"{path.name} has two entries with the key {match[1]!r}")
        entries[match[1]] = text.strip()
    return entries


def papers_of(name: str, component: type) -> list[str]:
    """The papers that a component's name, folder or documentation names, by their keys."""
    path = Path(inspect.getfile(component))
    texts = (name, path.parent.name, component.__doc__, sys.modules[component.__module__].__doc__)
    text = " ".join(filter(None, texts)).lower().replace("-", "_")
    return [paper for paper in load_bibliography() if paper != OWN_KEY and re.search(rf"\b{paper}\b", text)]


def citations(papers: Sequence[str], entries: dict[str, str]) -> list[str]:
    """Entries of these papers, followed by this project's own.

    Raises:
        InputError: a paper has no entry.
    """
    for paper in (*papers, OWN_KEY):
        if paper not in entries:
            raise InputError(unknown("BibTeX entry", paper, entries))
    return [entries[paper] for paper in (*papers, OWN_KEY)]
