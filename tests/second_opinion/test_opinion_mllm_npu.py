"""A second opinion on mllm-NPU's Table 4: latencies from rounds, prefills from the phone's numbers as bounds.

Knows: that the NPU multiplies chunks of 256 rows, product by product, that the CPU does the rest of a prefill
and all of decoding, and what a plain engine's prefill computes. Knows nothing of the order of subgraphs. The
plain engines' prefill has no attention among the prompt's own tokens, here as there: 3 to 6% of the
operations of a prompt of 1,500 tokens, which those engines' fitted rates hold.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from committed_results import (
    cells,
    geometric_mean,
    layer_weights,
    machine,
    model,
    printed,
    rounds,
)

TABLE, MEANS, ENGINE = "mllm_npu/table4", "mllm_npu/table4_mean", "mllm_npu"
COLUMNS = {
    "mlc_gpu": "mlc",
    "llama_cpp_cpu": "lcpp",
    "mnn_cpu": "mnn",
    "powerinfer2_npu": "pi",
    "tflite_gpu": "tflite",
}
CHUNK, OUTLIERS, FLOAT = 256, 0.003, 4
"""Rows of a chunk, the share of channels with outliers, and bytes of the CPU's numbers (docs/mllm_npu.md)."""


def test_latencies_and_speedups_follow_from_the_rounds() -> None:
    stored, table, latency = rounds(TABLE), printed(TABLE), dict[tuple[str, str, str], float]()
    for cell in cells(TABLE):
        values, labels, own = cell["values"], cell["labels"], stored[cell["key"]]
        place = labels["workload"], labels["target"], labels["method"]
        decoding = np.sum(own["end"] - own["start"])
        assert decoding == pytest.approx(values["decode_seconds"], rel=1e-6)
        latency[place] = values["ttft"] + decoding / values["prompts"]
        column = COLUMNS.get(labels["method"], "ours")
        assert latency[place] == pytest.approx(table[f"{place[0]} / {place[1]}", column], rel=1e-6)
    for workload in {place[0] for place in latency}:
        for method, column in COLUMNS.items():
            models = [target for own, target, used in latency if (own, used) == (workload, method)]
            ratios = [latency[workload, m, method] / latency[workload, m, "mllm_npu"] for m in models]
            for target, ratio in zip(models, ratios, strict=True):
                assert ratio == pytest.approx(table[f"{workload} / {target}", f"over_{column}"], rel=1e-6)
            assert geometric_mean(ratios) == pytest.approx(
                printed(MEANS)[workload, f"over_{column}"], rel=1e-6
            )
    assert len(latency) == len(cells(TABLE)) >= 80


def stages(shape: dict[str, float]) -> list[tuple[int, float, float, float]]:
    """Products, weights, input and output channels of a layer's linears: Q, K and V; the output; the FFN."""
    hidden, attended = shape["hidden"], shape["heads"] * shape["head_dim"]
    keys, inner = 2 * shape["kv_heads"] * shape["head_dim"], shape["intermediate"]
    matrices = 3 if shape.get("gated", True) else 2
    return [
        (3, hidden * (attended + keys), hidden, attended + keys),
        (1, attended * hidden, attended, hidden),
        (matrices, matrices * hidden * inner, hidden + inner, hidden + inner),
    ]


def test_a_prefill_takes_at_least_the_npus_work_and_at_most_all_work() -> None:
    """The NPU's work of a chunk to 1e-6; the whole between that and everything one after the other."""
    checked = 0
    for cell in cells(TABLE):
        if cell["labels"]["method"] != "mllm_npu":
            continue
        values, shape, on = (
            cell["values"],
            model(cell["labels"]["target"]),
            machine(cell["labels"]["device"], ENGINE),
        )
        npu, cpu, layers = on["processors"]["npu"], on["processors"]["cpu"], shape["layers"]
        chunk_s = layers * sum(
            products * npu["start"]["int8"]
            + max(
                2 * CHUNK * count / npu["peak"]["int8"], (count + CHUNK * (read + written)) / npu["bandwidth"]
            )
            for products, count, read, written in stages(shape)
        )
        assert values["chunk_npu_seconds"] == pytest.approx(chunk_s, rel=1e-6)
        chunks = ceil(round(values["prefill_tokens_per_s"] * values["ttft"]) / CHUNK)
        flops, moved, ops = 0.0, 0.0, 0
        for chunk in range(chunks):
            keys = CHUNK * (chunk + 1)
            flops += layers * CHUNK * (16 * shape["hidden"] + 4 * keys * shape["heads"] * shape["head_dim"])
            moved += (
                layers * CHUNK * (2 * 13 * shape["hidden"] + 2 * FLOAT * shape["heads"] * shape["head_dim"])
            )
            moved += layers * 2 * keys * shape["kv_heads"] * shape["head_dim"] * 2
            flops += values["shadow_layers"] * 2 * CHUNK * OUTLIERS * layer_weights(shape)
            for _, count, read, written in stages(shape):
                moved += values["shadow_layers"] * FLOAT * (OUTLIERS * count + CHUNK * (read + written))
            ops += 3 * layers + 3 * values["shadow_layers"]
        flops, moved, ops = (
            flops + 2 * shape["hidden"] * shape["vocab"],
            moved + shape["hidden"] * shape["vocab"],
            ops + 2,
        )
        cpu_s = (
            flops / cpu["peak"]["fp32"]
            + moved / cpu["bandwidth"]
            + ops * (cpu["launch"] + on["dram"]["sync"])
        )
        assert chunks * chunk_s <= values["ttft"] <= chunks * chunk_s + cpu_s
        checked += 1
    assert checked == 20


def test_llama_cpp_prefills_its_operations_and_decodes_its_bytes() -> None:
    """Both to 1%: a rate with a term in the square of the rows; the CPU's bandwidth, and a start of each op.

    The ops of a token are the look-up of its embedding, the layers and the output projection.
    """
    checked = 0
    for cell in cells(TABLE):
        if cell["labels"]["method"] != "llama_cpp_cpu":
            continue
        values, shape, on = (
            cell["values"],
            model(cell["labels"]["target"]),
            machine(cell["labels"]["device"], ENGINE),
        )
        program, cpu = on["programs"]["llama_cpp_cpu"]["cpu"], on["processors"]["cpu"]
        prompt, weights = (
            round(values["prefill_tokens_per_s"] * values["ttft"]),
            shape["layers"] * layer_weights(shape),
        )
        starts_s = (shape["layers"] + 2) * (program["start"]["int8"] + cpu["launch"])
        prefill_s = 2 * prompt * weights * (1 + program["rows_quadratic"] * prompt) / program["peak"]["int8"]
        assert values["ttft"] == pytest.approx(prefill_s, rel=0.01)
        cached = 2 * 2 * shape["layers"] * prompt * shape["kv_heads"] * shape["head_dim"]
        step_s = starts_s + (weights + shape["hidden"] * shape["vocab"] + cached) / cpu["bandwidth"]
        assert values["time_per_token"] == pytest.approx(step_s, rel=0.01)
        checked += 1
    assert checked == 20
