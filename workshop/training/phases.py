"""Owns the phases that trainings on the target's own answers share: plan prompts, generate, train, evaluate.

Must not know what is trained. Each phase stores its result in a work folder and is skipped or continued if
that exists, so a killed run continues with the same command. On a GPU add `--device cuda` and larger
`--tokens`, `--steps`, `--batch`, `--batch-tokens`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from repro.core.errors import InputError
from workshop.training import answers, command, prompts
from workshop.training.answers import Answer
from workshop.training.loop import Figures, Part, Schedule, Training, by_length, history

PHASES = ("plan", "generate", "train", "evaluate")
PLAN = "plan.jsonl"
COMMAND = "command.txt"  # beside a plan: the command that made it
WEIGHTS = "model.safetensors"
Model = TypeVar("Model", bound=nn.Module)
Loss = Callable[[list[Answer], int], Iterator[Part]]


def options(about: str | None, work: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options of every such command, with these defaults of its own."""
    parser = command.parser_of(about)
    command.add_resumed(parser, work, every=200)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder with config.json, safetensors and a tokenizer")
    add("--phases", default=",".join(PHASES), help="comma-separated (default %(default)s)")
    add("--rows", action="append", default=[], metavar="DATASET:A:B[:N]", help="questions, N times sampled")
    add("--sums", action="append", default=[], metavar="DATASET:A:B[:N]", help="N times with other numbers")
    add("--tasks", type=int, default=300, help="docstrings asked as MBPP asks")
    add("--stubs", type=int, default=400, help="docstrings asked as HumanEval asks")
    add("--own", type=int, default=0, help="questions that the target asks itself")
    add("--more", type=Path, action="append", default=[], help="work folders whose answers are used too")
    add("--heldout", action="append", default=[], metavar="DATASET:A:B", help="questions to evaluate on")
    add("--code-root", type=Path, action="append", help="harvest here instead of from Python's own folders")
    add("--tokens", type=int, default=240_000, help="answer tokens to generate")
    add("--part", default="0/1", metavar="I/N", help="this process generates every N-th shard, from the I-th")
    add("--batch", type=int, default=64, help="sequences decoded together")
    add("--answer", type=int, default=128, help="longest answer in tokens")
    add("--steps", type=int, default=4000, help="updates; the rate's schedule ends here")
    add("--batch-tokens", type=int, default=1024, help="prompt and answer tokens an update")
    add("--rate", type=float, default=2e-3, help="learning rate (default %(default)s)")
    parser.set_defaults(**defaults)
    return parser


def checked(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments unchanged; InputError if they are invalid."""
    if unknown := sorted(set(args.phases.split(",")) - set(PHASES)):
        raise InputError(f"phases {unknown}: choose from {', '.join(PHASES)}")
    command.require_checkpoint(args.target, "target")
    if "evaluate" in args.phases and not args.heldout:
        raise InputError("heldout: phase evaluate needs questions, for instance humaneval:0:16")
    return args


class AnswerTraining(ABC, Generic[Model]):
    """One run of a command that trains a model on the target's answers.

    Attributes:
        script: the module's name, for the command in records.
        raw: share of stubs that are given bare.
        sampled: share of stubs that are answered by sampling.
    """

    script: ClassVar[str]
    raw: ClassVar[float] = 0.0
    sampled: ClassVar[float] = 0.0

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.work, self.state = args, args.work, args.work / "state.pt"
        self.work.mkdir(parents=True, exist_ok=True)
        self.config, self.tokenizer = (
            kind.from_pretrained(args.target) for kind in (AutoConfig, AutoTokenizer)
        )
        self.limits = answers.Limits(batch=args.batch, answer=args.answer)

    def run(self) -> None:
        """Run the wanted phases in order."""
        for phase in PHASES:
            if phase in self.args.phases.split(","):
                getattr(self, phase)()

    # --- what is trained ------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose inputs are stored; the number of layers stands for the final norm's output."""
        return ()

    def read(self, paths: Iterable[Path]) -> list[Answer]:
        """The answers in these shards, as the loss reads them."""
        return answers.read_answers(paths, hidden=bool(self.layers))

    @abstractmethod
    def recipe(self) -> Schedule:
        """The recipe with this command's settings."""

    @abstractmethod
    def begin(self, target: PreTrainedModel) -> tuple[Model, Loss]:
        """The model to train, and its loss."""

    @abstractmethod
    def save(self, model: Model) -> None:
        """Write the model to `--out`."""

    @abstractmethod
    def load(self, target: PreTrainedModel) -> Model:
        """The saved model, on the device."""

    @abstractmethod
    def figures(self, model: Model, heldout: list[Answer]) -> Figures:
        """How well the model foresees held-out answers."""

    def about(self) -> dict[str, Any]:
        """Further entries of the record."""
        return {}

    # --- the phases -----------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Write the plan of prompts."""
        if (self.work / PLAN).exists():
            return
        args = self.args
        roots = [(root.name, root) for root in args.code_root or []]
        functions = prompts.harvest(roots or prompts.code_roots()) if args.tasks or args.stubs else []
        shares, sums = ([prompts.Share.parse(text) for text in texts] for texts in (args.rows, args.sums))
        own = (
            answers.own_questions(self.target(torch.bfloat16), self.tokenizer, args.own, args.seed)
            if args.own
            else []
        )
        mixed = prompts.mixture(
            functions,
            shares,
            sums,
            tasks=args.tasks,
            stubs=args.stubs,
            seed=args.seed,
            others=own,
            raw=self.raw,
            sampled=self.sampled,
        )
        (self.work / COMMAND).write_text(command.command_of(args, self.script) + "\n", encoding="utf-8")
        prompts.write_plan(mixed, self.work / PLAN)

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
        answers.write_shards(
            self.target(torch.bfloat16),
            self.tokenizer,
            self._planned(self.work),
            self.work,
            self.limits,
            seed=self.args.seed,
            part=(index, parts),
            enough=enough,
            layers=self.layers,
        )

    def train(self) -> None:
        """Train from the last checkpoint, and save the model."""
        model, loss = self.begin(self.target(torch.float32))
        heldout, recipe = self.heldout(), self.recipe()
        training = Training(model, recipe, self.state, self.args.device)

        def measure() -> Figures:
            self.save(model)  # a killed run leaves a usable model
            return {
                f"{name}_{figure}": value
                for name, said in heldout.items()
                for figure, value in self.figures(model, said).items()
            }

        training.run(
            lambda epoch: by_length(self.examples(), recipe, epoch),
            loss,
            minutes=self.args.minutes,
            every=self.args.every,
            measure=measure,
        )
        self.save(model)

    def evaluate(self) -> None:
        """Measure the saved model, and write `training.json` beside it."""
        model = self.load(self.target(torch.float32)).to(self.args.device).eval()
        results = {
            name: {"prompts": len(said), "tokens": sum(len(each.tokens) for each in said)}
            | self.figures(model, said)
            for name, said in self.heldout().items()
        }
        args, trained = self.args, history(self.state)
        command.write_record(
            args.out / "training.json",
            args,
            self.script,
            args.out / WEIGHTS,
            target=command.checkpoint_hashes(args.target),
            data=[self._trained_on(work) for work in self._works() if answers.shards(work)],
            recipe=trained["recipe"],
            earlier_recipes=trained["earlier"],
            curve=trained["curve"],
            results=results,
            seconds={
                "generate": answers.seconds_spent(self.work),
                "train": trained["curve"][-1]["seconds"],
            },
            **self.about(),
        )
        print(json.dumps(results, indent=2))

    # --- what they read -------------------------------------------------------------------------------------

    def target(self, dtype: torch.dtype) -> PreTrainedModel:
        """The frozen target on the device."""
        return command.open_model(self.args.target, self.args.device, dtype)

    def examples(self) -> list[Answer]:
        """All answers generated so far; InputError if there are none."""
        paths = [path for work in self._works() for path in answers.shards(work)]
        if not paths:
            raise InputError(
                f"{self.work}: no answers to train on; run phase generate, or name others (--more)"
            )
        return self.read(paths)

    def heldout(self) -> dict[str, list[Answer]]:
        """The fp32 target's greedy answers by dataset, generated once; never trained on."""
        shares = [prompts.Share.parse(text) for text in self.args.heldout]
        places = {share: self.work / f"heldout-{share.name}.safetensors" for share in shares}
        if missing := [share for share in shares if not places[share].exists()]:
            target = self.target(torch.float32)
        for share in missing:
            asked = [(answers.as_tokens(item, self.tokenizer), 0.0) for item in prompts.rows(share)]
            said = answers.answer(target, asked, self.limits, 0, self.tokenizer.eos_token_id, self.layers)
            answers.write_shard(said, places[share])
        return {share.name: self.read([places[share]]) for share in shares}

    def _works(self) -> list[Path]:
        return [self.work, *self.args.more]

    def _planned(self, work: Path) -> list[list[prompts.Item]]:
        """The prompts of a work folder's plan as batches, one per shard."""
        return answers.batches(prompts.read_plan(work / PLAN), self.tokenizer, self.limits)

    def _trained_on(self, work: Path) -> dict[str, Any]:
        """Description of the prompts and answers of a work folder."""
        answered = [
            item
            for index, batch in enumerate(self._planned(work))
            if answers.shard_path(work, index).exists()
            for item in batch
        ]
        made_by = work / COMMAND
        return {
            "command": made_by.read_text(encoding="utf-8").strip() if made_by.exists() else None,
            "prompts": prompts.describe(answered),
            **answers.described(work),
        }


def acceptance_length(runs: Iterable[Sequence[int]]) -> float:
    """Tokens per verification along greedy answers, the bonus token included.

    A run says for each position of an answer how many drafted tokens that start there are accepted. This is
    exact: along a greedy answer a drafted chain is accepted up to its first miss, and until then its prefix
    is the true one.
    """
    emitted = verifications = 0
    for run in runs:
        at = 0
        while at < len(run):
            emitted += min(run[at] + 1, len(run) - at)
            at += run[at] + 1
            verifications += 1
    return round(emitted / verifications, 4)


def with_others(known: Tensor, vocabulary: int, negatives: int, seed: int) -> tuple[Tensor, Tensor]:
    """The tokens `known`, `negatives` random others, and the logarithm of how many tokens each represents."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(vocabulary, generator=generator).to(known.device)
    others = drawn[~torch.isin(drawn, known)]
    left, others = len(others), others[:negatives]
    share = torch.zeros(len(known) + len(others), device=known.device)
    share[len(known) :] = math.log(max(1, left) / max(1, len(others)))
    return torch.cat([known, others]), share
