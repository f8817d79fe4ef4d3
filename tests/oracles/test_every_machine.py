"""Relations that every device file must keep, with every engine that has numbers: more is no faster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.cost import Machine, Processor
from repro.device.device_file import machine
from repro.device.engines.engine_file import OWN, device_with_engine, engine_files
from repro.device.op import FLASH, Op

ROWS = (*range(1, 70), 96, 128, 200, 256, 257, 512, 1024, 1500)
LAYER = 4096 * 4096
"""Weights of one op's matrix, of a byte each."""
KINDS = ("layer", "head", "linear", "attention")


def devices() -> list[str]:
    return sorted(path.stem for path in (conf_dir() / "device").glob("*.yaml"))


@cache
def machines(device: str) -> dict[str, Machine]:
    """An emulated device with each engine, by the engine's name; empty for this machine."""
    found = {}
    for engine in (OWN, *engine_files()):
        try:
            found[engine] = machine(device_with_engine(device, engine))
        except InputError:
            continue  # no numbers for this device, or no emulated device
    return found


def processors(device: str) -> Iterator[tuple[str, str, Processor]]:
    for engine, made in machines(device).items():
        yield from ((engine, name, processor) for name, processor in made.processors.items())


def seconds(
    processor: Processor, on: str, rows: int, kind: str, arithmetic: str, weights: int = LAYER
) -> float:
    moved = weights + 2.0 * rows * 4096
    demand = processor.demand(Op(on, kind, "", rows, 2.0 * rows * weights, moved, arithmetic))
    return demand.launch + demand.work


def test_most_devices_are_emulated_and_some_have_several_engines() -> None:
    counts = [len(machines(device)) for device in devices()]
    assert sum(count > 0 for count in counts) >= 40
    assert sum(counts) > 60


@pytest.mark.parametrize("device", devices())
def test_more_rows_take_no_less(device: str) -> None:
    for engine, name, processor in processors(device):
        for arithmetic in processor.peak:
            for kind in KINDS:
                taken = [seconds(processor, name, rows, kind, arithmetic) for rows in ROWS]
                for rows, fewer, more in zip(ROWS[1:], taken, taken[1:], strict=False):
                    assert more >= fewer * (1 - 1e-9), (
                        f"{engine}, {name}, {kind} in {arithmetic}: {rows} rows"
                    )


@pytest.mark.parametrize("device", devices())
def test_a_larger_matrix_takes_no_less_and_twice_of_it_no_more_than_two(device: str) -> None:
    for engine, name, processor in processors(device):
        for arithmetic in processor.peak:
            for rows in (1, 7, 64, 300):
                one, two = (
                    seconds(processor, name, rows, "layer", arithmetic, weights)
                    for weights in (LAYER, 2 * LAYER)
                )
                assert one <= two <= 2 * one * (1 + 1e-9), f"{engine}, {name} in {arithmetic}, {rows} rows"


@pytest.mark.parametrize("device", devices())
def test_a_larger_read_takes_no_less_and_is_no_slower_by_the_byte(device: str) -> None:
    sizes = [512 * 2**n for n in range(22)]
    for engine, made in machines(device).items():
        demands = [made.flash.demand(Op(FLASH, "load", "", bytes=float(size))) for size in sizes]
        taken = [demand.launch + demand.work for demand in demands]
        assert taken == sorted(taken), engine
        rates = [size / spent for size, spent in zip(sizes, taken, strict=True)]
        assert rates == sorted(rates), engine
