"""Owns ElastiLM's self-induced labels (3.3): what decisions answer, and which one a head should make."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from distill.heads import Example
from distill.surprisal import read_lines
from repro import data
from repro.answers import Requests
from repro.dense_cell import dense
from repro.methods.dual_head import fitting
from repro.methods.elastic_levels import anchors_of, kept_at
from repro.methods.elastication import ranked
from repro.methods.objectives import LEVELS, Decision, Objective, decisions, kept_tokens
from repro.methods.shortening import Scorer, shortened
from repro.models import elastic_profile, lora
from repro.models.decoder import Decoder
from repro.models.dual_head import DualHead
from repro.models.elastic import reordered, submodel
from repro.models.likelihood import Reader
from repro.models.token_spans import Decode
from repro.models.unit_importance import Measure
from repro.models.word_pieces import WordPieces
from repro.scored import ScoredCell

ANCHORS = 0.2
EVERY = decisions()
ORDERS = ("lightest", "release")
DEFAULTS = ("largest", "lightest", "random")
TPOT_OF_THE_PAPER = 0.5
"""The least that the paper asks for; objectives of time and energy (5.6) go below."""

Right = Mapping[int, frozenset[Decision]]
"""By row, the decisions that answer it right."""


def levels(cell: ScoredCell) -> dict[float, Decoder]:
    """The elasticized target on every level, with adapters where there are any; all views of one memory."""
    decoder = dense(cell.folder)
    found = ranked(decoder, [torch.tensor(one) for one in cell.corpus.sequences], "committed", Measure())
    order = found.profile.order
    whole, locked = reordered(decoder, order), anchors_of(found.profile.losses, ANCHORS)
    made: dict[float, Decoder] = {}
    for level in LEVELS:
        kept = kept_at(decoder.config, level, locked)
        sub = submodel(whole, kept)
        adapters = None
        if found.folder is not None and level < 1.0:
            adapters = elastic_profile.committed_lora(found.folder, "elastilm", level, kept, order)
        made[level] = sub if adapters is None else lora.attached(sub, adapters)
    return made


def requests(dataset: str, text: Any) -> Requests:
    """All rows of a dataset of choices."""
    config = data.read_config(dataset)
    return Requests(config, data.load_rows(config), text)


def shortest(asked: Requests, count: int) -> list[int]:
    """The rows with the shortest prompts."""
    return sorted(range(len(asked.prompts)), key=lambda row: (len(asked.read(row)), row))[:count]


def spare(tokens: Sequence[int], decode: Decode) -> int:
    """How many tokens stand before the last line, which asks for the answer and stays."""
    last = len(tokens)
    while last > 1 and "\n" not in decode(tokens[last - 1 : last]):
        last -= 1
    return last - 1


@dataclass
class Grid:
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

    def fill(self, asked: Requests, rows: Sequence[int], cell: ScoredCell, scorer: Scorer) -> None:
        """Answer the rows that are not known yet under every decision."""
        missing = [row for row in rows if row not in self._right]
        if not missing:
            return
        readers = {level: Reader(decoder) for level, decoder in levels(cell).items()}
        for row in missing:
            found = _answered(asked, row, readers, scorer)
            self._right[row] = frozenset(found)
            line = {"key": self.key, "row": row, "right": [[*one] for one in found]}
            with self.path.open("a") as out:
                out.write(json.dumps(line) + "\n")
            known = len(rows) - len(missing) + missing.index(row) + 1
            print(f"answered {known} of {len(rows)} questions under {len(EVERY)} decisions", flush=True)


def _decisions(pairs: Sequence[Sequence[float]]) -> frozenset[Decision]:
    return frozenset(Decision(*one) for one in pairs)


def _answered(asked: Requests, row: int, readers: Mapping[float, Reader], scorer: Scorer) -> list[Decision]:
    """The decisions under which a row is answered right."""
    read = asked.read(row)
    free = spare(read, asked.text.decode)
    scores = scorer.scores(read)
    found = []
    for level in LEVELS:
        context = shortened(read, kept_tokens(len(read), level, free), scores, free)
        pairs = [(context, one.token_ids) for one in asked.prompts[row].continuations]
        found += [
            Decision(level, model)
            for model, reader in readers.items()
            if asked.is_right(row, reader.score(pairs))
        ]
    return found


@dataclass(frozen=True)
class Labels:
    """Which decision is the label of a row and an objective.

    Attributes:
        order: `lightest` takes the right decision with the least product of levels, of equals the smaller
            model; `release` what is last in its loops, the largest model and of it the shortest prompt.
        default: what is taken where no feasible decision is right: the `largest` or the `lightest` product of
            all feasible ones, or a `random` one. Deviation: the release takes an infeasible one.
        margin: of TTFT, left out of what is feasible for what deciding itself takes.
        seed: of random defaults.
    """

    order: str
    default: str
    margin: float
    seed: int

    @cached_property
    def feasible(self) -> dict[tuple[float, float], list[Decision]]:
        """By objective, TTFT and TPOT, what meets it nominally."""
        return {
            (ttft, tpot): [
                one for one in EVERY if Objective(ttft=ttft - self.margin, tpot=tpot).met_nominally(one)
            ]
            for ttft, tpot in product(LEVELS, LEVELS)
        }

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
        self, right: Right, asked: Requests, rows: Sequence[int], net: DualHead, pieces: WordPieces
    ) -> list[Example]:
        """Every row under every objective; an example's text is its row's place in `rows`."""
        made = []
        for place, row in enumerate(rows):
            ids = fitting(pieces.split(asked.text.decode(asked.read(row)))[0], net.positions)
            for objective in self.feasible:
                chosen, _ = self.label(row, objective, right[row])
                whole = [pieces.first, *net.objective_ids(*objective), *ids, pieces.last]
                classes = torch.tensor([LEVELS.index(chosen.prompt), LEVELS.index(chosen.model)])
                made.append(Example(torch.tensor(whole), classes, place))
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
