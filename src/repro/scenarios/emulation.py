"""The emulated machine of a cell: its device file, as the chosen engine uses it.

Owns which engine a configuration means. Must not know what runs on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.device.cost import Machine
from repro.device.device_file import facts, machine
from repro.device.engines.engine_file import OWN, described, engine_of


class EmulatedCell:
    """A configuration's device file with its engine over it, and the machine that both describe.

    Attributes:
        config: the configuration, with the engine's numbers in place of a name, as a record stores it.
        described: the device file with the engine's numbers; enters the key.
        program: the engine's program that the method chooses; "" for none.
    """

    def __init__(self, config: Mapping[str, Any], program: str = "") -> None:
        """Put the engine over the device.

        Args:
            config: a resolved configuration; one without `engine` has all numbers in its device.
            program: the program that the method asks for; an engine that was chosen and has none runs as it
                is.

        Raises:
            InputError: as `with_engine`.
        """
        asked = config.get("engine")
        engine = engine_of(config["device"], asked)
        self.config = config if asked is None else {**config, "engine": engine or {"name": OWN}}
        self.described = described(config)
        chosen = isinstance(asked, Mapping) and asked.get("name") != OWN
        self.program = "" if chosen and not self.described.get("engines") else program

    def machine(self) -> Machine:
        """The machine; InputError for a number that is missing, malformed or out of range."""
        return machine(self.described, self.program)

    @property
    def fitted_cells(self) -> set[str]:
        """Ids of the published values that its numbers were fitted to."""
        return {cell for fact in facts(self.described) for cell in fact.cells}
