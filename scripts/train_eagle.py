"""Train an EAGLE-3 head for a target on the target's own answers, by training-time test.

    REPRO_DATA=<folder> python scripts/train_eagle.py --target <folder> --out assets/drafts/<name> \\
        --rows mbpp:100:200:1 --sums gsm8k:100:200:4 --heldout humaneval:0:16

Phases: plan prompts, generate answers with the target's hidden rows beside them, train, evaluate. Each leaves
its result under `--work` and is skipped or continued when it is there, so a killed run goes on with the same
command. On a GPU, and for a larger target, the same command takes `--device cuda`, a `--vocabulary` of 32000
and larger `--tokens`, `--steps`, `--batch`, `--batch-tokens`.
Owns the order of the phases and the training record; the work itself is in `distill/`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from distill import answers, head, mixture, prompts, questions, record, unroll
from distill.training import read_history
from repro.core.errors import InputError

PHASES = ("plan", "generate", "train", "evaluate")
COMMAND = "command.txt"  # beside a plan: the command that made it


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; what made the committed head is in its training record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder with config.json, safetensors and a tokenizer")
    add("--out", type=Path, required=True, help="where the head goes")
    add("--work", type=Path, default=Path(".cache/eagle"), help="shards, checkpoints (default %(default)s)")
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
    add("--vocabulary", type=int, default=6144, help="tokens that the head can draft")
    add("--width", type=int, default=1088, help="neurons of the head's MLP, at most the target's")
    add("--start", type=Path, help="a trained head to go on from, with this --vocabulary and its own width")
    add("--unroll", type=int, default=3, help="steps of the training-time test")
    add("--steps", type=int, default=4000, help="updates; the rate's schedule ends here")
    add("--batch-tokens", type=int, default=1024, help="prompt and answer tokens an update")
    add("--rate", type=float, default=3e-4, help="learning rate")
    add("--every", type=int, default=200, help="updates between checkpoints and evaluations")
    add("--minutes", type=float, default=1e9, help="limit for each of generating and training")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
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


class Run:
    """One command: its arguments, its work folder, and the models it opens."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.work, self.state = args, args.work, args.work / "state.pt"
        self.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = AutoTokenizer.from_pretrained(args.target)
        self.limits = answers.Limits(batch=args.batch, answer=args.answer)

    def target(self, dtype: torch.dtype) -> PreTrainedModel:
        """The frozen target on the device."""
        model = AutoModelForCausalLM.from_pretrained(self.args.target, dtype=dtype)
        return model.to(self.args.device).eval().requires_grad_(False)

    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Where hidden rows are read: three features and, last, what the target's own head reads."""
        count = target.config.num_hidden_layers
        return *head.feature_layers(count), count

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
            (self.work / COMMAND).write_text(record.command(self.args, "train_eagle.py") + "\n")
            prompts.write_plan(mixed, path)

    def own_questions(self) -> list[prompts.Item]:
        """`--own` questions of the target's."""
        if not self.args.own:
            return []
        target = self.target(torch.bfloat16)
        return questions.own_questions(target, self.tokenizer, self.args.own, self.args.seed)

    def planned(self, work: Path) -> list[list[prompts.Item]]:
        """The prompts of a work folder's plan as batches, one a shard."""
        return answers.batches(prompts.read_plan(work / "plan.jsonl"), self.tokenizer, self.limits)

    def generate(self) -> None:
        """Write shards of answers and hidden rows up to `--tokens`."""
        deadline = time.monotonic() + 60 * self.args.minutes

        def enough() -> bool:
            return time.monotonic() > deadline or answers.count_tokens(self.work) >= self.args.tokens

        if enough():
            return
        index, parts = map(int, self.args.part.split("/"))
        # Deviation: answers and features are those of the target in bf16, twice as fast as fp32 on a CPU;
        # its head's distribution is computed from them, and evaluation is on the fp32 target's answers.
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

    def heldout(self) -> dict[str, list[unroll.Example]]:
        """The fp32 target's greedy answers by dataset, made once; none is ever trained on."""
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
        return {share.name: unroll.read_examples([places[share]]) for share in shares}

    def examples(self) -> list[unroll.Example]:
        """All answers there are so far."""
        return [
            one for work in [self.work, *self.args.more] for one in unroll.read_examples(answers.shards(work))
        ]

    def asked_for(self, vocab: int) -> Tensor:
        """How often the prompts, which answers repeat, hold each token; a third of an answer's."""
        counts = torch.zeros(vocab)
        for work in [self.work, *self.args.more]:
            for item in prompts.read_plan(work / "plan.jsonl"):
                ids = torch.tensor(self.tokenizer.encode(item.text, add_special_tokens=False))
                counts.index_add_(0, ids, torch.full((len(ids),), 0.3))
        return counts

    def train(self) -> None:
        """Train from the last checkpoint on, and save the head."""
        args, target = self.args, self.target(torch.float32)
        first = self.work / "start.pt"  # the vocabulary must stay, whatever answers arrive later
        if not first.exists():
            counts = self.asked_for(target.config.vocab_size)
            torch.save(vars(unroll.beginning(self.examples(), target, counts, args.vocabulary)), first)
        start = head.Start(**torch.load(first, weights_only=True))
        model = (
            head.grown_head(args.start, target, start)
            if args.start
            else head.start_head(target, start, args.width)
        )
        recipe = unroll.UnrollRecipe(
            steps=args.steps, tokens=args.batch_tokens, rate=args.rate, seed=args.seed, unroll=args.unroll
        )
        teacher = target.get_output_embeddings().weight
        trainer = unroll.EagleTrainer(model, teacher, recipe, self.state, args.device)

        def measure() -> dict[str, float]:
            head.save_head(model, args.out)  # a killed run leaves a usable head
            return {
                f"{name}_{figure}": value
                for name, made in self.heldout().items()
                for figure, value in unroll.figures(unroll.accepted(model, made)).items()
            }

        trainer.run(self.examples, args.minutes, args.every, measure)
        head.save_head(model, args.out)

    def evaluate(self) -> None:
        """Measure the saved head, and write `training.json` beside it."""
        model = head.load_head(self.args.out, self.target(torch.float32)).to(self.args.device).eval()
        results = {
            name: {"prompts": len(made), "tokens": sum(len(one.tokens) for one in made)}
            | {"in_draft_vocabulary": unroll.coverage(model, made)}
            | unroll.figures(unroll.accepted(model, made))
            for name, made in self.heldout().items()
        }
        (self.args.out / "training.json").write_text(json.dumps(self.record(results), indent=2) + "\n")
        print(json.dumps(results, indent=2))

    def trained_on(self, work: Path) -> dict[str, Any]:
        """The prompts and answers of a work folder."""
        answered = [
            item
            for index, batch in enumerate(self.planned(work))
            if answers.shard_path(work, index).exists()
            for item in batch
        ]
        planned_by = (work / COMMAND).read_text().strip() if (work / COMMAND).exists() else None
        return {
            "command": planned_by,
            "prompts": prompts.describe(answered),
            **record.answered_with(work),
        }

    def record(self, results: dict[str, Any]) -> dict[str, Any]:
        """What `training.json` says."""
        args, file = self.args, self.args.out / "model.safetensors"
        trained = read_history(self.state)
        before = json.loads((args.start / "training.json").read_text()) if args.start else None
        return {
            "command": record.command(args, "train_eagle.py"),
            "commit": record.git_commit(),
            "seed": args.seed,
            "target": {"name": args.target.name, **record.file_hashes(args.target)},
            "head": {"file_bytes": file.stat().st_size, "sha256": record.sha256(file)},
            "data": [self.trained_on(work) for work in [self.work, *args.more]],
            "recipe": trained["recipe"],
            "earlier_recipes": trained["earlier"],
            "curve": trained["curve"],
            "results": results,
            "seconds": {
                "generate": answers.seconds_spent(self.work),
                "train": trained["curve"][-1]["seconds"],
            },
            "machine": record.machine(args),
            "started_from": before,
        }


def main(argv: list[str] | None = None) -> None:
    """Run the wanted phases in their order."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    run = Run(args)
    for phase in PHASES:
        if phase in args.phases.split(","):
            getattr(run, phase)()


if __name__ == "__main__":
    main()
