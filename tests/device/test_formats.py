"""Formats with kernels of their own or none, threads of a CPU, and power that nobody measured."""

from __future__ import annotations

from typing import Any

import pytest

from repro.core.errors import InputError
from repro.device.cost import Curve
from repro.device.device_file import cores_peak, machine
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, NPU, Op


def fact(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "source": "assumed", "note": "invented"}


def device(**npu: Any) -> dict[str, Any]:
    """A CPU of 1 GOP/s and an NPU of 10, both far from their 100 GB/s."""
    bus = fact(100.0, "GB/s")
    entries = {
        name: {"peak": {"int8": fact(rate, "GOP/s")}, "bandwidth": bus, "watts": fact(2.0, "W")}
        for name, rate in ((CPU, 1.0), (NPU, 10.0))
    }
    return {
        "name": "Invented",
        "kind": "emulated",
        "processors": {CPU: entries[CPU], NPU: {**entries[NPU], **npu}},
        "flash": {"bandwidth": fact(1.0, "GB/s")},
        "dram": {"bandwidth": bus, "budget": fact(8.0, "GB")},
        "power": {"idle": fact(1.0, "W")},
    }


def layer(rows: int, storage_format: str) -> Op:
    return Op(NPU, "layer", "layer", rows, flops=1e9 * rows, precision="int8", format=storage_format)


def test_a_format_s_factors_are_on_the_rate_of_one_row_and_of_many() -> None:
    formats = {"q2_k": {"one": fact(0.5, "x"), "many": fact(0.25, "x")}}
    used = machine(device(formats=formats))
    seconds = {
        (rows, name): used.demand(layer(rows, name)).work
        for rows in (1, 128, 256)
        for name in ("q2_k", "q4_0")
    }
    for rows, factor in ((1, 2), (128, 4), (256, 4)):
        assert seconds[rows, "q2_k"] == pytest.approx(factor * seconds[rows, "q4_0"])


def test_a_format_without_a_kernel_runs_on_the_cpu_and_the_device_says_so() -> None:
    emulated = EmulatedDevice(machine(device(formats={"q4_k_m": {"unsupported": CPU}})))
    emulated.run(layer(1, "q4_0"))
    assert not emulated.substituted
    emulated.run(layer(1, "q4_k_m"))
    assert emulated.substituted == {NPU: CPU}
    assert [emulated.resource(NPU, "int8", name) for name in ("q4_0", "q4_k_m")] == [NPU, CPU]


def test_a_format_without_a_kernel_names_a_processor() -> None:
    with pytest.raises(InputError, match=r"unsupported.*dsp.*cpu, gpu"):
        machine(device(formats={"q4_k_m": {"unsupported": "dsp"}}))


def test_an_efficiency_core_costs_one_row_s_work_and_gains_little_in_many() -> None:
    """Of a Snapdragon 8 Gen 2 (GOP/s): an X3, four A715, three A510."""
    cores = [819.2, *4 * [358.4], *3 * [128.0]]
    many, one = zip(*(cores_peak(cores, threads) for threads in (1, 4, 6)), strict=True)
    assert one == (819.2, 4 * 358.4, 6 * 128.0)
    assert many == pytest.approx((819.2, (819.2 + 7 * 358.4) / 2, (819.2 + 4 * 358.4 + 7 * 128) / 2))
    with pytest.raises(InputError, match="threads is 9; the CPU has 8 cores"):
        cores_peak(cores, 9)


def test_threads_of_a_helio_g99_read_a_prompt_about_as_much_faster_as_was_measured() -> None:
    """Seconds of a prompt with llama.cpp by threads, as printed; two A76 and six A55 (GOP/s)."""
    seconds = {2: 113.9, 4: 93.0, 6: 77.4, 8: 72.1}
    cores = [*2 * [140.8], *6 * [64.0]]
    rates = {threads: cores_peak(cores, threads)[0] for threads in seconds}
    for threads, speed_up in ((4, 1.2), (6, 1.6), (8, 2.1)):
        assert rates[threads] / rates[2] == pytest.approx(speed_up, abs=0.05)
        assert rates[threads] / rates[2] == pytest.approx(seconds[2] / seconds[threads], rel=0.35)


def test_a_run_on_a_processor_whose_power_nobody_measured_has_no_joules() -> None:
    known, unknown = device(), device()
    del unknown["processors"][NPU]["watts"]
    for described, is_known in ((known, True), (unknown, False)):
        emulated = EmulatedDevice(machine(described))

        async def run(on: EmulatedDevice = emulated) -> None:
            await on.run(layer(1, "q4_0"))

        emulated.play(run())
        joules = emulated.trace.joules(0.0, emulated.now)
        assert (joules == pytest.approx(0.1 * (2.0 + 1.0))) if is_known else joules is None


def test_a_scaled_curve_ends_where_it_is_told() -> None:
    assert Curve(((1.0, 2.0),)).scaled(3.0, 5.0).points == ((1.0, 6.0), (128.0, 10.0))
    assert Curve(((1.0, 2.0), (33.0, 4.0), (65.0, 4.0))).scaled(1.0, 0.5).at(33) == pytest.approx(3.0)
