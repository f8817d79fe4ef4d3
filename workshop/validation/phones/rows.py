"""Measured rows of `conf/reference/phones.csv` and `phones_s23.csv`, and which of them a fit may see.

Owns the reading of the files and the division into fitted and predicted rows; must not know what a row costs.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import ceil

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.models.costs.model_cost import ModelCost, Precision, Shape
from repro.models.costs.public_models import public_models
from workshop.validation.phones.class_specification import class_specification

FIT, PREDICT, DEFAULTS = "fit", "predict", "defaults"
"""Roles of a row: seen by the fit; predicted in a fitted group; predicted from its class's defaults alone."""

ROLES = (FIT, PREDICT, DEFAULTS)
SMALLEST_GROUP = 4


@dataclass(frozen=True)
class PhoneRow:
    """One published measurement, or several of one run.

    Attributes:
        id: its name, which never changes.
        soc: chip.
        engine: class of engines that it was measured with.
        processor: `cpu`, `gpu` or `npu`.
        threads: CPU threads; 0 if not stated.
        model: the model's printed name.
        shape: name of a model of `conf/model/models.csv`.
        bits: bits of a stored weight, scales included.
        half: whether 4-bit weights meet fp16 activations (printed `w4`).
        prompt: prompt tokens; 0 if not stated.
        generated: generated tokens; 0 if not stated.
        context: positions of a static key-value cache; 0 if the cache grows.
        prefill: printed prompt tokens per second; `None` if not printed.
        first_token: printed seconds to the first token; `None` if not printed.
        decode: printed generated tokens per second; `None` if not printed.
        apart: why the row is in no fit and no headline; empty if it is in one.
        source: where it was read.
    """

    id: str
    soc: str
    engine: str
    processor: str
    threads: int
    model: str
    shape: str
    bits: float
    half: bool
    prompt: int
    generated: int
    context: int
    prefill: float | None
    first_token: float | None
    decode: float | None
    apart: str
    source: str

    @property
    def group(self) -> tuple[str, str, str]:
        """Chip, class of engines and processor."""
        return self.soc, self.engine, self.processor


@cache
def reference(name: str) -> list[dict[str, str]]:
    """The rows of a file in `conf/reference/`."""
    with (conf_dir() / "reference" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def phone_rows() -> tuple[PhoneRow, ...]:
    """All measured rows, in the order of the files and their lines."""
    return tuple(row for name in class_specification().rows for row in rows_of(name))


def rows_of(name: str) -> list[PhoneRow]:
    """The measured rows of one file."""
    return [_row(line) for line in reference(name)]


def _row(given: Mapping[str, str]) -> PhoneRow:
    def number(name: str) -> float | None:
        try:
            value = float(given[name]) if given[name] else None
        except ValueError:
            raise InputError(f"{given['id']}: {name} {given[name]!r} is no number") from None
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{given['id']}: {name} is {value:g}; it must be above 0")
        return value

    return PhoneRow(
        id=given["id"],
        soc=given["soc"],
        engine=given["engine_class"],
        processor=given["processor"],
        threads=int(number("threads") or 0),
        model=given["model"],
        shape=given["shape"],
        bits=number("bits") or 0.0,
        half=given["quant"] == "w4",
        prompt=int(number("prompt_tokens") or 0),
        generated=int(number("generated_tokens") or 0),
        context=int(number("context") or 0),
        prefill=number("prefill_tok_s"),
        first_token=number("first_token_s"),
        decode=number("decode_tok_s"),
        apart=given["apart"],
        source=given["source"],
    )


@cache
def shapes() -> dict[str, Shape]:
    """Shapes of the public models; of other architectures a dense equivalent."""
    return {name: model.shape for name, model in public_models().items()}


def predictable(row: PhoneRow, classes: Collection[str]) -> bool:
    """Whether the emulator can predict a row: it does not stand apart, or its architecture is the only
    reason.

    Args:
        row: a row.
        classes: classes of engines that have rows that do not stand apart.
    """
    known = row.engine in classes and row.soc in {given["soc"] for given in reference("phone_socs.csv")}
    return not row.apart or (row.apart == "architecture" and known)


def model_cost(row: PhoneRow) -> ModelCost:
    """Cost of a row's model as its engine stores it.

    Quantized weights compute in int8, except 4-bit weights with fp16 activations; fp16 and fp32 in
    themselves.
    """
    arithmetic = "fp32" if row.bits >= 32 else "fp16" if row.bits >= 16 or row.half else "int8"
    return ModelCost(shapes()[row.shape], Precision(row.bits, arithmetic, 4 if arithmetic == "fp32" else 2))


def divided(rows: Iterable[PhoneRow]) -> dict[str, str]:
    """Roles by row id, of all rows of one file that are not kept apart.

    In a group (chip, class of engines, processor) of at least four rows, the rows of one source and one shape
    of model stay together; of these bundles, ordered by a hash of their names, the first half (rounded up) is
    fitted and the rest predicted. Rows of smaller groups are predicted from the defaults of their class.
    """
    groups: dict[tuple[str, str, str], list[PhoneRow]] = defaultdict(list)
    for row in rows:
        if not row.apart:
            groups[row.group].append(row)
    roles: dict[str, str] = {}
    for members in groups.values():
        bundles = {_hash(row) for row in members}
        fitted = sorted(bundles)[: ceil(len(bundles) / 2)]
        for row in members:
            small = len(members) < SMALLEST_GROUP
            roles[row.id] = DEFAULTS if small else FIT if _hash(row) in fitted else PREDICT
    return roles


def _hash(row: PhoneRow) -> str:
    return sha256(f"{row.source}\n{row.shape}".encode()).hexdigest()


def committed_roles() -> dict[str, str]:
    """Roles by row id as committed before the first prediction.

    Raises:
        InputError: a role is unknown.
    """
    name = class_specification().split
    roles = {given["id"]: given["role"] for given in reference(name)}
    wrong = {role for role in roles.values()} - set(ROLES)
    if wrong:
        raise InputError(f"{name}: role {min(wrong)!r} is none of {', '.join(ROLES)}")
    return roles
