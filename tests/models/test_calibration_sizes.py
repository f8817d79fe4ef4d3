"""Probes grow until weights decide: invented GPUs, on a simulated clock, are found again or told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from repro.core.errors import InputError
from repro.device.local import LocalDevice
from repro.device.op import GPU
from repro.models.calibration import machine_files
from repro.models.calibration.fit import fit
from repro.models.calibration.machine_files import Effort, Timings, double_width, time_probes
from repro.models.calibration.passes import cost_of
from repro.models.calibration.probe import HEAD, LAYER, REST, SHAPES, Kernels, LayerProbe, PartTiming
from repro.models.transformer.config import DecoderConfig

KERNELS = 12
"""Kernels of an invented layer."""
BF16 = Kernels("bfloat16")
EFFORT = Effort(rows=(1, 8, 64), contexts=(64,), shapes=("narrow", "small", "middle"), rounds=3)


class Invented:
    """A probe of a GPU that takes `launch` seconds a kernel and reads weights at `bandwidth`."""

    def __init__(self, launch: float, bandwidth: float, noise: Callable[[], float] = lambda: 1.0) -> None:
        self.launch, self.bandwidth, self.noise = launch, bandwidth, noise
        self.widths: set[int] = set()

    def __call__(
        self, config: DecoderConfig, kernels: Kernels, contexts: Sequence[int], local: LocalDevice
    ) -> InventedProbe:
        self.widths.add(config.hidden)
        return InventedProbe(self, config, kernels, contexts)


class InventedProbe(LayerProbe):
    def __init__(
        self, gpu: Invented, config: DecoderConfig, kernels: Kernels, contexts: Sequence[int]
    ) -> None:
        self.gpu, self.config, self.kernels, self.contexts = gpu, config, kernels, contexts

    def time(self, rows: int, context: int) -> Iterator[PartTiming]:
        shape = cost_of(self.config, self.kernels.dtype).shape
        size = 4 if self.kernels.dtype == "float32" else 2
        for part, weights, kernels in (
            (LAYER, shape.layer_weights, KERNELS),
            (HEAD, shape.head_weights, 2),
            (REST, 0, 1),
        ):
            seconds = kernels * self.gpu.launch + weights * size / self.gpu.bandwidth
            yield PartTiming(self.kernels, part, weights, 0.0, rows, context, seconds * self.gpu.noise())


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_files, "memory_of", lambda on: 80e9)


def timed(gpu: Invented, effort: Effort = EFFORT) -> Timings:
    return time_probes(GPU, effort, gpu)


@pytest.mark.parametrize(("launch", "bandwidth"), [(5e-6, 4e12), (200e-6, 60e9)])
def test_a_gpu_whose_small_layers_are_launches_is_found_again(launch: float, bandwidth: float) -> None:
    gpu = Invented(launch, bandwidth)
    timings = timed(gpu)
    assert timings.notes == {}
    part = fit(timings.parts).layers[BF16]
    for rows, start in part.start:
        assert start == pytest.approx(KERNELS * launch, rel=0.01), rows
    for rows, rate in part.rate:  # two operations a weight and row, two bytes a weight
        assert rate == pytest.approx(rows * bandwidth, rel=0.01)
    smallest, largest = (cost_of(p, "bfloat16").shape.layer_weights for p in extremes(gpu))
    assert 2 * smallest / bandwidth < KERNELS * launch < 2 * largest / bandwidth * 1.01


def extremes(gpu: Invented) -> list[DecoderConfig]:
    config = SHAPES["middle"]
    while config.hidden < max(gpu.widths):
        config = double_width(config)
    return [SHAPES["narrow"], config]


def test_noise_is_no_size_and_the_sentence_says_what_was_tried() -> None:
    chance = Random(0)
    gpu = Invented(5e-6, 4e12, lambda: 10 ** chance.uniform(0, 2))
    with pytest.raises(InputError) as told:
        timed(gpu)
    widest = max(gpu.widths)
    assert widest > 1024
    assert f"layers of width 256 to {widest}, in passes of 1 to 4096 rows" in str(told.value)
    assert "measure again while nothing else runs" in str(told.value)


def test_where_only_launches_can_be_measured_the_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_files, "memory_of", lambda on: 1e9)
    timings = timed(Invented(1e-3, 4e12))
    assert set(timings.notes) == {Kernels("float32"), BF16}
    assert "of all passes only launches could be measured: layers of width 256 to" in timings.notes[BF16]
    assert all(part.rate for part in fit(timings.parts).layers.values())


def test_a_wide_pass_shows_weights_where_one_row_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_files, "memory_of", lambda on: 1e9)

    class Computing(InventedProbe):
        def time(self, rows: int, context: int) -> Iterator[PartTiming]:
            for part in super().time(rows, context):
                yield part._replace(seconds=part.seconds + 2 * rows * part.weights / 1e13)

    gpu = Invented(200e-6, 4e12)
    timings = time_probes(GPU, EFFORT, lambda *asked: Computing(gpu, *asked[:3]))
    assert "of passes of fewer than 4096 rows only launches" in timings.notes[BF16]
    assert dict(fit(timings.parts).layers[BF16].rate)[4096] == pytest.approx(1e13, rel=0.05)
