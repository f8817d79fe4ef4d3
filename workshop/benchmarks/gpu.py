"""Decoding and verification on one GPU: share of the floor, transformers beside it, and the emulator's error.

python -m workshop.benchmarks.gpu                      # all parts, at most four minutes; a killed run goes on
python -m workshop.benchmarks.gpu --parts floor 1b     # some of them
python -m workshop.benchmarks.gpu --device cpu --parts floor tiny --tokens 8  # a try without a GPU

The floor of a pass is the bytes of its weights over the bandwidth that a copy of 1 GiB shows here. Weights of
the shapes `1b` and `8b` (Llama 3.2 1B, Llama 3.1 8B) are random. Each figure is stored in --out as it comes,
the first with card, driver and versions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

import repro
from repro import commands
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import with_engine
from repro.device.local import LocalDevice, LocalMachine
from repro.device.op import CPU, FLASH, GPU
from repro.experiments.plan import cell_config
from repro.methods.base import Request
from repro.methods.plain.autoregressive import Standard
from repro.models.calibration.machine_files import memory_bandwidth
from repro.models.calibration.passes import PassTimer, cost_of
from repro.models.calibration.probe import Kernels, random_decoder
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.origin import Checkpoint
from repro.models.runtime.cuda import GraphRecorder, as_it_is, cuda_stream
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.recorded_passes import RecordedNetwork
from repro.models.runtime.session import Session
from repro.models.transformer.config import DecoderConfig, Rope
from repro.models.transformer.decoder import Decoder
from repro.scenarios.generation.scenario import GenerationScenario
from workshop.benchmarks.alternating import weights_read

BF16 = Kernels("bfloat16")
ROWS = (1, 4, 8, 16)
CONTEXT, PROMPT = 256, 64
NAME = "this_gpu"
"""Device and engine file that the part `calibrate` writes."""


def llama(layers: int, hidden: int, heads: int, intermediate: int, vocab: int, tied: bool) -> DecoderConfig:
    """A shape of the Llama family with eight key-value heads."""
    return DecoderConfig(
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=min(8, heads),
        head_dim=hidden // heads,
        intermediate=intermediate,
        max_positions=4096,
        rope=Rope(theta=500_000.0),
        tied=tied,
    )


SHAPES = {
    "tiny": llama(2, 256, 4, 512, 1024, tied=True),
    "1b": llama(16, 2048, 32, 8192, 128_256, tied=True),
    "8b": llama(32, 4096, 32, 14_336, 128_256, tied=False),
}
METHODS: dict[str, dict[str, Any]] = {
    "std": {},
    "chain_sd": {"draft": "smollm2_135m_draft"},
    "lever": {"draft": "smollm2_135m_draft"},
    "medusa": {"draft": "smollm2_135m_medusa"},
    "prompt_lookup": {},
}


class Figures:
    """Figures by name in a file of JSON lines; one that is there is not measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in map(json.loads, lines)}

    def get(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A figure by name, measured unless it is known."""
        if name not in self.rows:
            start = time.perf_counter()
            row = {"name": name, **measure(), "took_s": round(time.perf_counter() - start, 1)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self.rows[name] = row
            print(json.dumps(row), flush=True)
        return self.rows[name]


class Bench:
    """One machine that is measured, and what is known of it so far."""

    def __init__(self, on: str, figures: Figures, tokens: int, prompts: int) -> None:
        self.on, self.figures, self.tokens, self.prompts = on, figures, tokens, prompts
        self.torch_device = torch.device("cuda" if on == GPU else "cpu")

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second of a copy, counting bytes read and written."""

        def measure() -> dict[str, Any]:
            return {"GB/s": memory_bandwidth(str(self.torch_device), footprint=1 << 30) / 1e9, **self.where()}

        return 1e9 * float(self.figures.get("floor", measure)["GB/s"])

    def where(self) -> dict[str, str]:
        """Card, driver and versions."""
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        if self.on != GPU:
            return {"card": "none", **versions}
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False, encoding="utf-8")
        return {"card": torch.cuda.get_device_name(), "driver": said.stdout.strip(), **versions}

    def local(self) -> LocalDevice:
        """The machine as a device."""
        stream = cuda_stream() if self.on == GPU else None
        return LocalDevice(LocalMachine("here", frozenset({CPU, self.on, FLASH}), budget=60e9), stream)

    def shape(self, name: str) -> None:
        """Decoding and verification of a shape with random weights, with `std`'s own loop."""
        config = SHAPES[name]
        wanted = [f"{name} std", *(f"{name} {rows} rows" for rows in ROWS)]
        if set(wanted) <= self.figures.rows.keys():
            return
        with torch.inference_mode():
            decoder = random_decoder(config, BF16, self.torch_device)
        floor = weights_read(config, "bfloat16") / self.bandwidth
        timer = PassTimer(self.local(), cost_of(config, "bfloat16"), (CONTEXT,), decoder)
        self.figures.get(f"{name} std", partial(self._decoding, decoder, floor))
        for rows in ROWS:
            self.figures.get(f"{name} {rows} rows", partial(self._verifying, timer, rows, floor))

    def _decoding(self, decoder: Decoder, floor: float) -> dict[str, Any]:
        record = GraphRecorder() if self.on == GPU else as_it_is
        device, capacity = self.local(), PROMPT + self.tokens
        network = RecordedNetwork(decoder, capacity, record)
        cost = cost_of(decoder.config, "bfloat16")
        session = Session(Engine("target", device, cost, network, RESIDENT, token_count=capacity))
        method = Standard()
        seconds = []
        for turn in range(4):  # the first warms up
            request = Request(str(turn), tuple(range(turn, turn + PROMPT)), self.tokens)
            session.start(request.prefix)
            answer = device.play(method.serve(request, device, {"target": session}))
            seconds.append((answer.ended - answer.prefilled) / (self.tokens - 1))
        device.close()
        token = median(seconds[1:])
        memory = torch.cuda.max_memory_allocated() / 1e9 if self.on == GPU else None
        return {
            "tokens/s": 1 / token,
            "ms": 1e3 * token,
            "floor_ms": 1e3 * floor,
            "share_of_floor": floor / token,
            "memory_GB": memory,
        }

    def _verifying(self, timer: PassTimer, rows: int, floor: float) -> dict[str, Any]:
        passes = [timer.time(rows, CONTEXT) for _ in range(23)][3:]
        seconds = median(p.seconds for p in passes)
        found = {"ms": 1e3 * seconds, "floor_ms": 1e3 * floor, "share_of_floor": floor / seconds}
        found["device_ms"] = 1e3 * median(p.layers + p.head for p in passes)
        return found | self._launches(partial(timer.time, rows, CONTEXT))

    def _launches(self, work: Callable[[], object]) -> dict[str, Any]:
        """Kernels that a pass runs, and calls with which the host launches them."""
        if self.on != GPU:
            return {}
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            work()
            torch.cuda.synchronize()
        names = [event.name for event in profile.events()]
        on_gpu = sum(str(event.device_type).endswith("CUDA") for event in profile.events())
        calls = [n for n in names if n in ("cudaGraphLaunch", "cudaLaunchKernel", "cudaMemcpyAsync")]
        return {"kernels": on_gpu, "launches": len(calls), "graphs": calls.count("cudaGraphLaunch")}

    def peers(self, name: str) -> None:
        """transformers' own decoding of the same shape: a dynamic cache, and a static one, compiled."""
        for cache in ("dynamic", "static"):
            self.figures.get(f"{name} transformers {cache}", partial(self._peer, SHAPES[name], cache))

    def _peer(self, config: DecoderConfig, cache: str) -> dict[str, Any]:
        llama_config = transformers.LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate,
            tie_word_embeddings=config.tied,
        )
        with self.torch_device:
            torch.set_default_dtype(torch.bfloat16)
            model = transformers.LlamaForCausalLM(llama_config).eval()
            torch.set_default_dtype(torch.float32)
        prompt = torch.arange(PROMPT, device=self.torch_device)[None]
        usual = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
        if cache == "static":
            usual["cache_implementation"] = "static"

        def seconds(tokens: int) -> float:
            start = time.perf_counter()
            model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, **usual)
            if self.on == GPU:
                torch.cuda.synchronize()
            return time.perf_counter() - start

        first = seconds(self.tokens)  # compiles
        seconds(self.tokens)
        token = median((seconds(self.tokens) - seconds(1)) / (self.tokens - 1) for _ in range(3))
        return {"tokens/s": 1 / token, "ms": 1e3 * token, "first_s": first}

    def cell(self, method: str, emulated: bool = False) -> None:
        """Answers of SmolLM2 by a method, held in memory; on the emulated machine the same."""
        where = "emulated" if emulated else "here"
        self.figures.get(f"smollm2 {method} {where}", partial(self._answers, method, emulated))

    def _answers(self, method: str, emulated: bool) -> dict[str, Any]:
        here: dict[str, Any] = {"device": f"local_{self.torch_device}", "repeats": 1, "cooldown": 0}
        device = {"device": NAME, "engine": NAME} if emulated else here
        settings: dict[str, Any] = {"prompts": self.prompts, "max_tokens": self.tokens, "metrics": []}
        settings |= {"resident": 1, "results": "outputs/gpu/results"}
        record = repro.run({"wandb.mode": "disabled"}, method=method, **settings, **device, **METHODS[method])
        names = ("decode_tokens_per_s", "acceptance_length", "time_per_token")
        found = {name: record.values.get(name) for name in names if record.values.get(name) is not None}
        return found | {"key": record.key[:12]}

    def lookup(self) -> None:
        """transformers' prompt look-up on the same prompts."""
        self.figures.get("smollm2 transformers prompt_lookup", self._lookup)

    def _lookup(self) -> dict[str, Any]:
        described = read_mapping(conf_dir() / "model/checkpoint/smollm2_135m_instruct.yaml")
        folder = open_checkpoint(Checkpoint.from_mapping(described))
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model = loaded.to(self.torch_device).eval()
        tokens = seconds = 0.0
        for prompt in self._prompts():
            ids = torch.tensor([prompt], device=self.torch_device)
            for turn in range(2):  # the first warms up
                start = time.perf_counter()
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=self.tokens,
                    do_sample=False,
                    prompt_lookup_num_tokens=8,
                    pad_token_id=0,
                )
                if turn:
                    seconds += time.perf_counter() - start
                    tokens += out.shape[1] - ids.shape[1]
        return {"tokens/s": tokens / seconds, "note": "prefill included"}

    def _prompts(self) -> Iterator[Sequence[int]]:
        config = cell_config("method=std", f"prompts={self.prompts}", f"max_tokens={self.tokens}")
        for request in GenerationScenario(config).requests:
            yield request.prompt

    def calibrated(self) -> None:
        """A device file and an engine file of this machine, in the checkout's conf."""

        def measure() -> dict[str, Any]:
            quick = ["--quick"] if self.on != GPU else []
            commands.VERBS["calibrate"](
                ["--name", NAME, "--device", str(self.torch_device), "--busy", *quick]
            )
            return {"file": f"conf/device/{NAME}.yaml"}

        self.figures.get("calibrate", measure)

    def emulate(self, name: str) -> None:
        """The passes of a shape, as the calibrated machine bills them."""
        files = [read_mapping(conf_dir() / kind / f"{NAME}.yaml") for kind in ("device", "engine")]
        device = EmulatedDevice(machine(with_engine(*files)))
        timer = PassTimer(device, cost_of(SHAPES[name], "bfloat16"), (CONTEXT,))
        for rows in ROWS:
            measured = self.figures.rows.get(f"{name} {rows} rows")
            if measured is None:
                continue
            billed = 1e3 * timer.time(rows, CONTEXT).seconds
            row = {"ms": billed, "error": billed / measured["ms"] - 1}
            self.figures.get(f"{name} {rows} rows emulated", partial(dict, row))


def main() -> None:
    """Measure the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = ("floor", "1b", "peers", "8b", "smollm2", "lookup", "calibrate", "emulated")
    parser.add_argument("--parts", nargs="+", default=usual, choices=(*usual, "tiny"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu/figures.jsonl"))
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU that torch sees; choose --device cpu --parts floor tiny for a try")
    on = GPU if chosen.device == "cuda" else CPU
    bench = Bench(on, Figures(chosen.out), chosen.tokens, chosen.prompts)
    steps: dict[str, list[Callable[[], object]]] = {
        "floor": [lambda: bench.bandwidth],
        "tiny": [partial(bench.shape, "tiny")],
        "1b": [partial(bench.shape, "1b")],
        "peers": [partial(bench.peers, "1b")],
        "8b": [partial(bench.shape, "8b")],
        "smollm2": [partial(bench.cell, method) for method in METHODS],
        "lookup": [bench.lookup],
        "calibrate": [bench.calibrated],
        "emulated": [
            *(partial(bench.emulate, name) for name in ("1b", "8b", "tiny")),
            *(partial(bench.cell, method, True) for method in METHODS),
        ],
    }
    for part in chosen.parts:
        for step in steps[part]:
            step()
            if on == GPU:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
