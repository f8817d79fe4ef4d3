"""Owns the training of a sub-model's adapters: packed batches of answered questions, and the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repro.core.errors import InputError
from repro.data.prompts import Prompt
from repro.models.elastic import lora
from repro.models.elastic.differentiable import DifferentiableDecoder, hidden_rows
from repro.models.elastic.lora import Adapter, Lora, Site
from repro.models.elastic.submodels import Kept, Order, UnitDecoder
from workshop.training.texts.answers import Answer
from workshop.training.trainers.training import Schedule, Trainer

NOTHING = torch.empty(0)


def answered(
    prompts: Sequence[Prompt], references: Sequence[Sequence[int]], end: int, longest: int
) -> list[Answer]:
    """Questions with their references and the end token as answers, cut at `longest` tokens in all."""
    found = []
    for prompt, reference in zip(prompts, references, strict=True):
        tokens = [*reference, end][: longest - len(prompt.token_ids)]
        if tokens and len(prompt.token_ids) < longest:
            found.append(Answer(torch.tensor(prompt.token_ids), torch.tensor(tokens), NOTHING, NOTHING))
    if len(found) < 2:
        raise InputError(
            f"{len(found)} of {len(prompts)} rows fit {longest} tokens; raise --length or --rows"
        )
    return found


def continued(texts: Iterable[Sequence[int]], end: int, length: int, most: int) -> list[Answer]:
    """Texts with end tokens, concatenated and cut into pieces of `length` tokens, `most` tokens in all.

    The first token of a piece is its prompt and the rest its answer, so every other token is learned, as in
    pre-training.
    """
    if length < 2:
        raise InputError(f"length is {length}; a piece of text predicts something from 2 tokens on")
    flat = itertools.islice(itertools.chain.from_iterable([*text, end] for text in texts), most)
    whole = torch.tensor(list(flat), dtype=torch.long)
    pieces = whole[: len(whole) // length * length].view(-1, length)
    if len(pieces) < 2:
        raise InputError(
            f"the texts have {len(whole)} tokens, fewer than two pieces of {length}; lower --length"
        )
    return [Answer(piece[:1], piece[1:], NOTHING, NOTHING) for piece in pieces]


class Adapters(nn.Module):
    """Adapters as parameters, initialized to add nothing."""

    def __init__(self, sub: UnitDecoder, kept: Kept, matrices: Sequence[str], rank: int, seed: int) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        self.sites = {}
        for site, (inputs, outputs) in lora.shapes(sub.config, kept, matrices).items():
            bound = 1.0 / math.sqrt(inputs)
            narrow = nn.Parameter((2.0 * torch.rand(rank, inputs, generator=chance) - 1.0) * bound)
            wide = nn.Parameter(torch.zeros(outputs, rank))
            self.register_parameter(f"{site.layer}_{site.matrix}_narrow", narrow)
            self.register_parameter(f"{site.layer}_{site.matrix}_wide", wide)
            self.sites[site] = Adapter(narrow, wide)

    def lora(self, kept: Kept, order: Order) -> Lora:
        """The current adapters, sharing memory with the parameters."""
        return Lora(dict[Site, Adapter](self.sites), kept, order.digest)


class RecoveryTrainer(Trainer):
    """Trains adapters on answer tokens; the sub-model's own weights are frozen.

    A batch is split into passes of at most `at_once` tokens, whose gradients are accumulated.
    """

    def __init__(
        self,
        adapters: Adapters,
        adapted: UnitDecoder,
        schedule: Schedule,
        at_once: int,
        state: Path,
        device: str,
    ) -> None:
        """`adapted` is a sub-model with these adapters attached."""
        super().__init__(adapters, schedule, state, device)
        self.decoder = DifferentiableDecoder(adapted.config, adapted.layers, adapted.ends)
        self.at_once = at_once

    def loss(self, chosen: list[Answer]) -> tuple[Tensor, Tensor]:
        """Summed loss of all answer tokens in one pass, and the share predicted correctly."""
        return packed_loss(self.decoder, chosen, self.device)

    def _update(self, chosen: list[Answer], minutes: float) -> tuple[float, float]:
        count = sum(len(one.tokens) for one in chosen)
        self.optimizer.zero_grad(set_to_none=True)
        losses, hits = 0.0, 0.0
        for some in passes(chosen, self.at_once):
            with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16):
                loss, agreement = self.loss(some)
            (loss / count).backward()
            losses += float(loss.detach())
            hits += float(agreement) * sum(len(one.tokens) for one in some)
        torch.nn.utils.clip_grad_norm_(self.own.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(self._progress(minutes), self.step)
        self.optimizer.step()
        self.step += 1
        return losses / count, hits / count

    @torch.no_grad()
    def heldout_loss(self, answers: Sequence[Answer]) -> float:
        """Mean loss per answer token, in nats, in fp32."""
        found = [packed_loss(self.decoder, some, self.device)[0] for some in passes(answers, self.at_once)]
        return float(sum(found)) / sum(len(one.tokens) for one in answers)


def passes(answers: Sequence[Answer], tokens: int) -> Iterator[list[Answer]]:
    """Consecutive answers in groups of at most `tokens` tokens, but at least one answer."""
    some: list[Answer] = []
    for one in answers:
        if some and sum(len(a.prompt) + len(a.tokens) for a in (*some, one)) > tokens:
            yield some
            some = []
        some.append(one)
    if some:
        yield some


def packed_loss(
    decoder: DifferentiableDecoder, answers: Sequence[Answer], device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Summed loss of answer tokens, and the share predicted correctly; texts do not attend to each other."""
    texts = [torch.cat((one.prompt, one.tokens)) for one in answers]
    lengths = [len(text) for text in texts]
    ids, positions = (torch.cat(parts).to(device) for parts in (texts, list(map(torch.arange, lengths))))
    mask = torch.block_diag(*(torch.ones(n, n).tril() for n in lengths)).bool().to(device)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    # Each answer token is predicted at the token before it.
    places = torch.cat(
        [
            torch.arange(start + len(one.prompt) - 1, start + length - 1)
            for one, start, length in zip(answers, starts, lengths, strict=True)
        ]
    ).to(device)
    wanted = torch.cat([one.tokens for one in answers]).to(device)
    logits = decoder.head(hidden_rows(decoder, ids, positions, mask)[places])
    loss = F.cross_entropy(logits.float(), wanted, reduction="sum")
    return loss, (logits.argmax(-1) == wanted).float().mean()
