"""Owns EAGLE-3's training-time test: a head unrolled over its own outputs on answers, and its loss.

Pair j of a text joins the target's feature of token j with the embedding of token j+1, and predicts token
j+2. Step 0 takes all features from the target. Step i takes the head's own output of step i-1 at the previous
pair, as when it drafts the i-th next token: it attends to the pairs of step 0 up to its anchor, and to later
steps of the same anchor only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workshop.training.texts import answers
from workshop.training.texts.answers import Answer
from workshop.training.trainers.head import Head, Start, draft_vocabulary
from workshop.training.trainers.training import Schedule, Trainer

MENTIONED = 4
"""Number of the target's top tokens at each position that a batch's loss always includes."""

GUESSED_FROM = 1728
"""Number of evenly spaced answers that the linear guess is fitted to; their hidden states fit in memory."""


@dataclass(frozen=True)
class UnrollExample(Answer):
    """An answer with the target's hidden states at every token but the last, bf16 `[p + n - 1, 4 * hidden]`.

    Concatenated: low, middle and high feature, and the final norm's output.
    """

    hidden: Tensor


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


def read_examples(shards: list[Path]) -> list[UnrollExample]:
    """Answers in these shards, with their hidden states."""
    return [
        UnrollExample(**vars(one), hidden=hidden)
        for path in shards
        for one, hidden in zip(answers.read_shard(path), answers.read_hidden(path), strict=True)
    ]


def beginning(examples: list[UnrollExample], target: PreTrainedModel, counts: Tensor, size: int) -> Start:
    """The vocabulary of `size` tokens and the linear guess that a head starts from.

    A token's count is its probability under the target summed over all answers, since a few thousand answers
    contain too few different tokens, plus `counts [vocab]`.
    """
    counts = counts.clone()
    for one in examples:
        counts.index_add_(0, one.guesses.flatten(), one.logprobs.exp().flatten())
    examples = examples[:: 1 + len(examples) // GUESSED_FROM]
    inner = 3 * (examples[0].hidden.shape[1] // 4)
    features = torch.cat([one.hidden[len(one.prompt) - 2 : -1, :inner] for one in examples]).float()
    sizes = features.square().mean(0).sqrt()
    features = features / sizes
    wanted = torch.cat([one.hidden[len(one.prompt) - 1 :, inner:] for one in examples]).float()
    read = torch.cat([torch.cat([one.prompt, one.tokens])[len(one.prompt) - 1 : -1] for one in examples])
    embedded = _normed(target.get_input_embeddings().weight.detach().float().cpu()[read])
    wanted = wanted / target.model.norm.weight.detach().float().cpu()
    fit = _ridge(torch.cat([features, embedded], 1), wanted)
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


def coverage(head: Head, examples: list[UnrollExample]) -> float:
    """Share of the answers' tokens that are in the draft vocabulary."""
    return round(float((head.own[torch.cat([one.tokens for one in examples])] >= 0).float().mean()), 4)


def collate(examples: list[UnrollExample]) -> UnrollBatch:
    """One batch; padding is to the right of everything that anchors attend to."""
    b, width, dtype = len(examples), examples[0].hidden.shape[1] // 4, examples[0].hidden.dtype
    pairs = max(len(one.prompt) + len(one.tokens) for one in examples) - 2
    longest = max(len(one.tokens) for one in examples)
    features = torch.zeros(b, pairs, 3 * width, dtype=dtype)
    final = torch.zeros(b, longest, width, dtype=dtype)
    after, anchors, tokens = (
        torch.zeros(b, length, dtype=torch.long) for length in (pairs, longest, longest)
    )
    best = torch.zeros(b, longest, min(MENTIONED, examples[0].guesses.shape[1]), dtype=torch.long)
    for row, one in enumerate(examples):
        p, n = len(one.prompt), len(one.tokens)
        features[row, : p + n - 2] = one.hidden[:-1, : 3 * width]
        final[row, :n] = one.hidden[p - 1 :, 3 * width :]
        after[row, : p + n - 2] = torch.cat([one.prompt, one.tokens])[1:-1]
        anchors[row] = (torch.arange(longest) + p - 2).clamp(max=pairs - 1)
        tokens[row, :n], best[row, :n] = one.tokens, one.guesses[:, : best.shape[2]]
    lengths = torch.tensor([len(one.tokens) for one in examples])
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
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        at = batch.anchors[:, : x.shape[1]] + step
        if step:
            own.append(attention.keys(x, at))
        query = attention.queries(x, at)
        attended = _attended(query, keys, values, seen[:, : x.shape[1]], own)
        guess = layer.finished(feature, attended)
        yield guess
        # The next step's pair joins this output with the answer token that this step predicts.
        feature = guess[:, :-1]
        following = batch.tokens[:, step : step + feature.shape[1]]
        x = layer.joined(head.embedding[following], feature)
        own = [(k[:, :-1], v[:, :-1]) for k, v in own]


def _attended(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, own: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Attention over the pairs that `seen [b, a, t]` allows, and one key per anchor of each `own` step.

    `query [b, a, kv, g, d]`, `keys`, `values [b, t, kv, d]`, `own` pairs of `[b, a, kv, d]`.
    """
    scale = query.shape[-1] ** -0.5
    among = torch.einsum("bakgd,btkd->bakgt", query, keys).float() * scale
    among = among.masked_fill(~seen[:, :, None, None], -torch.inf)
    single = [(query * k[:, :, :, None]).float().sum(-1, keepdim=True) * scale for k, _ in own]
    shares = torch.cat([among, *single], -1).softmax(-1)
    count = keys.shape[1]
    result = torch.einsum("bakgt,btkd->bakgd", shares[..., :count].to(values.dtype), values)
    for index, (_, v) in enumerate(own):
        result = result + shares[..., count + index, None].to(v.dtype) * v[:, :, :, None]
    return result.flatten(2)


class EagleTrainer(Trainer):
    """Trainer of an EAGLE-3 head."""

    def __init__(
        self, head: Head, target_head: Tensor, recipe: UnrollRecipe, state: Path, device: str
    ) -> None:
        """`target_head [vocab, hidden]` is the target's output projection."""
        super().__init__(head, recipe, state, device)
        self.head, self.steps, self.fade, self.negatives = head, recipe.unroll, recipe.fade, recipe.negatives
        self.teacher = target_head.detach().to(device, torch.bfloat16)[head.tokens]

    def loss(self, chosen: list[Any]) -> tuple[Tensor, Tensor]:
        """Cross-entropy against the target's distribution over the draft vocabulary, summed over the steps.

        Only answer positions whose most likely token is in that vocabulary count. The agreement is that of
        step 0 over all answer positions.
        """
        batch = collate(chosen).to(self.device)
        columns, share = self._columns(self.head.own[batch.best])
        wanted = (batch.final.to(torch.bfloat16) @ self.teacher[columns].T).float() + share
        wanted = wanted.softmax(-1)
        projection, best = self.head.lm_head.weight[columns], self.head.own[batch.best[..., 0]]
        places = torch.arange(best.shape[1], device=best.device)
        answered = places < batch.lengths[:, None]
        total = torch.zeros((), device=best.device)
        for step, rows in enumerate(unroll(self.head, batch, min(self.steps, best.shape[1]))):
            counted = (answered & (best >= 0))[:, step:]
            logits = torch.nn.functional.linear(self.head.norm(rows[counted]), projection).float() + share
            if step == 0:
                right = (columns[logits.argmax(-1)] == best[counted]).sum() / answered.sum()
            divergence = -(wanted[:, step:][counted] * logits.log_softmax(-1)).sum(-1)
            total = total + self.fade**step * divergence.sum() / counted.sum().clamp(min=1)
        return total, right.detach()

    def _columns(self, mentioned: Tensor) -> tuple[Tensor, Tensor]:
        """Draft tokens whose logits a batch needs, and the logarithm of how many tokens each represents."""
        known = mentioned[mentioned >= 0].unique()
        generator = torch.Generator().manual_seed(self.recipe.seed + self.step)
        drawn = torch.randperm(len(self.head.tokens), generator=generator).to(known.device)
        others = drawn[~torch.isin(drawn, known)]
        left, others = len(others), others[: self.negatives]
        share = torch.zeros(len(known) + len(others), device=known.device)
        share[len(known) :] = math.log(max(1, left) / max(1, len(others)))
        return torch.cat([known, others]), share


@torch.no_grad()
def accepted(head: Head, examples: list[UnrollExample], drafts: int = 8, rows: int = 8) -> list[Tensor]:
    """For each answer, int `[n]`: accepted tokens of a chain of `drafts` that starts there.

    Exact for a greedy answer: up to its first miss a chain's tokens are the answer's.
    """
    found: list[Tensor] = []
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
        found += [row[:n] for row, n in zip(run.cpu(), batch.lengths.tolist(), strict=True)]
    return found


def figures(runs: list[Tensor], drafts: int = 8) -> dict[str, float]:
    """Greedy agreement, and acceptance length of chains, the bonus token included."""
    emitted = verifications = 0
    for run in runs:
        at = 0
        while at < len(run):
            step = int(run[at]) + 1
            emitted += min(step, len(run) - at)
            at += step
            verifications += 1
    return {
        "agreement": round(float(torch.cat(runs).gt(0).float().mean()), 4),
        f"acceptance_length_chain{drafts}": round(emitted / verifications, 4),
    }
