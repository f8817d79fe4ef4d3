"""The engines of README's and the comparisons' tables beside public measurements of the same chip.

Owns which engines those are, and what counts as beside: the row's own model, bits, prompt and cache, in
tokens a second. Must not know how an engine's numbers came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from pathlib import Path
from textwrap import fill

from repro.core.digits import csv_text
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import (
    PUBLIC,
    STAND_IN_ENGINES,
    chip_name,
    chip_of,
    device_file,
    engine_of,
    read_engine,
    with_engine,
)
from repro.models.runtime.placement import Placement
from repro.records.record import write_atomically
from repro.reports.marked_block import fill_block
from workshop.fitting.measures import one_pass
from workshop.validation.phones.quantities import DECODE, FIRST_TOKEN, Quantity, quantities
from workshop.validation.phones.rows import model_cost, phone_rows

COMMAND = "python -m workshop.validation baselines"
BLOCK = "baselines"
README = Path("README.md")
OF_README = ("compare/phone", "quickstart")
"""The tables that README shows."""

FACTOR = 1.5
"""Rates further apart than this are named."""

SIZES = (
    (0.75e9, "0.5B"),
    (1.4e9, "1B"),
    (2.4e9, "1.5 to 2B"),
    (5e9, "3 to 4B"),
    (10e9, "7 to 9B"),
    (inf, "more"),
)
BITS = ((6, 4), (12, 8), (24, 16), (inf, 32))
COMPARED = ("", "architecture")
"""Reasons for standing apart with which a row is still a public rate of its processor."""

HEADINGS = (
    *("tables", "device", "engine", "processor", "of", "size", "bits", "ours", "public", "public/ours"),
    *("program", "row", "apart"),
)


@dataclass(frozen=True)
class UsedEngine:
    """An engine of a device that tables rest on.

    Attributes:
        tables: their names.
        device: name of the device file.
        engine: what `engine=` is there.
        program: the program that a method names; "" for none.
        processors: those that the tables' methods run on.
    """

    tables: str
    device: str
    engine: str
    program: str
    processors: tuple[str, ...]

    @property
    def label(self) -> str:
        """The engine with its program."""
        return f"{self.engine} ({self.program})" if self.program else self.engine

    def machine(self) -> Machine:
        """The device as the engine uses it, with memory for every model."""
        device = device_file(self.device)
        chosen = {"name": self.engine} if self.engine in STAND_IN_ENGINES else read_engine(self.engine)
        built = machine(with_engine(device, engine_of(device, chosen, self.program)))
        return replace(built, dram_budget=inf, keeps_tables=True)

    def runs(self, program: str, processor: str) -> bool:
        """Whether a processor is billed by a class of engines; a paper's numbers are of no class."""
        classes = chip_of(device_file(self.device))[PUBLIC] if self.engine == PUBLIC else {}
        return program == (self.program or classes.get(processor))


USED = (
    UsedEngine("compare/phone", "xiaomi_14", "public", "", ("cpu", "gpu", "npu")),
    UsedEngine("compare/phone", "xiaomi_14", "public", "mlc_gpu", ("gpu",)),
    UsedEngine("compare/phone", "xiaomi_14", "mllm_npu", "", ("cpu", "npu")),
    UsedEngine("compare/phone", "xiaomi_14", "lever_overlapped", "", ("cpu", "npu")),
    UsedEngine("compare/phone", "xiaomi_14", "lever_serial", "", ("cpu", "npu")),
    UsedEngine("compare/phone", "xiaomi_14", "elastilm", "", ("cpu",)),
    UsedEngine("compare/board", "jetson_orin_nx", "public", "", ("cpu", "gpu")),
    UsedEngine("compare/board", "jetson_orin_nx", "own", "", ("gpu",)),
    UsedEngine("quickstart", "oneplus_12", "own", "", ("cpu", "gpu", "npu")),
    UsedEngine("compare/agreement", "oneplus_12", "lever_serial", "", ("cpu", "npu")),
    UsedEngine("compare/agreement", "xiaomi_11", "own", "", ("cpu",)),
    UsedEngine("compare/agreement", "jetson_orin_nx", "own", "", ("gpu",)),
)


@dataclass(frozen=True)
class Pair:
    """A public rate and ours of the same pass, in tokens a second."""

    used: UsedEngine
    quantity: Quantity
    ours: float

    @property
    def public(self) -> float:
        """The published rate; of a time to the first token, the prompt's tokens over it."""
        measured = self.quantity.measured
        return self.quantity.rows / measured if self.quantity.kind == FIRST_TOKEN else measured

    @property
    def ratio(self) -> float:
        """The public rate over ours: above 1 ours is too slow."""
        return self.public / self.ours

    @property
    def phase(self) -> str:
        """`decode` or `prompt`."""
        return "decode" if self.quantity.kind == DECODE else "prompt"

    @property
    def size(self) -> str:
        """The model's class of size."""
        parameters = model_cost(self.quantity.row).shape.parameters
        return next(name for most, name in SIZES if parameters < most)

    @property
    def bits(self) -> int:
        """Bits of a weight, in classes."""
        return next(bits for most, bits in BITS if self.quantity.row.bits < most)

    @property
    def place(self) -> tuple[str, ...]:
        """What the pairs of a line of the pages have in common; last whether the public program is ours."""
        row = self.quantity.row
        program = row.engine if self.used.runs(row.engine, row.processor) else "others"
        return self.used.tables, self.used.device, self.used.label, row.processor, self.phase, program

    @property
    def outside(self) -> bool:
        """Whether the rates are further apart than `FACTOR`."""
        return abs(log(self.ratio)) > log(FACTOR)


def pairs(used: Iterable[UsedEngine] = USED) -> Iterator[Pair]:
    """Of each engine, processor, phase, size and bits the pair whose public row is highest over ours, of the
    same program and of all others."""
    for engine in used:
        built, chip = engine.machine(), chip_name(device_file(engine.device))
        best: dict[tuple[object, ...], Pair] = {}
        for processor in engine.processors:
            rows = [row for row in phone_rows() if (row.soc, row.processor) == (chip, processor)]
            for quantity in quantities(row for row in rows if row.apart in COMPARED and row.shape):
                cost = model_cost(quantity.row)
                if cost.stored.arithmetic not in built.processors[processor].peak:
                    continue
                done = one_pass(
                    EmulatedDevice(built),
                    cost,
                    quantity.rows,
                    quantity.context,
                    Placement(on=processor),
                    logits="last",
                )
                pair = Pair(engine, quantity, quantity.rows / (done.end - done.start))
                group = (*pair.place, pair.size, pair.bits)
                if group not in best or pair.ratio > best[group].ratio:
                    best[group] = pair
        yield from best.values()


def line(pair: Pair) -> list[str]:
    """A pair as in `pairs.csv`."""
    row = pair.quantity.row
    return [
        *(pair.used.tables, pair.used.device, pair.used.label, row.processor, pair.phase),
        *(pair.size, str(pair.bits), f"{pair.ours:.4g}", f"{pair.public:.4g}", f"{pair.ratio:.3g}"),
        *(row.engine, row.id, row.apart),
    ]


ABOUT = """
The engines of the comparisons' and the README's tables stand beside the best public rows of the same chip and
processor, of each size and number of bits, at the row's own prompt and cache; `pairs.csv` has all. "Others"
are programs that a table does not bill there; papers' engines are fitted to their papers, so that all public
programs are others. Rows of other architectures stand beside a dense model of as many weights; they are in no
engine file. The Orin NX has no public rate of a prompt: its class's is one row of a Tegra X1. Its decoding
rests on one container's printed ranges.
"""


def page_lines(compared: Sequence[Pair]) -> Iterator[str]:
    """The page `table.md`: how many pairs are outside the factor, and a line for each place."""
    far = [pair for pair in compared if pair.outside]
    counts = f"{len(far)} of {len(compared)} rates"
    yield "# Engines beside the best public rows"
    yield from ABOUT.splitlines()
    yield ""
    yield f"{counts} are further than a factor of {FACTOR:g} from them (`{COMMAND}`):"
    yield ""
    yield "| table | device, `engine=` | | beside | outside | public over ours | the farthest row, tokens/s |"
    yield "|---|---|---|---|---|---|---|"
    for place in dict.fromkeys(pair.place for pair in far):
        tables, device, label, processor, phase, program = place
        group = [pair for pair in compared if pair.place == place]
        some = [pair for pair in group if pair.outside]
        worst = max(some, key=lambda pair: abs(log(pair.ratio)))
        row = worst.quantity.row
        ends = _range([pair.ratio for pair in some])
        rates = f"{row.engine}, {row.model}, {worst.bits} bits: {worst.public:.3g}, ours {worst.ours:.3g}"
        cells = (
            *(tables, f"{device}, {label}", f"{phase} on the {processor.upper()}", program),
            *(f"{len(some)} of {len(group)}", ends, rates + ("; another architecture" if row.apart else "")),
        )
        yield f"| {' | '.join(cells)} |"


def in_short(compared: Sequence[Pair]) -> str:
    """README's sentence: how many of its tables' rates are outside the factor, and their range by phase."""
    shown = [pair for pair in compared if pair.used.tables in OF_README]
    ratios: dict[str, list[float]] = {}
    for pair in shown:
        if pair.outside:
            ratios.setdefault(pair.phase, []).append(pair.ratio)
    parts = [f"{phase} {_range(far)} times ours" for phase, far in ratios.items()]
    text = (
        f"Of {len(shown)} rates behind both tables that have a public row of the same chip, size and bits, "
        f"{sum(map(len, ratios.values()))} are further than a factor of {FACTOR:g} from it "
        f"({', '.join(parts)}): [which](docs/compare.md#beside-public-rows)."
    )
    return fill(text, 120, break_on_hyphens=False, break_long_words=False)


def _range(ratios: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{ratio:.2g}" for ratio in (min(ratios), max(ratios))))


def write_baselines(folder: Path, root: Path) -> None:
    """Write `pairs.csv` and `table.md`, and the block of README.md below `root`."""
    compared = list(pairs())
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "pairs.csv", csv_text([HEADINGS, *(line(pair) for pair in compared)]))
    write_atomically(folder / "table.md", "\n".join(page_lines(compared)) + "\n")
    text = (root / README).read_text(encoding="utf-8")
    write_atomically(root / README, fill_block(text, BLOCK, in_short(compared), str(README)))
