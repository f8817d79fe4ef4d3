"""Train an EAGLE-3 head for a target on the target's own answers, by training-time test.

    REPRO_DATA=FOLDER python -m workshop.training.train_eagle --target <folder> --out assets/drafts/<name> \\
        --rows mbpp:100:200:1 --sums gsm8k:100:200:4 --heldout humaneval:0:16

Phases: plan prompts, generate answers together with the target's hidden states, train, evaluate. Each stores
its result under `--work` and is skipped or continued if that exists, so a killed run continues with the same
command. On a GPU, and for a larger target, add `--device cuda`, a `--vocabulary` of 32000 and larger
`--tokens`, `--steps`, `--batch`, `--batch-tokens`.

Owns what is trained and measured; the phases and the head are in `trainers`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workshop.training.texts import prompts
from workshop.training.trainers import head, phases, unroll


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the training record has the settings of the committed head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    phases.options(parser, work=Path(".cache/eagle"), rate=3e-4)
    add = parser.add_argument
    add("--vocabulary", type=int, default=6144, help="tokens that the head can draft")
    add("--width", type=int, default=1088, help="neurons of the head's MLP, at most the target's")
    add("--start", type=Path, help="a trained head to go on from, with this --vocabulary and its own width")
    add("--unroll", type=int, default=3, help="steps of the training-time test")
    return phases.checked(parser.parse_args(argv))


class EagleTraining(phases.Phases):
    """One run of the command, which trains an EAGLE-3 head."""

    script = "train_eagle"

    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Layers whose hidden states are stored: three feature layers and, last, the final norm's output."""
        count = target.config.num_hidden_layers
        return *head.feature_layers(count), count

    def heldout(self) -> dict[str, list[unroll.UnrollExample]]:
        """Answers to evaluate on, by dataset."""
        return {name: unroll.read_examples([place]) for name, place in self.heldout_shards().items()}

    def examples(self) -> list[unroll.UnrollExample]:
        """All answers generated so far."""
        return unroll.read_examples(self.shards())

    def asked_for(self, vocab: int) -> Tensor:
        """Token counts of the prompts, since answers repeat their tokens; weighted 0.3 of an answer's."""
        counts = torch.zeros(vocab)
        for work in [self.work, *self.args.more]:
            for item in prompts.read_plan(work / "plan.jsonl"):
                ids = torch.tensor(self.tokenizer.encode(item.text, add_special_tokens=False))
                counts.index_add_(0, ids, torch.full((len(ids),), 0.3))
        return counts

    def train(self) -> None:
        """Train from the last checkpoint, and save the head."""
        args, target = self.args, self.target(torch.float32)
        first = self.work / "start.pt"  # fixed, so that the vocabulary does not change when answers are added
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
        start = self.args.start
        before = json.loads((start / "training.json").read_text(encoding="utf-8")) if start else None
        self.write_record(results, started_from=before)


def main(argv: list[str] | None = None) -> None:
    """Run the wanted phases in order."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    EagleTraining(args).run()


if __name__ == "__main__":
    main()
