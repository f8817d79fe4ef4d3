"""Passes of four models on every emulated device and engine, over the time that no machine can go below.

Costs alone, in some seconds. Must not know what any pass took on a real machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from repro.core.digits import csv_text
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import (
    ABOVE_FLOOR,
    CHIP,
    FORMAT,
    OVER,
    OWN,
    PUBLIC,
    chip_name,
    chip_of,
    device_file,
    device_files,
    engine_files,
    engine_of,
    read_engine,
    with_engine,
)
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.runtime.placement import Placement
from repro.records.record import write_atomically
from workshop.fitting.measures import one_pass
from workshop.validation.phones.chips import bandwidth, core_rates, peaks, sheets
from workshop.validation.phones.rows import shapes

COMMAND = "python -m workshop.validation plausibility"
MODELS = {
    "smollm2_135m": "SmolLM2-135M",
    "qwen2_5_0_5b": "Qwen2.5-0.5B",
    "qwen2_5_1_5b": "Qwen2.5-1.5B",
    "llama_2_7b": "LLaMA-2-7B",
}
ROWS = (1, 16, 256)
PASSES = tuple(product(MODELS, ROWS))
MOST = 20.0
"""Times above so many floors have their reason in the engine's file."""

HEADINGS = (
    *("device", "engine", "processor", "format"),
    *(f"{MODELS[model]}, {rows}" for model, rows in PASSES),
)


@dataclass(frozen=True)
class Use:
    """A processor of a device as an engine, or one of its programs, uses it.

    Attributes:
        device: name of the device file.
        chip: the device's chip.
        engine: name of the engine file, or `own` for a device's file alone.
        program: the engine's program; "" for none.
        processor: where the passes run.
        format: of the models.
        machine: what takes the time; memory has no limit.
        reason: why times may be above `MOST` floors, by the engine's file; "" if it does not say.
    """

    device: str
    chip: str
    engine: str
    program: str
    processor: str
    format: str
    machine: Machine
    reason: str

    @property
    def label(self) -> str:
        """The engine with its program."""
        return f"{self.engine} ({self.program})" if self.program else self.engine

    @cached_property
    def fastest(self) -> tuple[float, float]:
        """Operations and bytes a second of the data sheet, or of the device's file where that says more."""
        file = machine(with_engine(device_file(self.device), None))
        arithmetic = precision(self.format).arithmetic
        rates = [file.processors[p].peak.get(arithmetic, 0.0) for p in file.processors if p == self.processor]
        buses = [file.dram_bandwidth]
        if self.chip in sheets():
            is_cpu = self.processor == "cpu"
            rates.append(
                sum(core_rates(self.chip, arithmetic))
                if is_cpu
                else peaks(self.chip, self.processor)[arithmetic][0]
            )
            buses.append(bandwidth(self.chip))
        return max(rates), max(buses)

    def floor(self, cost: ModelCost, rows: int) -> float:
        """Seconds for a pass's operations at the fastest rate or its bytes over the bus, the longer."""
        rate, bus = self.fastest
        flops, moved = cost.layers(cost.shape.layers, rows, 0)
        head_flops, head_bytes = cost.head(1)
        return max((flops + head_flops) / rate, (moved + head_bytes) / bus)

    def seconds(self, cost: ModelCost, rows: int) -> float:
        """Seconds of a pass from an empty cache, with logits of the last row."""
        done = one_pass(
            EmulatedDevice(self.machine), cost, rows, 0, Placement(on=self.processor), logits="last"
        )
        return done.end - done.start

    def cost(self, model: str) -> ModelCost:
        """A model's cost in the format."""
        return ModelCost(shapes()[model], precision(self.format))

    @cached_property
    def ratios(self) -> list[float]:
        """Times over floors, of `PASSES`."""
        return [
            self.seconds(self.cost(model), rows) / self.floor(self.cost(model), rows)
            for model, rows in PASSES
        ]


def quarter(shape: Shape) -> Shape:
    """A model of the same widths with a quarter of the layers and of the vocabulary."""
    return replace(shape, layers=max(1, shape.layers // 4), vocab=shape.vocab // 4)


def engines_of(device: Mapping[str, Any]) -> list[str]:
    """The engines of a device: the data sheet, its chip's classes, those fitted to it, its papers'."""
    classes, papers = (chip_of(device).get(PUBLIC) or {}).values(), {*(device.get("papers") or [])}
    found = []
    for name in engine_files():
        engine = read_engine(name)
        known = {*(engine.get("devices") or {})}
        if engine.get(OVER) == CHIP:
            if name in classes or chip_name(device) in known or (classes and "main" not in engine):
                found.append(name)
        elif name == device.get("engine") or (
            papers & {*(engine.get("papers") or [])} and {device.get("soc"), device.get("name")} & known
        ):
            found.append(name)
    return found or [OWN]


def uses() -> Iterator[Use]:
    """All processors of all emulated devices under all of their engines."""
    for name in device_files():
        device = device_file(name)
        if device["kind"] != "emulated":
            continue
        for engine in engines_of(device):
            file = read_engine(engine)
            described = with_engine(device, engine_of(device, file))
            programs: Mapping[str, Mapping[str, Any]] = described.get("engines") or {}
            of_class = [str(file["main"])] if OVER in file and "main" in file else [*described["processors"]]
            for program, processors in {"": of_class, **programs}.items():
                built = replace(machine(described, program), dram_budget=inf)
                for processor in processors:
                    yield Use(
                        name,
                        chip_name(device),
                        engine,
                        program,
                        processor,
                        _format(str(file.get(FORMAT) or device.get(FORMAT, "")), processor, built),
                        built,
                        str(file.get(ABOVE_FLOOR, "")),
                    )


def _format(format: str, processor: str, built: Machine) -> str:
    """The engine's format; of an engine without one that in which people run a processor."""
    usual = "w8a8" if processor == "npu" else format or "q4_0"
    return usual if precision(usual).arithmetic in built.processors[processor].peak else "fp16"


def lines(table: Sequence[Use]) -> Iterator[list[str]]:
    """The rows of the table."""
    for use in table:
        ratios = [f"{ratio:.3g}" for ratio in use.ratios]
        yield [use.device, use.label, use.processor, use.format, *ratios]


def markdown(table: Sequence[Use]) -> str:
    """The page: how far times are above their floors, and why some are far above."""
    ratios = [ratio for use in table for ratio in use.ratios]
    far = [use for use in table if max(use.ratios) > MOST]
    by_engine = {use.engine: [other for other in far if other.engine == use.engine] for use in far}
    text = [
        "# Are the emulated times plausible?",
        "",
        f"Made by `{COMMAND}`. Each cell of `table.csv` is the time of a pass of",
        "1, 16 or 256 rows over its floor, the longer of two times that no machine goes below: the bytes",
        "of layers and output projection over the bus, and their operations at the data sheet's rate of the",
        "format (on a CPU that of all cores).",
        "",
        f"{len(ratios)} passes, {len({use.device for use in table})} devices, "
        f"{len({use.engine for use in table})} engines: least {min(ratios):.2f}, median "
        f"{sorted(ratios)[len(ratios) // 2]:.2f}; {sum(ratio > MOST for ratio in ratios)} above {MOST:.0f}, "
        "with the reason that the engine's file gives:",
        "",
        "| engine | processors | devices | passes | most | reason |",
        "|---|---|---|---|---|---|",
    ]
    for engine, some in sorted(by_engine.items()):
        above = [ratio for use in some for ratio in use.ratios if ratio > MOST]
        processors = ", ".join(dict.fromkeys(use.program or use.processor for use in some))
        devices = len({use.device for use in some})
        text.append(
            f"| {engine} | {processors} | {devices} | {len(above)} | {max(above):.0f} | {some[0].reason} |"
        )
    return "\n".join([*text, ""])


def write_plausibility(folder: Path) -> list[Use]:
    """Write `table.csv` and `table.md`; return the rows."""
    table = list(uses())
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *lines(table)]))
    write_atomically(folder / "table.md", markdown(table))
    return table
