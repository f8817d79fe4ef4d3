"""Records of cells as JSON, and atomic writing of files.

Must not know what the values mean, where records are stored (`store`, `results`) or how they are shown.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from repro.core.digits import in_ten_digits
from repro.core.errors import InputError
from repro.core.paths import conf_folders, merge_entries
from repro.core.reading import parse_json, read_mapping
from repro.records.provenance import Provenance

Scalar = float | int | str | None
FEWEST = 5
"""Prompts, rows or requests below which nothing has an interval: so few say little about others."""

Spread = float | tuple[float, float]
Round = Mapping[str, Scalar]

CHECKSUM_KEY = "sha256"
"""The entry of a record as JSON that holds the hash of the others."""

KEY_PATTERN = re.compile(r"[0-9a-f]{8,64}")

UNSIGNED_UNITS = ("s", "J", "W", "B", "kB", "MB", "GB", "tokens", "rows", "requests", "verifications")
"""Units, alone or over another one (`J/token`), of quantities that cannot be negative."""

ROUNDING_ERROR = 1e-9
"""What rounding may leave below zero where a quantity is a difference of sums."""


def canonical(value: object) -> str:
    """Canonical JSON of plain data: sorted keys, no spaces, ASCII.

    Raises:
        InputError: it contains a number that is not finite.
        TypeError: it contains something other than plain data.
    """
    try:
        return _encode(value)
    except ValueError:
        require_finite_numbers(value)
        raise


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def content_hash(value: object) -> str:
    """SHA-256 in hexadecimal of the canonical JSON of plain data."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """One cell of a sweep, done or failed.

    `labels` are short names by which tables select and show cells (method, device, dataset, model). `values`
    are finite numbers, strings or `None`; `uncertainty` has a finite standard error or (low, high) interval
    for some of them. Both are rounded to ten significant digits: a record is the same in memory and
    in a file. `error` is the traceback of a failed cell.

    Raises:
        InputError: a key that is not hexadecimal, an unknown status, a failure without a traceback, a value
            or uncertainty that is not finite or not plain, a negative time, energy, power, size or count.
    """

    key: str
    experiment: str
    labels: Mapping[str, str]
    status: Literal["done", "failed"]
    values: Mapping[str, Scalar]
    provenance: Provenance
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    error: str | None = None

    def __post_init__(self) -> None:
        if not KEY_PATTERN.fullmatch(self.key):
            raise InputError(f"key {self.key!r} is not 8 to 64 hexadecimal digits")
        if self.status not in ("done", "failed"):
            raise InputError(f"status is {self.status!r}; choices: done, failed")
        if (self.status == "failed") != bool(self.error):
            raise InputError(f"a record that is {self.status} cannot have error={self.error!r}")
        for name, value in self.values.items():
            _check_value(name, value)
        require_finite_numbers(self.uncertainty, "uncertainty")
        _check_signs(self.values)
        for name, value_bytes in self.provenance.memory.items():
            if value_bytes < 0:
                raise InputError(f"memory {name!r} is {value_bytes} bytes; it cannot be negative")
        object.__setattr__(self, "values", in_ten_digits(self.values))
        object.__setattr__(self, "uncertainty", in_ten_digits(self.uncertainty))

    @property
    def done(self) -> bool:
        """Whether the cell was computed successfully."""
        return self.status == "done"

    def figure(self, name: str) -> Scalar:
        """A value; else the peak bytes of that kind of memory (`emulated_dram`), or what the whole answer
        cost (`whole_answer`); `None` if it has none of them."""
        if name in self.values:
            return self.values[name]
        return self.provenance.memory.get(name, whole_answer(self.values).get(name))

    def to_json(self) -> str:
        """JSON with a checksum, a field a line; the same for equal records. InputError as `canonical`."""
        return self._json

    @cached_property
    def _json(self) -> str:
        """The text, which goes along with a record to the process that stores it."""
        fields = self.to_dict()
        fields[CHECKSUM_KEY] = content_hash(fields)
        lines = (f' "{name}": {_json(fields[name])}' for name in sorted(fields))
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON; not copied."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        return fields | {"provenance": self.provenance.to_dict()}

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Parse the output of `to_json`; older records have no checksum.

        Raises:
            InputError: the text is not a record, or not the one that was written.
        """
        try:
            fields = parse_json(text)
            checksum = fields.pop(CHECKSUM_KEY, None)
            if checksum is not None and checksum != content_hash(fields):
                raise ValueError("its content is not what its checksum was made of")
        except (ValueError, TypeError, AttributeError) as wrong:
            raise InputError(f"not a record: {wrong}") from wrong
        return cls.from_dict(fields)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Record:
        """The record of which `to_dict` made plain data, as they are after JSON.

        Raises:
            InputError: they are no record.
        """
        try:
            spreads = fields.get("uncertainty", {}).items()
            uncertainty = {n: tuple(v) if isinstance(v, list) else v for n, v in spreads}
            provenance = Provenance(**fields["provenance"])
            record = cls(**{**fields, "provenance": provenance, "uncertainty": uncertainty})
            record.require_parts()
            return record
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise InputError(f"not a record: {wrong}") from wrong

    def require_parts(self) -> None:
        """InputError for a part that other cells' tables read and that a stored record lacks."""
        provenance = self.provenance
        if not isinstance(self.labels, Mapping) or not isinstance(self.labels.get("method"), str):
            raise InputError(f"its labels are {self.labels!r}; there must be a method")
        if not isinstance(provenance.config, Mapping) or not provenance.config:
            raise InputError(f"its provenance.config is {provenance.config!r}; it must be the settings")
        for name in ("started", "finished"):
            datetime.fromisoformat(getattr(provenance, name))


def whole_answer(values: Mapping[str, Scalar]) -> dict[str, float]:
    """Mean seconds and joules from a request's arrival to its last token, all models' prompts included.

    Computed from values of every generation and serving record, so that older ones have them too.

    Returns:
        answer_seconds, answer_joules; without one whose parts are not known.
    """
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    means = {}
    for name, mean in (("answer_seconds", "latency"), ("answer_joules", "energy")):
        if mean in numbers and "prompts" in numbers:
            means[name] = numbers[mean]
    if "time" in numbers and "requests" in numbers:
        means["answer_seconds"] = numbers["time"]
    if {"prefill_joules", "decode_joules", "prompts"} <= numbers.keys() and numbers["prompts"]:
        joules = numbers["prefill_joules"] + numbers["decode_joules"]
        means["answer_joules"] = joules / numbers["prompts"]
    return means


_FIELDS = tuple(field.name for field in fields(Record))


def require_finite_numbers(value: object, path: str = "") -> None:
    """InputError that names the place of the first number in nested plain data that is not finite."""
    if not path:
        with suppress(TypeError, ValueError):  # quick, and says nothing of the place
            json.dumps(value, allow_nan=False)
            return
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{path or 'a number'} is {value}; it must be a finite number")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            require_finite_numbers(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            require_finite_numbers(inner, f"{path}.{i}" if path else str(i))


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, (float, int, str, type(None))):
        raise InputError(
            f"value {name!r} is a {type(value).__name__}; a record holds numbers, strings and None"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(
            f"value {name!r} is {value}; a record holds finite numbers, or None for an absent one"
        )


def _check_signs(values: Mapping[str, Scalar]) -> None:
    """InputError for a negative value that is a time, an amount or a count by its unit in `conf/metric/`."""
    for name, value in values.items():
        if not isinstance(value, (int, float)) or value >= -ROUNDING_ERROR:
            continue
        for pattern, unit in _units(tuple(conf_folders())):
            if fnmatchcase(name, pattern) and unit.partition("/")[0] in UNSIGNED_UNITS:
                raise InputError(
                    f"value {name!r} is {value}, and is shown in {unit}; a time, energy, power, size or "
                    "count cannot be negative (a difference has `signed: true` in conf/metric/)"
                )


@cache
def _units(folders: tuple[Path, ...]) -> list[tuple[str, str]]:
    """Names (or patterns) of values that `metric/*.yaml` in these folders show as they are, with units."""
    metrics = merge_entries(folders, "metric/*.yaml", read_mapping, "metric")
    specs = {name: spec for name, spec in metrics.items() if isinstance(spec, dict)}
    return [
        (str(spec.get("value", name)), str(spec.get("unit", "")))
        for name, spec in specs.items()
        if "total" not in spec and not spec.get("signed")
    ]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content atomically: temporary file, fsync, rename, fsync of the folder.

    Who may read and write the file is decided by the umask, as of any new file.

    Raises:
        OSError: it cannot be written; the temporary file is removed.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary_path = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary_path, "xb") as file:  # tempfile's own functions would ignore the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_path, path)
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise
    flush(path.parent)


def remove_left(folder: Path, start: str = "") -> None:
    """Remove unfinished files of `write_atomically` that begin so; the caller knows that none is written."""
    for path in folder.glob(f"{start}*.tmp"):
        if not path.name.startswith("."):  # a probe, which its writer removes
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
