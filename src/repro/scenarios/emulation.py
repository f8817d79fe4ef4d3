"""The emulated machine of a cell: its device file, as the chosen engine uses it, and its models' format.

Owns which engine a configuration means, and in which format models are costed whose files name none. Must not
know what runs on the machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from repro.core.registry import require_choice
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.engines.engine_file import (
    CHIP,
    CLASS_OF_PROGRAM,
    FORMAT,
    OVER,
    OWN,
    engine_of,
    fitted_cells,
    merge,
    on_chip,
    with_engine,
)
from repro.device.facts.holds import HOLDS_KEY, outside
from repro.device.trace import Trace
from repro.models.costs.model_cost import PRECISIONS

ANSWER_PHASES = ("prefill", "decode")
"""Phases of a run that its figures are of; others load and profile."""

COMPUTED_FORMAT = "computed"
"""The format of models that are costed as they compute."""


class EmulatedCell:
    """A configuration's device file with its engine over it, and the machine that both describe.

    Attributes:
        config: the configuration as a record stores it: with the engine's numbers in place of a name, the
            chip's in place of the board's where the engine takes shares of those, and the models' formats.
        described: the device file with the engine's numbers; enters the key.
        program: the engine's program that the method chooses; "" for none.
        stand_in: a sentence where another engine stands for the program that the method asks for, or "".
    """

    def __init__(self, config: Mapping[str, Any], program: str = "", format: str = "") -> None:
        """Put the engine over the device.

        Args:
            config: a resolved configuration; one without `engine` has all numbers in its device.
            program: the program that the method asks for; an engine that has none runs as it is, unless it is
                the one that the device file names.
            format: the format that the method is defined with; "" for any.

        Raises:
            InputError: as `with_engine`; or the format is unknown.
        """
        chosen_engine, device = config.get("engine"), config["device"]
        engine = engine_of(device, chosen_engine, program)
        if engine and engine.get(OVER) == CHIP and "main" in engine and device.get("kind") != "local":
            device = on_chip(device, engine)
            engine = {key: value for key, value in engine.items() if key != OVER}
        sections = {} if chosen_engine is None else {"device": device, "engine": engine or {"name": OWN}}
        self.config = {**config, **sections, **_formats(config, format or (engine or device).get(FORMAT, ""))}
        self.described = with_engine(device, engine)
        is_papers = chosen_engine is None or (chosen_engine["name"] == OWN and config["device"].get("engine"))
        self.program = program if is_papers or self.described.get("engines") else ""

        name = str((engine or {}).get("name", ""))
        missing = program and not self.program and CLASS_OF_PROGRAM.get(program, program) not in name
        self.stand_in = f"no public engine is {program}: figures are of {name}" if missing and name else ""

    def machine(self) -> Machine:
        """The machine; InputError for a number that is missing, malformed or out of range."""
        return machine(self.described, self.program)

    def extrapolations(self, trace: Trace, layer_bytes: Mapping[str, float]) -> tuple[str, ...]:
        """What of a run's prefills and decoding lies outside of the ranges of its engine, in sentences.

        Args:
            trace: the run's ops and phases.
            layer_bytes: bytes of a layer of each model by role, with which names of ops begin.
        """
        holds = self.holds
        phases = sorted(
            (phase for phase in trace.phases if phase.name in ANSWER_PHASES), key=lambda p: p.start
        )
        starts = [phase.start for phase in phases]
        ranges: dict[tuple[str, str], dict[str, set[float]]] = {}
        for span in trace.spans if holds else ():
            role, index = span.name.partition(" ")[0], bisect_right(starts, span.start) - 1
            is_inside = index >= 0 and span.start < phases[index].end
            if is_inside and span.on in holds and span.flops and role in layer_bytes:
                values = ranges.setdefault((phases[index].name, span.on), {"rows": set(), "layer_mb": set()})
                values["rows"].add(span.rows)
                values["layer_mb"].add(layer_bytes[role] / 1e6)
        return tuple(
            f"{phase} on {processor}: {sentence}"
            for (phase, processor), values in sorted(ranges.items())
            for sentence in outside(holds[processor], {name: [*numbers] for name, numbers in values.items()})
        )

    @property
    def holds(self) -> dict[str, Mapping[str, Any]]:
        """The ranges that its engine's numbers hold for, by processor."""
        programs = self.described.get("engines") or {}
        tables = merge(self.described.get("processors"), programs.get(self.program) or {})
        return {name: table[HOLDS_KEY] for name, table in tables.items() if HOLDS_KEY in (table or {})}

    @property
    def fitted_cells(self) -> set[str]:
        """Ids of the published values that its numbers were fitted to."""
        return fitted_cells(self.described)


def _formats(config: Mapping[str, Any], format: str) -> dict[str, Any]:
    """The models that are costed in the format asked for, or else in a given one, by role.

    A model file that names its precision keeps it. On a real device what computes is what is timed.
    """
    if config.get(FORMAT) is not None:
        require_choice(FORMAT, config[FORMAT], (*PRECISIONS, COMPUTED_FORMAT))
    name = config.get(FORMAT) or format
    if FORMAT not in config or not name or name == COMPUTED_FORMAT or config["device"].get("kind") == "local":
        return {}
    models = {role: model for role, model in config.items() if isinstance(model, Mapping)}
    return {
        role: {**model, "precision": name}
        for role, model in models.items()
        if {"checkpoint", "precision"} <= model.keys() and model["precision"] is None
    }
