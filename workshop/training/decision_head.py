"""Owns the decision head's training: ElastiLM's self-induced labels (3.3), the head's loss, and its judge.

A decision's label is what the elasticized target itself answers correctly under it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
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
from repro.scenarios.serving.asked import DatasetRequests
from workshop.training.loop import Part
from workshop.training.score_head import HeadExample, filled, read_lines

ANCHORS = 0.2
EVERY = decisions()
TPOT_OF_THE_PAPER = 0.5
"""Smallest TPOT objective in the paper; objectives of time and energy (5.6) go below."""

Decoders = Mapping[float, Decoder]
"""The target's decoder by model level."""

Objective = tuple[float, float]
"""TTFT and TPOT, as shares of the whole model's."""

Right = Mapping[int, frozenset[Decision]]
"""Decisions that answer correctly, by dataset row."""


def levels(cell: AccuracyScenario, adapted: bool) -> Decoders:
    """The elasticized target at every level, all as views of shared weights; optionally with adapters."""
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


@dataclass
class DecisionGrid:
    """For each dataset row the decisions that answer it correctly, in a file that is appended to.

    Attributes:
        path: a JSON-lines file, one line per row.
        key: hash of what the answers depend on; lines with another key are ignored.
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
        """All rows known so far."""
        return self._right

    def fill(
        self, asked: DatasetRequests, rows: Sequence[int], decoders: Callable[[], Decoders], scorer: Scorer
    ) -> None:
        """Answer the rows that are not known yet under every decision.

        Args:
            asked: all rows.
            rows: indices of the wanted rows.
            decoders: returns the target at every level; not called if all rows are known.
            scorer: scores the prompts' tokens.
        """
        missing = [row for row in rows if row not in self._right]
        if not missing:
            return
        opened = decoders()
        for row in missing:
            found = _answered(asked, row, opened, scorer)
            self._right[row] = frozenset(found)
            line = {"key": self.key, "row": row, "right": [[*one] for one in found]}
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            known = len(rows) - len(missing) + missing.index(row) + 1
            print(f"answered {known} of {len(rows)} questions under {len(EVERY)} decisions", flush=True)


def _decisions(pairs: Sequence[Sequence[float]]) -> frozenset[Decision]:
    return frozenset(Decision(*one) for one in pairs)


def _answered(asked: DatasetRequests, row: int, decoders: Decoders, scorer: Scorer) -> list[Decision]:
    """The decisions under which a row is answered correctly."""
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
    """Log-likelihoods in nats of continuations after their contexts, all packed in one forward pass.

    Equal texts are computed once: for choices of one token that is the context alone. A small model's pass
    over few tokens takes as long as one over many, so this is faster than one pass per context.
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
    """The rule that gives the label of a row under an objective.

    Deviation: where no feasible decision is correct, the release takes an infeasible one.

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
        made = []
        for place, row in enumerate(rows):
            ids = fitting(pieces.split(asked.text.decode(asked.read(row)))[0], net.positions)
            for objective in self.feasible:
                chosen, _ = self.label(objective, right[row])
                whole = [pieces.first, *net.objective_ids(*objective), *ids, pieces.last]
                classes = torch.tensor([LEVELS.index(chosen.prompt), LEVELS.index(chosen.model)])
                made.append(HeadExample(torch.tensor(whole), classes, place))
        return made


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

    def judged(self, chosen: Mapping[tuple[int, Objective], Decision]) -> dict[str, float]:
        """Accuracy over all objectives and over the paper's, and the share of fallbacks.

        Args:
            chosen: decision by row and objective.
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
        """Accuracy on the same rows of baselines that do not read the prompt, and of an oracle.

        `majority` is the most frequent label of the training rows, `majority_of_objective` that of each
        objective.
        """
        labels = {
            (row, objective): self.labels.label(objective, self.right[row])[0]
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

    def _random(self, row: int, objective: Objective) -> float:
        """Expected accuracy of a random feasible decision."""
        return fmean(float(one in self.right[row]) for one in self.labels.feasible[objective])

    def _shares(self, worth: Mapping[tuple[int, Objective], float]) -> dict[str, float]:
        paper = [one for (_, (_, tpot)), one in worth.items() if tpot >= TPOT_OF_THE_PAPER]
        return {"right": round(fmean(worth.values()), 4), "right_of_the_paper": round(fmean(paper), 4)}


def summary(labels: Labels, right: Right, rows: Sequence[int]) -> dict[str, Any]:
    """Statistics of the labels for the record: share of defaults, and accuracy of all decisions."""
    defaults = {
        (row, objective): float(labels.label(objective, right[row])[1])
        for row, objective in product(rows, labels.feasible)
    }
    paper = [default for (_, (_, tpot)), default in defaults.items() if tpot >= TPOT_OF_THE_PAPER]

    def share(decisions: Iterable[Decision]) -> float:
        return round(fmean(float(each in right[row]) for each in decisions for row in rows), 4)

    return {
        "default_labels": round(fmean(defaults.values()), 4),
        "default_labels_of_the_paper": round(fmean(paper), 4),
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
    found: list[Decision] = []
    for start in range(0, len(examples), at_once):
        said = net.decide(*filled(examples[start : start + at_once], padding))
        classes = zip(*(one.argmax(-1).tolist() for one in said), strict=True)
        found += [Decision(LEVELS[prompt], LEVELS[model]) for prompt, model in classes]
    return found
