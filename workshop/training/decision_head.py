"""Owns the decision head's training: ElastiLM's self-induced labels (3.3), the head's loss, and its judge.

A decision's label is what the elasticized target itself answers correctly under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F

from repro import data
from repro.methods.elastilm import elastic_profile, lora
from repro.methods.elastilm.dual_head_network import DualHead
from repro.methods.elastilm.elastic_levels import anchors_of, sizes_at
from repro.methods.elastilm.elastication import rank_units
from repro.methods.elastilm.submodels import reorder, submodel
from repro.methods.elastilm.tlm import last_pieces
from repro.methods.elastilm.token_spans import Decode
from repro.methods.elastilm.unit_importance import Measure
from repro.methods.elastilm.word_pieces import WordPieces
from repro.methods.serving.shortening import Scorer, shorten_prompt
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo, kept_tokens
from repro.methods.serving.slo import decisions as every_decision
from repro.models.analysis.likelihood import Reader
from repro.models.transformer.decoder import Decoder
from repro.scenarios.accuracy import AccuracyScenario
from repro.scenarios.offline import dense
from repro.scenarios.serving.asked import DatasetRequests
from workshop.training.elasticize import ANCHORS
from workshop.training.loop import Figures, Part
from workshop.training.score_head import HeadExample, filled, remembered

EVERY = every_decision()
Decoders = Mapping[float, Decoder]
"""The target's decoder by model level."""

Objective = tuple[float, float]
"""TTFT and TPOT, as shares of the whole model's."""

Right = Mapping[int, frozenset[Decision]]
"""Decisions that answer correctly, by dataset row."""


def levels(cell: AccuracyScenario, adapted: bool) -> Decoders:
    """The elasticized target at every level, all as views of shared weights; optionally with adapters."""
    decoder = dense(cell.folder)
    ranking = rank_units(decoder, list(map(torch.tensor, cell.corpus.sequences)), "committed", Measure())
    order, folder = ranking.profile.order, ranking.folder
    whole, locked = reorder(decoder, order), anchors_of(ranking.profile.losses, ANCHORS)
    decoders: dict[float, Decoder] = {}
    for level in LEVELS:
        kept = sizes_at(decoder.config, level, locked)
        decoders[level] = sub = submodel(whole, kept)
        if adapted and folder is not None and level < 1.0:
            adapters = elastic_profile.committed_lora(folder, "elastilm", level, kept, order)
            decoders[level] = sub if adapters is None else lora.attach_adapters(sub, adapters)
    return decoders


def requests(dataset: str, text: Any) -> DatasetRequests:
    """All rows of a multiple-choice dataset."""
    config = data.read_config(dataset)
    return DatasetRequests(config, data.load_rows(config), text)


def shortest(asked: DatasetRequests, count: int) -> list[int]:
    """Indices of the rows with the shortest prompts."""
    return sorted(range(len(asked.rows.rows)), key=lambda row: (len(asked.read(row)), row))[:count]


def spare(tokens: Sequence[int], decode: Decode) -> int:
    """Number of tokens before the last line, which asks for the answer and is never dropped."""
    last = len(tokens)
    while last > 1 and "\n" not in decode(tokens[last - 1 : last]):
        last -= 1
    return last - 1


def right_decisions(
    path: Path,
    key: str,
    asked: DatasetRequests,
    rows: Sequence[int],
    open_decoders: Callable[[], Decoders],
    scorer: Scorer,
) -> Right:
    """For each row the decisions under which it is answered correctly.

    Args:
        path: see `remembered`.
        key: hash of what the answers depend on.
        asked: all rows.
        rows: indices of the rows.
        open_decoders: returns the target at every level; not called if all rows are in the file.
        scorer: scores the prompts' tokens.
    """

    @cache
    def readers() -> dict[float, Reader]:
        return {level: Reader(decoder) for level, decoder in open_decoders().items()}

    def label(i: int) -> list[Decision]:
        return list(_answered(asked, rows[i], readers(), scorer))

    rights = remembered(path, [f"{key} {row}" for row in rows], label)
    return {row: frozenset(map(Decision._make, right)) for row, right in zip(rows, rights, strict=True)}


def _answered(
    asked: DatasetRequests, row: int, readers: Mapping[float, Reader], scorer: Scorer
) -> Iterator[Decision]:
    """The decisions under which a row is answered correctly."""
    read = asked.read(row)
    free = spare(read, asked.text.decode)
    scores = scorer.scores(read)
    choices = [continuation.token_ids for continuation in asked.prompt(row).continuations]
    for level in LEVELS:
        context = shorten_prompt(read, kept_tokens(len(read), level, free), scores, free)
        for model, reader in readers.items():
            if asked.is_right(row, reader.score([(context, choice) for choice in choices])):
                yield Decision(level, model)


@dataclass(frozen=True)
class Labels:
    """The rule that gives the label of a row under an objective.

    Deviation: where no feasible decision is correct, the release takes an infeasible one, ours the heaviest.

    Attributes:
        margin: subtracted from objectives below 1 for costs that are equal at every level: on a phone's
            profile the decision takes 0.5% of TTFT, and output projection and cache up to 1.8% of TPOT, so a
            level exactly at its objective would never pass the check.
    """

    margin: float

    @cached_property
    def feasible(self) -> dict[Objective, list[Decision]]:
        """Decisions that nominally meet each objective; objectives without any are left out."""
        met = {}
        for ttft, tpot in product(LEVELS, LEVELS):
            room = LatencySlo(ttft=ttft - self.margin, tpot=tpot - self.margin if tpot < 1.0 else 1.0)
            met[ttft, tpot] = [decision for decision in EVERY if room.met_nominally(decision)]
        return {objective: feasible for objective, feasible in met.items() if feasible}

    def label(self, objective: Objective, right: frozenset[Decision]) -> tuple[Decision, bool]:
        """The lightest correct decision, or else the heaviest feasible one; and whether it is the latter."""
        feasible = self.feasible[objective]
        correct = [decision for decision in feasible if decision in right]
        return (min(correct, key=weight), False) if correct else (max(feasible, key=weight), True)

    def examples(
        self, right: Right, asked: DatasetRequests, rows: Sequence[int], net: DualHead, pieces: WordPieces
    ) -> list[HeadExample]:
        """Every row under every objective; an example's `text` is the row's index in `rows`."""
        examples = []
        for place, row in enumerate(rows):
            ids = last_pieces(pieces.split(asked.text.decode(asked.read(row)))[0], net.positions)
            for objective in self.feasible:
                chosen, _ = self.label(objective, right[row])
                whole = [pieces.first, *net.objective_ids(*objective), *ids, pieces.last]
                classes = torch.tensor([LEVELS.index(chosen.prompt), LEVELS.index(chosen.model)])
                examples.append(HeadExample(torch.tensor(whole), classes, place))
        return examples


def weight(decision: Decision) -> tuple[float, float]:
    """Sort key of decisions from light to heavy: the product of the levels, then the model level."""
    return round(decision.prompt * decision.model, 9), decision.model


@dataclass(frozen=True)
class Judge:
    """Accuracy of decisions on held-out rows; an infeasible decision is replaced by a random feasible one.

    Attributes:
        labels: gives the feasible decisions.
        right: the correct decisions.
        rows: the held-out rows.
    """

    labels: Labels
    right: Right
    rows: Sequence[int]

    @property
    def pairs(self) -> list[tuple[int, Objective]]:
        """Every row under every objective."""
        return list(product(self.rows, self.labels.feasible))

    def judged(self, chosen: Iterable[Decision]) -> Figures:
        """Accuracy of the decisions for `pairs`, and the share that is replaced."""
        worth, fell = [], []
        for (row, objective), decision in zip(self.pairs, chosen, strict=True):
            fell.append(decision not in self.labels.feasible[objective])
            worth.append(self._by_chance(row, objective) if fell[-1] else float(decision in self.right[row]))
        return {"right": _mean(worth), "fell_back": _mean(fell)}

    def rivals(self, trained: Iterable[int]) -> Figures:
        """Accuracy for the same pairs of decisions that do not read the prompt, and of an oracle.

        `majority` is the most frequent label of each objective in the rows `trained`.
        """
        feasible, common = self.labels.feasible, {}
        rights = [self.right[row] for row in trained]
        for objective in feasible:
            chosen = Counter(self.labels.label(objective, right)[0] for right in rights)
            common[objective] = chosen.most_common(1)[0][0]
        return {
            "random": _mean(self._by_chance(*pair) for pair in self.pairs),
            "majority": self.judged(common[objective] for _, objective in self.pairs)["right"],
            "oracle": _mean(bool(self.right[row] & {*feasible[objective]}) for row, objective in self.pairs),
        }

    def _by_chance(self, row: int, objective: Objective) -> float:
        """Expected accuracy of a random feasible decision."""
        return fmean(decision in self.right[row] for decision in self.labels.feasible[objective])


def _mean(values: Iterable[float]) -> float:
    return round(fmean(values), 4)


def summary(labels: Labels, right: Right, rows: Sequence[int]) -> dict[str, Any]:
    """Statistics of the labels for the record: share of defaults, and accuracy of all decisions."""

    def share(decisions: Iterable[Decision]) -> float:
        return _mean(decision in right[row] for decision in decisions for row in rows)

    return {
        "default_labels": _mean(labels.label(at, right[row])[1] for row in rows for at in labels.feasible),
        "right_of_all_decisions": share(EVERY),
        "right_of_the_whole": share([Decision(1.0, 1.0)]),
        "right_by_model": {f"{at:g}": share(Decision(level, at) for level in LEVELS) for at in LEVELS},
        "right_by_prompt": {f"{at:g}": share(Decision(at, level) for level in LEVELS) for at in LEVELS},
    }


@dataclass(frozen=True)
class DecisionLoss:
    """Sum of both classifiers' cross-entropies, on padded texts."""

    net: DualHead
    padding: int

    def __call__(self, chosen: list[HeadExample], step: int) -> Iterator[Part]:
        """The loss of a batch in one part, and the share of examples with both levels correct."""
        ids, real = filled(chosen, self.padding)
        labels = torch.stack([example.labels for example in chosen])
        levels = [logits.float() for logits in self.net.decide(ids, real)]
        both = torch.stack([logits.argmax(-1) for logits in levels], -1) == labels
        parts = (F.cross_entropy(logits, labels[:, i]) for i, logits in enumerate(levels))
        yield sum(parts, torch.zeros(())), both.all(-1).float().mean()


@torch.no_grad()
def decided(
    net: DualHead, examples: Sequence[HeadExample], padding: int, at_once: int = 32
) -> list[Decision]:
    """The most likely decision of the decision head for each example."""
    decisions: list[Decision] = []
    for start in range(0, len(examples), at_once):
        logits = net.decide(*filled(examples[start : start + at_once], padding))
        classes = zip(*(each.argmax(-1).tolist() for each in logits), strict=True)
        decisions += [Decision(LEVELS[prompt], LEVELS[model]) for prompt, model in classes]
    return decisions
