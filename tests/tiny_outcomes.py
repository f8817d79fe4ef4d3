"""What each versioned component makes of tiny inputs that are the same on every host: `tests/outcomes.json`.

    python tests/tiny_outcomes.py            compare with what is committed
    python tests/tiny_outcomes.py --write    write it anew, after a version was raised or a setting changed
    python tests/tiny_outcomes.py --beside --only "compression k_quant"    note also what this host makes

A cell's key promises its outcome. So each entry holds a key, the versions in it and an outcome; where the key
is the same and the outcome is not, a version should have been raised. An answer's outcome has the hash of all
spans of its trace; entries `trace ...` are of settings that lay a pass on the device in other ways than the
methods' own defaults do. Weights are drawn by numpy, bit by bit the same everywhere, and the phone is a copy
that no fit touches. Where an 8-bit activation lies between two
codes, hosts round it differently; what another kind of host makes then stands beside it (`elsewhere`).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file

from invented_rows import INVENTED
from repro.core.digits import TOLERANCE, json_text
from repro.core.overrides import override
from repro.core.registry import discover, lookup, registered
from repro.data.config import read_config
from repro.data.prompts import prompts
from repro.data.rows import Rows
from repro.device.trace import Span
from repro.methods.lever.exit_predictor import PredictorConfig
from repro.methods.speculative.drafting.head_ranks import RANKS_FILE, HeadRanks
from repro.metrics.base import score
from repro.models.analysis.likelihood import Reader
from repro.records.build_cache import forgetting
from repro.records.identity import cell_key, dataset_asked
from repro.records.record import content_hash
from repro.scenarios.base import WEIGHT_VERSIONS, metric_versions
from repro.scenarios.generation import scenario as generation
from repro.scenarios.registry import made
from tiny_checkpoints import CONTROL, write_tokenizer
from tiny_encdec import ENDS, T5_SHAPE
from tiny_project import Project, publish
from tiny_requests import Bytes

HERE = Path(__file__).resolve().parent
COMMITTED = HERE / "outcomes.json"
PHONE = HERE / "outcomes_phone.json"
RELATIVE = {
    "method": 1e-6,
    "service": 1e-6,
    "trace": 1e-6,
    "compression": 2e-3,
    "probe": 2e-3,
    "metric": TOLERANCE,
    "dataset": 0.0,
}
"""How far numbers may lie apart: of virtual clocks little, of weights what two hosts differ in."""

SHAPE = {
    "vocab_size": len(CONTROL) + 256,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
}
HEADS = 3
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
"""Tensors of a T5 that are its `shared.weight`."""
OWN = ("target.shape=null", "target.precision=null", "draft.shape=null", "draft.precision=null")
BLANK = ("target.checkpoint=null", "model@target=qwen3_8b_q4_0", "prompt_tokens=96", "prompts=1")
BILLED = ("target.checkpoint=null", "+model/shape@target.shape=llama_7b")
MEDUSA = ("model@draft=smollm2_135m_medusa", "draft.checkpoint.shares_embeddings_with=smollm2_135m_instruct")
PARTS = ("request", "phase", "round", "pass")
"""Kinds of slices of a timeline that are no ops."""

INT8, FP16 = "target.precision=int8", "target.precision=fp16"
ROUNDED = (INT8, "draft.precision=int8")
SPECIAL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("medusa", "medusa_em", "ghidorah"), MEDUSA),
    **dict.fromkeys(
        ("llama_cpp_cpu", "mnn_cpu", "powerinfer2_npu", "mllm_npu"), (*BLANK, "target.precision=int8")
    ),
    **dict.fromkeys(("mlc_gpu", "tflite_gpu"), (*BLANK, "target.precision=fp16")),
    "lever": ("method.pruning=off", *ROUNDED),
}
"""What some methods need beside the tiny target and draft."""

TRACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "half of the layers in memory": ("flash_ar", ("method.resident=0.5",)),
    "shards of half the time": ("sti", ("method.latency=0.5", "method.preload=0.3")),
    "an encoder in memory": ("std", ("T5",)),
    "an encoder streamed": ("edgellm", ("T5",)),
    "branches": ("edgellm", ("method.verification=branches",)),
    "drafting at the target's priority": ("edgellm", ("method.provisional=naive",)),
    "drafting never meanwhile": ("edgellm", ("method.provisional=never",)),
    "early exit": ("lever", ("EXIT", *ROUNDED)),
    "early exit of most nodes": ("lever", ("EXIT", "method.threshold=0.5", "method.least_nodes=1", *ROUNDED)),
    "every row projected": ("lever", ("method.pruning=off", "method.projection=eager_npu", *ROUNDED)),
    "projected on demand on the NPU": ("lever", ("EXIT", "method.projection=on_demand_npu", *ROUNDED)),
    "divided, static": ("ghidorah", (*MEDUSA, "method.width=8", "method.attention=static")),
    "undivided heads": ("ghidorah", (*MEDUSA, "method.width=8", "method.divided=false")),
    "several chunks": ("mllm_npu", (*BLANK, INT8, "method.chunk=32")),
    "several chunks in order": ("mllm_npu", (*BLANK, INT8, "method.chunk=32", "method.order=in_order")),
}
"""What else an answer's trace depends on: a method, and settings that its own defaults do not have."""

REAL = ("tree_attention",)
"""Methods that only a real machine runs: their outcome is its time, and their text is the target's own."""

CHOICES = ("dataset=piqa", "prompts=4", "corpus.texts=3", "corpus.tokens=64")
LEVELS = (
    "trace=standalone",
    "app.dataset=null",
    "app.tokens=64",
    "app.ttft=0.7",
    "app.tpot=0.9",
    "prompts=1",
)
SCORED = {
    "predictions": [[1, 2, 3, 4], [5, 6]],
    "references": [[1, 2, 9, 4], [5, 6]],
    "prediction_texts": ["a red ball lies here", "yes"],
    "reference_texts": ["a blue ball lies there", "yes"],
    "drafted": [[4, 4], [3]],
    "accepted": [[2, 4], [0]],
    "emitted": [[3, 5], [1]],
    "correct": [1, 0, 1, 1],
    "loglikelihoods": [[-1.0, -2.0], [-3.0, -2.5]],
    "lengths": [[4, 9], [5, 5]],
    "answers": [0, 0],
    "values": [3.0, 5.0, 4.0],
    "baseline_values": [2.0, 5.5, 3.0],
}
EXPECTED = [["4 red balls lie here", "a red ball lies near 4"], ["no 5", "yes, 5"]]
"""What the answers `prediction_texts` are scored by, for metrics that score answers by their task."""


@dataclass(frozen=True)
class Outcome:
    """An entry: what it is of, its key, the versions in the key, and what came out."""

    key: str
    versions: dict[str, int]
    found: dict[str, Any]


def project_in(root: Path) -> Project:
    """Target, draft and Medusa heads without a random number of torch's; rows; results of its own."""
    generator = np.random.default_rng(7)
    config = hf.LlamaConfig(**SHAPE)
    model = hf.LlamaForCausalLM(config)
    state = {name: _drawn(generator, tensor.shape) for name, tensor in model.state_dict().items()}
    drafted = {name: t + 0.06 * _drawn(generator, t.shape) for name, t in state.items()}
    for name, tensors in (("target", state), ("draft", drafted)):
        _save(root / name, config, tensors)
    width = SHAPE["hidden_size"]
    heads = {}
    for head in range(HEADS):
        heads[f"{head}.0.linear.weight"] = _drawn(generator, (width, width))
        heads[f"{head}.0.linear.bias"] = _drawn(generator, (width,))
    (root / "heads").mkdir()
    about = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    (root / "heads" / "config.json").write_text(json.dumps(about), encoding="utf-8")
    save_file(heads, root / "heads" / "model.safetensors")
    _encoders_in(root)
    tied = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    _save(root / "tied", hf.LlamaConfig(**SHAPE, tie_word_embeddings=True), tied)
    _predictor_in(root / "exit")
    ranks = torch.from_numpy(generator.integers(0, 6, (40, HEADS), dtype=np.int16))
    HeadRanks(ranks, (0, 20)).save(root / "heads" / RANKS_FILE, {})
    (root / "data").mkdir()
    goals = [
        {"goal": f"Goal {i}", "sol1": "a short end", "sol2": f"another end of {i}", "label": i % 2}
        for i in range(4)
    ]
    tasks = [
        {
            "task_id": f"T/{i}",
            "prompt": f"def f{i}(a, b):\n",
            **dict.fromkeys(("canonical_solution", "test"), ""),
        }
        | {"entry_point": "f"}
        for i in range(2)
    ]
    texts = [{"text": f"word{i} and {i * i} more, " * 20} for i in range(6)]
    for file, rows in (
        ("piqa", goals),
        ("openai_humaneval", tasks),
        ("wikitext-2-raw-v1_train", texts),
        ("wikitext-2-raw-v1_test", texts),
    ):
        (root / "data" / f"{file}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    return Project(root, root)


def _save(folder: Path, config: hf.PreTrainedConfig, state: dict[str, torch.Tensor]) -> None:
    config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors")
    write_tokenizer(folder)


def _encoders_in(root: Path) -> None:
    """An encoder-decoder and its draft, a little off."""
    generator = np.random.default_rng(8)
    config = hf.T5Config(**T5_SHAPE, **ENDS)
    parts = {
        name: tensor.shape for name, tensor in hf.T5ForConditionalGeneration(config).state_dict().items()
    }
    state = {name: _drawn(generator, shape) for name, shape in parts.items() if name not in TIED}
    drafted = {name: t + 0.03 * _drawn(generator, t.shape) for name, t in state.items()}
    _save(root / "t5", config, state)
    _save(root / "t5_draft", config, drafted)


def _predictor_in(folder: Path) -> None:
    """An early-exit predictor of the tied target, after two of its layers."""
    generator, width = np.random.default_rng(9), SHAPE["hidden_size"]
    about = PredictorConfig(
        target={"name": "tiny", "digest": "0"},
        layers=SHAPE["num_hidden_layers"],
        layer=2,
        hidden=width,
        vocab=SHAPE["vocab_size"],
        rank=2,
        temperatures={"kd": 1.0, "candidates": 1.0},
    )
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(asdict(about)), encoding="utf-8")
    change = {"inner": _drawn(generator, (2, width)), "outer": _drawn(generator, (width, 2))}
    save_file(change, folder / "update.safetensors")


def _drawn(generator: np.random.Generator, shape: Any) -> torch.Tensor:
    """Uniform fp32 numbers, exact on every platform; norms, which are vectors, around 1."""
    shape = tuple(shape)
    found = generator.random(shape, dtype=np.float32) - np.float32(0.5)
    if len(shape) == 1:
        return torch.from_numpy(found * np.float32(0.25) + np.float32(1.0))
    return torch.from_numpy(found * np.float32(4.0 * shape[-1] ** -0.5))


def cells(project: Project) -> dict[str, dict[str, Any]]:
    """The configuration of every component that makes a cell."""
    phone = json.loads(PHONE.read_text(encoding="utf-8"))
    found = {}
    for name in ours("method"):
        heads = "heads" if MEDUSA[0] in SPECIAL.get(name, ()) else "draft"
        folder = override("draft.checkpoint.folder", f"{project.root}/{heads}")
        own = SPECIAL.get(name, ())
        billed = () if BLANK[0] in own else OWN
        found[f"method {name}"] = project.config(f"method={name}", "max_tokens=12", *billed, folder, *own)
    for name, (method, asked) in TRACES.items():
        billed = () if BLANK[0] in asked else OWN
        settings = [setting for each in asked for setting in _in(project, each)]
        found[f"trace {name}"] = project.config(f"method={method}", "max_tokens=12", *billed, *settings)
    for name in ours("compression"):
        found[f"compression {name}"] = project.config(f"compression={name}", *CHOICES, *OWN)
    for name in ours("probe"):
        asked = ("dataset=wikitext2", f"probe={name}", "probe.tokens=64", "prompts=2", *CHOICES[2:], *OWN)
        found[f"probe {name}"] = project.config(*asked)
    for name in ours("service"):
        chance = ("service.decider=random", "service.scorer=none", "trace.requests=4", "prompts=1")
        asked = (f"service={name}", *LEVELS, *chance, *BILLED, FP16)
        found[f"service {name}"] = project.config(*asked)
    written = {"device": phone, "engine": {"name": "own"}, "format": "computed"}
    return {name: config | written for name, config in found.items()}


def _in(project: Project, setting: str) -> list[str]:
    """A setting of `TRACES` as overrides, with the folders of a project."""
    folders = {
        "T5": {"target": "t5", "draft": "t5_draft"},
        "EXIT": {"target": "tied", "target.checkpoint.predictor": "exit"},
        MEDUSA[0]: {"draft": "heads"},
    }
    names = folders.get(setting, {})
    places = [
        override(name if "." in name else f"{name}.checkpoint.folder", f"{project.root}/{folder}")
        for name, folder in names.items()
    ]
    return [*places, *([] if setting in ("T5", "EXIT") else [setting])]


def ours(group: str) -> list[str]:
    """Names of a group that this project registers and that an emulated phone runs."""
    own = [name for name, cls in registered(group).items() if cls.__module__.startswith("repro.")]
    return [name for name in own if name not in REAL]


def of_cell(config: Mapping[str, Any]) -> Outcome:
    """What a cell makes: its figures, its tokens, its continuations' likelihoods, events of its timeline."""
    cell = made(config)
    with forgetting(), heard() as (answers, nats, spans):
        outcome = cell.run(lambda what, done, total: None)
    found: dict[str, Any] = {"values": {n: v for n, v in outcome.record.values.items() if v is not None}}
    if answers:
        found["tokens"] = content_hash(answers)
    if nats:
        found["nats"] = nats
    if spans:
        found["trace"] = content_hash([[_short(value) for value in span] for span in spans])
    if outcome.timeline:
        events = json.loads(outcome.timeline())["traceEvents"]
        found["ops"] = sum(e["ph"] == "X" and e["cat"] not in PARTS for e in events)
    return Outcome(cell.key, dict(cell.versions), found)


def _short(value: str | float) -> str | float:
    """A span's entry in its first digits: hosts differ in the last ones."""
    return float(f"{value:.8g}") if isinstance(value, float) else value


@contextmanager
def heard() -> Iterator[tuple[list[Any], list[float], list[Span]]]:
    """Listen to the answers, the likelihoods and the spans of devices while cells compute."""
    answers: list[Any] = []
    nats: list[float] = []
    spans: list[Span] = []
    serve, scores = generation.serve, Reader.score

    def served(*arguments: Any) -> Any:
        found = serve(*arguments)
        answers.extend(list(one.tokens) for one in found)
        spans.extend(arguments[1].trace.spans)
        return found

    def scoring(*arguments: Any) -> Any:
        found = scores(*arguments)
        nats.extend(one.nats for one in found)
        return found

    generation.serve, Reader.score = served, scoring  # type: ignore[assignment, method-assign]
    try:
        yield answers, nats, spans
    finally:
        generation.serve, Reader.score = serve, scores  # type: ignore[method-assign]


def runs_code(metric: str) -> bool:
    """Whether a metric executes generated code."""
    return bool(getattr(lookup("metric", metric), "runs_code", False))


def metric_outcomes() -> Iterator[tuple[str, Outcome]]:
    """Every metric on one invented outcome."""
    discover("repro.metrics")
    for name in ours("metric"):
        metric, own = lookup("metric", name), metric_versions([name])
        if runs_code(name):
            continue  # not on every machine; tests/metrics/test_code_tests.py has its outcomes
        outcome = SCORED | ({"expected": EXPECTED} if "expected" in metric.inputs else {})
        yield f"metric {name}", Outcome(cell_key(outcome, {}, own), own, {"values": score([name], outcome)})


def dataset_outcomes() -> Iterator[tuple[str, Outcome]]:
    """The prompt and the continuations that every dataset makes of an invented row."""
    own = {"prompts": WEIGHT_VERSIONS["prompts"]}
    for name, one in INVENTED.items():
        config = read_config(name)
        asked = dataset_asked(json.loads(json.dumps(asdict(config))))
        made = prompts(config, Rows((one.row,), "", "", one.shots), Bytes())
        said = [
            [p.text, p.reference, p.answer, [[*c.context, *c.token_ids] for c in p.continuations]]
            for p in made
        ]
        key = cell_key(asked, {"row": content_hash([one.row, list(one.shots)])}, own)
        yield f"dataset {name}", Outcome(key, own, {"said": content_hash(said)})


def all_outcomes(only: str = "") -> Iterator[tuple[str, Outcome]]:
    """Every component's outcome, or those whose name begins with something."""
    for name, outcome in (*metric_outcomes(), *dataset_outcomes()):
        if name.startswith(only):
            yield name, outcome
    with tempfile.TemporaryDirectory() as folder:
        project = project_in(Path(folder))
        for name, config in cells(project).items():
            if name.startswith(only):
                yield name, of_cell(config)


def complaint(name: str, before: Mapping[str, Any], after: Outcome) -> str | None:
    """What is wrong with a component's outcome, in a sentence; None if it is as committed."""
    again = "run `python tests/tiny_outcomes.py --write`"
    if before["key"] != after.key:
        changed = {
            n
            for n in before["versions"] | after.versions
            if before["versions"].get(n) != after.versions.get(n)
        }
        why = ", ".join(sorted(changed)) or "a setting or an input"
        return f"{name} has another key ({why} changed); {again}"
    found, relative = json.loads(json.dumps(after.found)), RELATIVE.get(name.split()[0], 0.0)
    differences = [
        unlike(known, found, relative) for known in (before["found"], *before.get("elsewhere", ()))
    ]
    wrong = differences[0]
    if None in differences:
        return None
    return (
        f"the outcome of {name} changed ({wrong}) and no version did; raise the one whose code changed "
        f"({', '.join(f'{n} {v}' for n, v in after.versions.items())}), then {again}"
    )


def unlike(a: Any, b: Any, relative: float, at: str = "") -> str | None:
    """The first place in which two structures differ, None where they are alike."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((w for n in a if (w := unlike(a[n], b[n], relative, f"{at}.{n}"))), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((w for i in range(len(a)) if (w := unlike(a[i], b[i], relative, f"{at}[{i}]"))), None)
    if isinstance(a, list | dict) and isinstance(b, list | dict):
        return f"{at[1:]}: {len(a)} -> {len(b)} entries"
    if isinstance(a, float) and isinstance(b, float):
        return None if math.isclose(a, b, rel_tol=relative, abs_tol=1e-12) else f"{at[1:]}: {a} -> {b}"
    return None if a == b else f"{at[1:]}: {a} -> {b}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write outcomes.json anew")
    parser.add_argument("--beside", action="store_true", help="add what differs on this host")
    parser.add_argument("--only", default="", help="components whose names begin so, such as 'method lever'")
    given = parser.parse_args()
    publish()
    committed = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.exists() else {}
    found = {}
    wrong = 0
    for name, outcome in all_outcomes(given.only):
        found[name] = {"key": outcome.key, "versions": outcome.versions, "found": outcome.found}
        said = complaint(name, committed[name], outcome) if name in committed else f"{name} is new"
        wrong += said is not None
        print(said or f"{name}: as committed", flush=True)
        if said and given.beside and name in committed and committed[name]["key"] == outcome.key:
            committed[name].setdefault("elsewhere", []).append(outcome.found)
    if given.beside:
        COMMITTED.write_text(json_text(committed, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif given.write:
        kept = {n: v for n, v in committed.items() if given.only and not n.startswith(given.only)}
        COMMITTED.write_text(json_text(kept | found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(wrong > 0 and not (given.write or given.beside))


if __name__ == "__main__":
    raise SystemExit(main())
