"""Display names of labels' values, and how the papers spell them, from `conf/reference/names.yaml`.

Owns the reading of these files, and of the footnotes that tables share. Must not know tables or records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_entries
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from repro.reports.reference.reference import COLUMNS

ANY_PAPER = "any"
"""The section of names that hold for every paper."""

FIELD_OF = {
    "method": "system",
    "service": "system",
    "system": "system",
    "compression": "system",
    "target": "model",
    "draft": "draft_model",
    "dataset": "dataset",
    "device": "device",
}
"""The field of a published cell that a label corresponds to."""

PUBLISHED_FIELDS = tuple(name for name in COLUMNS if name != "id" and not name.startswith("value_"))


@dataclass(frozen=True)
class NameSpec:
    """A label's value: its display name, and the texts of a published cell's fields that stand for it."""

    name: str
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class DisplayNames:
    """Names by paper, label and value."""

    def __init__(self, entries: Mapping[str, NameSpec]) -> None:
        """Entries by `paper/label/value`."""
        self._entries = entries

    def find(self, paper: str, label: str, value: str) -> NameSpec:
        """What a value is called, for a paper if it has a name of its own there.

        An entry `*` of a label holds for all other values; in its texts `*` stands for the value. Without
        any entry the display name is the value, and that is also the published text.
        """
        for key in (f"{paper}/{label}/{value}", f"{ANY_PAPER}/{label}/{value}"):
            if key in self._entries:
                return self._with_default(self._entries[key], label, value)
        for key in (f"{paper}/{label}/*", f"{ANY_PAPER}/{label}/*"):
            if key in self._entries:
                entry = self._entries[key]
                texts = {f: tuple(t.replace("*", value) for t in ts) for f, ts in entry.published.items()}
                return NameSpec(entry.name.replace("*", value), texts)
        return self._with_default(NameSpec(value), label, value)

    def spellings(self, paper: str, label: str) -> dict[str, str]:
        """The value that each published text of a label stands for."""
        prefix = f"{paper}/{label}/"
        entries = {
            key.removeprefix(prefix): spec for key, spec in self._entries.items() if key.startswith(prefix)
        }
        return {
            text: value
            for value, spec in entries.items()
            for text in self._with_default(spec, label, value).published.get(FIELD_OF[label], ())
        }

    @staticmethod
    def _with_default(entry: NameSpec, label: str, value: str) -> NameSpec:
        name = FIELD_OF.get(label)
        if name is None or name in entry.published:
            return entry
        return NameSpec(entry.name, {**entry.published, name: tuple(dict.fromkeys((value, entry.name)))})


def load_names(folders: Sequence[Path] | None = None) -> DisplayNames:
    """The names of all `reference/names.yaml` below these `conf/` folders; default `conf_folders()`.

    Raises:
        InputError: the project's file is malformed, or two files name the same value.
    """
    return DisplayNames(conf_entries("reference/names.yaml", _read, "name", folders))


STAND_INS_PREFIX = "stand_ins: "
"""Before a footnote of a table in which stand-ins compute; left out where the models do."""


def load_notes(folders: Sequence[Path] | None = None) -> dict[str, str]:
    """The shared footnotes by name, from all `reference/notes.yaml`; errors as `load_names`."""
    return conf_entries("reference/notes.yaml", _read_notes, "shared footnote", folders)


def footnotes(notes: Sequence[str], shared_notes: Mapping[str, str]) -> list[str]:
    """The text of each note: a shared one's by its name (a single word), or the note itself.

    Raises:
        InputError: there is no shared footnote with that name.
    """
    for note in notes:
        if note.isidentifier() and note not in shared_notes:
            raise InputError(unknown("shared footnote", note, shared_notes))
    return [shared_notes.get(note, note) for note in notes]


def _read_notes(path: Path) -> dict[str, str]:
    return {name: " ".join(str(text).split()) for name, text in read_mapping(path).items()}


def _read(path: Path) -> dict[str, NameSpec]:
    specs: dict[str, NameSpec] = {}
    for paper, labels in read_mapping(path).items():
        for label, values in _mapping(path, paper, labels).items():
            for value, entry in _mapping(path, f"{paper}, {label}", values).items():
                specs[f"{paper}/{label}/{value}"] = _entry(
                    path, f"{paper}, {label}, {value}", str(value), entry
                )
    return specs


def _mapping(path: Path, where: str, content: Any) -> dict[Any, Any]:
    if not isinstance(content, dict):
        raise InputError(f"{path}, {where}: {content!r} must be a mapping")
    return content


def _entry(path: Path, where: str, value: str, entry: Any) -> NameSpec:
    if isinstance(entry, str):
        return NameSpec(entry)
    fields = dict(_mapping(path, where, entry))
    name = str(fields.pop("name", value))
    for key in fields:
        if key not in PUBLISHED_FIELDS:
            raise InputError(
                f"{path}, {where}: {unknown('field of a published cell', str(key), PUBLISHED_FIELDS)}"
            )
    texts = {key: tuple(map(str, t)) if isinstance(t, list) else (str(t),) for key, t in fields.items()}
    return NameSpec(name, texts)
