"""Train Medusa heads for a target on the target's own answers, with the target's frozen output projection.

    REPRO_DATA=FOLDER python -m workshop.training.train_medusa --target <folder> --out assets/drafts/<name> \\
        --rows mbpp:100:200:1 --sums gsm8k:100:200:4 --heldout humaneval:0:8

Phases: plan prompts, generate answers together with the target's last hidden states, train, evaluate. Each
stores its result under `--work` and is skipped or continued if that exists, so a killed run continues with
the same command. Answers that `train_eagle.py` generated can be used too (`--more`). On a GPU add
`--device cuda` and larger `--tokens`, `--steps`, `--batch`, `--batch-tokens`.

Owns what is trained and measured; the phases and the heads are in `trainers`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import PreTrainedModel

from repro.core.errors import InputError
from workshop.training.trainers import foresight, phases


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the training record has the settings of the committed heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    phases.options(parser, work=Path(".cache/medusa"), rate=2e-3)
    add = parser.add_argument
    add(
        "--base",
        default="",
        help="the target's name, as the heads' config.json says it (default its folder's)",
    )
    add("--heads", type=int, default=5, help="tokens that are foreseen beyond the target's own next one")
    add("--blocks", type=int, default=1, help="residual blocks of a head, each with weights of its own")
    add("--vocabulary", type=int, default=12288, help="tokens that the loss tells apart")
    args = phases.checked(parser.parse_args(argv))
    for name in ("heads", "blocks", "vocabulary"):
        if getattr(args, name) < 1:
            raise InputError(f"{name} {getattr(args, name)}: at least 1 is needed")
    return args


class MedusaTraining(phases.Phases):
    """One run of the command, which trains Medusa heads."""

    script = "train_medusa"

    def layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """The final norm's output alone, which the target's output projection reads."""
        return (target.config.num_hidden_layers,)

    def train(self) -> None:
        """Train from the last checkpoint, and save the heads."""
        args, target = self.args, self.target(torch.float32)
        config, projection = target.config, target.get_output_embeddings().weight
        examples = foresight.read_foreseen(self.shards(), config.hidden_size)
        if not examples:
            raise InputError(
                f"{args.work}: no answers to train on; run phase generate, or name others (--more)"
            )
        known = foresight.common_tokens(examples, args.vocabulary, config.vocab_size)
        heads = foresight.Heads(args.heads, args.blocks, config.hidden_size, args.seed)
        recipe = foresight.ForesightRecipe(
            steps=args.steps, tokens=args.batch_tokens, rate=args.rate, seed=args.seed
        )
        trainer = foresight.ForesightTrainer(heads, projection, known, recipe, self.state, args.device)
        heldout = self.heldout(config.hidden_size)

        def measure() -> dict[str, float]:
            foresight.save_heads(
                heads, args.base or args.target.name, args.out
            )  # a killed run leaves usable heads
            return {
                f"{name}_{figure}": value
                for name, made in heldout.items()
                for figure, value in foresight.figures(foresight.hits(heads, projection, made)).items()
            }

        trainer.run(lambda: examples, args.minutes, args.every, measure)
        foresight.save_heads(heads, args.base or args.target.name, args.out)

    def heldout(self, width: int) -> dict[str, list[foresight.Foreseen]]:
        """Answers to evaluate on, by dataset."""
        return {
            name: foresight.read_foreseen([place], width) for name, place in self.heldout_shards().items()
        }

    def evaluate(self) -> None:
        """Measure the saved heads, and write `training.json` beside them."""
        heads = foresight.load_heads(self.args.out).to(self.args.device).eval()
        projection = self.target(torch.float32).get_output_embeddings().weight
        results = {
            name: {"prompts": len(made), "tokens": sum(len(one.tokens) for one in made)}
            | foresight.figures(foresight.hits(heads, projection, made))
            for name, made in self.heldout(projection.shape[1]).items()
        }
        self.write_record(results)


def main(argv: list[str] | None = None) -> None:
    """Run the wanted phases in order."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    MedusaTraining(args).run()


if __name__ == "__main__":
    main()
