"""Owns ElastiLM's self-induced labels (3.3): what decisions answer, and which one a head should make."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from repro import data
from repro.data.prompts import Tokens
from repro.methods.compression.pruning.elastic_levels import anchors_of, kept_at
from repro.methods.compression.pruning.elastication import ranked
from repro.methods.serving.dual_head import fitting
from repro.methods.serving.shortening import Scorer, shortened
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo, decisions, kept_tokens
from repro.models.analysis.likelihood import Likelihood
from repro.models.elastic import elastic_profile, lora
from repro.models.elastic.submodels import reordered, submodel
from repro.models.elastic.unit_importance import Measure
from repro.models.encoders.dual_head import DualHead
from repro.models.encoders.token_spans import Decode
from repro.models.encoders.word_pieces import WordPieces
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.scenarios.accuracy import AccuracyScenario
from repro.scenarios.offline import dense
from repro.scenarios.serving.answer_cache import DatasetRequests
from repro.training.decision_heads.heads import HeadExample
from repro.training.decision_heads.surprisal import read_lines

ANCHORS = 0.2
EVERY = decisions()
ORDERS = ("lightest", "release")
DEFAULTS = ("largest", "lightest", "random")
TPOT_OF_THE_PAPER = 0.5
"""The least that the paper asks for; objectives of time and energy (5.6) go below."""

Decoders = Mapping[float, Decoder]
"""A target by its levels."""

Right = Mapping[int, frozenset[Decision]]
"""By row, the decisions that answer it right."""


def levels(cell: AccuracyScenario, adapted: bool) -> Decoders:
    """The elasticized target on every level, all views of one memory; with adapters if they are wanted."""
    decoder = dense(cell.folder)
    found = ranked(decoder, [torch.tensor(one) for one in cell.corpus.sequences], "committed", Measure())
    order = found.profile.order
    whole, locked = reordered(decoder, order), anchors_of(found.profile.losses, ANCHORS)
    made: dict[float, Decoder] = {}
    for level in LEVELS:
        kept = kept_at(decoder.config, level, locked)
        sub = submodel(whole, kept)
        adapters = None
        if adapted and found.folder is not None and level < 1.0:
            adapters = elastic_profile.committed_lora(found.folder, "elastilm", level, kept, order)
        made[level] = sub if adapters is None else lora.attached(sub, adapters)
    return made


def requests(dataset: str, text: Any) -> DatasetRequests:
    """All rows of a dataset of choices."""
    config = data.read_config(dataset)
    return DatasetRequests(config, data.load_rows(config), text)


def shortest(asked: DatasetRequests, count: int) -> list[int]:
    """The rows with the shortest prompts."""
    return sorted(range(len(asked.rows.rows)), key=lambda row: (len(asked.read(row)), row))[:count]


def spare(tokens: Sequence[int], decode: Decode) -> int:
    """How many tokens stand before the last line, which asks for the answer and stays."""
    last = len(tokens)
    while last > 1 and "\n" not in decode(tokens[last - 1 : last]):
        last -= 1
    return last - 1


@dataclass
class DecisionGrid:
    """What every decision answers, row by row, in a file that grows.

    Attributes:
        path: one line a row.
        key: what the answers depend on; lines of another key are left alone and not looked at.
    """

    path: Path
    key: str
    _right: dict[int, frozenset[Decision]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in read_lines(self.path):
            if line["key"] == self.key:
                self._right[line["row"]] = _decisions(line["right"])

    @property
    def right(self) -> Right:
        """All that is known."""
        return self._right

    def fill(
        self, asked: DatasetRequests, rows: Sequence[int], decoders: Callable[[], Decoders], scorer: Scorer
    ) -> None:
        """Answer the rows that are not known yet under every decision.

        Args:
            asked: all rows.
            rows: those that are wanted.
            decoders: gives the target on every level; not called if all is known.
            scorer: of prompts' tokens.
        """
        missing = [row for row in rows if row not in self._right]
        if not missing:
            return
        opened = decoders()
        for row in missing:
            found = _answered(asked, row, opened, scorer)
            self._right[row] = frozenset(found)
            line = {"key": self.key, "row": row, "right": [[*one] for one in found]}
            with self.path.open("a") as out:
                out.write(json.dumps(line) + "\n")
            known = len(rows) - len(missing) + missing.index(row) + 1
            print(f"answered {known} of {len(rows)} questions under {len(EVERY)} decisions", flush=True)


def _decisions(pairs: Sequence[Sequence[float]]) -> frozenset[Decision]:
    return frozenset(Decision(*one) for one in pairs)


def _answered(asked: DatasetRequests, row: int, decoders: Decoders, scorer: Scorer) -> list[Decision]:
    """The decisions under which a row is answered right."""
    read = asked.read(row)
    free = spare(read, asked.text.decode)
    scores = scorer.scores(read)
    choices = [one.token_ids for one in asked.prompt(row).continuations]
    contexts = [shortened(read, kept_tokens(len(read), level, free), scores, free) for level in LEVELS]
    pairs = [(context, choice) for context in contexts for choice in choices]
    found = []
    for model, decoder in decoders.items():
        nats = likelihoods(decoder, pairs)
        for i, level in enumerate(LEVELS):
            said = [Likelihood(one, False) for one in nats[i * len(choices) : (i + 1) * len(choices)]]
            if asked.is_right(row, said):
                found.append(Decision(level, model))
    return found


@torch.no_grad()
def likelihoods(decoder: Decoder, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[float]:
    """Nats of continuations, each after its context, all texts side by side in one pass.

    A text that several pairs read is read once: of choices of one token, the context alone. A small model's
    pass over few tokens takes as long as one over many, so this is faster than one pass a context.
    """
    texts = [(*context, *continuation)[:-1] for context, continuation in pairs]
    starts, rows = {}, 0
    for text in texts:
        if text not in starts:
            starts[text], rows = rows, rows + len(text)
    mask = torch.block_diag(*(torch.ones(len(text), len(text)).tril() for text in starts)).bool()
    at = torch.cat([torch.arange(len(text)) for text in starts])
    cache = KVCache(decoder.config, rows)
    x = decoder.embed(torch.tensor([token for text in starts for token in text]), at)
    for i in range(decoder.config.layers):
        x = decoder.layer(i, x, at, mask, cache)
    found = []
    said: dict[int, Tensor] = {}
    for text, (context, continuation) in zip(texts, pairs, strict=True):
        first = starts[text] + len(context) - 1
        for row in range(first, first + len(continuation)):
            if row not in said:
                said[row] = decoder.head(x[row : row + 1])[0].log_softmax(-1)
        found.append(sum(float(said[first + i][token]) for i, token in enumerate(continuation)))
    return found


@dataclass(frozen=True)
class Labels:
    """Which decision is the label of a row and an objective.

    Attributes:
        order: `lightest` takes the right decision with the least product of levels, of equals the smaller
            model; `release` what is last in its loops, the largest model and of it the shortest prompt.
        default: what is taken where no feasible decision is right: the `largest` or the `lightest` product of
            all feasible ones, or a `random` one. Deviation: the release takes an infeasible one.
        margin: of either objective below 1, left for what is the same on every level: by a phone's profile
            deciding takes 0.5% of TTFT, and output projection and cache up to 1.8% of TPOT, so that a level
            just at its objective never passes the check.
        seed: of random defaults.
    """

    order: str
    default: str
    margin: float
    seed: int

    @cached_property
    def feasible(self) -> dict[tuple[float, float], list[Decision]]:
        """By objective, TTFT and TPOT, what meets it nominally; one that nothing meets is left out."""
        found = {}
        for ttft, tpot in product(LEVELS, LEVELS):
            room = LatencySlo(ttft=ttft - self.margin, tpot=tpot - self.margin if tpot < 1.0 else 1.0)
            found[ttft, tpot] = [one for one in EVERY if room.met_nominally(one)]
        return {objective: feasible for objective, feasible in found.items() if feasible}

    def label(
        self, row: int, objective: tuple[float, float], right: frozenset[Decision]
    ) -> tuple[Decision, bool]:
        """The label, and whether it is the default."""
        feasible = self.feasible[objective]
        fitting_ones = [one for one in feasible if one in right]
        if fitting_ones:
            released = self.order == "release"
            key = (lambda one: (-one.model, one.prompt)) if released else weight
            return min(fitting_ones, key=key), False
        if self.default == "random":
            return random.Random(f"{self.seed}/{row}/{objective}").choice(feasible), True
        return (max if self.default == "largest" else min)(feasible, key=weight), True

    def examples(
        self, right: Right, asked: DatasetRequests, rows: Sequence[int], net: DualHead, pieces: WordPieces
    ) -> list[HeadExample]:
        """Every row under every objective; an example's text is its row's place in `rows`."""
        made = []
        for place, row in enumerate(rows):
            ids = fitting(pieces.split(asked.text.decode(asked.read(row)))[0], net.positions)
            for objective in self.feasible:
                chosen, _ = self.label(row, objective, right[row])
                whole = [pieces.first, *net.objective_ids(*objective), *ids, pieces.last]
                classes = torch.tensor([LEVELS.index(chosen.prompt), LEVELS.index(chosen.model)])
                made.append(HeadExample(torch.tensor(whole), classes, place))
        return made


def weight(decision: Decision) -> tuple[float, float]:
    """What makes a decision light: the product of its levels, of equals the model's."""
    return round(decision.prompt * decision.model, 9), decision.model


@dataclass(frozen=True)
class Judge:
    """How well decisions serve held-out rows: a decision that is not feasible falls back to a random one.

    Attributes:
        labels: what is feasible.
        right: what is right.
        rows: held-out ones.
    """

    labels: Labels
    right: Right
    rows: Sequence[int]

    def judged(self, chosen: Mapping[tuple[int, tuple[float, float]], Decision]) -> dict[str, float]:
        """Shares of right answers over rows and objectives, all and the paper's, and of fallbacks.

        Args:
            chosen: by row and objective.
        """
        worth, fell = {}, []
        for (row, objective), decision in chosen.items():
            feasible = self.labels.feasible[objective]
            fell.append(float(decision not in feasible))
            worth[row, objective] = (
                self._random(row, objective) if fell[-1] else float(decision in self.right[row])
            )
        return {**self._shares(worth), "fell_back": round(fmean(fell), 4)}

    def rivals(self, trained: Sequence[int]) -> dict[str, dict[str, float]]:
        """What serves the same rows without reading them.

        `majority` is the commonest label of the trained rows, `majority_of_objective` that of each objective.
        """
        labels = {
            (row, objective): self.labels.label(row, objective, self.right[row])[0]
            for row in trained
            for objective in self.labels.feasible
        }
        common = Counter(labels.values()).most_common(1)[0][0]
        by_objective = {
            objective: Counter(labels[row, objective] for row in trained).most_common(1)[0][0]
            for objective in self.labels.feasible
        }
        pairs = list(product(self.rows, self.labels.feasible))
        largest = {
            (row, objective): max(self.labels.feasible[objective], key=weight) for row, objective in pairs
        }
        return {
            "random": self._shares({pair: self._random(*pair) for pair in pairs}),
            "majority": self.judged(dict.fromkeys(pairs, common)),
            "majority_of_objective": self.judged({pair: by_objective[pair[1]] for pair in pairs}),
            "largest": self.judged(largest),
            "oracle": self._shares(
                {
                    (row, objective): float(
                        any(one in self.right[row] for one in self.labels.feasible[objective])
                    )
                    for row, objective in pairs
                }
            ),
        }

    def _random(self, row: int, objective: tuple[float, float]) -> float:
        """What a random feasible decision answers right, expected."""
        return fmean(float(one in self.right[row]) for one in self.labels.feasible[objective])

    def _shares(self, worth: Mapping[tuple[int, tuple[float, float]], float]) -> dict[str, float]:
        paper = [one for (_, (_, tpot)), one in worth.items() if tpot >= TPOT_OF_THE_PAPER]
        return {"right": round(fmean(worth.values()), 4), "right_of_the_paper": round(fmean(paper), 4)}


def summary(labels: Labels, right: Right, rows: Sequence[int]) -> dict[str, Any]:
    """What the record says of the labels: how many are defaults, and what all decisions answer."""
    told = [labels.label(row, objective, right[row]) for row in rows for objective in labels.feasible]
    paper = [
        labels.label(row, objective, right[row])[1]
        for row in rows
        for objective in labels.feasible
        if objective[1] >= TPOT_OF_THE_PAPER
    ]
    return {
        "default_labels": round(fmean(float(default) for _, default in told), 4),
        "default_labels_of_the_paper": round(fmean(map(float, paper)), 4),
        "right_of_all_decisions": round(fmean(len(right[row]) / len(EVERY) for row in rows), 4),
        "right_of_the_whole": round(fmean(float(Decision(1.0, 1.0) in right[row]) for row in rows), 4),
        "right_by_model": {
            f"{level:g}": round(
                fmean(float(Decision(prompt, level) in right[row]) for row in rows for prompt in LEVELS), 4
            )
            for level in LEVELS
        },
        "right_by_prompt": {
            f"{level:g}": round(
                fmean(float(Decision(level, model) in right[row]) for row in rows for model in LEVELS), 4
            )
            for level in LEVELS
        },
    }
