"""Which phases of a committed cell lie outside of the ranges that its engine's numbers hold for.

Owns that derivation: a function of the record, its rounds and today's ranges, so that a mark is the same
whenever the cell was computed. Must not know tables. A run's own trace says the same
(`EmulatedCell.extrapolations`), which records of before there were ranges do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from repro.core.errors import InputError
from repro.device.engines.engine_file import with_explanations
from repro.device.facts.holds import outside
from repro.models.costs.model_cost import ModelCost
from repro.records.record import Record, Round
from repro.scenarios.generation.asked import GenerationCell
from repro.scenarios.registry import scenario_of

Pass = tuple[str, str, str, float]
"""Phase, processor, role of the model, and rows."""


def outside_ranges(record: Record, rounds: Callable[[str], Iterable[Round]]) -> tuple[str, ...]:
    """What of a cell's prefills and decoding lies outside of the ranges of its engine, in sentences.

    What its own trace said stands: it knows the rows of a draft's passes, which rounds do not. A prefill
    has the rows of the mean prompt. Where a model's shape is that of its checkpoint, which no configuration
    has, the run's own sentences stand. Empty for cells of other scenarios, or on a real device.
    """
    if record.provenance.extrapolated:
        return record.provenance.extrapolated
    cell = emulated_cell(record)
    if cell is None or not (holds := cell.cell.holds):
        return ()
    if any(cell.models[role].shape is None for role in cell.places):
        return record.provenance.extrapolated
    layer_sizes = {role: _layer_mb(cell, role) for role in cell.places}
    ranges: dict[tuple[str, str], dict[str, list[float]]] = {}
    for phase, processor, role, row_count in _passes(cell, record, rounds(record.key)):
        values = ranges.setdefault((phase, processor), {"rows": [], "layer_mb": []})
        values["rows"].append(row_count)
        values["layer_mb"].append(layer_sizes[role])
    return tuple(
        f"{phase} on {processor}: {sentence}"
        for (phase, processor), values in sorted(ranges.items())
        if processor in holds
        for sentence in outside(holds[processor], values)
    )


def emulated_cell(record: Record) -> GenerationCell | None:
    """The cell of a finished emulated record, by today's explanations of its machine's numbers.

    None for other scenarios, real devices and configurations of an older form.
    """
    if not record.done or record.provenance.clock == "wall":
        return None
    config = with_explanations(record.provenance.config)
    try:
        cell = scenario_of(config)(config)
    except (InputError, KeyError):  # of an older form
        return None
    return cell if isinstance(cell, GenerationCell) else None


def _layer_mb(cell: GenerationCell, role: str) -> float:
    model = cell.models[role]
    assert model.shape is not None
    return ModelCost(model.shape, model.stored).layer_bytes / 1e6


def _passes(cell: GenerationCell, record: Record, rounds: Iterable[Round]) -> Iterator[Pass]:
    """The passes of each model: a prompt on average, the draft's tokens, and each round's verification."""
    values = record.values
    verifier = "target" if "target" in cell.places else "draft"
    prefill = float(values.get("prefill_seconds") or 0)
    token_count = float(values.get("prefill_tokens_per_s") or 0) * prefill
    prompt_rows = round(token_count / float(values.get("prompts") or 1), 3)  # both are stored in ten digits
    for role in cell.places if prompt_rows else ():
        for processor in _processors(cell, role, has_several_rows=True):
            yield "prefill", processor, role, cell.method.prefill_rows(prompt_rows)
    widths = {int(line["rows"] or 0) for line in rounds if line.get("rows")}
    draft_passes = [(role, 1) for role in cell.places if role != verifier and values.get("draft_seconds")]
    for role, row_count in (*draft_passes, *((verifier, row_count) for row_count in widths)):
        for processor in _processors(cell, role, has_several_rows=row_count > 1):
            yield "decode", processor, role, row_count


def _processors(cell: GenerationCell, role: str, has_several_rows: bool) -> set[str]:
    """The processors of a model's passes over one row or over several."""
    machine, place = cell.cell.machine(), cell.places[role]
    processors = {place.on or machine.main}
    if has_several_rows and role == "target":
        processors = {place.on or machine.verifies or machine.main, *cell.method.computes_on(role)}
        processors |= {place.head} - {""}  # which also judges where a tree is pruned
    stored = cell.models[role].stored
    return {machine.processor_for(name, stored.arithmetic, stored.format) for name in processors}
