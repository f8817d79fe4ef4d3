"""Draft calibration: measure how often a draft predicts its target's token, and match a published value.

Must not know records, sweeps or published tables beyond the requested value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.cost import FREE
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.head_recording import recorded
from repro.models.drafting.calibrated_draft import swap_probability
from repro.models.drafting.head_ranks import HeadRanks, joined
from repro.models.forward.network import Network
from repro.models.runtime.model import Model, ModelConfig
from repro.models.runtime.placement import RESIDENT
from repro.models.tokens.sampling import Sampling
from repro.reports.reference.reference import find, load_cells
from repro.scenarios.generation.heads_fit import HeadMatch, head_match

METRIC = "draft_token_correctness"
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
    """

    cell: str
    published: float
    native: float
    probability: float

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


def native(
    models: Mapping[str, Model],
    networks: Mapping[str, Network],
    requests: Sequence[Request],
    told: Callable[[int], None],
) -> float:
    """Share of the target's greedy tokens that the draft predicts from the same prefix (EdgeLLM sec. II-C).

    Args:
        models: the `target` and the `draft`.
        networks: their networks, by role.
        requests: the calibration prompts.
        told: progress callback, called with the number of finished prompts.

    Raises:
        InputError: no answer has a second token, so nothing is drafted.
    """
    device = EmulatedDevice(FREE)
    sessions = {role: models[role].session(role, device, RESIDENT, networks[role]) for role in models}
    rounds = []
    for i, request in enumerate(requests):
        told(i)
        for session in sessions.values():
            session.start(request.prefix)
        rounds += device.play(Corrected().serve(request, device, sessions)).rounds
    told(len(requests))
    if not rounds:
        raise InputError(
            f"the target's answers to {len(requests)} calibration prompts end with their first token, where "
            "nothing is drafted; raise calibration_prompts or max_tokens"
        )
    return sum(r.accepted for r in rounds) / len(rounds)


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


def match(wanted: Wanted, native_share: float) -> Matched:
    """The swap probability from a native to the published agreement; InputError if the native is higher."""
    probability = swap_probability(native_share, wanted.published / 100)
    return Matched(wanted.cell, wanted.published, 100 * native_share, probability)
