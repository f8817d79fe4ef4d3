"""Deciders, which choose the levels of prompt and model for a request, and the check against its SLO.

Owns the deciders that need no training, the feasibility rules, and the fallback (ElastiLM 3.3). Must not know
devices. Trained decision heads implement `Decider` elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.op import Op
from repro.methods.serving.service_profile import NO_COST, DeviceProfile, Spent
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo, decisions, kept_tokens

Fallback = Literal["random", "release"]


@dataclass(frozen=True)
class ServiceRequest:
    """One request to the service.

    Attributes:
        id: unique identifier; seeds random draws, so that they are independent across requests.
        prompt: token ids of the whole prompt.
        answer: maximum number of tokens to generate.
        objective: the SLO.
        spare: number of tokens at the beginning of the prompt that may be dropped, such as instructions and
            examples shared by an app's requests; `None`: all tokens may be.
        granule: see `slo.kept_tokens`.
    """

    id: str
    prompt: tuple[int, ...]
    answer: int
    objective: LatencySlo
    spare: int | None = None
    granule: int = 1

    def read(self, level: float) -> int:
        """Number of prompt tokens kept at a prompt level."""
        return kept_tokens(len(self.prompt), level, self.spare, self.granule)


class Infeasible(InputError):
    """No decision of the service meets a request's SLO."""


class Decider(Protocol):
    """Chooses the levels of prompt and model for a request."""

    def decide(self, request: ServiceRequest, choices: Sequence[Decision]) -> Decision:
        """Choose a decision; `SloGuard` replaces infeasible ones.

        Args:
            request: the request.
            choices: decisions that meet its SLO, never empty; the decision head ignores them.
        """

    def ops(self, request: ServiceRequest, on: str) -> tuple[Op, ...]:
        """Ops of the decision on a processor, before the prefill; none if no model decides."""
        return ()


class Rule(Protocol):
    """Feasibility rule: which decisions meet a request's SLO."""

    def feasible(
        self, request: ServiceRequest, current_level: float | None, decision_cost: Spent = NO_COST
    ) -> list[Decision]:
        """Return all decisions that meet the request's SLO.

        Args:
            request: the request.
            current_level: current level of the model, if any.
            decision_cost: cost of making the decision.
        """


@dataclass(frozen=True)
class ByProfile(Rule):
    """Feasibility by the device's latency profile (footnote 6), with switching and deciding, no tolerance."""

    profile: DeviceProfile
    prompts: tuple[float, ...] = LEVELS

    def feasible(
        self, request: ServiceRequest, current_level: float | None, decision_cost: Spent = NO_COST
    ) -> list[Decision]:
        """See `Rule`."""
        whole_costs = self.profile.whole(len(request.prompt), request.answer)
        return [
            decision
            for decision in decisions(self.prompts, sorted(self.profile.levels))
            if request.objective.met(
                self.profile.costs(
                    decision.model,
                    request.read(decision.prompt),
                    request.answer,
                    current_level,
                    decision_cost,
                ),
                whole_costs,
            )
        ]


@dataclass(frozen=True)
class Nominal(Rule):
    """Feasibility by products of the levels, as in ElastiLM's release; uses no device profile."""

    prompts: tuple[float, ...] = LEVELS
    models: tuple[float, ...] = LEVELS

    def feasible(
        self, request: ServiceRequest, current_level: float | None, decision_cost: Spent = NO_COST
    ) -> list[Decision]:
        """See `Rule`."""
        choices = decisions(self.prompts, self.models)
        return [decision for decision in choices if request.objective.met_nominally(decision)]


class Checked(NamedTuple):
    """A feasible decision, and whether it is a fallback."""

    decision: Decision
    fell_back: bool


@dataclass(frozen=True)
class SloGuard:
    """Runs a decider and replaces decisions that violate the SLO.

    Attributes:
        decider: the decider.
        rule: the feasibility rule.
        fallback: `random` draws a feasible decision (3.3); `release` keeps the prompt level and takes the
            largest feasible model with it, or the largest feasible model if there is none.
        seed: seed of the draw.
    """

    decider: Decider
    rule: Rule
    fallback: Fallback = "random"
    seed: int = 0

    def decide(
        self, request: ServiceRequest, current_level: float | None = None, decision_cost: Spent = NO_COST
    ) -> Checked:
        """Return a feasible decision.

        Raises:
            Infeasible: there is none.
        """
        choices = self.rule.feasible(request, current_level, decision_cost)
        if not choices:
            raise Infeasible(
                f"request {request.id} asks for {request.objective.bounds}, which no level of prompt and "
                "model meets; ask for less"
            )
        decision = self.decider.decide(request, choices)
        if decision in choices:
            return Checked(decision, False)
        return Checked(self._instead(request, decision, choices), True)

    def _instead(self, request: ServiceRequest, decision: Decision, choices: Sequence[Decision]) -> Decision:
        if self.fallback == "random":
            return _draw(choices, self.seed, request)
        same_prompt = [choice for choice in choices if choice.prompt == decision.prompt]
        return max(same_prompt or choices, key=lambda choice: (choice.model, choice.prompt))


@dataclass(frozen=True)
class Uniform(Decider):
    """Draws a feasible decision uniformly."""

    seed: int = 0

    def decide(self, request: ServiceRequest, choices: Sequence[Decision]) -> Decision:
        """See `Decider`."""
        return _draw(choices, self.seed, request)


@dataclass(frozen=True)
class Fixed(Decider):
    """Always the same decision, feasible or not."""

    decision: Decision

    def decide(self, request: ServiceRequest, choices: Sequence[Decision]) -> Decision:
        """See `Decider`."""
        return self.decision


@dataclass(frozen=True)
class Largest(Decider):
    """Largest feasible prompt level, then the largest model level with it; used by pruning baselines.

    Attributes:
        first: dimension maximized first, `prompt` or `model`.
    """

    first: str = "prompt"

    def __post_init__(self) -> None:
        if self.first not in Decision._fields:
            raise InputError(unknown("first", self.first, Decision._fields))

    def decide(self, request: ServiceRequest, choices: Sequence[Decision]) -> Decision:
        """See `Decider`."""
        return max(choices, key=lambda decision: (getattr(decision, self.first), *decision))


@dataclass(frozen=True)
class Oracle(Decider):
    """The lightest feasible decision known to answer correctly; without one, a random feasible decision.

    The paper does not define "lightweight". Here it is the smallest product of both levels, as in TTFT; ties
    go to the smaller model.

    Attributes:
        right: decisions that answer correctly, by request id.
        seed: seed of the draw.
    """

    right: Mapping[str, Collection[Decision]] = field(default_factory=dict)
    seed: int = 0

    def decide(self, request: ServiceRequest, choices: Sequence[Decision]) -> Decision:
        """See `Decider`; InputError for a request without an entry in `right`."""
        if request.id not in self.right:
            raise InputError(f"the oracle's table has no request {request.id!r}; it has {len(self.right)}")
        right_choices = [decision for decision in choices if decision in self.right[request.id]]
        return min(right_choices, key=_weight) if right_choices else _draw(choices, self.seed, request)


def _weight(decision: Decision) -> tuple[float, float]:
    # Rounded so that 0.2 x 0.6 equals 0.3 x 0.4.
    return round(decision.prompt * decision.model, 9), decision.model


def _draw(choices: Sequence[Decision], seed: int, request: ServiceRequest) -> Decision:
    return random.Random(f"{seed}/{request.id}").choice(choices)
