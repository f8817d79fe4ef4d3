"""A second opinion on EdgeLLM's Figs. 15 and 16: from rounds and, for Std, from the device's numbers.

Knows: a round's tokens and times; that Std reads every layer and the output projection in every pass, then
computes it; what a launch costs on these engines. Knows nothing of drafts, of how trees grow, or of an
encoder's pass.
"""

from __future__ import annotations

import numpy as np
import pytest

from committed_results import at, cells, layer_weights, machine, model, printed, rounds

FIGURES = ("edgellm/fig15", "edgellm/fig16")
OVER = {"std_flash": "over_std", "draft": "over_draft", "spl": "over_spl", "sti": "over_sti", "sp": "over_sp",
        "bld": "over_bld", "specinfer": "over_si"}  # fmt: skip


@pytest.mark.parametrize("figure", FIGURES)
def test_speeds_and_acceptance_follow_from_the_rounds(figure: str) -> None:
    stored, table, seconds = rounds(figure), printed(figure), dict[tuple[str, str], float]()
    for cell in cells(figure):
        own, row, method = stored[cell["key"]], cell["labels"]["workload"], cell["labels"]["method"]
        verified = own["rows"] > 0
        seconds[row, method] = np.sum(own["end"] - own["start"]) / np.sum(own["emitted"])
        assert seconds[row, method] == pytest.approx(table[row, method], rel=1e-6)
        if method in ("sp", "specinfer", "edgellm"):
            acceptance = np.sum(own["emitted"][verified]) / np.sum(verified)
            assert acceptance == pytest.approx(table[row, f"acc_{method}"], rel=1e-9)
        if method == "edgellm":
            errors = own["accepted"] < own["reach"]
            assert np.mean(own["drafted"]) == pytest.approx(table[row, "drafted_per_call"], rel=1e-9)
            assert 100 * np.mean(errors) == pytest.approx(table[row, "error_rate"], rel=1e-9)
    for (row, method), taken in seconds.items():
        if method in OVER:
            speedup = taken / seconds[row, "edgellm"]
            assert speedup == pytest.approx(table[row, OVER[method]], rel=1e-6)
    assert len(seconds) == 48


@pytest.mark.parametrize("figure", FIGURES)
def test_std_takes_its_reads_and_its_launches(figure: str) -> None:
    """Reads to 1e-6; with launches and one row's memory traffic, a token's time to 3%."""
    checked = 0
    for cell in cells(figure):
        if cell["labels"]["method"] != "std_flash":
            continue
        values, shape, on = cell["values"], model(cell["labels"]["target"]), machine(cell["labels"]["device"])
        processor, layers = on["processors"][on["main"]], shape["layers"]
        layer = layer_weights(shape) * shape["bits"] / 8
        head = shape["hidden"] * shape["vocab"] * shape["bits"] / 8
        read_s = (layers + 1) * on["flash"]["latency"] + (layers * layer + head) / at(
            on["flash"]["bandwidth"], layer
        )
        assert values["flash_bytes_per_token"] == pytest.approx(layers * layer + head, rel=1e-9)
        assert values["target_loading"] == pytest.approx(read_s, rel=1e-6)
        launch_s = processor.get("launch", 0) + processor.get("start", {}).get("fp16", 0)
        computing_s = (layers + 2) * launch_s + (layers * layer + head) / processor["bandwidth"]
        assert values["time_per_token"] == pytest.approx(read_s + computing_s, rel=0.03)
        checked += 1
    assert checked == 6


@pytest.mark.parametrize("figure", FIGURES)
def test_no_streamed_method_reads_faster_than_the_flash(figure: str) -> None:
    """Bytes read per token over the flash's rate is a floor under every method's seconds of reading.

    A layer that is being read when decoding begins or ends counts whole: two an answer at most.
    """
    for cell in cells(figure):
        values, on, shape = cell["values"], machine(cell["labels"]["device"]), model(cell["labels"]["target"])
        cut = 2 * layer_weights(shape) * shape["bits"] / 8 * values["prompts"] / values["decode_tokens"]
        floor = (values["flash_bytes_per_token"] - cut) / max(rate for _, rate in on["flash"]["bandwidth"])
        assert values["time_per_token"] * values["flash_busy"] >= floor * (1 - 1e-9)
