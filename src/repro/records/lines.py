"""The lines of which records are stored: the form's version, a hash, and an object of JSON.

Owns the form. A line is a `part` of provenance that cells have in common, the `rounds` or `answers` of a
record, a `cell` with its record, or the note that a cell has `begun`. Must not know which files hold lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from repro.core.digits import in_ten_digits
from repro.core.reading import parse_json
from repro.records.record import KEY_PATTERN, Record, Round, Scalar, canonical, require_finite_numbers

LINE_FORM = 1
"""The version of the form that is written. Lines of a higher one are left alone."""

DETAIL_KINDS = ("rounds", "answers")
"""Kinds of details that may be stored with a cell's record."""

SHARED_SECTIONS = ("packages", "host", "versions", "inputs", "memory")
"""Sections of provenance that cells have in common; of its `config` every section is one."""

ABSENT_ENTRY: dict[str, Any] = {}
"""What stands in a column for a row that has no such entry."""


class NewerForm(Exception):
    """A line is of a newer version of the form; the argument is that version."""


@dataclass(frozen=True)
class Line:
    """A line as read: its kind, its name (of a part, a cell or a record), and its JSON."""

    kind: str
    name: str
    text: str

    def content(self) -> dict[str, Any]:
        """The object; ValueError if it is too deep or too long."""
        content: dict[str, Any] = parse_json(self.text)
        return content

    def stored_form(self) -> str:
        """The line as it stands in a file."""
        return f"{LINE_FORM} {_hash(self.text)} {self.text}\n"


def write_line(content: Mapping[str, Any]) -> str:
    """The line of an object, whose first entry, of its kind, says its name.

    Raises:
        ValueError: a number in it is not finite; the sentence says where.
    """
    kind, name = next(iter(content.items()))
    try:
        text = json.dumps(content, allow_nan=False)  # ASCII, as a path in a traceback may be no text
    except ValueError:
        require_finite_numbers(content)
        raise
    return Line(kind, name, text).stored_form()


def read_line(line: str) -> Line:
    """A line that `write_line` made.

    Raises:
        NewerForm: a newer version of this package wrote it.
        ValueError: it is damaged.
    """
    form, _, digest_and_text = line.partition(" ")
    if form.isdecimal() and len(form) < 9 and int(form) > LINE_FORM:
        raise NewerForm(form)
    digest, _, text = digest_and_text.partition(" ")
    pieces = text[:120].split('"', 4)
    if form != str(LINE_FORM) or digest != _hash(text) or len(pieces) < 5 or pieces[0] != "{":
        raise ValueError("it is not what was written")
    return Line(kind=pieces[1], name=pieces[3], text=text)


def record_name(record: Record) -> str:
    """The name by which details refer to a record: its key's beginning and its hash."""
    return f"{record.key[:16]}-{_hash(record.to_json())}"


def record_contents(
    record: Record, details: Mapping[str, Sequence[Round]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is written of a record: its parts by name, and the objects of its other lines, the cell last.

    Args:
        details: its rounds and answers by kind.
    """
    fields, parts = record.to_dict(), dict[str, Any]()

    def name_of(part: Any) -> str:
        name = _hash(canonical(part))
        parts[name] = part
        return name

    provenance = dict(fields.pop("provenance"))
    provenance |= {section: name_of(provenance[section]) for section in SHARED_SECTIONS}
    provenance["config"] = {section: name_of(part) for section, part in provenance["config"].items()}
    name = record_name(record)
    lines = [details_content(kind, name, rows) for kind, rows in details.items() if rows]
    cell = {"cell": fields.pop("key"), **fields, "details": name, "provenance": provenance}
    return parts, [*lines, cell]


def part_content(name: str, part: Any) -> dict[str, Any]:
    """The object of a part."""
    return {"part": name, "value": part}


def part_names(content: Mapping[str, Any]) -> list[str]:
    """The names of a cell's parts, of the object of its line."""
    provenance = content["provenance"]
    return [*(provenance[section] for section in SHARED_SECTIONS), *provenance["config"].values()]


def details_content(kind: str, name: str, rows: Sequence[Round]) -> dict[str, Any]:
    """The object of a record's rounds or answers, by column and in ten digits."""
    names = sorted({name for row in rows for name in row})
    columns = {name: [in_ten_digits(row.get(name, ABSENT_ENTRY)) for row in rows] for name in names}
    return {kind: name, "columns": columns}


def read_details(line: Line) -> list[dict[str, Scalar]]:
    """The rows of a line of details; ValueError, TypeError, KeyError or AttributeError if there are none."""
    columns = line.content()["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for name in (name for name, values in columns.items() if ABSENT_ENTRY in values):
        for row in rows:
            if row[name] == ABSENT_ENTRY:
                del row[name]
    return rows


def read_record(key: str, content: Mapping[str, Any], parts: Mapping[str, Any]) -> Record:
    """The record of a cell's line.

    Raises:
        InputError: the object is no record.
        KeyError, TypeError, AttributeError: a part is missing, or the object is no record.
    """
    provenance = dict(content["provenance"])
    provenance |= {section: parts[provenance[section]] for section in SHARED_SECTIONS}
    provenance["config"] = {section: parts[name] for section, name in provenance["config"].items()}
    fields = {name: value for name, value in content.items() if name not in ("cell", "details")}
    return Record.from_dict({**fields, "key": key, "provenance": provenance})


def is_key(name: str) -> bool:
    """Whether a name is a cell's key."""
    return KEY_PATTERN.fullmatch(name) is not None


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()
