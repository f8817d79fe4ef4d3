"""Train Medusa heads for a target on the target's own answers, with the target's frozen output projection.

    REPRO_DATA=FOLDER python -m workshop.training.train_medusa --target FOLDER --out assets/drafts/mine \\
        --rows mbpp:100:200:1 --sums gsm8k:100:200:4 --heldout humaneval:0:8

Makes heads in the public format from the target's answers and its last hidden states; answers that
`train_eagle` generated can be used too (`--more`). The committed heads took 14 minutes on one core, and
nothing for answers. Phases are those of `phases`.

A training position is a hidden state of the target with the tokens that follow the target's own next token;
head k is trained on the k-th of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import write_tensors
from workshop.training import answers, command, phases
from workshop.training.answers import Answer, add_probabilities
from workshop.training.loop import Figures, Part, Schedule

NONE = -100
"""Label of a position without a target: the answer ends before it, or the token is not in the loss."""


@dataclass(frozen=True)
class MedusaRecipe(Schedule):
    """Recipe of Medusa heads, each weighted `fade` times the one before (Medusa: 0.8).

    Labels are the target's top `guesses` tokens. `negatives` random tokens represent those of the loss's
    vocabulary that a batch does not mention. `dropout` is applied to the heads' inputs.
    """

    decay: float = 0.6
    weight_decay: float = 0.1
    fade: float = 0.8
    guesses: int = 4
    dropout: float = 0.1
    negatives: int = 1024


# --- the heads ----------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Heads of a few residual blocks, x + SiLU(W x + b): `weight [heads, blocks, hidden, hidden]`."""

    def __init__(self, heads: int, blocks: int, hidden: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # Last blocks start at zero, as Medusa's do; earlier ones are random, to break the symmetry.
        weight = 2e-3 * torch.randn(heads, blocks, hidden, hidden, generator=generator)
        weight[:, -1] = 0
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(heads, blocks, hidden))

    def forward(self, final: Tensor) -> Tensor:
        """Outputs of all heads for the target's hidden states: `[n, hidden] -> [heads, n, hidden]`."""
        x = final.float().expand(len(self.weight), *final.shape)
        for block in range(self.weight.shape[1]):
            x = x + F.silu(x @ self.weight[:, block].mT + self.bias[:, block, None])
        return x

    def named_blocks(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters of each block under their public names, as views."""
        for head, (weights, biases) in enumerate(zip(self.weight, self.bias, strict=True)):
            for block, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                yield f"{head}.{block}.linear.weight", weight
                yield f"{head}.{block}.linear.bias", bias


def save_heads(heads: Heads, base: str, folder: Path) -> None:
    """Write `config.json` and bf16 `model.safetensors` under the public names, without output projections."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: t.detach().cpu().bfloat16().contiguous() for name, t in heads.named_blocks()}
    write_tensors(folder / phases.WEIGHTS, halves, {})
    count, blocks = heads.weight.shape[:2]
    config = {"base_model_name_or_path": base, "medusa_num_heads": count, "medusa_num_layers": blocks}
    command.write_json(folder / "config.json", config)


def load_heads(folder: Path) -> Heads:
    """The saved heads in fp32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / phases.WEIGHTS)
    hidden = len(tensors["0.0.linear.bias"])
    heads = Heads(config["medusa_num_heads"], config["medusa_num_layers"], hidden)
    with torch.no_grad():
        for name, parameter in heads.named_blocks():
            parameter.copy_(tensors[name].float())
    return heads


# --- the loss -----------------------------------------------------------------------------------------------


def ahead(column: Tensor, heads: int) -> Tensor:
    """Entries of an answer's `column [n, ...]` that each head predicts at each token, `[n, heads, ...]`.

    Entries past the end are `NONE`.
    """
    labels = column.new_full((len(column), heads, *column.shape[1:]), NONE)
    for head in range(min(heads, len(column) - 1)):
        labels[: -1 - head, head] = column[1 + head :]
    return labels


def common_tokens(examples: Iterable[Answer], size: int, vocab: int) -> Tensor:
    """Tokens with the largest probability under the target over all answers, at most `size`, ascending."""
    counts = add_probabilities(torch.zeros(vocab), examples)
    return counts.topk(min(size, int((counts > 0).sum()))).indices.sort().values


class MedusaLoss:
    """Cross-entropy against the target's top tokens along its answers, weighted over the heads."""

    def __init__(self, heads: Heads, projection: Tensor, known: Tensor, recipe: MedusaRecipe) -> None:
        """`projection [vocab, hidden]` is the target's; the loss is over the tokens `known [m]`."""
        device = projection.device
        self.heads, self.recipe, known = heads, recipe, known.to(device)
        self.projection = projection.detach().bfloat16()[known]
        self.place = torch.full((len(projection),), NONE, device=device)
        self.place[known] = torch.arange(len(known), device=device)

    def __call__(self, chosen: list[Answer], step: int) -> Iterator[Part]:
        """The loss of a batch in one part, and how often the first head's best token is the target's.

        Labels outside the loss's vocabulary are ignored.
        """
        recipe, device, count = self.recipe, self.place.device, len(self.heads.weight)
        final = torch.cat([answer.hidden for answer in chosen]).to(device)
        labels, chance = (
            torch.cat([ahead(getattr(answer, name)[:, : recipe.guesses], count) for answer in chosen]).to(
                device
            )
            for name in ("guesses", "logprobs")
        )
        labels = torch.where(labels == NONE, NONE, self.place[labels.clamp(min=0)])
        chance = torch.where(labels == NONE, 0.0, chance.exp())
        columns, share = phases.with_others(
            labels[labels != NONE].unique(), len(self.projection), recipe.negatives, recipe.seed + step
        )
        within = torch.zeros(len(self.projection), dtype=torch.long, device=device)
        within[columns] = torch.arange(len(columns), device=device)
        place = within[labels.clamp(min=0)]
        chance = chance / chance.sum(-1, keepdim=True).clamp(min=1e-6)
        foreseen = self.heads(self._dropped(final.float(), step))
        logits = (foreseen @ self.projection[columns].T).float() + share
        total = torch.zeros((), device=device)
        for head, said in enumerate(logits):
            logq = said.log_softmax(-1).gather(1, place[:, head])
            there = (chance[:, head].sum(-1) > 0).sum().clamp(min=1)
            total = total - recipe.fade**head * (chance[:, head] * logq).sum() / there
        first = labels[:, 0, 0]
        right = (logits[0].detach().argmax(-1) == place[:, 0, 0]) & (first != NONE)
        yield total, right.sum() / (first != NONE).sum().clamp(min=1)

    def _dropped(self, rows: Tensor, step: int) -> Tensor:
        """Hidden states with dropout, seeded by the step."""
        stays = 1 - self.recipe.dropout
        generator = torch.Generator().manual_seed(self.recipe.seed + step)
        mask = torch.rand(rows.shape, generator=generator) < stays
        return rows * mask.to(rows.device) / stays


# --- its figures --------------------------------------------------------------------------------------------


@torch.no_grad()
def hits(heads: Heads, projection: Tensor, examples: Iterable[Answer]) -> list[Tensor]:
    """For each answer, bool `[n, heads]`: a head's best token is the answer's token."""
    table, right = projection.detach().float(), []
    for answer in examples:
        choice = (heads(answer.hidden.to(table.device)) @ table.T).argmax(-1).T.cpu()
        right.append(choice == ahead(answer.tokens, len(heads.weight)))
    return right


def figures_of(right: list[Tensor]) -> Figures:
    """Accuracy of each head's best token, and acceptance length of the heads' chain."""
    runs = [agreed.int().cumprod(1).sum(1).tolist() for agreed in right]
    figures = {"acceptance_length_chain": phases.acceptance_length(runs)}
    for head in range(right[0].shape[1]):
        there = torch.cat([agreed[: max(0, len(agreed) - 1 - head), head] for agreed in right])
        figures[f"head_{head}"] = round(float(there.float().mean()), 4)
    return figures


# --- the command --------------------------------------------------------------------------------------------


class MedusaTraining(phases.AnswerTraining[Heads]):
    """One run of the command, which trains Medusa heads."""

    script = "train_medusa"
    projection: Tensor

    @property
    def layers(self) -> tuple[int, ...]:
        """The final norm's output alone, which the target's output projection reads."""
        return (self.config.num_hidden_layers,)

    def read(self, paths: Iterable[Path]) -> list[Answer]:
        """The answers, with the output projection's input before each token: the last stored columns."""
        width = self.config.hidden_size
        return [
            replace(answer, hidden=answer.hidden[len(answer.prompt) - 1 :, -width:].clone())
            for path in paths
            for answer in answers.read_answers([path], hidden=True)
        ]

    def recipe(self) -> MedusaRecipe:
        """See `AnswerTraining`."""
        args = self.args
        return MedusaRecipe(steps=args.steps, tokens=args.batch_tokens, rate=args.rate, seed=args.seed)

    def begin(self, target: PreTrainedModel) -> tuple[Heads, phases.Loss]:
        """See `AnswerTraining`."""
        args = self.args
        self.projection = target.get_output_embeddings().weight
        known = common_tokens(self.examples(), args.vocabulary, self.config.vocab_size)
        heads = Heads(args.heads, args.blocks, self.config.hidden_size, args.seed)
        return heads, MedusaLoss(heads, self.projection, known, self.recipe())

    def save(self, model: Heads) -> None:
        """See `AnswerTraining`."""
        save_heads(model, self.args.base or self.args.target.name, self.args.out)

    def load(self, target: PreTrainedModel) -> Heads:
        """See `AnswerTraining`."""
        self.projection = target.get_output_embeddings().weight
        return load_heads(self.args.out)

    def figures(self, model: Heads, heldout: list[Answer]) -> Figures:
        """See `AnswerTraining`."""
        return figures_of(hits(model, self.projection, heldout))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the training record has the settings of the committed heads."""
    parser = phases.options(__doc__, ".cache/medusa")
    add = parser.add_argument
    add("--base", default="", help="the target's name in the heads' config.json (default its folder's)")
    add("--heads", type=int, default=5, help="tokens that are foreseen beyond the target's own next one")
    add("--blocks", type=int, default=1, help="residual blocks of a head, each with weights of its own")
    add("--vocabulary", type=int, default=12288, help="tokens that the loss tells apart")
    args = phases.checked(command.parsed(parser, argv))
    for name in ("heads", "blocks", "vocabulary"):
        if getattr(args, name) < 1:
            raise InputError(f"{name} {getattr(args, name)}: at least 1 is needed")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Run the wanted phases in order."""
    MedusaTraining(arguments(argv)).run()


if __name__ == "__main__":
    command.run(main)
