"""Measured rows of `conf/reference/phones.csv` and `phones_s23.csv`.

Owns the reading of the files and what a printed format is; must not know what a row costs.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.models.costs.model_cost import ModelCost, Precision, Shape
from repro.models.costs.public_models import public_models
from workshop.validation.phones.class_specification import class_specification

FORMATS = {
    **{name: name for name in ("iq1_s", "q2_k", "q6_k", "q8_0", "q4_0", "q4_1")},
    **{
        "q3_k": "q3_k_m",
        "q4_k": "q4_k_m",
        "q5_k": "q5_k_m",
        "q4 (ollama": "q4_k_m",
        "3.87": "q4_k_m",
        "4.74": "q4_k_m",
    },
    **{"iq4": "q4_0", "q4": "q4_0", "4-bit": "q4_0"},
    **{"f16": "fp16", "fp16": "fp16", "bf16": "fp16"},
}
"""Storage formats of llama.cpp by how a printed one begins; the first that fits counts."""

OTHER_FORMATS = {
    **{"fp32": "fp32", "bf16": "fp16", "fp16": "fp16", "f16": "fp16"},
    **dict.fromkeys(("w8a8", "int8", "16a8w", "w8a16", "dynamic"), "w8a8"),
}
"""Of other programs, whose 4 bits have one kernel: by a part of the printed name."""

FOUR_BITS = "int4"
"""The format of all others."""


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
        format: storage format of its weights, a name of `PRECISIONS`.
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
    format: str
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
        format=stored_format(given["quant"], given["engine_class"]),
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


def stored_format(printed: str, engine: str) -> str:
    """The format that a printed one is: a name of `PRECISIONS`."""
    name = printed.lower()
    if engine.startswith("llama_cpp"):
        return next((known for start, known in FORMATS.items() if name.startswith(start)), FORMATS["q4"])
    return next((known for part, known in OTHER_FORMATS.items() if part in name), FOUR_BITS)


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
    return ModelCost(
        shapes()[row.shape], Precision(row.bits, arithmetic, 4 if arithmetic == "fp32" else 2, row.format)
    )
