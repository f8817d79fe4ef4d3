"""Draft calibration: measure how often a draft predicts its target's token, and match a published value.

Must not know records, sweeps or published tables beyond the requested value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.cost import FREE
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.speculative.head_recording import recorded
from repro.models.drafting.calibrated_draft import mean_confidence, swap_probability, temperature_for
from repro.models.drafting.head_ranks import HeadRanks, joined
from repro.models.forward.network import Logits, Network, rows_of
from repro.models.runtime.model import Model, ModelConfig
from repro.models.runtime.placement import RESIDENT
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.reports.reference.reference import find, load_cells
from repro.scenarios.generation.heads_fit import HeadMatch, head_match

METRIC = "draft_token_correctness"
VERSION = 2
"""Of the calibration; 1 left the draft its own confidences."""

CHOICES = "choices"
"""The value of `draft_calibration` that leaves the draft its own confidences."""

PLACE = "calibrate_draft_to: "


@dataclass(frozen=True)
class Wanted:
    """A published agreement: its cell's id, and the percentage of target tokens that the draft predicts."""

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
        return (self.cell,)


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
    """Parse `calibrate_draft_to`: the id of a published agreement, or the ids of two acceptance lengths.

    Raises:
        InputError: as `published` and `head_match`.
    """
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
    """

    right: int
    tokens: int
    rows: Sequence[Logits] = field(repr=False)

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
    right, said_by_draft = 0, list[Logits]()
    for i, (prompt, said) in enumerate(answers):
        told(i)
        contexts = [prompt.extend(said[:at]) for at in range(1, len(said))]
        if contexts:
            draft.start(prompt)
            rows = rows_of(draft, contexts)
            right += sum(row.choice == token for row, token in zip(rows, said[1:], strict=True))
            said_by_draft += rows
    told(len(answers))
    if not said_by_draft:
        raise InputError(
            f"the target's answers to {len(answers)} calibration prompts end with their first token, where "
            "nothing is drafted; raise calibration_prompts or max_tokens"
        )
    return Agreement(right, len(said_by_draft), said_by_draft)


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
