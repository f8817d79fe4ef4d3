"""Costs fitted to layers: an invented machine is found again; probes and passes run a real session."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch

from repro.core.errors import InputError
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import with_engine
from repro.device.local import LocalDevice, LocalMachine
from repro.models.calibration.fit import fit, fit_layers
from repro.models.calibration.passes import PassTimer, cost_of
from repro.models.calibration.probe import (
    HEAD,
    LAYER,
    READ,
    REST,
    SHAPES,
    Kernels,
    LayerProbe,
    PartTiming,
    probe_config,
    random_decoder,
)
from repro.models.calibration.sections import engine_of_costs, require_composing

FP32, STORED = Kernels("float32"), Kernels("float32", packed=False)
ROWS = (1, 4, 16)
START = {1: 1e-4, 4: 2e-4, 16: 5e-4}
EACH = {FP32: {1: 2e-10, 4: 3e-10, 16: 8e-10}, STORED: {1: 2e-10, 4: 9e-10, 16: 20e-10}}
"""Seconds a weight."""
ATTENTION = {1: 1e9, 4: 3e9, 16: 9e9}


def invented(shapes: tuple[str, ...] = tuple(SHAPES)) -> Iterator[PartTiming]:
    """Timings of a machine that obeys the form of the fit."""
    for kernels, name, rows, context in product(EACH, shapes, ROWS, (64, 1024)):
        cost = cost_of(SHAPES[name], "float32").shape
        flops = cost.attention_flops(rows, context)
        seconds = START[rows] + EACH[kernels][rows] * cost.layer_weights + flops / ATTENTION[rows]
        yield PartTiming(kernels, LAYER, cost.layer_weights, flops, rows, context, seconds)
        head = EACH[FP32][rows] * cost.head_weights
        yield PartTiming(kernels, HEAD, cost.head_weights, 0.0, rows, context, head)
        yield PartTiming(kernels, REST, 0, 0.0, rows, context, rows * 1e-5)


def test_the_fit_finds_the_machine_that_was_measured() -> None:
    found = fit(invented())
    for kernels, each in EACH.items():
        part = found.layers[kernels]
        assert dict(part.start) == pytest.approx(START, rel=0.01)
        assert dict(part.rate) == pytest.approx({r: 2 * r / each[r] for r in ROWS}, rel=0.01)
    assert dict(found.attention) == pytest.approx(ATTENTION, rel=0.02)
    assert dict(found.rest) == pytest.approx({r: r * 1e-5 for r in ROWS})
    assert max(map(abs, found.errors)) < 1e-3


def test_more_rows_never_take_less() -> None:
    """Somebody else's work made four rows slower than sixteen."""
    spoiled = [t._replace(seconds=5 * t.seconds) if t.rows == 4 else t for t in invented()]
    part = fit(spoiled).layers[FP32]
    starts, seconds = ([y for _, y in part.start], [r / rate for r, rate in part.rate])
    assert starts == sorted(starts)
    assert seconds == pytest.approx(sorted(seconds))


def test_one_size_cannot_tell_start_from_rate() -> None:
    with pytest.raises(InputError, match="one size was timed"):
        fit_layers(t for t in invented(("small",)) if t.part == LAYER)


def test_the_emulator_gives_a_fitted_layer_and_head_back() -> None:
    found = fit(invented())
    device = {
        "name": "x",
        "kind": "emulated",
        "processors": {"cpu": {"peak": {}, "bandwidth": {"value": 1e3, "unit": "GB/s", "source": "assumed"}}},
        "flash": {"bandwidth": {"value": 1, "unit": "GB/s", "source": "assumed"}},
        "dram": {
            "budget": {"value": 9, "unit": "GB", "source": "assumed"},
            "bandwidth": {"value": 1e3, "unit": "GB/s", "source": "assumed"},
        },
        "power": {"idle": {"value": 1, "unit": "W", "source": "assumed"}},
    }
    peak = {"value": 1, "unit": "GFLOP/s", "source": "assumed"}
    device["processors"]["cpu"]["peak"] = {name: peak for name in ("fp32", "fp16", "int8")}  # type: ignore[index]
    engine = engine_of_costs("x", found)
    require_composing(device, [engine])
    config = probe_config(SHAPES["middle"], FP32, 0.0)
    cost = cost_of(config, "float32")
    timer = PassTimer(EmulatedDevice(machine(with_engine(device, engine))), cost, (64, 1024))
    for rows, context in product(ROWS, (64, 1024)):
        took = timer.time(rows, context)
        layer = START[rows] + EACH[FP32][rows] * cost.shape.layer_weights
        layer += cost.shape.attention_flops(rows, context) / ATTENTION[rows]
        assert took.layers == pytest.approx(4 * layer, rel=0.02)
        assert took.head == pytest.approx(EACH[FP32][rows] * cost.shape.head_weights + rows * 1e-5, rel=0.02)
        assert took.rest < 1e-4 * took.seconds
    assert timer.time(16, 64, last_only=True).head < timer.time(16, 64).head / 2


@pytest.mark.parametrize("kernels", [FP32, STORED, Kernels("int4"), Kernels("int4", packed=False)])
def test_a_probe_runs_passes_of_a_real_session(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path))
    local = LocalDevice(LocalMachine("here", frozenset({"cpu", "flash"}), 1e9))
    config = probe_config(SHAPES["small"], kernels, 0.0)
    assert config.layers == 4
    probe = LayerProbe(config, kernels, (8, 32), local)
    for rows, context in ((1, 8), (4, 32), (4, 8)):
        parts = {t.part: t for t in probe.time(rows, context)}
        assert set(parts) == {LAYER, HEAD, REST if kernels.packed else READ}
        assert all(t.seconds > 0 and (t.rows, t.context) == (rows, context) for t in parts.values())
        assert parts[LAYER].attention == 4 * rows * context * 8 * 64
    # Layers as they are stored are streamed: from a file of all of them, which goes away with the probe.
    files = [path.stat().st_size for path in tmp_path.rglob("layers")]
    assert len(files) == (not kernels.packed)
    assert all(size > 4 * cost_of(config, kernels.dtype).layer_bytes for size in files)
    del probe
    assert not list(tmp_path.rglob("layers"))
    local.close()


def test_a_probe_s_layers_have_memory_of_their_own() -> None:
    config = probe_config(SHAPES["small"], FP32, 4 * 3.2e6 * 4)
    for kernels in (STORED, Kernels("int4")):
        first, second, *_ = random_decoder(config, kernels, torch.device("cpu")).layers
        mine, other = ([t for part in one.linears for t in _tensors(part)] for one in (first, second))
        assert {t.data_ptr() for t in mine}.isdisjoint({t.data_ptr() for t in other})
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def _tensors(linear) -> list[torch.Tensor]:
    return [value for value in linear.tensors().values() if isinstance(value, torch.Tensor)]


def test_a_pass_asks_for_new_tokens_each_time() -> None:
    local = LocalDevice(LocalMachine("here", frozenset({"cpu", "flash"}), 1e9))
    config = probe_config(SHAPES["small"], FP32, 0.0)
    decoder = random_decoder(config, FP32, torch.device("cpu"))
    seen: list[tuple[int, int, bool]] = []
    layer = decoder.layer

    def noted(i, x, positions, mask, cache, weights=None):
        if i == 0:
            seen.append((len(positions), cache.length_of(0), mask is None))
        return layer(i, x, positions, mask, cache, weights)

    decoder.layer = noted  # type: ignore[method-assign]
    timer = PassTimer(local, cost_of(config, "float32"), (8,), decoder)
    assert all(timer.time(rows, 8).layers > 0 for rows in (2, 3, 2))
    # Each computes all its rows, after the context alone: nothing of the pass before it is left.
    assert seen == [(2, 8, True), (3, 8, True), (2, 8, True)]
    assert local.trace.spans == []
    local.close()
