"""Lines of a CSV file that are things by name, such as products and models: one dataclass a line.

Owns how the text of a column becomes what its field may be. Must not know what a line means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.core.typed import typed

T = TypeVar("T")

WORDS = {"yes": True, "no": False}
"""How truth values are written."""


def named_lines(path: Path, cls: type[T]) -> Mapping[str, T]:
    """The lines of a file by their column `name`; none where there is no file.

    An empty column, or one that the file lacks, has its field's default.

    Args:
        path: a CSV file whose columns are fields of the class.
        cls: a dataclass with a field `name`.

    Raises:
        InputError: it is no CSV, two lines have one name, or a value is not what its field's type says.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return {}
    dataclass: Any = cls
    return _read(path, stat.st_mtime_ns, stat.st_size, dataclass)


@lru_cache
def _read(path: Path, changed_ns: int, size: int, cls: Any) -> Mapping[str, Any]:
    """As `named_lines`; `changed_ns` and `size` are part of the cache's key."""
    hints = get_type_hints(cls, include_extras=True)
    defaults = {field.name: field.default for field in fields(cls)}
    lines: dict[str, Any] = {}
    with csv_reader(path) as reader:
        for texts in reader:
            where = f"{path}, line {reader.line_num}"
            if None in texts or None in texts.values():
                raise InputError(
                    f"{where} has not as many columns as the first line; quote a text with a comma"
                )
            filled = {name: text for name, text in texts.items() if text or name not in defaults}
            line: Any = typed(cls, {n: _value(t, hints.get(n)) for n, t in filled.items()}, where)
            if line.name in lines:
                raise InputError(f"{where}: a line before it has the name {line.name!r}; choose another")
            lines[line.name] = line
    return lines


def _value(text: str, kind: Any) -> Any:
    """A column's text as what the field's type is; as it is where it is none, for `typed` to refuse."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if kind is bool:
        return WORDS.get(text, text)
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text
