"""Predicts the measured cells by the emulator, from the probes alone; llama.cpp's from two models for the
third.

Owns what each prediction may see. Must not know how cells were measured or how results are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import with_engine
from repro.models.calibration.fit import FittedCosts, PartCost, fit, fit_layers
from repro.models.calibration.passes import PassTimer, cost_of
from repro.models.calibration.probe import LAYER, Kernels, PartTiming
from repro.models.calibration.sections import Section, best_rates, curve, engine_of_costs, fact
from repro.models.costs.model_cost import ModelCost, Precision
from repro.models.transformer import weights
from repro.models.transformer.config import DecoderConfig
from workshop.validation.this_machine.cells import OURS, CellGroup, MachineCell
from workshop.validation.this_machine.measuring import ARMS, PROBE, MeasuredGroup, checkpoint_folder

GGUF = Kernels("int4")
"""Under which kernels llama.cpp's layers are fitted."""


class PredictedPass(NamedTuple):
    """A cell's measured and predicted seconds.

    Attributes:
        cell: the cell.
        measured: median of the first arm.
        null: median of the second arm, the same cell measured again.
        predicted: by the emulator.
        passes: passes timed in each arm.
        roofline: predicted by the device alone, without an engine.
    """

    cell: MachineCell
    measured: float
    null: float
    predicted: float
    passes: int
    roofline: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1.0

    @property
    def plain(self) -> float:
        """As `error`, of the device without an engine."""
        return self.roofline / self.measured - 1.0

    @property
    def noise(self) -> float:
        """The null arm over the measured one, less 1."""
        return self.null / self.measured - 1.0


def device_of(costs: FittedCosts, disk: float, bandwidth: float, latency: float = 0.0) -> Section:
    """This machine as a device file, as far as a pass's time needs it."""
    best = best_rates(costs)
    fallback = best.get("fp32", min(best.values()))
    assumed = "not used by a pass's time"
    peak = {
        name: fact(best.get(name, fallback) / 1e9, "GFLOP/s") for name in ("fp32", "fp16", "bf16", "int8")
    }
    return {
        "name": "This machine",
        "kind": "emulated",
        "processors": {"cpu": {"peak": peak, "bandwidth": fact(bandwidth / 1e9, "GB/s")}},
        "flash": {
            "bandwidth": curve([(4 << 20, disk / 1e9)], "GB/s"),
            "latency": fact(1e6 * latency, "us"),
        },
        "dram": {"budget": fact(1e3, "GB", "assumed", assumed), "bandwidth": fact(bandwidth / 1e9, "GB/s")},
        "power": {"idle": fact(1.0, "W", "assumed", assumed)},
    }


def predictions(found: Sequence[MeasuredGroup], pace: float) -> Iterator[PredictedPass]:
    """Every measured cell beside its prediction; reads were held to `pace` bytes per second."""
    bandwidth = best_bandwidth(found)
    ours = [one for one in found if one.group.engine == OURS]
    if ours:
        yield from _ours(ours, pace, bandwidth)
    yield from _llama_cpp([one for one in found if one.group.engine != OURS], bandwidth)


def best_bandwidth(found: Sequence[MeasuredGroup]) -> float:
    """Bytes per second that memory gave at best: other programs only take from it."""
    return max(one.bandwidth for one in found)


def _ours(found: Sequence[MeasuredGroup], pace: float, bandwidth: float) -> Iterator[PredictedPass]:
    costs = fit(timing for one in found for timing in one.probe_timings())
    disks = [rate for one in found for rate in one.disk]
    latency, disk = costs.reads or (0.0, min([pace, median(disks)] if disks else [pace]))
    device = device_of(costs, disk, bandwidth, latency)
    for one in found:
        engine = engine_of_costs("repro here", costs, is_packed=one.kernels.packed)
        config = config_of(one.group)
        cost = cost_of(config, one.group.dtype)
        yield from _compared(one, device, engine, cost)


def _llama_cpp(found: Sequence[MeasuredGroup], bandwidth: float) -> Iterator[PredictedPass]:
    """Each model's cells from the other two models' passes as probes."""
    for one in found:
        others = [other for other in found if other is not one]
        if len(others) < 2:
            continue
        costs = llama_cpp_costs(others)
        device = device_of(costs, 1e9, bandwidth)
        engine = engine_of_costs("llama.cpp here", costs)
        config = config_of(one.group)
        cost = ModelCost(cost_of(config, "float32").shape, Precision(one.bits, "int8", 2))
        yield from _compared(one, device, engine, cost)


def llama_cpp_costs(found: Sequence[MeasuredGroup]) -> FittedCosts:
    """llama.cpp's costs from whole passes of some models: a layer takes its share of a pass.

    The output projection computes one row, so its weights count at the rate of one.
    """
    timings = []
    for one in found:
        shape = cost_of(config_of(one.group), "float32").shape
        for rows, context, arm, seconds in one.passes:
            if arm == PROBE:
                attention = shape.attention_flops(rows, context)
                asked = (GGUF, LAYER, shape.layer_weights, attention, rows, context)
                timings.append(PartTiming(*asked, seconds / shape.layers, shape.head_weights / shape.layers))
    layers, reach, errors = fit_layers(timings)
    part = layers[GGUF]
    nothing = tuple((rows, 0.0) for rows, _ in part.start)
    head = PartCost(nothing, tuple((rows, part.rate[0][1]) for rows, _ in part.rate))
    kernels = {replace(GGUF, dtype=dtype): part for dtype in ("int4", "float32")}
    heads = dict.fromkeys(kernels, head)
    return FittedCosts(kernels, heads, reach, nothing, errors)


def config_of(group: CellGroup) -> DecoderConfig:
    """The configuration of a group's model."""
    return weights.decoder_config(checkpoint_folder(group.model))


def _compared(
    one: MeasuredGroup, device: Section, engine: Section, cost: ModelCost
) -> Iterator[PredictedPass]:
    """The cells of a group beside what the emulator says, with the engine and without."""
    cells, is_streamed = one.cells(), one.group.streamed
    contexts = sorted({cell.context for cell in cells})
    machines = [machine(with_engine(device, used)) for used in (engine, None)]
    timers = [PassTimer(EmulatedDevice(m), cost, contexts, is_streamed=is_streamed) for m in machines]
    for cell in cells:
        predicted, roofline = (t.time(cell.rows, cell.context, cell.last_only).seconds for t in timers)
        measured, null = (one.arm(cell, arm) for arm in ARMS)
        yield PredictedPass(cell, median(measured), median(null), predicted, len(measured), roofline)
