"""Owns the training of an early-exit predictor: rows of a middle layer, Eq. 8-10 of LEVER, how well it ranks.

Knows nothing of where answers come from, nor of the folders that are written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.answers import Answer
from distill.training import collate

NEAR = 3  # the draft's first choices, of which trees mostly consist; the rest of C(u) are shadows
SPARED = 0.95  # of the target's tokens, at the threshold by which predictors are compared


@dataclass(frozen=True)
class Settings:
    """One predictor's settings: `layer` and `rank` of its form, the rest of its loss and optimizer.

    `weight` is lambda_Cand of Eq. 8, `kd` and `candidates` the temperatures of Eq. 9 and 10.
    """

    layer: int = 15
    rank: int = 128
    weight: float = 1.0
    kd: float = 1.0
    candidates: float = 1.0
    rate: float = 1e-3
    batch: int = 512
    steps: int = 600
    seed: int = 0

    def rate_at(self, progress: float) -> float:
        """Learning rate after the share `progress` of the training: a short rise, then a straight fall."""
        return self.rate * min(1.0, (progress + 0.01) / 0.05, 1.02 - progress)


@dataclass(frozen=True)
class Rows:
    """What is known at answer positions: `hidden[layer] [n, d]` after so many layers and the final norm's
    scaling, `said [n, d]` that the output projection turns into the target's logits, `candidates [n, k]` of
    the draft, best first."""

    hidden: dict[int, Tensor]
    said: Tensor
    candidates: Tensor

    def __len__(self) -> int:
        return len(self.said)


@dataclass(frozen=True)
class Change:
    """The change P Q of the projection's inputs: `inner` is Q `[rank, d]`, `outer` is P `[d, rank]`."""

    inner: Tensor
    outer: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rows `[n, d]` as the frozen output projection reads them."""
        return x + (x @ self.inner.T) @ self.outer.T


@torch.no_grad()
def rows(
    target: PreTrainedModel, draft: PreTrainedModel, answers: list[Answer], layers: list[int], width: int
) -> Rows:
    """Rows of every answer position, with the draft's `width` best candidates after the same text."""
    parts: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    said, candidates = [], []
    ordered = sorted(answers, key=lambda one: len(one.prompt) + len(one.tokens))
    for start in range(0, len(ordered), 8):
        batch = collate(ordered[start : start + 8])
        places, ids = batch.places.to(target.device), batch.ids.to(target.device)
        states = target.model(ids, use_cache=False, output_hidden_states=True).hidden_states
        for layer in layers:
            parts[layer].append(target.model.norm(states[layer].flatten(0, 1)[places]))
        said.append(states[-1].flatten(0, 1)[places])
        guessed = draft.model(ids, use_cache=False).last_hidden_state.flatten(0, 1)[places]
        head = draft.get_output_embeddings().weight
        candidates.append((guessed.to(head.dtype) @ head.T).topk(width, -1).indices)
    hidden = {layer: torch.cat(found) for layer, found in parts.items()}
    return Rows(hidden, torch.cat(said), torch.cat(candidates))


def start(known: Rows, settings: Settings) -> Change:
    """The best change of its rank in least squares, from the middle rows to the last ones.

    The training's loss is convex in the whole change, and this is minutes of updates nearer to its minimum
    than no change at all.
    """
    x = known.hidden[settings.layer].double()
    wanted = (known.said.double() - x).float().double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    whole = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted)  # [d, d]: x @ whole is near wanted
    left, sizes, right = torch.linalg.svd(whole)
    root = sizes[: settings.rank].sqrt()
    inner = (left[:, : settings.rank] * root).T.float().contiguous()
    return Change(inner, (right[: settings.rank].T * root).float().contiguous())


def loss(target: Tensor, student: Tensor, candidates: Tensor, settings: Settings) -> Tensor:
    """Eq. 8, the mean over positions: logits of both `[n, vocab]`, `candidates [n, k]`."""
    whole = settings.kd**2 * _divergence(target / settings.kd, student / settings.kd)
    few = (logits.gather(1, candidates) / settings.candidates for logits in (target, student))
    return whole + settings.weight * settings.candidates**2 * _divergence(*few)


def _divergence(target: Tensor, student: Tensor) -> Tensor:
    logp, logq = target.log_softmax(-1), student.log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1).mean()


def train(known: Rows, head: Tensor, settings: Settings, minutes: float) -> tuple[Change, list[float]]:
    """A trained change and the loss of each update; the schedule ends after the steps or the minutes."""
    change = start(known, settings)
    parts = [part.requires_grad_() for part in (change.inner, change.outer)]
    optimizer = torch.optim.AdamW(parts, betas=(0.9, 0.95), weight_decay=0.0)
    begun, losses = time.monotonic(), list[float]()
    table = head.bfloat16()
    for step, chosen in zip(range(settings.steps), _draws(len(known), settings), strict=False):
        progress = max(step / settings.steps, (time.monotonic() - begun) / (60 * minutes))
        if progress >= 1:
            break
        place = chosen.to(head.device)
        with torch.no_grad():
            target = (known.said[place].bfloat16() @ table.T).float()
        student = (change(known.hidden[settings.layer][place]).bfloat16() @ table.T).float()
        found = loss(target, student, known.candidates[place], settings)
        optimizer.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(parts, 1.0)
        optimizer.param_groups[0]["lr"] = settings.rate_at(progress)
        optimizer.step()
        losses.append(float(found.detach()))
    return Change(change.inner.detach(), change.outer.detach()), losses


def _draws(count: int, settings: Settings) -> Iterator[Tensor]:
    """Batches of positions without end, each position once a round."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.split(min(settings.batch, count))


@torch.no_grad()
def figures(change: Change, known: Rows, head: Tensor, settings: Settings) -> dict[str, float]:
    """How well a change ranks candidates, and the draft beside it; shares of positions.

    `covered`: the target's token is a candidate. Of those positions: `first`: the predictor ranks it first;
    `draft_first`: the draft does. `anywhere`: the predictor's first choice of the whole vocabulary is it.
    `wrong_cut`: of the wrong ones among the draft's first three candidates, those that fall below the
    threshold which spares 95% of the target's tokens; `threshold` is that one.
    """
    chosen, best, shares = [], [], []
    for part in torch.arange(len(known), device=head.device).split(settings.batch):
        student = change(known.hidden[settings.layer][part]) @ head.T
        chosen.append((known.said[part] @ head.T).argmax(-1))
        best.append(student.argmax(-1))
        shares.append(student.gather(1, known.candidates[part]).softmax(-1))
    token, guess, share = torch.cat(chosen), torch.cat(best), torch.cat(shares)
    right = known.candidates == token[:, None]
    covered = right.any(1)
    ranked = share.argmax(1) == right.float().argmax(1)
    threshold = float(share[right].quantile(1 - SPARED))
    wrong = share[:, :NEAR][~right[:, :NEAR]]
    out = {
        "covered": covered.float().mean(),
        "first": ranked[covered].float().mean(),
        "draft_first": right[covered, 0].float().mean(),
        "anywhere": (guess == token).float().mean(),
        "wrong_cut": (wrong < threshold).float().mean(),
        "threshold": torch.tensor(threshold),
    }
    return {name: round(float(value), 4) for name, value in out.items()}
