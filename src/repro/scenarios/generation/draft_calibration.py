"""How often a draft says its target's token, and what brings that to a published figure.

Knows nothing of records, sweeps or published tables beyond the one value that is asked for.
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


@dataclass(frozen=True)
class Wanted:
    """A published agreement: the id of its cell, and percent of the target's tokens that the draft said."""

    cell: str
    published: float


@dataclass(frozen=True)
class Matched:
    """How a pair was brought to it.

    Attributes:
        cell: id of the published cell.
        published: percent, as it is printed.
        native: percent, of the draft as it is, on the calibration prompts.
        probability: that in a context the target's choice takes the first place.
    """

    cell: str
    published: float
    native: float
    probability: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of all published values that were fitted."""
        return (self.cell,)


def published(name: object) -> Wanted:
    """The published agreement of that id.

    Raises:
        InputError: there is no such cell, or it is no single agreement (with near misses).
    """
    cells = load_cells()
    cell = find(cells, str(name))
    single = {c.id: c.value_low for c in cells.values() if c.metric == METRIC and c.value_low == c.value_high}
    value = single.get(cell.id)
    if value is None:
        raise InputError(f"calibrate_draft_to: {unknown('single published agreement', cell.id, single)}")
    return Wanted(cell.id, value)


def wanted(names: object) -> Wanted | HeadMatch:
    """What `calibrate_draft_to` asks for: a published agreement or two acceptance lengths, by their ids.

    Raises:
        InputError: as `published` and `head_match`.
    """
    return head_match(names) if isinstance(names, (list, tuple)) else published(names)


def require_matchable(emulated: bool, sampling: Sampling, models: Mapping[str, ModelConfig]) -> None:
    """InputError for a run whose draft cannot be corrected unbilled, or has nothing to correct."""
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
    """InputError for a draft with other heads than those that are fitted."""
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
    """Share of the target's own greedy tokens that the draft says after the same prefix (EdgeLLM sec. II-C).

    Args:
        models: the `target` and the `draft`.
        networks: what computes their tokens.
        requests: the prompts that the target answers.
        told: how many are done.

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
    """Which rank the draft's Medusa heads give the target's own greedy tokens; arguments as of `native`.

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
    """What a native agreement lacks to the published one; InputError if it lacks nothing."""
    probability = swap_probability(native_share, wanted.published / 100)
    return Matched(wanted.cell, wanted.published, 100 * native_share, probability)
