"""A user's own table of measurements (CSV) as passes on processors.

Owns what its columns mean, which are those of `conf/reference/phones.csv`. Must not know what is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.core.registry import require_choice
from repro.device.op import PROCESSORS
from repro.models.calibration.llama_bench_file import BenchRow
from repro.models.costs.model_cost import PRECISIONS, Precision, Shape

Line = Mapping[str, str]
"""A row as written, by column, with `label`, which names it in errors."""

COLUMNS = (
    *("device", "processor", "model", "shape", "parameters", "quant", "bits", "threads", "version"),
    *("prompt_tokens", "generated_tokens", "prefill_tok_s", "decode_tok_s"),
)
OTHER_COLUMNS = (
    *("id", "soc", "engine", "engine_class", "context", "first_token_s", "state", "trust", "apart"),
    *("source", "note"),
)
"""Columns of `phones.csv` that are not read."""
SETTINGS = ("version", "quant")
"""Columns in which the rows of one processor must not differ, but for a type of each arithmetic."""


def read_rows(path: Path, choices: Sequence[str] = ()) -> list[Line]:
    """The lines of a table, of those values of columns that are chosen as `column=value`.

    Raises:
        InputError: no such file, an unknown or missing column, or no line is left.
    """
    try:
        with csv_reader(path) as reader:
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            lines = [{name: (line[name] or "").strip() for name in columns} for line in reader]
    except OSError as error:
        raise InputError(f"--rows {path}: {error.strerror or error}") from None
    for name in columns:
        require_choice(f"column of {path}", name, (*COLUMNS, *OTHER_COLUMNS))
    for names in (
        ("processor",),
        ("shape", "parameters"),
        ("quant", "bits"),
        ("prefill_tok_s", "decode_tok_s"),
    ):
        if not any(name in columns for name in names):
            raise InputError(
                f"{path} has no column {' or '.join(names)}; it has {', '.join(columns) or 'none'}"
            )
    pool: list[Line] = [{**line, "label": f"{path}, line {i}"} for i, line in enumerate(lines, 2)]
    for choice in choices:
        name, _, value = choice.partition("=")
        require_choice("--setting", name, columns)
        values = dict.fromkeys(line[name] for line in pool)
        pool = [line for line in pool if line[name].lower() == value.strip().lower()]
        if not pool:
            raise InputError(f"--setting {choice}: the rows have {name} {', '.join(values)}")
    if not pool:
        raise InputError(f"{path} has no rows below its columns")
    return pool


def measured_rows(lines: Sequence[Line], shapes: Mapping[str, Shape]) -> list[BenchRow]:
    """Each line's prompt and generation.

    Args:
        lines: of one device.
        shapes: known shapes by name.

    Raises:
        InputError: a value is wrong or missing, or the lines of a processor are of several settings.
    """
    rows = [row for line in lines for row in _rows_of(line, shapes)]
    for processor in dict.fromkeys(line["processor"].lower() for line in lines):
        of_processor = [line for line in lines if line["processor"].lower() == processor]
        for name in SETTINGS:
            values = {line[name]: _precision(line).arithmetic for line in of_processor if line.get(name)}
            if len(values) > (len({*values.values()}) if name == "quant" else 1):
                raise InputError(
                    f"the rows of {processor} have several values of {name} ({', '.join(values)}); choose "
                    f'one, as --setting "{name}={next(iter(values))}"'
                )
    return rows


def _rows_of(line: Line, shapes: Mapping[str, Shape]) -> Iterator[BenchRow]:
    processor, stored = line["processor"].lower(), _precision(line)
    require_choice(f"{line['label']}: processor", processor, PROCESSORS)
    name = line.get("shape", "")
    if name:
        require_choice(f"{line['label']}: shape", name, shapes)
    shape = shapes.get(name)
    parameters = float(shape.parameters) if shape else _number(line, "parameters")
    size = parameters * stored.bits / 8
    if not parameters:
        raise InputError(f"{line['label']} has neither a shape nor parameters")
    prompt, generated = _number(line, "prompt_tokens"), _number(line, "generated_tokens")
    phases = {"prefill_tok_s": max(1, int(prompt)), "decode_tok_s": 1}
    if not any(_number(line, column) for column in phases):
        raise InputError(f"{line['label']} has neither prefill_tok_s nor decode_tok_s")
    for column, pass_rows in phases.items():
        speed = _number(line, column)
        if not speed:
            continue
        if column == "prefill_tok_s" and prompt < 2:
            raise InputError(f"{line['label']}: prefill_tok_s needs prompt_tokens of 2 or more")
        yield BenchRow(
            model=line.get("model") or name or f"{parameters:g} parameters",
            arithmetic=stored.arithmetic,
            size=size,
            read=size,
            layers=shape.layers * shape.layer_weights if shape else parameters,
            head=shape.head_weights if shape else 0.0,
            passes=((pass_rows, 1),),
            context=prompt / 2 if pass_rows > 1 else prompt + generated / 2,
            seconds=pass_rows / speed,
            threads=int(_number(line, "threads")) if processor == "cpu" else 0,
            on=processor,
            blocks=shape.layers if shape else 0,
            format=stored.format,
        )


def _precision(line: Line) -> Precision:
    """How weights are stored: by a known type, or by their bits."""
    known, bits = PRECISIONS.get(line.get("quant", "").lower()), _number(line, "bits")
    if known:
        return known
    if not bits:
        names = ", ".join(PRECISIONS)
        raise InputError(f"{line['label']}: quant is {line.get('quant', '')!r}; give bits, or one of {names}")
    arithmetic = "fp32" if bits >= 32 else "fp16" if bits >= 16 else "int8"
    return Precision(bits, arithmetic, 4 if arithmetic == "fp32" else 2)


def _number(line: Line, column: str) -> float:
    """A number above 0; 0 where there is none."""
    text = line.get(column, "")
    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf") or (text and not value):
        raise InputError(f"{line['label']}: {column} is {text!r}; it must be a number above 0")
    return value
