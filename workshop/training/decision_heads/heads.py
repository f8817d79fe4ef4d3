"""Owns the training of the dual-head model's heads, on marked texts and on decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.serving.slo import Decision
from repro.models.encoders.dual_head import LEVELS, DualHead
from repro.models.encoders.token_spans import TextSpan, carried
from repro.models.encoders.word_pieces import WordPieces
from workshop.training.decision_heads.surprisal import Marked
from workshop.training.trainers.training import Schedule, Trainer

UNJUDGED = -100
"""Label that cross-entropy ignores."""


@dataclass(frozen=True)
class HeadExample:
    """One training example.

    Attributes:
        prompt: token ids, special tokens included.
        labels: for the score head one per id, for the decision head the classes of prompt and model level.
        text: index of the source text.
        spans: for the score head, the span of each id in its text; empty spans for special tokens.
    """

    prompt: Tensor
    labels: Tensor
    text: int
    spans: tuple[TextSpan, ...] = ()
    tokens: tuple[int, ...] = ()
    """Always empty; `training.epoch` reads it."""


def scored(marked: Sequence[Marked], pieces: WordPieces, longest: int) -> list[HeadExample]:
    """Examples of the score head from marked texts, cut at `longest` ids; pieces get their word's label."""
    made = []
    for number, one in enumerate(marked):
        ids, spans = pieces.split(one.text)
        ids, spans = ids[: longest - 2], spans[: longest - 2]
        kept = carried([float(mark) for mark in one.retained], one.words, spans, UNJUDGED)
        labels = [UNJUDGED, *(UNJUDGED if mark == UNJUDGED else round(mark) for mark in kept), UNJUDGED]
        around = (TextSpan(0, 0), *spans, TextSpan(0, 0))
        whole = torch.tensor([pieces.first, *ids, pieces.last])
        made.append(HeadExample(whole, torch.tensor(labels), number, around))
    return made


def filled(chosen: Sequence[HeadExample], padding: int) -> tuple[Tensor, Tensor]:
    """Ids of examples as one padded tensor, and the mask of real ids."""
    longest = max(len(one.prompt) for one in chosen)
    ids = torch.full((len(chosen), longest), padding)
    real = torch.zeros(len(chosen), longest, dtype=torch.bool)
    for row, one in enumerate(chosen):
        ids[row, : len(one.prompt)], real[row, : len(one.prompt)] = one.prompt, True
    return ids, real


class ScoreTrainer(Trainer):
    """Trains the score head; everything else is frozen."""

    def __init__(self, net: DualHead, schedule: Schedule, state: Path, device: str, padding: int) -> None:
        net.train_only("score")
        super().__init__(net, schedule, state, device)
        self.net, self.padding = net, padding

    def loss(self, chosen: list[HeadExample]) -> tuple[Tensor, Tensor]:
        """Cross-entropy of drop and retain, and the accuracy."""
        ids, real = filled(chosen, self.padding)
        labels = torch.full(ids.shape, UNJUDGED)
        for row, one in enumerate(chosen):
            labels[row, : len(one.labels)] = one.labels
        logits = self.net.retain(ids, real).float()
        judged = labels != UNJUDGED
        right = (logits.argmax(-1) == labels)[judged].float().mean()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=UNJUDGED), right


@torch.no_grad()
def word_figures(
    net: DualHead, examples: Sequence[HeadExample], marked: Sequence[Marked]
) -> dict[str, float]:
    """Accuracy on held-out words, scored by the mean probability of their pieces.

    `accuracy` retains as many words per text as its labels do, `threshold_accuracy` uses a threshold of one
    half, `auc` is the probability that a word to retain ranks above one to drop, over all texts.
    """
    every: list[float] = []
    wanted: list[bool] = []
    chosen: list[float] = []
    for one in examples:
        said = net.retain(one.prompt[None])[0].softmax(-1)[:, 1].tolist()
        text = marked[one.text]
        # Words after the cut have no piece.
        end = one.spans[-2].stop
        words = [(w, mark) for w, mark in zip(text.words, text.retained, strict=True) if w.stop <= end]
        values = carried(said[1:-1], one.spans[1:-1], [w for w, _ in words], 0.0)
        marks = [mark for _, mark in words]
        best = set(sorted(range(len(values)), key=lambda i: -values[i])[: sum(marks)])
        chosen += [float((i in best) == mark) for i, mark in enumerate(marks)]
        every += values
        wanted += marks
    right = [float((value > 0.5) == mark) for value, mark in zip(every, wanted, strict=True)]
    return {
        "accuracy": round(fmean(chosen), 4),
        "threshold_accuracy": round(fmean(right), 4),
        "auc": round(auc(every, wanted), 4),
    }


def auc(values: Sequence[float], wanted: Sequence[bool]) -> float:
    """Area under the ROC curve of `values`; ties count half.

    Raises:
        InputError: only one class is present.
    """
    positive, negative = (
        torch.tensor([v for v, mark in zip(values, wanted, strict=True) if mark is kind], dtype=torch.float64)
        for kind in (True, False)
    )
    if not len(positive) or not len(negative):
        raise InputError("all words have one label; give more texts")
    ordered = negative.sort().values
    below, to = (torch.searchsorted(ordered, positive, right=right) for right in (False, True))
    return float((below + to).double().mean() / 2 / len(negative))


class DecisionTrainer(Trainer):
    """Trains the decision head and the embeddings of the objective tokens; everything else is frozen."""

    def __init__(self, net: DualHead, schedule: Schedule, state: Path, device: str, padding: int) -> None:
        net.train_only("decision")
        net.objective.requires_grad_(True)
        super().__init__(net, schedule, state, device)
        self.net, self.padding = net, padding

    def loss(self, chosen: list[HeadExample]) -> tuple[Tensor, Tensor]:
        """Sum of both classifiers' cross-entropies, and the share of examples with both correct."""
        ids, real = filled(chosen, self.padding)
        labels = torch.stack([one.labels for one in chosen])
        said = [logits.float() for logits in self.net.decide(ids, real)]
        both = torch.stack([one.argmax(-1) for one in said], -1) == labels
        loss = sum((F.cross_entropy(one, labels[:, i]) for i, one in enumerate(said)), torch.zeros(()))
        return loss, both.all(-1).float().mean()


@torch.no_grad()
def decided(
    net: DualHead, examples: Sequence[HeadExample], padding: int, at_once: int = 32
) -> list[Decision]:
    """The most likely decision of the decision head for each example."""
    found: list[Decision] = []
    for start in range(0, len(examples), at_once):
        said = net.decide(*filled(examples[start : start + at_once], padding))
        classes = zip(*(one.argmax(-1).tolist() for one in said), strict=True)
        found += [Decision(LEVELS[prompt], LEVELS[model]) for prompt, model in classes]
    return found
