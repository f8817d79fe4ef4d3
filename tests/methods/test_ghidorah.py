"""Ghidorah and its baselines: the search chooses what a device favours, and no division changes a token."""

from __future__ import annotations

import pytest

from repro.core.errors import InputError
from repro.device.cost import Curve, Flash, Machine, Processor
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, GPU
from repro.methods.ghidorah.ghidorah import DividedDecoding, Ghidorah, MedusaEM, Plan
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.methods.speculative.medusa import Medusa, TreeDecoding
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session

TARGET = Shape(layers=4, hidden=256, heads=8, kv_heads=8, head_dim=32, intermediate=704, vocab=512)
HEADS = Shape.of_medusa(4, 256, 512, tied=True)
KNOWN = Calibration(tuple(tuple(0.6 * 0.75**head * 0.4**rank for rank in range(10)) for head in range(4)))


def machine(gpu_tile: int = 64, cpu_tile: int = 16, cpu: float = 1e9, both: bool = True) -> Machine:
    """A GPU and a CPU that compute in tiles of rows and share a memory that neither exhausts."""
    processors = {GPU: Processor({"fp16": 3e9}, 1e9, tile=gpu_tile)}
    if both:
        processors[CPU] = Processor({"fp16": cpu}, 1e9, tile=cpu_tile)
    return Machine("two", GPU, processors, Flash(Curve(((1.0, 1e9),))), 1e10, 1e12, 0.0)


def opened(on: Machine, calibration: Calibration | None = KNOWN) -> tuple[EmulatedDevice, dict[str, Session]]:
    device = EmulatedDevice(on)
    target = Session(Engine("target", device, ModelCost(TARGET, precision("fp16")), NoNetwork(), RESIDENT))
    draft = Session(Engine("draft", device, ModelCost(HEADS, precision("fp16")), NoNetwork(), RESIDENT))
    draft.beside = calibration
    return device, {"target": target, "draft": draft}


def plan(method: Medusa, on: Machine) -> TreeDecoding:
    device, sessions = opened(on)
    serving = device.play(method.prepare(device, sessions))
    assert isinstance(serving, TreeDecoding)
    return serving


def test_a_processor_that_pads_to_64_rows_wants_the_widest_tree() -> None:
    assert plan(Ghidorah(divided=False), machine()).tree.width == 64
    assert plan(Ghidorah(divided=False), machine(gpu_tile=8)).tree.width == 8


def test_both_processors_want_what_the_narrower_one_pads_to() -> None:
    found = plan(Ghidorah(), machine())
    assert isinstance(found, Plan)
    assert found.tree.width == 16
    assert found.split
    # The GPU computes 64 rows at 3e9 and the CPU 16 at 1e9, which takes it 3 / 4 of the time.
    assert found.split.share == pytest.approx(4 / 7, abs=0.04)


def test_a_division_is_worth_it_and_the_adjusted_one_is_not_slower_than_edgenns() -> None:
    speeds = [
        plan(Ghidorah(width=16, divided=divided, contention=contention), machine()).speed  # type: ignore[attr-defined]
        for divided, contention in ((False, True), (True, False), (True, True))
    ]
    assert speeds[0] < speeds[1] <= speeds[2] * (1 + 1e-9)
    assert speeds[2] / speeds[0] == pytest.approx(7 / 3, rel=0.1)


def test_medusa_em_divides_by_speeds_measured_alone() -> None:
    found = plan(MedusaEM(width=16), machine())
    assert isinstance(found, DividedDecoding)
    assert found.split.form == "megatron"
    assert found.split.share == pytest.approx(4 / 7, abs=0.02)


def test_dynamic_attention_is_no_slower_and_gains_with_the_context() -> None:
    static, dynamic = (
        plan(Ghidorah(width=64, attention=attention), machine()).figures
        for attention in ("static", "dynamic")
    )
    gains = [float(str(static[f"attention_{n}"])) / float(str(dynamic[f"attention_{n}"])) for n in (64, 4096)]
    assert gains[0] >= 1
    assert gains[1] > max(gains[0], 1.1)


def test_a_device_without_a_second_processor_is_said() -> None:
    device, sessions = opened(machine(both=False))
    with pytest.raises(InputError, match="no cpu beside its gpu"):
        device.play(Ghidorah(width=4).prepare(device, sessions))


def test_a_draft_without_ranks_is_said() -> None:
    device, sessions = opened(machine(), calibration=None)
    with pytest.raises(InputError, match="heads without recorded ranks"):
        device.play(Medusa(width=4).prepare(device, sessions))
