"""Owns the phases that draft-head trainings share: prompts, answers with hidden states, held-out answers.

Must not know what is trained on them. Each phase stores its result in a work folder and is skipped or
continued if that exists.
"""

from __future__ import annotations

import argparse
import json
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from repro.core.errors import InputError
from workshop.training.texts import answers, mixture, prompts, questions, record
from workshop.training.trainers.training import read_history

PHASES = ("plan", "generate", "train", "evaluate")
COMMAND = "command.txt"  # beside a plan: the command that made it


def options(parser: argparse.ArgumentParser, work: Path, rate: float) -> None:
    """Add the options of every such command; `work` and `rate` are their defaults."""
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder with config.json, safetensors and a tokenizer")
    add("--out", type=Path, required=True, help="where the head goes")
    add("--work", type=Path, default=work, help="shards, checkpoints (default %(default)s)")
    add("--phases", default=",".join(PHASES), help="comma-separated (default %(default)s)")
    add("--rows", action="append", default=[], metavar="DATASET:A:B[:N]", help="questions, N times sampled")
    add("--sums", action="append", default=[], metavar="DATASET:A:B[:N]", help="N times with other numbers")
    add("--tasks", type=int, default=300, help="docstrings asked as MBPP asks")
    add("--stubs", type=int, default=400, help="docstrings asked as HumanEval asks")
    add("--own", type=int, default=0, help="questions that the target asks itself")
    add(
        "--more",
        type=Path,
        action="append",
        default=[],
        help="work folders of other commands: their answers too",
    )
    add("--heldout", action="append", default=[], metavar="DATASET:A:B", help="questions to evaluate on")
    add("--code-root", type=Path, action="append", help="harvest here instead of from Python's own folders")
    add("--tokens", type=int, default=240_000, help="answer tokens to generate")
    add("--part", default="0/1", metavar="I/N", help="this process generates every N-th shard, from the I-th")
    add("--batch", type=int, default=64, help="sequences decoded together")
    add("--answer", type=int, default=128, help="longest answer in tokens")
    add("--steps", type=int, default=4000, help="updates; the rate's schedule ends here")
    add("--batch-tokens", type=int, default=1024, help="prompt and answer tokens an update")
    add("--rate", type=float, default=rate, help="learning rate (default %(default)s)")
    add("--every", type=int, default=200, help="updates between checkpoints and evaluations")
    add("--minutes", type=float, default=1e9, help="limit for each of generating and training")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--seed", type=int, default=0)


def checked(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments unchanged; InputError if they are invalid."""
    if unknown := sorted(set(args.phases.split(",")) - set(PHASES)):
        raise InputError(f"phases {unknown}: choose from {', '.join(PHASES)}")
    if not (args.target / "config.json").is_file():
        raise InputError(
            f"target {args.target}: no config.json there; give a folder as save_pretrained writes"
        )
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {args.device}: this machine has no CUDA device; choose cpu")
    if "evaluate" in args.phases and not args.heldout:
        raise InputError("heldout: phase evaluate needs questions, for instance humaneval:0:16")
    return args


class Phases(ABC):
    """One run of a command: its arguments, its work folder, and the models it opens.

    Attributes:
        script: the module's name, for the command in records.
    """

    script: ClassVar[str]

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.work, self.state = args, args.work, args.work / "state.pt"
        self.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = AutoTokenizer.from_pretrained(args.target)
        self.limits = answers.Limits(batch=args.batch, answer=args.answer)

    def run(self) -> None:
        """Run the wanted phases in order."""
        for phase in PHASES:
            if phase in self.args.phases.split(","):
                getattr(self, phase)()

    @abstractmethod
    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Layers whose inputs are stored; the number of layers stands for the final norm's output."""

    @abstractmethod
    def train(self) -> None:
        """Train from the last checkpoint, and save the head."""

    @abstractmethod
    def evaluate(self) -> None:
        """Measure the saved head, and write `training.json` beside it."""

    def target(self, dtype: torch.dtype) -> PreTrainedModel:
        """The frozen target on the device."""
        model = AutoModelForCausalLM.from_pretrained(self.args.target, dtype=dtype)
        return model.to(self.args.device).eval().requires_grad_(False)

    def plan(self) -> None:
        """Write the plan of prompts."""
        path = self.work / "plan.jsonl"
        if not path.exists():
            given = [(root.name, root) for root in self.args.code_root or []]
            wanted = self.args.tasks or self.args.stubs
            functions = prompts.harvest(given or prompts.code_roots()) if wanted else []
            shares, sums = ([mixture.Share.parse(one) for one in x] for x in (self.args.rows, self.args.sums))
            own = self.own_questions()
            mixed = mixture.mixture(
                functions,
                shares,
                sums,
                tasks=self.args.tasks,
                stubs=self.args.stubs,
                seed=self.args.seed,
                others=own,
            )
            (self.work / COMMAND).write_text(record.command(self.args, self.script) + "\n", encoding="utf-8")
            prompts.write_plan(mixed, path)

    def own_questions(self) -> list[prompts.Item]:
        """The `--own` questions that the target generates itself."""
        if not self.args.own:
            return []
        target = self.target(torch.bfloat16)
        return questions.own_questions(target, self.tokenizer, self.args.own, self.args.seed)

    def planned(self, work: Path) -> list[list[prompts.Item]]:
        """The prompts of a work folder's plan as batches, one per shard."""
        return answers.batches(prompts.read_plan(work / "plan.jsonl"), self.tokenizer, self.limits)

    def generate(self) -> None:
        """Write shards of answers and hidden states up to `--tokens`."""
        deadline = time.monotonic() + 60 * self.args.minutes

        def enough() -> bool:
            return time.monotonic() > deadline or answers.count_tokens(self.work) >= self.args.tokens

        if enough():
            return
        index, parts = map(int, self.args.part.split("/"))
        # Deviation: answers and features come from the target in bf16, twice as fast as fp32 on a CPU;
        # its output distribution is computed from them, and evaluation uses the fp32 target's answers.
        target = self.target(torch.bfloat16)
        answers.write_shards(
            target,
            self.tokenizer,
            self.planned(self.work),
            self.work,
            self.limits,
            seed=self.args.seed,
            part=(index, parts),
            enough=enough,
            layers=self.layers(target),
        )

    def heldout_shards(self) -> dict[str, Path]:
        """The fp32 target's greedy answers by dataset, generated once; never trained on."""
        shares = [mixture.Share.parse(text) for text in self.args.heldout]
        places = {share: self.work / f"heldout-{share.name}.safetensors" for share in shares}
        if missing := [share for share in shares if not places[share].exists()]:
            target = self.target(torch.float32)
        for share in missing:
            asked = [(answers.as_tokens(item, self.tokenizer), 0.0) for item in mixture.rows(share)]
            made, hidden = answers.answer_and_hidden(
                target, asked, self.limits, 0, self.tokenizer.eos_token_id, self.layers(target)
            )
            answers.write_hidden(hidden, places[share])
            answers.write_shard(made, places[share])
        return {share.name: places[share] for share in shares}

    def shards(self) -> list[Path]:
        """All shards of answers generated so far."""
        return [path for work in [self.work, *self.args.more] for path in answers.shards(work)]

    def trained_on(self, work: Path) -> dict[str, Any]:
        """Description of the prompts and answers of a work folder."""
        answered = [
            item
            for index, batch in enumerate(self.planned(work))
            if answers.shard_path(work, index).exists()
            for item in batch
        ]
        planned_by = (
            (work / COMMAND).read_text(encoding="utf-8").strip() if (work / COMMAND).exists() else None
        )
        return {
            "command": planned_by,
            "prompts": prompts.describe(answered),
            **record.answered_with(work),
        }

    def write_record(self, results: dict[str, Any], **more: Any) -> None:
        """Write `training.json` beside the weights, and print the results."""
        args, file = self.args, self.args.out / "model.safetensors"
        trained = read_history(self.state)
        works = [work for work in [self.work, *args.more] if answers.shards(work)]
        whole = {
            "command": record.command(args, self.script),
            "commit": record.git_commit(),
            "seed": args.seed,
            "target": {"name": args.target.name, **record.file_hashes(args.target)},
            "head": {"file_bytes": file.stat().st_size, "sha256": record.sha256(file)},
            "data": [self.trained_on(work) for work in works],
            "recipe": trained["recipe"],
            "earlier_recipes": trained["earlier"],
            "curve": trained["curve"],
            "results": results,
            "seconds": {
                "generate": answers.seconds_spent(self.work),
                "train": trained["curve"][-1]["seconds"],
            },
            "machine": record.machine(args),
            **more,
        }
        (args.out / "training.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(results, indent=2))
