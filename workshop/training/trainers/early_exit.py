"""Owns the training of an early-exit predictor: hidden states of a middle layer, LEVER's Eq. 8-10, metrics.

Knows nothing of where answers come from, nor of the folders that are written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workshop.training.texts.answers import Answer
from workshop.training.trainers.training import collate

NEAR = 3  # the draft's top candidates, of which trees mostly consist; the rest of C(u) rarely appear in them
SPARED = 0.95  # share of the target's tokens kept at the threshold by which predictors are compared


@dataclass(frozen=True)
class Settings:
    """Settings of one predictor: `layer` and `rank` of its form, the others of its loss and optimizer.

    `weight` is lambda_Cand of Eq. 8, `kd` and `candidates` are the temperatures of Eq. 9 and 10. `negatives`
    random tokens represent the part of the vocabulary that a batch does not mention; 0 uses the whole
    vocabulary.
    """

    layer: int = 24
    rank: int = 576
    weight: float = 1.0
    kd: float = 1.0
    candidates: float = 1.0
    rate: float = 1e-3
    batch: int = 256
    steps: int = 300
    negatives: int = 4096
    seed: int = 0

    def rate_at(self, progress: float) -> float:
        """Learning rate after the share `progress` of the training: a short warm-up, then linear decay."""
        return self.rate * min(1.0, (progress + 0.01) / 0.05, 1.02 - progress)


@dataclass(frozen=True)
class ExitPositions:
    """Training data at `n` answer positions.

    `hidden[layer] [n, d]` are the states after that layer, scaled by the final norm; `said [n, d]` the inputs
    of the output projection that give the target's logits; `guesses [n, j]` the target's best tokens;
    `candidates [n, k]` the draft's, best first.
    """

    hidden: dict[int, Tensor]
    said: Tensor
    guesses: Tensor
    candidates: Tensor

    def __len__(self) -> int:
        return len(self.said)


@dataclass(frozen=True)
class Change:
    """Low-rank change P Q of the output projection's input.

    `inner` is Q `[rank, d]`, `outer` is P `[d, rank]`.
    """

    inner: Tensor
    outer: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Hidden states `[n, d]` with the change added, as input of the frozen output projection."""
        return x + (x @ self.inner.T) @ self.outer.T


@torch.no_grad()
def middle(target: PreTrainedModel, made: list[Answer], layers: list[int]) -> dict[int, Tensor]:
    """Hidden states at all answer positions `[n, d]` after these layers, scaled by the final norm.

    The number of the target's layers stands for the output projection's input.
    """
    parts: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for batch in map(collate, _eights(made)):
        with torch.autocast(target.device.type, dtype=torch.bfloat16):  # hidden states stay fp32
            states = target.model(batch.ids.to(target.device), use_cache=False, output_hidden_states=True)
        for layer in layers:
            parts[layer].append(states.hidden_states[layer].flatten(0, 1)[batch.places.to(target.device)])
    return _scaled(target, {layer: torch.cat(found) for layer, found in parts.items()})


def kept(
    target: PreTrainedModel, made: list[Answer], hidden: list[Tensor], at: list[int]
) -> dict[int, Tensor]:
    """As `middle`, from the states of layers `at` that `answers.write_hidden` stored, concatenated."""
    found = torch.cat([rows[-len(one.tokens) :] for one, rows in zip(made, hidden, strict=True)])
    parts = found.to(target.device).float().chunk(len(at), -1)
    return _scaled(target, dict(zip(at, parts, strict=True)))


@torch.no_grad()
def _scaled(target: PreTrainedModel, rows: dict[int, Tensor]) -> dict[int, Tensor]:
    """Apply the final norm, except to the last layer's states, which it was applied to already."""
    last = target.config.num_hidden_layers
    return {layer: x if layer == last else target.model.norm(x) for layer, x in rows.items()}


@torch.no_grad()
def proposed(draft: PreTrainedModel, made: list[Answer], width: int) -> Tensor:
    """The draft's `width` best tokens at all answer positions, best first: `[n, width]`."""
    head = draft.get_output_embeddings().weight.bfloat16()
    found = []
    for batch in map(collate, _eights(made)):
        with torch.autocast(head.device.type, dtype=torch.bfloat16):
            guessed = draft.model(batch.ids.to(head.device), use_cache=False).last_hidden_state
        chosen = guessed.flatten(0, 1)[batch.places.to(head.device)]
        found.append((chosen.to(head.dtype) @ head.T).topk(width, -1).indices)
    return torch.cat(found)


def _eights(made: list[Answer]) -> Iterator[list[Answer]]:
    return (made[start : start + 8] for start in range(0, len(made), 8))


def start(known: ExitPositions, settings: Settings) -> Change:
    """The rank-limited least-squares change that maps the middle layer's states to the last layer's.

    The loss is convex in the full-rank change; this start saves minutes of updates compared with a zero
    change.
    """
    x = known.hidden[settings.layer].double()
    wanted = (known.said.double() - x).float().double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    whole = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted)  # [d, d]: x @ whole is near wanted
    left, sizes, right = torch.linalg.svd(whole)
    root = sizes[: settings.rank].sqrt()
    inner = (left[:, : settings.rank] * root).T.float().contiguous()
    return Change(inner, (right[: settings.rank].T * root).float().contiguous())


@dataclass(frozen=True)
class Vocabulary:
    """Tokens `[m]` whose logits a batch computes, and the logarithm of how many tokens each represents."""

    tokens: Tensor
    stands_for: Tensor

    @classmethod
    def of(cls, mentioned: Tensor, whole: int, negatives: int, generator: torch.Generator) -> Vocabulary:
        """The `mentioned` tokens for themselves, and random others for equal shares of the rest.

        Deviation: Eq. 9 runs over the whole vocabulary, which takes six times as long on a CPU. Here tokens
        that target and draft find likely are computed exactly, and the tail from a sample.
        """
        if not negatives:
            everything = torch.arange(whole, device=mentioned.device)
            return cls(everything, torch.zeros(whole, device=mentioned.device))
        known = mentioned.unique()
        drawn = torch.randperm(whole, generator=generator)[:negatives].to(known.device)
        others = drawn[~torch.isin(drawn, known)]
        share = torch.tensor((whole - len(known)) / max(1, len(others))).log().to(known.device)
        weights = torch.cat([torch.zeros_like(known, dtype=torch.float32), share.expand(len(others))])
        tokens, order = torch.cat([known, others]).sort()
        return cls(tokens, weights[order])

    def find(self, tokens: Tensor) -> Tensor:
        """Indices of mentioned tokens in `tokens`."""
        return torch.searchsorted(self.tokens, tokens)


def loss(
    target: Tensor, student: Tensor, candidates: Tensor, stands_for: Tensor, settings: Settings
) -> Tensor:
    """Eq. 8, the mean over positions: logits of both `[n, m]`, indices of the candidates `[n, k]`."""
    many = (logits / settings.kd + stands_for for logits in (target, student))
    few = (logits.gather(1, candidates) / settings.candidates for logits in (target, student))
    whole, local = _divergence(*many), _divergence(*few)
    return settings.kd**2 * whole + settings.weight * settings.candidates**2 * local


def _divergence(target: Tensor, student: Tensor) -> Tensor:
    logp, logq = target.log_softmax(-1), student.log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1).mean()


def train(
    known: ExitPositions, head: Tensor, settings: Settings, minutes: float
) -> tuple[Change, list[float]]:
    """A trained change and the loss of each update; stops after the steps or the minutes."""
    change = start(known, settings)
    parts = [part.requires_grad_() for part in (change.inner, change.outer)]
    optimizer = torch.optim.AdamW(parts, betas=(0.9, 0.95), weight_decay=0.0)
    begun, losses = time.monotonic(), list[float]()
    generator, vocab = torch.Generator().manual_seed(settings.seed), len(head)
    for step, chosen in zip(range(settings.steps), _draws(len(known), settings), strict=False):
        progress = max(step / settings.steps, (time.monotonic() - begun) / (60 * minutes))
        if progress >= 1:
            break
        place = chosen.to(head.device)
        mentioned = torch.cat([known.guesses[place], known.candidates[place]], 1)
        words = Vocabulary.of(mentioned, vocab, settings.negatives, generator)
        table = head[words.tokens].bfloat16()
        with torch.no_grad():
            target = (known.said[place].bfloat16() @ table.T).float()
        student = (change(known.hidden[settings.layer][place]).bfloat16() @ table.T).float()
        candidates = words.find(known.candidates[place])
        found = loss(target, student, candidates, words.stands_for, settings)
        optimizer.zero_grad(set_to_none=True)
        found.backward()
        torch.nn.utils.clip_grad_norm_(parts, 1.0)
        optimizer.param_groups[0]["lr"] = settings.rate_at(progress)
        optimizer.step()
        losses.append(float(found.detach()))
    return Change(change.inner.detach(), change.outer.detach()), losses


def _draws(count: int, settings: Settings) -> Iterator[Tensor]:
    """Endless batches of positions, each position once per epoch."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.split(min(settings.batch, count))


@torch.no_grad()
def figures(change: Change, known: ExitPositions, head: Tensor, settings: Settings) -> dict[str, float]:
    """Metrics of a change and of the draft, as shares of positions.

    `covered`: the target's token is a candidate. Of those positions, `first`: the predictor ranks it first,
    and `draft_first`: the draft does. `anywhere`: it is the predictor's best token of the whole vocabulary.
    `wrong_cut`: share of the wrong ones among the draft's first three candidates that fall below the
    threshold that keeps 95% of the target's tokens; `threshold` is that threshold.
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
