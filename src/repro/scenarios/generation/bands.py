"""How far figures of a cell on a public engine may be off, by the errors on chips that were left out."""

from __future__ import annotations

from collections.abc import Iterator

from repro.device.engines.bands import CLASS, NOTHING, ROWS, band, known_of
from repro.records.record import Record
from repro.scenarios.generation.ranges import emulated_cell

RESTS_ON = {ROWS: "rows of this chip", CLASS: "rows of other chips", NOTHING: "no row in this format"}
"""What is known, in words."""


def bands_of(record: Record) -> Iterator[str]:
    """A sentence for prefill and for decoding; none on machines of no class of engines."""
    cell = emulated_cell(record)
    if cell is None or "target" not in cell.places:
        return
    machine, stored, place = cell.cell.machine(), cell.models["target"].stored, cell.places["target"]
    reading = place.on or machine.verifies or machine.main
    for phase, wanted in (("prefill", reading), ("decode", place.on or machine.main)):
        processor = machine.processor_for(wanted, stored.arithmetic, stored.format)
        entries = cell.cell.described["processors"][processor]
        known = known_of(entries, phase, stored.format, stored.arithmetic == "int8")
        if known:
            found = band(processor, phase, known)
            said = (
                f"measured values lay {found}" if found else "no band, since too few chips were measured so"
            )
            yield f"{phase} on {processor}, from {RESTS_ON[known]}: {said}"
