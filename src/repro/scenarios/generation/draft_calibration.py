"""Draft calibration: measure how often a draft predicts its target's token, and match a published value.

Must not know records, sweeps or published tables beyond the requested value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, ClassVar

from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.core.typed import require
from repro.device.cost import FREE
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.speculative.head_recording import recorded
from repro.models.drafting.calibrated_draft import (
    calibration_error,
    mean_confidence,
    swap_probability,
    temperature_for,
)
from repro.models.drafting.head_ranks import HeadRanks, joined
from repro.models.forward.network import Logits, Network, rows_of
from repro.models.runtime.model import Model, ModelConfig
from repro.models.runtime.placement import RESIDENT
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.records.record import Scalar
from repro.reports.reference.reference import find, load_cells
from repro.scenarios.generation.heads_fit import HeadMatch, head_match

METRIC = "draft_token_correctness"
VERSION = 2
"""Of the calibration; 1 left the draft its own confidences."""

CHOICES = "choices"
"""The value of `draft_calibration` that leaves the draft its own confidences."""

WEIGHTS = "weights"
"""The value of `draft_calibration` that makes a draft of the target's weights."""

PLACE = "calibrate_draft_to: "

AgreedShare = Annotated[float, Interval(gt=0, le=0.99)]
"""An agreement that is asked for as a number."""

NEAR, MISS = 0.005, 0.01
"""An agreement so near the one asked for ends the search; the largest difference that is accepted."""

HALVINGS = 12
"""Most shares of random weights that are tried."""


@dataclass(frozen=True)
class Wanted:
    """An agreement: its published cell's id, "" for a number, and the percentage of tokens that agree."""

    cell: str
    published: float


@dataclass(frozen=True)
class Matched:
    """The calibration of a draft to a published agreement.

    Attributes:
        cell: id of the published cell.
        published: the published agreement in percent.
        native: the uncalibrated draft's agreement on the calibration prompts, in percent.
        probability: probability that the draft's first choice in a context is replaced by the target's.
        confidence: the uncalibrated draft's mean confidence in its first choices there, in percent.
        temperature: the temperature that brings it to the published agreement; 1 leaves it as it is.
    """

    cell: str
    published: float
    native: float
    probability: float
    confidence: float
    temperature: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of the published values that were fitted."""
        return (self.cell,) if self.cell else ()


@dataclass(frozen=True)
class MatchedWeights:
    """A draft of the target's interpolated weights (`InterpolatedModel`), brought to an agreement.

    Attributes:
        cell: id of the published cell, "" for a number.
        published: the agreement asked for in percent.
        native: the agreement reached on the calibration prompts, in percent.
        share: how far the weights are from the target's.
        seed: of the random weights.
        confidence: mean confidence in first choices there before the temperature, in percent.
        temperature: the temperature that brings it to the agreement reached.
        calibration_error: expected calibration error of first choices there at that temperature, in percent.
    """

    cell: str
    published: float
    native: float
    share: float
    seed: int
    confidence: float
    temperature: float
    calibration_error: float

    probability: ClassVar[float] = 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of the published values that were fitted."""
        return (self.cell,) if self.cell else ()

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


def published(name: object) -> Wanted:
    """Look up a published agreement by its id.

    Raises:
        InputError: there is no such cell, or it is not a single agreement (with near misses).
    """
    cells = load_cells()
    cell = find(cells, str(name))
    single = {c.id: c.value_low for c in cells.values() if c.metric == METRIC and c.value_low == c.value_high}
    value = single.get(cell.id)
    if value is None:
        raise InputError(f"calibrate_draft_to: {unknown('single published agreement', cell.id, single)}")
    return Wanted(cell.id, value)


def wanted(names: object) -> Wanted | HeadMatch:
    """Parse `calibrate_draft_to`: a published agreement's id, a share, or the ids of two acceptance lengths.

    Raises:
        InputError: as `published` and `head_match`, or the share is not between 0 and 1.
    """
    if isinstance(names, (bool, int, float)):
        require(AgreedShare, names, "calibrate_draft_to")
        return Wanted("", 100 * float(names))
    try:
        return head_match(names) if isinstance(names, (list, tuple)) else published(names)
    except InputError as wrong:
        raise InputError(f"calibrate_draft_to: {str(wrong).removeprefix(PLACE)}") from wrong


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


def require_heads(wanted: HeadMatch, draft: Model) -> None:
    """InputError if the draft's number of Medusa heads differs from the fitted number."""
    heads, fitted = draft.model_cost.shape.medusa, len(wanted.heads.accuracies)
    if heads != fitted:
        raise InputError(
            f"calibrate_draft_to brings {fitted} Medusa heads to acceptance lengths, and "
            f"{draft.config.name} has {heads or 'none'}; choose a draft with {fitted} heads, or "
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
    answers: Sequence[tuple[Prefix, Sequence[int]]], draft: Network, told: Callable[[int], None]
) -> Agreement:
    """How often the draft predicts the target's greedy token from the same prefix (EdgeLLM sec. II-C).

    The first token of an answer, from the prefill, is not drafted. An answer is one pass of the draft.

    Args:
        answers: calibration prompts, each with the target's answer.
        draft: the draft.
        told: progress callback, called with the number of finished prompts.

    Raises:
        InputError: no answer has a second token, so nothing is drafted.
    """
    hits, said_by_draft = list[bool](), list[Logits]()
    for i, (prompt, said) in enumerate(answers):
        told(i)
        contexts = [prompt.extend(said[:at]) for at in range(1, len(said))]
        if contexts:
            draft.start(prompt)
            rows = rows_of(draft, contexts)
            hits += [row.choice == token for row, token in zip(rows, said[1:], strict=True)]
            said_by_draft += rows
    told(len(answers))
    if not said_by_draft:
        raise InputError(
            f"the target's answers to {len(answers)} calibration prompts end with their first token, where "
            "nothing is drafted; raise calibration_prompts or max_tokens"
        )
    return Agreement(sum(hits), len(said_by_draft), said_by_draft, hits)


def head_ranks(
    models: Mapping[str, Model],
    networks: Mapping[str, Network],
    requests: Sequence[Request],
    told: Callable[[int], None],
) -> HeadRanks:
    """Ranks that the draft's Medusa heads give the target's greedy tokens; arguments as for `native`.

    Raises:
        InputError: the draft has no Medusa heads, or no answer has a second token.
    """
    if not models["draft"].model_cost.shape.medusa:
        raise InputError(f"{models['draft'].config.name} has no Medusa heads; choose a draft that has")
    device = EmulatedDevice(FREE)
    sessions = {role: models[role].session(role, device, RESIDENT, networks[role]) for role in models}
    answers = []
    for i, request in enumerate(requests):
        told(i)
        for session in sessions.values():
            session.start(request.prefix)
        answers.append(device.play(recorded(request, device, **sessions)))
    told(len(requests))
    return joined(answers)


def match(wanted: Wanted, found: Agreement, confidences: bool = True) -> Matched:
    """The swap probability from a native to the published agreement, and the temperature of confidences.

    Args:
        wanted: the published agreement.
        found: the native one.
        confidences: whether the mean confidence of first choices is brought to the agreement as well.

    Raises:
        InputError: the native agreement is higher by more than two standard errors, or no temperature
            brings the confidences to the published one.
    """
    share = wanted.published / 100
    probability = swap_probability(found.share, share, found.error)
    own = mean_confidence(found.rows, 1.0)
    temperature = temperature_for(found.rows, share) if confidences else 1.0
    return Matched(wanted.cell, wanted.published, 100 * found.share, probability, 100 * own, temperature)


def match_weights(wanted: Wanted, seed: int, agreement_at: Callable[[float], Agreement]) -> MatchedWeights:
    """The share of random weights at which a draft of the target's weights agrees as asked for.

    It is halved into, as agreement falls with the share; the temperature makes the mean confidence of first
    choices what agreement is there.

    Args:
        wanted: the agreement asked for.
        seed: of the random weights, for the record.
        agreement_at: how often the draft agrees on the calibration prompts at a share.

    Raises:
        InputError: no share comes within a point, or no temperature brings the confidences there.
    """
    goal, low, high = wanted.published / 100, 0.0, 1.0
    tried: list[tuple[float, float, Agreement]] = []
    while len(tried) < HALVINGS and not (tried and min(tried)[0] <= NEAR):
        share = (low + high) / 2
        there = agreement_at(share)
        tried.append((abs(there.share - goal), share, there))
        low, high = (share, high) if there.share > goal else (low, share)
    miss, share, there = min(tried, key=lambda each: each[:2])
    if miss > MISS:
        raise InputError(
            f"no draft of the target's weights comes within a point of {goal:.1%} on the calibration rows: "
            f"the nearest agrees in {there.share:.1%} of {there.tokens} tokens; raise calibration_prompts"
        )
    temperature = temperature_for(there.rows, there.share)
    return MatchedWeights(
        cell=wanted.cell,
        published=wanted.published,
        native=100 * there.share,
        share=share,
        seed=seed,
        confidence=100 * mean_confidence(there.rows, 1.0),
        temperature=temperature,
        calibration_error=100 * calibration_error(there.rows, there.hits, temperature),
    )
