"""Draft calibration: how often a draft predicts its target's token, and how it is brought to another value.

`calibrate_draft_to` names the value: a published agreement, a share, or two acceptance lengths of Medusa
heads. Must not know records, sweeps, or how texts are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar

from repro.core.bounds import AgreedShare
from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import require
from repro.methods.speculative.drafting.calibrated_draft import (
    calibration_error,
    mean_confidence,
    swap_probability,
    temperature_for,
)
from repro.methods.speculative.drafting.heads_fit import WIDTHS, FittedHeads, fit_heads
from repro.models.forward.network import Logits, Network, rows_of
from repro.models.runtime.model import Model, ModelConfig
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.records.record import Scalar
from repro.reports.reference.reference import find, load_cells

AGREEMENT, ACCEPTANCE = "draft_token_correctness", "acceptance_length"
"""Published metrics that a draft is calibrated to."""

TREES_PREFIX = "ghidorah.table1.mt_bench"
"""Id prefix of the MT-Bench values: Ghidorah searches all its trees on MT-Bench (sec. IV-B)."""

VERSION = 2
"""Of the calibration; 1 left the draft its own confidences."""

CHOICES = "choices"
"""The value of `draft_calibration` that leaves the draft its own confidences."""

WEIGHTS = "weights"
"""The value of `draft_calibration` that makes a draft of the target's weights."""

ERROR_PREFIX = "calibrate_draft_to: "

NEAR_AGREEMENT, MOST_MISS = 0.005, 0.01
"""An agreement so near the one asked for ends the search; the largest difference that is accepted."""

MOST_HALVINGS = 12
"""Most shares of random weights that are tried."""


@dataclass(frozen=True)
class Goal:
    """An agreement that is asked for.

    Attributes:
        cell: id of the published cell, "" for a number.
        published: percentage of tokens that agree.
    """

    cell: str
    published: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of the published values that a draft is fitted to."""
        return (self.cell,) if self.cell else ()


@dataclass(frozen=True)
class Matched(Goal):
    """A draft whose choices were brought to a goal.

    Attributes:
        native: the uncalibrated draft's agreement on the calibration prompts, in percent.
        probability: probability that the draft's first choice in a context is replaced by the target's.
        confidence: the uncalibrated draft's mean confidence in its first choices there, in percent.
        temperature: the temperature that brings it to the published agreement; 1 leaves it as it is.
    """

    native: float
    probability: float
    confidence: float
    temperature: float


@dataclass(frozen=True)
class MatchedWeights(Goal):
    """A draft of the target's interpolated weights (`InterpolatedModel`), brought to a goal.

    Attributes:
        native: the agreement reached on the calibration prompts, in percent.
        share: how far the weights are from the target's.
        seed: of the random weights.
        confidence: mean confidence in first choices there before the temperature, in percent.
        temperature: the temperature that brings it to the agreement reached.
        calibration_error: expected calibration error of first choices there at that temperature, in percent.
    """

    native: float
    share: float
    seed: int
    confidence: float
    temperature: float
    calibration_error: float

    probability: ClassVar[float] = 0.0

    def figures(self, evaluated: Agreement) -> dict[str, Scalar]:
        """What a table may print of it, with what the draft reaches on the evaluated prompts."""
        error = calibration_error(evaluated.rows, evaluated.hits, self.temperature)
        return {
            "draft_share": self.share,
            "draft_temperature": self.temperature,
            "draft_agreement_calibration": self.native,
            "draft_agreement": 100 * evaluated.share,
            "draft_calibration_error": 100 * error,
        }


@dataclass(frozen=True)
class HeadMatch:
    """The calibration of a draft's heads to a row of Table I.

    Attributes:
        heads: the accuracies that the calibrated heads follow.
        trees: the accuracies that the tree search uses: MT-Bench's (Ghidorah sec. IV-B).
    """

    heads: FittedHeads
    trees: FittedHeads

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of the published values that were fitted."""
        return tuple(dict.fromkeys((*self.heads.cells, *self.trees.cells)))

    @property
    def request(self) -> dict[str, Any]:
        """What the two fits are made of, for keys."""
        return {"heads": self.heads.request, "trees": self.trees.request}


Calibrated = Matched | MatchedWeights | HeadMatch
"""What a draft was brought to."""


def goal_of(names: object) -> Goal | HeadMatch:
    """Parse `calibrate_draft_to`: a published agreement's id, a share, or the ids of two acceptance lengths.

    Raises:
        InputError: as `published` and `head_match`, or the share is not between 0 and 1.
    """
    if isinstance(names, (bool, int, float)):
        require(AgreedShare, names, "calibrate_draft_to")
        return Goal("", 100 * float(names))
    try:
        return head_match(names) if isinstance(names, (list, tuple)) else published_goal(names)
    except InputError as wrong:
        raise InputError(f"{ERROR_PREFIX}{str(wrong).removeprefix(ERROR_PREFIX)}") from wrong


def published_goal(name: object) -> Goal:
    """Look up a published agreement by its id.

    Raises:
        InputError: there is no such cell, or it is not a single agreement (with near misses).
    """
    cells = load_cells()
    cell = find(cells, str(name))
    agreements = {
        c.id: c.value_low for c in cells.values() if c.metric == AGREEMENT and c.value_low == c.value_high
    }
    agreement = agreements.get(cell.id)
    if agreement is None:
        raise InputError(f"{ERROR_PREFIX}{unknown('single published agreement', cell.id, agreements)}")
    return Goal(cell.id, agreement)


def head_match(names: Sequence[object]) -> HeadMatch:
    """Fit heads to two ids: one dataset's acceptance lengths at widths 2 and 4.

    Raises:
        InputError: the ids are no such pair (with near misses), or the fit has no solution.
    """
    trees = [f"{TREES_PREFIX}.width{width}" for width in WIDTHS]
    return HeadMatch(_heads_of([str(name) for name in names]), _heads_of(trees))


def _heads_of(names: Sequence[str]) -> FittedHeads:
    """The heads that have a pair of published acceptance lengths."""
    published_cells = load_cells()
    cells = [find(published_cells, name) for name in names]
    lengths = {
        c.id
        for c in published_cells.values()
        if c.metric == ACCEPTANCE and c.conditions.get("width", "").isdigit()
    }
    for cell in cells:
        if cell.id not in lengths:
            raise InputError(f"match: {unknown('published acceptance length of a width', cell.id, lengths)}")
    widths = tuple(int(cell.conditions["width"]) for cell in cells)
    if widths != WIDTHS or len({cell.dataset for cell in cells}) > 1:
        pairs = zip(widths, cells, strict=True)
        listing = ", ".join(f"width {width} on {cell.dataset}" for width, cell in pairs)
        raise InputError(
            f"match has {listing or 'no id'}; two ids bring heads to a dataset's acceptance lengths at width "
            f"2 and width 4, such as [{TREES_PREFIX}.width2, {TREES_PREFIX}.width4]"
        )
    narrow, broad = cells
    return fit_heads((narrow.id, broad.id), (float(narrow.value_low or 0.0), float(broad.value_low or 0.0)))


def require_matchable(emulated: bool, sampling: Sampling, models: Mapping[str, ModelConfig]) -> None:
    """InputError unless the device is emulated, sampling is greedy, and both models have checkpoints."""
    if not emulated:
        raise InputError(
            "calibrate_draft_to lets the target correct the draft unbilled, and a real device would have to "
            "pay for it; choose an emulated device, or calibrate_draft_to=null"
        )
    if not sampling.greedy:
        raise InputError(
            f"calibrate_draft_to puts a first choice in its place, and sampling.temperature is "
            f"{sampling.temperature}; choose sampling.temperature=0, or calibrate_draft_to=null"
        )
    for model in (models["target"], models["draft"]):
        if model.checkpoint is None:
            raise InputError(
                f"calibrate_draft_to needs real tokens, and {model.name} has no checkpoint; choose one, or "
                "calibrate_draft_to=null"
            )


def require_heads(matched: HeadMatch, draft: Model) -> None:
    """InputError if the draft's number of Medusa heads differs from the fitted number."""
    head_count, matched_count = draft.model_cost.shape.medusa, len(matched.heads.accuracies)
    if head_count != matched_count:
        raise InputError(
            f"calibrate_draft_to brings {matched_count} Medusa heads to acceptance lengths, and "
            f"{draft.config.name} has {head_count or 'none'}; choose a draft with {matched_count} heads, or "
            "calibrate_draft_to=null"
        )


@dataclass(frozen=True)
class Agreement:
    """In how many of so many tokens of the target's answers the draft's first choice is the target's.

    Attributes:
        right, tokens: these numbers.
        rows: what the draft said before each of these tokens.
        hits: whether its first choice there is the target's.
    """

    right: int
    tokens: int
    rows: Sequence[Logits] = field(repr=False)
    hits: Sequence[bool] = field(repr=False)

    @property
    def share(self) -> float:
        """The share of tokens."""
        return self.right / self.tokens

    @property
    def error(self) -> float:
        """Its standard error, of tokens that are independent."""
        return sqrt(self.share * (1 - self.share) / self.tokens)


def native(
    answers: Sequence[tuple[Prefix, Sequence[int]]], draft: Network, report: Callable[[int], None]
) -> Agreement:
    """How often the draft predicts the target's greedy token from the same prefix (EdgeLLM sec. II-C).

    The first token of an answer, from the prefill, is not drafted. An answer is one pass of the draft.

    Args:
        answers: calibration prompts, each with the target's answer.
        draft: the draft.
        report: progress callback, called with the number of finished prompts.

    Raises:
        InputError: no answer has a second token, so nothing is drafted.
    """
    hits, draft_rows = list[bool](), list[Logits]()
    for i, (prompt, answer) in enumerate(answers):
        report(i)
        contexts = [prompt.extend(answer[:length]) for length in range(1, len(answer))]
        if contexts:
            draft.start(prompt)
            rows = rows_of(draft, contexts)
            hits += [row.choice == token for row, token in zip(rows, answer[1:], strict=True)]
            draft_rows += rows
    report(len(answers))
    if not draft_rows:
        raise InputError(
            f"the target's answers to {len(answers)} calibration prompts end with their first token, where "
            "nothing is drafted; raise calibration_prompts or max_tokens"
        )
    return Agreement(sum(hits), len(draft_rows), draft_rows, hits)


def match(goal: Goal, measured: Agreement, confidences: bool = True) -> Matched:
    """The swap probability from a native to the published agreement, and the temperature of confidences.

    Args:
        goal: the published agreement.
        measured: the native one.
        confidences: whether the mean confidence of first choices is brought to the agreement as well.

    Raises:
        InputError: the native agreement is higher by more than two standard errors, or no temperature
            brings the confidences to the published one.
    """
    share = goal.published / 100
    probability = swap_probability(measured.share, share, measured.error)
    confidence = mean_confidence(measured.rows, 1.0)
    temperature = temperature_for(measured.rows, share) if confidences else 1.0
    native = 100 * measured.share
    return Matched(goal.cell, goal.published, native, probability, 100 * confidence, temperature)


def match_weights(goal: Goal, seed: int, agreement_at: Callable[[float], Agreement]) -> MatchedWeights:
    """The share of random weights at which a draft of the target's weights agrees as asked for.

    It is halved into, as agreement falls with the share; the temperature makes the mean confidence of first
    choices what agreement is there.

    Args:
        goal: the agreement asked for.
        seed: of the random weights, for the record.
        agreement_at: how often the draft agrees on the calibration prompts at a share.

    Raises:
        InputError: no share comes within a point, or no temperature brings the confidences there.
    """
    aim, low, high = goal.published / 100, 0.0, 1.0
    trials: list[tuple[float, float, Agreement]] = []
    while len(trials) < MOST_HALVINGS and not (trials and min(trials)[0] <= NEAR_AGREEMENT):
        share = (low + high) / 2
        outcome = agreement_at(share)
        trials.append((abs(outcome.share - aim), share, outcome))
        low, high = (share, high) if outcome.share > aim else (low, share)
    miss, share, outcome = min(trials, key=lambda trial: trial[:2])
    if miss > MOST_MISS:
        raise InputError(
            f"no draft of the target's weights comes within a point of {aim:.1%} on the calibration rows: "
            f"the nearest agrees in {outcome.share:.1%} of {outcome.tokens} tokens; raise calibration_prompts"
        )
    temperature = temperature_for(outcome.rows, outcome.share)
    return MatchedWeights(
        cell=goal.cell,
        published=goal.published,
        native=100 * outcome.share,
        share=share,
        seed=seed,
        confidence=100 * mean_confidence(outcome.rows, 1.0),
        temperature=temperature,
        calibration_error=100 * calibration_error(outcome.rows, outcome.hits, temperature),
    )
