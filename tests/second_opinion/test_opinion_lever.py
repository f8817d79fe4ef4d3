"""A second opinion on LEVER's Fig. 10 and its means: from rounds and, for Flash-AR, from the phones' numbers.

Knows: a round's tokens and times; that the engine reads a layer, then computes it, and keeps embedding table
and output projection in memory. Knows nothing of trees, of the NPU's graphs, of the draft, or of pruning.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from committed_results import (
    at,
    cells,
    geometric_mean,
    layer_weights,
    machine,
    model,
    printed,
    rounds,
)

FIGURE, MEANS = "lever/fig10", "lever/fig10_mean"
BASELINES = ("flash_ar", "chain_sd", "edgellm")


def test_speeds_and_acceptance_follow_from_the_rounds() -> None:
    stored, table = rounds(FIGURE), printed(FIGURE)
    speed, accepted = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    usual = [cell for cell in cells(FIGURE) if cell["labels"]["variant"] == "usual"]
    for cell in usual:
        own, labels = stored[cell["key"]], cell["labels"]
        row, method = f"{labels['device']} / {labels['workload']} / {labels['dataset']}", labels["method"]
        speed[row, method] = np.sum(own["emitted"]) / np.sum(own["end"] - own["start"])
        accepted[row, method] = np.sum(own["emitted"]) / np.sum(own["rows"] > 0)
        assert speed[row, method] == pytest.approx(table[row, method], rel=1e-6)
        assert np.all(own["emitted"] <= own["accepted"] + 1)
        if method == "chain_sd":
            assert set(own["drafted"]) == {8}, "a chain of eight"
    workloads = {row for row, _ in speed}
    assert len(workloads) == 48
    for row, baseline in product(workloads, BASELINES):
        ratio = speed[row, "lever"] / speed[row, baseline]
        assert ratio == pytest.approx(table[row, f"over_{baseline}"], rel=1e-6)
        assert 1 / ratio == pytest.approx(table[row, f"{baseline}_share"], rel=1e-6)
        if baseline != "flash_ar":
            assert accepted[row, baseline] == pytest.approx(table[row, f"acc_{baseline}"], rel=1e-9)
    for baseline in BASELINES:
        mean = geometric_mean([speed[row, "lever"] / speed[row, baseline] for row in workloads])
        assert mean == pytest.approx(printed(MEANS)["all", f"over_{baseline}"], rel=1e-6)
    for method in ("chain_sd", "edgellm", "lever"):
        mean = geometric_mean([accepted[row, method] for row in workloads])
        assert mean == pytest.approx(printed(MEANS)["all", f"acceptance_{method}"], rel=1e-9)


def test_flash_ar_takes_its_reads_and_then_one_pass_over_memory() -> None:
    """Reads to 1e-6; with launches, weights and key-value cache from memory, a token's time to 0.1%."""
    checked = 0
    for cell in cells(FIGURE):
        if cell["labels"]["method"] != "flash_ar":
            continue
        values, shape = cell["values"], model(cell["labels"]["target"])
        on = machine(cell["labels"]["device"], "lever_serial")
        processor, layers = on["processors"][on["main"]], shape["layers"]
        layer = layer_weights(shape) * shape["bits"] / 8
        head = shape["hidden"] * shape["vocab"] * shape["bits"] / 8
        read_s = layers * (on["flash"]["latency"] + layer / at(on["flash"]["bandwidth"], layer))
        assert values["flash_bytes_per_token"] == pytest.approx(layers * layer, rel=1e-9)
        assert values["target_loading"] == pytest.approx(read_s, rel=1e-6)
        prompt = values["prefill_tokens_per_s"] * values["ttft"]
        context = prompt + values["decode_tokens"] / values["prompts"] / 2
        cached = layers * 2 * context * shape["kv_heads"] * shape["head_dim"] * 2
        computing_s = (layers + 2) * processor["launch"] + (layers * layer + head + cached) / processor[
            "bandwidth"
        ]
        assert values["time_per_token"] == pytest.approx(read_s + computing_s, rel=1e-3)
        checked += 1
    assert checked == 48


def test_a_verification_reads_every_layer_once_and_no_more_tokens_come_than_reads_allow() -> None:
    """A token of any method takes at least a pass's reads over the tokens of a verification."""
    for cell in cells(FIGURE):
        values, shape = cell["values"], model(cell["labels"]["target"])
        on = machine(cell["labels"]["device"], "lever_serial")
        layer = layer_weights(shape) * shape["bits"] / 8
        read_s = shape["layers"] * (on["flash"]["latency"] + layer / at(on["flash"]["bandwidth"], layer))
        assert values["target_loading"] == pytest.approx(read_s, rel=1e-4)
        assert values["decode_tokens_per_s"] <= values["acceptance_length"] / read_s
        assert values["time_per_token"] * values["acceptance_length"] >= values["target_pass"] * (1 - 1e-6)
