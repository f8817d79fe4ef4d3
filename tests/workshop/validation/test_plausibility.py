"""Passes on every device and engine: never faster than bytes and operations allow, rarely far slower."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest

from repro.core.paths import project_root
from repro.device.engines.engine_file import OVER, device_files, read_engine
from repro.models.costs.model_cost import ModelCost, Shape, precision
from workshop.validation.plausibility import HEADINGS, MODELS, MOST, PASSES, ROWS, Use, quarter, uses

COMMITTED = project_root() / "results" / "validation" / "plausibility"


@cache
def table() -> tuple[Use, ...]:
    return tuple(uses())


def test_the_committed_table_is_todays() -> None:
    with (COMMITTED / "table.csv").open(newline="", encoding="utf-8") as file:
        headings, *rows = csv.reader(file)
    assert headings == [*HEADINGS]
    assert [row[:4] for row in rows] == [[u.device, u.label, u.processor, u.format] for u in table()]
    for row, use in zip(rows, table(), strict=True):
        assert [float(cell) for cell in row[4:]] == pytest.approx(use.ratios, rel=0.006), row[:4]


def test_every_emulated_device_and_every_engine_that_runs_models_is_in_it() -> None:
    assert {use.device for use in table()} == {name for name in device_files() if "local" not in name}
    assert {use.engine for use in table()} >= {
        "llama_cpp_cpu",
        "qnn_npu",
        "edgellm",
        "lever_serial",
        "mllm_npu",
    }
    assert {use.program for use in table()} >= {"mnn_cpu", "mlc_gpu", "powerinfer2_npu"}


def test_no_pass_beats_its_floor_and_those_far_above_have_a_reason_on_the_page() -> None:
    page = (COMMITTED / "table.md").read_text(encoding="utf-8")
    for use in table():
        assert min(use.ratios) >= 1, (use.device, use.label)
        if max(use.ratios) > MOST:
            assert use.reason, (use.device, use.label)
            assert use.reason in page, use.engine


def test_the_floor_of_a_pass_by_hand() -> None:
    """8 Gen 3: 76.8 GB/s, and 34 TOPS of its NPU, by HeteroInfer's Table 2."""
    use = next(u for u in table() if (u.device, u.engine) == ("snapdragon_8_gen_3", "qnn_npu"))
    shape = Shape(layers=1, hidden=1024, heads=8, kv_heads=8, head_dim=128, intermediate=4096, vocab=1000)
    layer, head = 4 * 1024**2 + 3 * 1024 * 4096, 1024 * 1000
    cost = ModelCost(shape, precision("w8a8"))
    cached = 2 * 1024 * 2  # keys and values of a row, of 2 bytes
    assert use.floor(cost, 1) == pytest.approx((layer + head + cached) / 76.8e9)
    assert use.floor(cost, 512) == pytest.approx(2 * (512 * layer + head) / 34e12)


def test_more_rows_or_bytes_never_take_less_time_and_a_quarter_never_more_than_half() -> None:
    """What the framework takes for a token, whatever the model, is left out of the last."""
    for use in table():
        fixed = use.machine.processors[use.processor].token
        for model in MODELS:
            cost = use.cost(model)
            seconds = [use.seconds(cost, rows) for rows in ROWS]
            assert seconds == sorted(seconds), (use.device, use.label, model)
            more = ModelCost(cost.shape, replace(cost.stored, bits=1.5 * cost.stored.bits))
            less = ModelCost(quarter(cost.shape), cost.stored)
            for rows, whole in zip(ROWS, seconds, strict=True):
                assert use.seconds(more, rows) >= whole, (use.device, use.label, model, rows)
                part = use.seconds(less, rows) - fixed
                assert part <= 0.5 * (whole - fixed), (use.device, use.label, model, rows)


def test_boards_and_phones_of_one_chip_are_as_fast_under_a_public_engine() -> None:
    times = defaultdict(list)
    for use in table():
        if OVER in read_engine(use.engine):
            for model, rows in PASSES:
                seconds = use.seconds(use.cost(model), rows)
                times[use.chip, use.engine, use.processor, model, rows].append(seconds)
    assert sum(len(some) > 1 for some in times.values()) > 300
    for place, some in times.items():
        assert max(some) == pytest.approx(min(some)), place
