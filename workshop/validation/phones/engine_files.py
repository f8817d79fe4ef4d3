"""Engine files of the classes and device files of the chips, from the fit to all rows.

Owns how fitted numbers become files of `conf/engine/` and `conf/device/`. The figures of the validation come
from other fits, each blind to a chip; these files are for chips and models that no row has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.cost import FULL_ROWS
from repro.device.device_file import is_fact
from repro.device.engines.engine_file import ABOVE_FLOOR, CHIP, FORMAT, OVER, chip_file
from repro.device.facts.holds import HOLDS_KEY, MEASURED
from repro.device.op import UNSUPPORTED
from workshop.validation.phones.chips import PRECISIONS, processor_of, sheets, soc_device
from workshop.validation.phones.class_fit import ClassFit, fit_classes
from workshop.validation.phones.class_specification import class_specification
from workshop.validation.phones.classes import ARITHMETIC, MANY, ONE, class_of, computes, formats_of
from workshop.validation.phones.quantities import DECODE, PREFILL, quantities
from workshop.validation.phones.rows import PhoneRow, model_cost, phone_rows

TOLERANCE = 0.02
"""Relative difference allowed between a file and a new fit on another machine."""

USED = {"cpu": PRECISIONS, "gpu": PRECISIONS, "npu": ("fp16", "int8")}
"""Precisions of a processor."""

WORDS = {DECODE: "decoding", PREFILL: "prompts"}
"""What notes call the phases."""

ALIKE = {"w8a8": ("w8a8", "int8"), "q4_k_m": ("q4_k_m", "q4_k")}
"""Names of formats that were measured under one of them."""


def engine_numbers(engine: str, fit: ClassFit, cells: Sequence[str], chip: str = "") -> dict[str, Any]:
    """What an engine file says of a class's processor, or of what differs on one chip.

    Args:
        engine: the class.
        fit: the fitted numbers.
        cells: ids that the numbers are fitted to; `*` stands for any part.
        chip: a chip; empty for the class.
    """

    def fact(number: float, unit: str = "") -> dict[str, Any]:
        return {"value": _rounded(number), "unit": unit, "source": "fitted", "cells": list(cells)}

    def value(name: str) -> float:
        return fit.number(name, engine, chip)

    rate = {}
    for precision in USED[processor_of(class_of(engine))]:
        factor = 1.0 if precision == "int8" else value(f"{ARITHMETIC}.{precision}")
        rate[precision] = fact(min(1.0, value("rate") * factor), "share")
    numbers: dict[str, Any] = {
        "token": fact(1e3 * value("token"), "ms"),
        "bandwidth_share": fact(value("bandwidth_share"), "share"),
        "rate": rate,
        "efficiency": {
            "points": [[1, _rounded(value("single_rate") / value("rate"))], [round(FULL_ROWS), 1.0]],
            "unit": "share",
            "source": "fitted",
            "cells": list(cells),
        },
    }
    if chip:
        return numbers
    given, family = class_specification(), class_of(engine)
    numbers["launch"] = {"value": 0, "unit": "us", "source": "assumed", "note": "the start has it"}
    numbers["start"] = {precision: fact(1e6 * value("start"), "us") for precision in rate}
    numbers["start_exponent"] = fact(value("start_exponent"))
    formats: dict[str, Any] = {}
    for measured_format in formats_of(engine, fit.values):
        for name in ALIKE.get(measured_format, (measured_format,)):
            formats[name] = {of: fact(value(f"{of}.{measured_format}"), "x") for of in (ONE, MANY)}
    for name in given.unsupported.get(family, ()):
        formats[name] = {UNSUPPORTED: processor_of(given.instead)}
    if formats:
        numbers["formats"] = formats
    if family in given.shapes:
        numbers["shapes"] = {
            "value": list(given.shapes[family]),
            "unit": "rows",
            "source": "assumed",
            "note": "blocks of rows that its kernels or static graphs take",
        }
    return numbers


def engine_content(engine: str, rows: Sequence[PhoneRow], fit: ClassFit) -> dict[str, Any]:
    """An engine file of a class, with what differs on the chips that it was fitted on."""
    own = [row for row in rows if computes(row.engine, row.format) == engine]
    family = class_of(engine)
    processor = processor_of(family)
    content: dict[str, Any] = {"name": engine, "papers": [], OVER: CHIP, "main": processor}
    content[FORMAT] = "w8a8" if processor == "npu" and not family.startswith("llama_cpp") else "q4_0"
    if family in class_specification().above_floor:
        content[ABOVE_FLOOR] = class_specification().above_floor[family]
    numbers = engine_numbers(engine, fit, [f"phone.*.{family}.*"])
    bounds = fit.at_bounds(engine)
    ended = f"; {', '.join(bounds)} ended at a bound" if bounds else ""
    numbers[HOLDS_KEY] = {MEASURED: measured(())} | holds(
        own, f"{engine}: its class's, by rows of other chips ({len(own)}){ended}"
    )
    numbers["start_rows"] = {
        "value": numbers[HOLDS_KEY]["rows"][1],
        "unit": "rows",
        "source": "assumed",
        "note": "the longest prompt of its rows: beyond, the start grows no further",
    }
    content["processors"] = {processor: numbers}
    content["traffic"] = "added" if processor in class_specification().added else "overlapped"
    content["devices"] = {}
    for chip in sorted({row.soc for row in own}):
        of_chip = [row for row in own if row.soc == chip]
        cells = [f"phone.{chip_file(chip)}.{family}.*"]
        on_chip = engine_numbers(engine, fit, cells, chip)
        bounds = [name for name in fit.at_bounds(engine, chip) if name not in bounds]
        ended = f"; {', '.join(bounds)} ended at a bound" if bounds else ""
        on_chip[HOLDS_KEY] = {MEASURED: measured(of_chip)} | holds(
            of_chip, f"{engine}: {counted(of_chip)}{ended}"
        )
        content["devices"][chip] = {"processors": {processor: on_chip}}
    return content


def holds(rows: Sequence[PhoneRow], rest_on: str) -> dict[str, Any]:
    """The rows of a pass, and the megabytes of a layer, over which these rows were measured, and a note on
    which they are."""
    passes = [quantity.rows for quantity in quantities(rows)]
    layers = [model_cost(row).layer_bytes / 1e6 for row in rows]
    return {
        "rows": [min(passes), max(passes)],
        "layer_mb": [_rounded(min(layers)), _rounded(max(layers))],
        "note": rest_on,
    }


def measured(rows: Iterable[PhoneRow]) -> dict[str, int]:
    """How many values of each phase these rows have."""
    phases = Counter(one.phase for one in quantities(rows))
    return {phase: phases[phase] for phase in (DECODE, PREFILL)}


def counted(rows: Sequence[PhoneRow]) -> str:
    """How many values of each phase a chip's numbers rest on; without any they are its class's."""
    counts = measured(rows)
    known = [f"{count} of {WORDS[phase]}" for phase, count in counts.items() if count]
    missing = [f"; {WORDS[phase]} as its class" for phase, count in counts.items() if not count]
    return f"this chip's rows, {' and '.join(known)}{''.join(missing)}"


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def all_rows_fit() -> tuple[list[PhoneRow], ClassFit]:
    """The fit to every row that does not stand apart."""
    rows = [row for row in phone_rows() if not row.apart]
    return rows, fit_classes([*quantities(rows)])


ENGINE_HEADER = """# A class of engines, for the device files of chips: it takes shares of data sheets'
# numbers. Made by `python -m workshop.fitting phones --write` from every row of the class in
# conf/reference/phones.csv and phones_s23.csv that does not stand apart; `holds` says how many of
# each chip. results/validation/phones says what such a fit gets right and wrong.
"""

DEVICE_HEADER = """# A chip from its data sheet (conf/reference/phone_socs.csv); engines say what they reach.
# Made by `python -m workshop.fitting phones --write`.
"""

LONGEST = 118
"""Characters of a line, beyond which a fact takes two."""


def written(content: Mapping[str, Any], header: str) -> str:
    """The text of a file: facts on one line each."""
    return header + "".join(_lines(content, ""))


def _lines(node: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, below in node.items():
        if isinstance(below, Mapping) and not is_fact(below):
            yield f"{indent}{key}:\n"
            yield from _lines(below, indent + "  ")
        else:
            text = yaml.safe_dump(below, sort_keys=False, default_flow_style=True, width=1000)
            line = f"{indent}{key}: {text.removesuffix(chr(10)).removesuffix('...').strip()}"
            if len(line) > LONGEST and isinstance(below, str):
                line = f"{indent}{key}: >-\n" + fill(
                    below, LONGEST, initial_indent=indent + "  ", subsequent_indent=indent + "  "
                )
            elif len(line) > LONGEST:
                head, part, rest = line.rpartition(", cells: " if ", cells: " in line else ", note: ")
                line = f"{head},\n{indent}  {part.removeprefix(', ')}{rest}"
            if max(map(len, line.splitlines())) > LONGEST and not isinstance(below, str):
                width = LONGEST - len(indent) - len(key) - 20  # a word may end behind it
                text = yaml.safe_dump(below, sort_keys=False, default_flow_style=True, width=width)
                line = f"{indent}{key}: " + text.strip().replace("\n", f"\n{indent}  ")
            yield line + "\n"


def wanted_files() -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Every file of a class or chip, with its content and text."""
    rows, fit = all_rows_fit()
    for engine in sorted({row.engine for row in rows}):
        content = engine_content(engine, rows, fit)
        yield conf_dir() / "engine" / f"{engine}.yaml", content, written(content, ENGINE_HEADER)
    for soc in sheets():
        content = soc_device(soc)
        yield conf_dir() / "device" / f"{chip_file(soc)}.yaml", content, written(content, DEVICE_HEADER)


def write_engines() -> list[Path]:
    """Write the files; return their paths."""
    paths = []
    for path, _, text in wanted_files():
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def check_engines() -> list[str]:
    """Sentences on files that a new fit would change."""
    wrong = []
    for path, content, _ in wanted_files():
        if not path.exists():
            wrong.append(f"{path.name} does not exist; run python -m workshop.fitting phones --write")
        elif different := list(_different(content, read_mapping(path), path.stem)):
            wrong.append(f"{different[0]}; run python -m workshop.fitting phones --write")
    return wrong


def _different(wanted: Any, found: Any, at: str) -> Iterator[str]:
    """Places where two contents differ, numbers by more than the tolerance."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        if wanted.keys() != found.keys():
            yield f"{at} has {', '.join(map(str, found))}; it would have {', '.join(map(str, wanted))}"
        for key in wanted.keys() & found.keys():
            yield from _different(wanted[key], found[key], f"{at}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for i, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _different(one, other, f"{at}[{i}]")
    elif isinstance(wanted, int | float) and isinstance(found, int | float):
        if not isclose(wanted, found, rel_tol=TOLERANCE):
            yield f"{at} is {found:g}; the fit gives {wanted:g}"
    elif wanted != found:
        yield f"{at} is {found!r}; it would be {wanted!r}"
