"""Owns the loop that every training runs: optimizer, rates, the order of batches, checkpoints, and the log.

A trainer gives a model, a recipe, the batches of an epoch and the loss of a batch. It gets the trained model,
the curve of its figures, and, where it names a file for the state, a run that continues after a kill. Knows
neither models nor data.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

POOL = 32  # batches whose texts are sorted by length together


@dataclass(frozen=True)
class Recipe(ABC):
    """The optimizer's settings; `steps` is the number of updates at which the rate has fallen to its end."""

    steps: int = 4000
    rate: float = 2e-3
    weight_decay: float = 0.02
    seed: int = 0

    @abstractmethod
    def rate_at(self, progress: float, step: int) -> float:
        """Learning rate after the share `progress` of the training."""


@dataclass(frozen=True)
class Schedule(Recipe):
    """A rate that rises over the first `warmup` steps and falls linearly over the last share `decay`.

    `tokens` per batch count prompts and answers without padding.
    """

    tokens: int = 1024
    warmup: int = 40
    decay: float = 0.4

    def rate_at(self, progress: float, step: int) -> float:
        """See `Recipe`."""
        return self.rate * min(1.0, (step + 1) / self.warmup, max(0.0, (1 - progress) / self.decay))


class Text(Protocol):
    """What `by_length` reads of a training text."""

    @property
    def size(self) -> int:
        """Its tokens."""


AnyText = TypeVar("AnyText", bound=Text)
AnyBatch = TypeVar("AnyBatch")
Part = tuple[Tensor, Tensor]
"""The loss of a part of a batch, and the share of the batch's positions that it got right."""
Figures = dict[str, float]


def by_length(texts: Sequence[AnyText], schedule: Schedule, epoch: int) -> list[list[AnyText]]:
    """All texts once, in an order of the epoch's own, in batches of about `tokens` and of similar length."""
    chance, tokens = random.Random(schedule.seed + epoch), schedule.tokens
    order = list(texts)
    chance.shuffle(order)
    batches: list[list[AnyText]] = []
    pool = POOL * max(1, tokens // 256)
    for start in range(0, len(order), pool):
        batches += packed(sorted(order[start : start + pool], key=lambda text: text.size), tokens)
    chance.shuffle(batches)
    return batches


def packed(texts: Iterable[AnyText], tokens: int) -> Iterator[list[AnyText]]:
    """Consecutive texts in batches of at most `tokens` tokens, but of at least one text."""
    batch: list[AnyText] = []
    for text in texts:
        if batch and sum(each.size for each in batch) + text.size > tokens:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


class Training:
    """The training of a model's parameters that require gradients.

    Attributes:
        step: updates done.
        curve: figures at each report.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, state: Path | None, device: str) -> None:
        """Continue from the checkpoint at `state`, if there is one; without a path none is written."""
        self.model, self.recipe, self.state, self.device = model.to(device).train(), recipe, state, device
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = [p for p in self.trained.values() if p.ndim > 1]
        vectors = [p for p in self.trained.values() if p.ndim == 1]
        groups = [(matrices, recipe.weight_decay), (vectors, 0.0)]
        self.optimizer = torch.optim.AdamW(
            [{"params": tensors, "weight_decay": decay} for tensors, decay in groups],
            betas=(0.9, 0.95),
            fused=True,
        )
        self.step, self.epoch, self.done, self.seconds = 0, 0, 0, 0.0
        self.curve: list[dict[str, Any]] = []
        self.earlier: list[dict[str, Any]] = []  # recipes of earlier commands, and their last steps
        if state is not None and state.exists():
            self._load(state)

    def run(
        self,
        batches: Callable[[int], Iterable[AnyBatch]],
        loss: Callable[[AnyBatch, int], Iterator[Part]],
        *,
        minutes: float,
        every: int,
        measure: Callable[[], Figures] = dict,
    ) -> None:
        """Train to the recipe's steps, or for `minutes`.

        Args:
            batches: returns the batches of an epoch.
            loss: yields the parts of the loss of a batch at a step; their gradients are summed.
            minutes: limit for all runs that continue one another.
            every: updates between reports and checkpoints.
            measure: further figures for a report, of the model in evaluation mode.
        """
        started, before, seen = time.monotonic(), self.seconds, list[tuple[float, float]]()
        while self._progress(minutes) < 1:
            for batch in list(batches(self.epoch))[self.done :]:
                seen.append(self._update(loss, batch, minutes))
                self.done += 1
                self.seconds = before + time.monotonic() - started
                finished = self._progress(minutes) >= 1
                if finished or self.step % every == 0:
                    self._report(seen, measure)
                    seen = []
                if finished:
                    return
            self.epoch, self.done = self.epoch + 1, 0

    def _progress(self, minutes: float) -> float:
        return max(self.step / self.recipe.steps, self.seconds / (60 * minutes))

    def _update(
        self, loss: Callable[[AnyBatch, int], Iterator[Part]], batch: AnyBatch, minutes: float
    ) -> tuple[float, float]:
        torch.manual_seed(self.recipe.seed + self.step)  # of a model's own dropout
        self.optimizer.zero_grad(set_to_none=True)
        parts, total, agreement = loss(batch, self.step), 0.0, 0.0
        while True:
            with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16):
                part = next(parts, None)
            if part is None:
                break
            part[0].backward()
            total += float(part[0].detach())
            agreement += float(part[1])
        torch.nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(self._progress(minutes), self.step)
        self.optimizer.step()
        self.step += 1
        return total, agreement

    def _report(self, seen: list[tuple[float, float]], measure: Callable[[], Figures]) -> None:
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
        if self.state is not None:
            self._save(self.state)

    def _save(self, state: Path) -> None:
        whole = {
            "model": {name: p.detach() for name, p in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "at": [self.step, self.epoch, self.done, self.seconds],
            "curve": self.curve,
            "recipe": asdict(self.recipe),
            "earlier": self.earlier,
        }
        partial = state.with_suffix(".partial")
        torch.save(whole, partial)
        partial.replace(state)

    def _load(self, state: Path) -> None:
        whole = torch.load(state, weights_only=True, map_location=self.device)
        self.model.load_state_dict(whole["model"], strict=False)
        self.optimizer.load_state_dict(whole["optimizer"])
        self.step, self.epoch, self.done, self.seconds = whole["at"]
        self.curve, self.earlier = whole["curve"], whole["earlier"]
        if whole["recipe"] != asdict(self.recipe):
            self.earlier = [*self.earlier, {"until": self.step, **whole["recipe"]}]


def history(state: Path) -> dict[str, Any]:
    """`recipe`, `earlier` recipes and `curve` from a checkpoint."""
    whole = torch.load(state, weights_only=True, map_location="cpu")
    return {name: whole[name] for name in ("recipe", "earlier", "curve")}
