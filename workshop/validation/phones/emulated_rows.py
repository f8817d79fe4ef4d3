"""Measured rows predicted by the emulator: a forward pass on the chip under its class of engines."""

from __future__ import annotations

from collections.abc import Iterable

from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.models.runtime.placement import Placement
from workshop.fitting.measures import one_pass
from workshop.fitting.problem import Values
from workshop.validation.phones.engine_files import composed
from workshop.validation.phones.quantities import Quantity
from workshop.validation.phones.rows import model_cost


def emulated_seconds(quantity: Quantity, values: Values) -> float:
    """Seconds of a quantity's forward pass on the emulated machine."""
    on = machine(composed(quantity.row, values))
    done = one_pass(
        EmulatedDevice(on),
        model_cost(quantity.row),
        quantity.rows,
        quantity.context,
        Placement(on=quantity.row.processor),
        logits="last",
    )
    return done.end - done.start


def emulated_values(wanted: Iterable[Quantity], values: Values) -> dict[str, float]:
    """Values in their printed units by id."""
    return {one.id: one.printed(emulated_seconds(one, values)) for one in wanted}
