"""Train an EAGLE-3 head for a target on the target's own answers, by training-time test.

    REPRO_DATA=FOLDER python -m workshop.training.train_eagle --target FOLDER --out assets/drafts/mine \\
        --rows mbpp:100:200:1 --sums gsm8k:100:200:4 --heldout humaneval:0:16

Makes a head in the public format (`eagle_head`) from the target's answers and their hidden states. The
committed head took two rounds of 26 to 40 minutes of generating and of 30 and 46 of training on one core. For
a larger target add a `--vocabulary` of 32000. Phases are those of `phases`.

Pair j of a text joins the target's feature of token j with the embedding of token j+1, and predicts token
j+2. Step 0 takes all features from the target. Step i takes the head's own output of step i-1 at the previous
pair, as when it drafts the i-th next token: it attends to the pairs of step 0 up to its anchor, and to later
steps of the same anchor only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workshop.training import command, eagle_head, phases, prompts
from workshop.training.answers import Answer, add_probabilities
from workshop.training.eagle_head import Head, Start, draft_vocabulary
from workshop.training.loop import Figures, Part, Schedule

MENTIONED = 4
"""Number of the target's top tokens at each position that a batch's loss always includes."""

GUESSED_FROM = 1728
"""Number of evenly spaced answers that the linear guess is fitted to; their hidden states fit in memory."""

CHAIN = 8
"""Drafted tokens of the chains whose acceptance is measured."""

ASKED = 0.3
"""Weight of a prompt's token against an answer's in the vocabulary: answers repeat their prompts' tokens."""


@dataclass(frozen=True)
class UnrollRecipe(Schedule):
    """Schedule of a head: `unroll` steps, each weighted `fade` times the one before (EAGLE-3: 7, 0.8).

    `negatives` random tokens represent those of the draft vocabulary that a batch does not mention.
    """

    rate: float = 3e-4
    warmup: int = 100
    unroll: int = 7
    fade: float = 0.8
    negatives: int = 1024


@dataclass(frozen=True)
class UnrollBatch:
    """Right-padded pairs of `b` texts, at most `t`, with at most `a` anchors, one for each answer token.

    `features [b, t, 3 * hidden]` and `after [b, t]`, the token after each; `anchors [b, a]`, the pair that
    predicts each answer token; `tokens [b, a]` the answer, `best [b, a, k]` the target's top tokens there,
    `final [b, a, hidden]` the input of its output projection; `lengths [b]` of the answers.
    """

    features: Tensor
    after: Tensor
    anchors: Tensor
    tokens: Tensor
    best: Tensor
    final: Tensor
    lengths: Tensor

    def to(self, device: str | torch.device) -> UnrollBatch:
        """The batch on another device."""
        return UnrollBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


# --- where a head begins ------------------------------------------------------------------------------


def beginning(examples: list[Answer], target: PreTrainedModel, counts: Tensor, size: int) -> Start:
    """The vocabulary of `size` tokens and the linear guess that a head starts from.

    A token's count is its probability under the target summed over all answers, since a few thousand answers
    contain too few different tokens, plus `counts [vocab]`.
    """
    counts = add_probabilities(counts.clone(), examples)
    examples = examples[:: 1 + len(examples) // GUESSED_FROM]
    inner = 3 * (examples[0].hidden.shape[1] // 4)
    features = torch.cat([answer.hidden[len(answer.prompt) - 2 : -1, :inner] for answer in examples]).float()
    sizes = features.square().mean(0).sqrt()
    features = features / sizes
    final = torch.cat([answer.hidden[len(answer.prompt) - 1 :, inner:] for answer in examples]).float()
    read = torch.cat(
        [torch.cat([answer.prompt, answer.tokens])[len(answer.prompt) - 1 : -1] for answer in examples]
    )
    embedded = _normed(target.get_input_embeddings().weight.detach().float().cpu()[read])
    final = final / target.model.norm.weight.detach().float().cpu()
    fit = _ridge(torch.cat([features, embedded], 1), final)
    pairs = torch.cat([embedded, _normed(features @ fit[:inner])], 1)
    same = _ridge(pairs, torch.ones(len(pairs), 1))[:, 0]
    tokens = draft_vocabulary(counts, min(size, len(counts)))
    return Start(tokens, sizes, fit[:inner].T.contiguous(), fit[inner:].T.contiguous(), same)


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """Ridge regression `[inputs, outputs]`, each input regularized in proportion to its own size."""
    square = x.T @ x
    sizes = square.diagonal()
    return torch.linalg.solve(square + torch.diag(1e-3 * sizes + 1e-4 * sizes.mean()), x.T @ y)


# --- the unrolled head -------------------------------------------------------------------------------------


def collate(examples: list[Answer]) -> UnrollBatch:
    """One batch; padding is to the right of everything that anchors attend to."""
    b, width, dtype = len(examples), examples[0].hidden.shape[1] // 4, examples[0].hidden.dtype
    pairs = max(answer.size for answer in examples) - 2
    longest = max(len(answer.tokens) for answer in examples)
    features = torch.zeros(b, pairs, 3 * width, dtype=dtype)
    final = torch.zeros(b, longest, width, dtype=dtype)
    after, anchors, tokens = (
        torch.zeros(b, length, dtype=torch.long) for length in (pairs, longest, longest)
    )
    best = torch.zeros(b, longest, min(MENTIONED, examples[0].guesses.shape[1]), dtype=torch.long)
    for row, answer in enumerate(examples):
        p, n = len(answer.prompt), len(answer.tokens)
        features[row, : p + n - 2] = answer.hidden[:-1, : 3 * width]
        final[row, :n] = answer.hidden[p - 1 :, 3 * width :]
        after[row, : p + n - 2] = torch.cat([answer.prompt, answer.tokens])[1:-1]
        anchors[row] = (torch.arange(longest) + p - 2).clamp(max=pairs - 1)
        tokens[row, :n], best[row, :n] = answer.tokens, answer.guesses[:, : best.shape[2]]
    lengths = torch.tensor([len(answer.tokens) for answer in examples])
    return UnrollBatch(features, after, anchors, tokens, best, final, lengths)


def unroll(head: Head, batch: UnrollBatch, steps: int) -> Iterator[Tensor]:
    """The head's outputs `[b, a - i, width]` for i = 0, 1, ...; output k of step i predicts token k + i."""
    layer, attention = head.midlayer, head.midlayer.self_attn
    rows = torch.arange(len(batch.after), device=batch.after.device)[:, None]
    positions = torch.arange(batch.after.shape[1], device=batch.after.device).expand_as(batch.after)
    fused = head.fuse(batch.features.float())
    joined = layer.joined(head.embedding[batch.after], fused)
    keys, values = attention.keys(joined, positions)
    seen = positions[:, None] <= batch.anchors[..., None]
    x, feature = joined[rows, batch.anchors], fused[rows, batch.anchors]
    drafted: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        at = batch.anchors[:, : x.shape[1]] + step
        if step:
            drafted.append(attention.keys(x, at))
        query = attention.queries(x, at)
        attended = _attended(query, keys, values, seen[:, : x.shape[1]], drafted)
        guess = layer.finished(feature, attended)
        yield guess
        # The next step's pair joins this output with the answer token that this step predicts.
        feature = guess[:, :-1]
        following = batch.tokens[:, step : step + feature.shape[1]]
        x = layer.joined(head.embedding[following], feature)
        drafted = [(k[:, :-1], v[:, :-1]) for k, v in drafted]


def _attended(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, drafted: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Attention over the pairs that `seen [b, a, t]` allows, and one key per anchor of each `drafted` step.

    `query [b, a, kv, g, d]`, `keys`, `values [b, t, kv, d]`, `drafted` pairs of `[b, a, kv, d]`.
    """
    scale = query.shape[-1] ** -0.5
    among = torch.einsum("bakgd,btkd->bakgt", query, keys).float() * scale
    among = among.masked_fill(~seen[:, :, None, None], -torch.inf)
    single = [(query * k[:, :, :, None]).float().sum(-1, keepdim=True) * scale for k, _ in drafted]
    shares = torch.cat([among, *single], -1).softmax(-1)
    count = keys.shape[1]
    result = torch.einsum("bakgt,btkd->bakgd", shares[..., :count].to(values.dtype), values)
    for index, (_, v) in enumerate(drafted):
        result = result + shares[..., count + index, None].to(v.dtype) * v[:, :, :, None]
    return result.flatten(2)


@torch.no_grad()
def accepted(head: Head, examples: list[Answer], drafts: int = CHAIN, rows: int = 8) -> list[Tensor]:
    """For each answer, int `[n]`: accepted tokens of a chain of `drafts` that starts there.

    Exact for a greedy answer: up to its first miss a chain's tokens are the answer's.
    """
    runs: list[Tensor] = []
    for start in range(0, len(examples), rows):
        chosen = examples[start : start + rows]
        batch = collate(chosen).to(head.embedding.device)
        length = batch.tokens.shape[1]
        run = torch.zeros(batch.tokens.shape, dtype=torch.long, device=batch.tokens.device)
        alive = torch.ones_like(run, dtype=torch.bool)
        for step, guess in enumerate(unroll(head, batch, min(drafts, length))):
            right = head.tokens[head.logits(guess).argmax(-1)] == batch.tokens[:, step:]
            right &= torch.arange(step, length, device=run.device) < batch.lengths[:, None]
            alive[:, : length - step] &= right
            alive[:, length - step :] = False
            run += alive
        runs += [row[:n] for row, n in zip(run.cpu(), batch.lengths.tolist(), strict=True)]
    return runs


# --- the loss -----------------------------------------------------------------------------------------------


class EagleLoss:
    """Cross-entropy against the target's distribution over the draft vocabulary, summed over the steps."""

    def __init__(self, head: Head, target_head: Tensor, recipe: UnrollRecipe) -> None:
        """`target_head [vocab, hidden]` is the target's output projection."""
        self.head, self.recipe = head, recipe
        self.teacher = target_head.detach().bfloat16()[head.tokens]

    def __call__(self, chosen: list[Answer], step: int) -> Iterator[Part]:
        """The loss of a batch in one part.

        Only answer positions whose most likely token is in that vocabulary count. The agreement is that of
        the first step over all answer positions.
        """
        head, recipe = self.head, self.recipe
        batch = collate(chosen).to(head.embedding.device)
        mentioned = head.own[batch.best]
        known = mentioned[mentioned >= 0].unique()
        columns, share = phases.with_others(known, len(head.tokens), recipe.negatives, recipe.seed + step)
        probable = (batch.final.bfloat16() @ self.teacher[columns].T).float() + share
        probable = probable.softmax(-1)
        projection, best = head.lm_head.weight[columns], mentioned[..., 0]
        answered = torch.arange(best.shape[1], device=best.device) < batch.lengths[:, None]
        total = torch.zeros((), device=best.device)
        for ahead, rows in enumerate(unroll(head, batch, min(recipe.unroll, best.shape[1]))):
            counted = (answered & (best >= 0))[:, ahead:]
            logits = torch.nn.functional.linear(head.norm(rows[counted]), projection).float() + share
            if ahead == 0:
                right = (columns[logits.argmax(-1)] == best[counted]).sum() / answered.sum()
            divergence = -(probable[:, ahead:][counted] * logits.log_softmax(-1)).sum(-1)
            total = total + recipe.fade**ahead * divergence.sum() / counted.sum().clamp(min=1)
        yield total, right.detach()


# --- the command --------------------------------------------------------------------------------------------


class EagleTraining(phases.AnswerTraining[Head]):
    """One run of the command, which trains an EAGLE-3 head."""

    script = "train_eagle"

    @property
    def layers(self) -> tuple[int, ...]:
        """Three feature layers and, last, the final norm's output."""
        depth = self.config.num_hidden_layers
        return *eagle_head.feature_layers(depth), depth

    def recipe(self) -> UnrollRecipe:
        """See `AnswerTraining`."""
        args = self.args
        return UnrollRecipe(
            steps=args.steps, tokens=args.batch_tokens, rate=args.rate, seed=args.seed, unroll=args.unroll
        )

    def begin(self, target: PreTrainedModel) -> tuple[Head, phases.Loss]:
        """See `AnswerTraining`."""
        args = self.args
        first = self.work / "start.pt"  # fixed, so that the vocabulary does not change when answers are added
        if not first.exists():
            counts = self._prompt_counts(target.config.vocab_size)
            torch.save(vars(beginning(self.examples(), target, counts, args.vocabulary)), first)
        start = Start(**torch.load(first, weights_only=True))
        head = (
            eagle_head.grown_head(args.start, target, start)
            if args.start
            else eagle_head.start_head(target, start, args.width)
        )
        projection = target.get_output_embeddings().weight
        return head.to(args.device), EagleLoss(head, projection, self.recipe())

    def _prompt_counts(self, vocab: int) -> Tensor:
        """Weighted counts of the prompts' tokens, `[vocab]`."""
        counts = torch.zeros(vocab)
        for work in [self.work, *self.args.more]:
            for item in prompts.read_plan(work / phases.PLAN):
                ids = torch.tensor(self.tokenizer.encode(item.text, add_special_tokens=False))
                counts.index_add_(0, ids, torch.full((len(ids),), ASKED))
        return counts

    def save(self, model: Head) -> None:
        """See `AnswerTraining`."""
        eagle_head.save_head(model, self.args.out)

    def load(self, target: PreTrainedModel) -> Head:
        """See `AnswerTraining`."""
        return eagle_head.load_head(self.args.out, target)

    def figures(self, model: Head, heldout: list[Answer]) -> Figures:
        """Tokens that the head can draft, greedy agreement, and acceptance length of chains."""
        drafted = model.own.cpu()[torch.cat([answer.tokens for answer in heldout])] >= 0
        runs = accepted(model, heldout)
        return {
            "in_draft_vocabulary": round(float(drafted.float().mean()), 4),
            "agreement": round(float(torch.cat(runs).gt(0).float().mean()), 4),
            f"acceptance_length_chain{CHAIN}": phases.acceptance_length(run.tolist() for run in runs),
        }

    def about(self) -> dict[str, Any]:
        """The record of the head that this one was started from."""
        start = self.args.start
        before = json.loads((start / "training.json").read_text(encoding="utf-8")) if start else None
        return {"started_from": before}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the training record has the settings of the committed head."""
    parser = phases.options(__doc__, ".cache/eagle", rate=3e-4)
    add = parser.add_argument
    add("--vocabulary", type=int, default=6144, help="tokens that the head can draft")
    add("--width", type=int, default=1088, help="neurons of the head's MLP, at most the target's")
    add("--start", type=Path, help="a trained head to go on from, with this --vocabulary and its own width")
    add("--unroll", type=int, default=3, help="steps of the training-time test")
    return phases.checked(command.parsed(parser, argv))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the wanted phases in order."""
    EagleTraining(arguments(argv)).run()


if __name__ == "__main__":
    command.run(main)
