"""Compare our scores with lm-evaluation-harness's, row by row, on the same checkpoint and the same rows.

pip install -e '.[harness]'
python -m workshop.studies.check_harness --data FOLDER --rows 50
python -m workshop.studies.check_harness --data FOLDER --rows 50 --model gemma3_270m --tasks hellaswag mmlu

The harness runs its own task definitions, tokenizing and Hugging Face model in fp32; only the dataset rows
are passed to it, so that nothing is downloaded. Ours is the model as it is, read in branching passes. Printed
for each task: rows, rows with equal verdicts, choices, choices whose log-likelihoods are close (to 0.001
nats), the largest difference, both accuracies; then every row whose verdict differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset, DatasetDict
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from repro import data
from repro.data.config import scoring_of
from repro.experiments.composing import load_components
from repro.models.analysis.likelihood import Reader
from repro.models.checkpoints.checkpoint import tokenizer
from repro.scenarios.accuracy import choice, metric_of
from repro.scenarios.offline import dense
from workshop.benchmarks.alternating import checkpoint_folder

TASKS = {
    "lambada_openai": "lambada_openai",
    "lambada": "lambada_standard",
    "hellaswag": "hellaswag",
    "winogrande": "winogrande",
    "openbookqa": "openbookqa",
    "mmlu": "mmlu_{subject}",
}
"""The harness's tasks by our datasets; each subject of MMLU is a task."""


CLOSE = 1e-3
"""Tolerance in nats for a different order of summation."""

LINE = "{:<15}{:>6}{:>6}{:>9}{:>7}{:>10}{:>8}{:>11}"

SPLITS = ("training_split", "validation_split", "test_split")


class Score(NamedTuple):
    """One side's result on a dataset row: log-likelihoods of its continuations in nats, and correctness."""

    nats: list[float]
    right: bool


@dataclass(frozen=True)
class Compared:
    """Both sides' scores of the same rows."""

    ours: list[Score]
    theirs: list[Score]

    @property
    def agreeing(self) -> int:
        """Number of rows with equal verdicts."""
        return sum(a.right == b.right for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def differences(self) -> list[float]:
        """Differences of all continuations' log-likelihoods, in nats."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [abs(x - y) for a, b in pairs for x, y in zip(a.nats, b.nats, strict=True)]


def ours(dataset: str, rows: data.Rows, folder: Path, reader: Reader) -> list[Score]:
    """This project's scores."""
    config = data.read_config(dataset)
    metric = metric_of(scoring_of(config))
    out = []
    for prompt in data.prompts(config, rows, tokenizer(folder)):
        said = reader.score([(c.context, c.token_ids) for c in prompt.continuations])
        out.append(Score([one.nats for one in said], choice(prompt, said, metric) == prompt.answer))
    return out


def theirs(dataset: str, rows: data.Rows, model: HFLM) -> list[Score]:
    """The harness's scores, row by row, from one task or from one task per subject."""
    metric = metric_of(scoring_of(data.read_config(dataset)))
    key = "acc" if metric == "greedy" else metric
    by_task: dict[str, list[int]] = {}
    for i, row in enumerate(rows.rows):
        by_task.setdefault(TASKS[dataset].format(**row), []).append(i)
    tasks = [_task(name, rows, places) for name, places in by_task.items()]
    found = simple_evaluate(model=model, tasks=tasks, bootstrap_iters=0, log_samples=True)
    out: dict[int, Score] = {}
    for name, places in by_task.items():
        for sample in found["samples"][name]:
            nats = [float(answer[0]) for answer in sample["filtered_resps"]]
            out[places[sample["doc_id"]]] = Score(nats, bool(sample[key]))
    return [out[i] for i in range(len(rows.rows))]


def _task(name: str, rows: data.Rows, places: Sequence[int]) -> ConfigurableTask:
    """The harness's own task over some of our rows, with our few-shot examples if it uses any."""
    config = load_yaml(_index()[name].yaml_path, resolve_func=True)
    chosen = Dataset.from_list([rows.rows[i] for i in places])
    # The task requests every split that it names, and evaluates one of them.
    splits = {config[key]: chosen for key in SPLITS if config.get(key)}
    if rows.shots:
        subject = rows.rows[places[0]]["subject"]
        shots = [shot for shot in rows.shots if shot["subject"] == subject]
        splits[config["fewshot_split"]] = Dataset.from_list(shots)
        config["num_fewshot"] = len(shots)
    return ConfigurableTask(config={**config, "custom_dataset": lambda **_: DatasetDict(splits)})


@cache
def _index() -> Mapping[str, Any]:
    """The harness's tasks by name; cached, because it reads thousands of files."""
    found: Mapping[str, Any] = TaskManager().task_index
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of .jsonl files; without it, as data_dir")
    parser.add_argument("--rows", type=int, default=50, help="the first so many of each dataset")
    parser.add_argument("--model", default="smollm2_135m_instruct", help="of conf/model/checkpoint")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS), help="our datasets")
    return parser.parse_args()


def main() -> int:
    """Compare and print; exit code 1 if a verdict differs."""
    asked = arguments()
    load_components()
    folder = checkpoint_folder(asked.model)
    model = HFLM(str(folder), dtype=torch.float32, device="cpu", batch_size=1)
    reader = Reader(dense(folder))
    differing = 0
    print(LINE.format("task", "rows", "same", "choices", "close", "farthest", "ours %", "harness %"))
    for name in asked.tasks:
        rows = data.load_rows(data.read_config(name), asked.rows, asked.data)
        both = Compared(ours(name, rows, folder, reader), theirs(name, rows, model))
        count, apart = len(rows.rows), both.differences
        close = sum(difference < CLOSE for difference in apart)
        shares = [f"{100 * sum(s.right for s in side) / count:.1f}" for side in (both.ours, both.theirs)]
        print(
            LINE.format(name, count, both.agreeing, len(apart), close, f"{max(apart):.1e}", *shares),
            flush=True,
        )
        for i, (a, b) in enumerate(zip(both.ours, both.theirs, strict=True)):
            if a.right != b.right:
                print(f"  {name}/{i}: ours {a}, harness {b}")
        differing += count - both.agreeing
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
