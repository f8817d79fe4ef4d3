"""Owns training on answers: batches, the schedule, resumable checkpoints, and the loss of a small draft."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from workshop.training.texts.answers import Answer

POOL = 32  # batches whose answers are sorted by length together
Asked = TypeVar("Asked", bound=Answer)


@dataclass(frozen=True)
class Schedule:
    """The optimizer's settings; `tokens` per batch count prompts and answers without padding.

    The rate rises over the first `warmup` steps and falls linearly over the last share `decay` of the
    training.
    """

    steps: int = 4000
    tokens: int = 1024
    rate: float = 2e-3
    warmup: int = 40
    decay: float = 0.4
    weight_decay: float = 0.02
    seed: int = 0

    def rate_at(self, progress: float, step: int) -> float:
        """Learning rate after the share `progress` of the training."""
        return self.rate * min(1.0, (step + 1) / self.warmup, max(0.0, (1 - progress) / self.decay))


@dataclass(frozen=True)
class Recipe(Schedule):
    """Schedule of a small draft.

    `hard` weights the cross-entropy of the target's greedy token against the divergence from its
    distribution. `negatives` random tokens represent the part of the vocabulary that a batch does not
    mention.
    """

    hard: float = 0.5
    negatives: int = 4096


@dataclass(frozen=True)
class Batch:
    """Right-padded `ids [b, t]`, and the answer positions with the target's top tokens there.

    `places [n]` index the flattened `[b * t]` positions; `guesses`, `logprobs` are `[n, k]`.
    """

    ids: Tensor
    places: Tensor
    guesses: Tensor
    logprobs: Tensor


def collate(answers: list[Answer]) -> Batch:
    """One batch; padding needs no mask, since it is to the right of everything that is predicted."""
    longest = max(len(one.prompt) + len(one.tokens) for one in answers)
    ids = torch.zeros(len(answers), longest, dtype=torch.long)
    places = []
    for row, one in enumerate(answers):
        start, stop = len(one.prompt), len(one.prompt) + len(one.tokens)
        ids[row, :start], ids[row, start:stop] = one.prompt, one.tokens
        places.append(torch.arange(start - 1, stop - 1) + row * longest)
    guesses, logprobs = (
        torch.cat([getattr(one, name) for one in answers]) for name in ("guesses", "logprobs")
    )
    return Batch(ids, torch.cat(places), guesses, logprobs)


def epoch(answers: list[Asked], tokens: int, seed: int) -> Iterator[list[Asked]]:
    """All answers once, in a seeded order, in batches of about `tokens`."""
    chance = random.Random(seed)
    order = list(answers)
    chance.shuffle(order)
    cut: list[list[Asked]] = []
    per_pool = POOL * max(1, tokens // 256)
    for start in range(0, len(order), per_pool):
        cut += _fill(
            sorted(order[start : start + per_pool], key=lambda one: len(one.prompt) + len(one.tokens)), tokens
        )
    chance.shuffle(cut)
    yield from cut


def _fill(ordered: list[Asked], tokens: int) -> list[list[Asked]]:
    batches: list[list[Asked]] = [[]]
    used = 0
    for one in ordered:
        length = len(one.prompt) + len(one.tokens)
        if batches[-1] and used + length > tokens:
            batches.append([])
            used = 0
        batches[-1].append(one)
        used += length
    return batches


def distillation_loss(
    hidden: Tensor, head: Tensor, batch: Batch, negatives: Tensor, hard: float
) -> tuple[Tensor, Tensor]:
    """Divergence from the target plus `hard` times the cross-entropy of its greedy token; and the agreement.

    `hidden [n, d]`, `head [vocab, d]`, `negatives [m]`. Logits are computed for the tokens that the batch
    mentions and for the negatives, each of which represents an equal share of the rest of the vocabulary. All
    tokens outside the target's k guesses form one class.
    """
    known, where = batch.guesses.unique(return_inverse=True)
    others = negatives[~torch.isin(negatives, known)]
    logits = (hidden @ head[torch.cat([known, others])].to(hidden.dtype).T).float()
    if len(others):
        share = (head.shape[0] - len(known)) / len(others)
        logits[:, len(known) :] += torch.log(torch.tensor(share))
    logq = logits.log_softmax(-1).gather(1, where)
    p = batch.logprobs.exp()
    tail_p, tail_q = ((1 - part.sum(-1)).clamp(min=1e-6) for part in (p, logq.exp()))
    divergence = (p * (batch.logprobs - logq)).sum(-1) + tail_p * (tail_p.log() - tail_q.log())
    loss = divergence.mean() - hard * logq[:, 0].mean()
    return loss, (logits.argmax(-1) == where[:, 0]).float().mean()


class Trainer(ABC):
    """A model and its optimizer; `run` continues from the checkpoint at `state`, if it exists."""

    def __init__(self, model: nn.Module, recipe: Schedule, state: Path, device: str) -> None:
        self.model, self.recipe, self.state, self.device = model.to(device).train(), recipe, state, device
        self.own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = [p for p in self.own.values() if p.ndim > 1]
        vectors = [p for p in self.own.values() if p.ndim == 1]
        groups = [(matrices, recipe.weight_decay), (vectors, 0.0)]
        self.optimizer = torch.optim.AdamW(
            [{"params": tensors, "weight_decay": decay} for tensors, decay in groups],
            betas=(0.9, 0.95),
            fused=True,
        )
        self.step, self.epoch, self.done, self.seconds = 0, 0, 0, 0.0
        self.curve: list[dict[str, Any]] = []
        self.earlier: list[dict[str, Any]] = []  # recipes of earlier commands, and their last steps
        if state.exists():
            self._load()

    @abstractmethod
    def loss(self, chosen: list[Any]) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the share of its positions where the best token is the target's."""

    def run(
        self,
        answers: Callable[[], list[Any]],
        minutes: float,
        every: int,
        measure: Callable[[], dict[str, float]],
    ) -> None:
        """Train to the recipe's steps or for `minutes`; `answers()` is called again at each epoch."""
        started, before, seen = time.monotonic(), self.seconds, []
        while self._progress(minutes) < 1:
            batches = list(epoch(answers(), self.recipe.tokens, self.recipe.seed + self.epoch))
            for chosen in batches[self.done :]:
                seen.append(self._update(chosen, minutes))
                self.done += 1
                self.seconds = before + time.monotonic() - started
                finished = self._progress(minutes) >= 1
                if finished or self.step % every == 0:
                    self._report(seen, measure)
                    seen = []
                if finished:
                    return
            self.epoch, self.done = self.epoch + 1, 0
            batches = []  # frees their memory before answers are read again

    def _progress(self, minutes: float) -> float:
        return max(self.step / self.recipe.steps, self.seconds / (60 * minutes))

    def _update(self, chosen: list[Any], minutes: float) -> tuple[float, float]:
        with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16):
            loss, agreement = self.loss(chosen)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.own.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(self._progress(minutes), self.step)
        self.optimizer.step()
        self.step += 1
        return float(loss.detach()), float(agreement)

    def _report(self, seen: list[tuple[float, float]], measure: Callable[[], dict[str, float]]) -> None:
        losses, agreements = zip(*seen, strict=True)
        self.model.eval()
        point = {
            "step": self.step,
            "seconds": round(self.seconds),
            "loss": round(sum(losses) / len(losses), 4),
            "training_agreement": round(sum(agreements) / len(agreements), 4),
            **measure(),
        }
        self.model.train()
        self.curve.append(point)
        print(point, flush=True)
        self._save()

    def _save(self) -> None:
        partial = self.state.with_suffix(".partial")
        whole = {
            "model": {name: p.detach() for name, p in self.own.items()},
            "optimizer": self.optimizer.state_dict(),
            "at": [self.step, self.epoch, self.done, self.seconds],
            "curve": self.curve,
            "recipe": asdict(self.recipe),
            "earlier": self.earlier,
        }
        torch.save(whole, partial)
        partial.replace(self.state)

    def _load(self) -> None:
        whole = torch.load(self.state, weights_only=True, map_location=self.device)
        self.model.load_state_dict(whole["model"], strict=False)
        self.optimizer.load_state_dict(whole["optimizer"])
        self.step, self.epoch, self.done, self.seconds = whole["at"]
        self.curve, self.earlier = whole["curve"], whole["earlier"]
        if whole["recipe"] != asdict(self.recipe):
            self.earlier = [*self.earlier, {"until": self.step, **whole["recipe"]}]


class DraftTrainer(Trainer):
    """Trainer of a small draft."""

    def __init__(self, draft: PreTrainedModel, recipe: Recipe, state: Path, device: str) -> None:
        if device == "cpu":
            draft.set_attn_implementation(
                "eager"
            )  # updates are 15% faster here than with the fused kernel in bf16
        super().__init__(draft, recipe, state, device)
        self.draft, self.negatives, self.hard = draft, recipe.negatives, recipe.hard

    def loss(self, chosen: list[Answer]) -> tuple[Tensor, Tensor]:
        """See `distillation_loss`."""
        batch = collate(chosen)
        batch = Batch(*(getattr(batch, name).to(self.device) for name in Batch.__dataclass_fields__))
        head = self.draft.get_output_embeddings().weight
        generator = torch.Generator().manual_seed(self.recipe.seed + self.step)
        negatives = torch.randperm(head.shape[0], generator=generator)[: self.negatives].to(self.device)
        hidden = self.draft.model(batch.ids, use_cache=False).last_hidden_state
        hidden = hidden.flatten(0, 1)[batch.places]
        return distillation_loss(hidden, head, batch, negatives, self.hard)


def read_history(state: Path) -> dict[str, Any]:
    """`recipe`, `earlier` recipes and `curve` of loss and agreement from a trainer's checkpoint."""
    whole = torch.load(state, weights_only=True, map_location="cpu")
    return {name: whole[name] for name in ("recipe", "earlier", "curve")}
