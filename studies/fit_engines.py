"""Fit the first engines of mllm-NPU's Table 4 on the Xiaomi 14, and answer lengths, to the engines' values.

python -m studies.fit_engines            every number and length, then each cell beside ours
python -m studies.fit_engines --check    exit 1 if the engine file or `LENGTHS` differs from the fit

mllm-NPU's experiments choose engine=mllm_npu (`studies/fit_mllm.py`) instead of these engines, which stay the
phone's own: keys of ElastiLM's records have their numbers.

Owns which number is fitted to which cells: those of Qwen1.5-1.8B and LLaMA-2-7B, or of Gemma-2B for TFLite,
which has neither. Must not know any other row, nor mllm-NPU's own column.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from math import ceil, log
from typing import Any

import yaml
from rich.console import Console

from repro.core.paths import conf_dir
from repro.core.registry import discover, registered
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.reports.reference.reference import find, load_cells
from studies.fit_devices import (
    Fit,
    Knob,
    Measure,
    device_file,
    model_cost,
    published,
    reproduced,
    turn,
    wrong,
)
from studies.fit_devices import parameters as shown

discover("repro.methods")

DEVICE = "xiaomi_14"
DATASETS = ("2wiki", "triviaqa", "clock", "applauncher")
SHORT, LONG = ("clock", "applauncher"), ("2wiki", "triviaqa")
COLUMNS = {
    "llama_cpp_cpu": "lcpp",
    "mnn_cpu": "mnn",
    "mlc_gpu": "mlc",
    "tflite_gpu": "tflite",
    "powerinfer2_npu": "pi",
}
MODELS = {"qwen1_5_1_8b": "qwen1_5_1_8b_int8", "gemma_2b": "gemma_2b_int8", "llama_2_7b": "llama_2_7b_int8"}

SHARE = "mllm_npu.fig1b.prefill_share"
RESTATED = (SHARE, "mllm_npu.text.1.prefill_share")
"""Share of prefill in llama.cpp's latency, which bounds the length of an answer."""

QUICK = {"tflite_gpu": "gemma_2b", "powerinfer2_npu": "llama_2_7b"}
"""Model by engine whose prefill is fast enough for the answer length to matter."""


@cache
def workload(dataset: str) -> dict[str, Any]:
    """A dataset of Table 4, as its setup file describes it."""
    loaded: dict[str, Any] = yaml.safe_load((conf_dir() / "setup" / f"mllm_{dataset}.yaml").read_text())
    return loaded


LENGTHS = {"2wiki": 9, "triviaqa": 10, "clock": 16, "applauncher": 13}
"""Answer tokens by dataset; fitting changes them in place."""


def cell(dataset: str, model: str, engine: str) -> str:
    """The id of a cell of Table 4."""
    return f"mllm_npu.table4.{dataset}.{model}.{COLUMNS[engine]}"


def answered(on: Machine, engine: str, model: str, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds of a request's prefill and of the whole request, with the engine's own method."""
    method = registered("method")[engine]()
    device = EmulatedDevice(on)
    session = Session(
        Engine("target", device, model_cost(MODELS[model]), NoNetwork(), method.places()["target"])
    )
    request = Request("blank", (0,) * prompt, tokens)

    session.start(Prefix.of(request.prompt))
    done = device.play(method.serve(request, device, {"target": session}))
    return done.first - done.arrived, done.ended - done.arrived


def latency(dataset: str, model: str, engine: str) -> Measure:
    """Seconds of a request of a dataset, as in Table 4."""
    prompt = int(workload(dataset)["prompt_tokens"])
    return lambda on: answered(on, engine, model, prompt, LENGTHS[dataset])[1]


HALVINGS = 12
"""Bisection steps: an interval with ends about ten times apart is solved to a thousandth."""


def knob(
    engine: str, number: str, between: tuple[float, float], models: Sequence[str], datasets: Sequence[str]
) -> Knob:
    """A number of an engine, fitted to the cells of these models and datasets."""
    cells = {cell(d, m, engine): latency(d, m, engine) for m in models for d in datasets}
    restated = RESTATED if engine == "llama_cpp_cpu" else ()
    return Knob(f"engines.{engine}.{number}", between, cells, restated, engine)


def slow(engine: str, processor: str, top: float) -> Iterator[Knob]:
    """Knobs of a slow engine.

    LLaMA-2-7B's cells give the rate and the efficiency at 1500 tokens, Qwen1.5-1.8B's the constant time.
    """
    yield knob(engine, f"{processor}.graph_seconds", (0.5, top), ["qwen1_5_1_8b"], DATASETS)
    yield knob(engine, f"{processor}.peak.int8", (0.05, 10.0), ["llama_2_7b"], SHORT)
    yield knob(engine, f"{processor}.efficiency", (0.1, 1.0), ["llama_2_7b"], LONG)


BOTH = ("qwen1_5_1_8b", "llama_2_7b")

FIT = Fit(
    DEVICE,
    (
        knob("llama_cpp_cpu", "cpu.peak.int8", (0.05, 3.0), BOTH, SHORT),
        knob("llama_cpp_cpu", "cpu.efficiency", (0.1, 1.0), BOTH, LONG),
        *slow("mnn_cpu", "cpu", 10.0),
        *slow("mlc_gpu", "gpu", 10.0),
        knob("tflite_gpu", "gpu.peak.int8", (0.5, 20.0), ["gemma_2b"], DATASETS),
        knob("powerinfer2_npu", "npu.peak.int8", (0.3, 10.0), ["llama_2_7b"], DATASETS),
    ),
)
"""llama.cpp takes equally long per weight for both models, so it has no constant time."""


def allowed(device: Mapping[str, Any], dataset: str) -> range:
    """Answer lengths for which llama.cpp's share of prefill is within the published range."""
    on = machine(device, "llama_cpp_cpu")
    prompt = int(workload(dataset)["prompt_tokens"])
    first, ended = answered(on, "llama_cpp_cpu", "qwen1_5_1_8b", prompt, 11)
    share = find(load_cells(), SHARE)
    assert share.value_low is not None
    assert share.value_high is not None
    decoding = [
        published(cell(dataset, "qwen1_5_1_8b", "llama_cpp_cpu")) * (1 - s / 100)
        for s in (share.value_high, share.value_low)
    ]
    low, high = (1 + seconds / ((ended - first) / 10) for seconds in decoding)
    return range(ceil(low), int(high) + 1)


def miss(device: Mapping[str, Any], dataset: str, tokens: int) -> float:
    """Sum of squared log ratios of ours to published over the fast engines' cells, at an answer length."""
    prompt, out = int(workload(dataset)["prompt_tokens"]), 0.0
    for engine, model in QUICK.items():
        ours = answered(machine(device, engine), engine, model, prompt, tokens)[1]
        out += log(ours / published(cell(dataset, model, engine))) ** 2
    return out


def settled(device: Mapping[str, Any]) -> dict[str, int]:
    """The best answer length of each dataset on a device."""
    return {d: min(allowed(device, d), key=partial(miss, device, d)) for d in DATASETS}


def together(rounds: int = 20, sweeps: int = 4) -> tuple[dict[str, Any], dict[str, int]]:
    """The fitted device file and answer lengths.

    Fast engines and lengths are fitted in turns until the lengths no longer change; then the slow engines,
    whose knobs depend on each other.
    """
    device = device_file(DEVICE)
    for _ in range(rounds):
        for one in FIT.knobs:
            if one.engine in QUICK:
                turn(device, one, HALVINGS)
        before = dict(LENGTHS)
        LENGTHS.update(settled(device))
        if before == LENGTHS:
            break
    for _ in range(sweeps):
        for one in FIT.knobs:
            if one.engine not in QUICK:
                turn(device, one, HALVINGS)
    return device, dict(LENGTHS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say where the files differ")
    options = parser.parse_args(arguments)
    written = dict(LENGTHS)
    solved, lengths = together()
    failures = list(wrong(FIT, solved))
    failures += [
        f"answers of {d} have {written[d]} tokens; the fit gives {lengths[d]}"
        for d in DATASETS
        if written[d] != lengths[d]
    ]
    if not options.check:
        console = Console()
        console.print(shown(FIT, solved), reproduced(FIT), f"lengths: {lengths}")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
