"""Who decides how a request is served, and the check that no decision passes that breaks its objective.

Owns the deciders that need no training, the rules of the check and its fallback (ElastiLM 3.3). Must not know
devices. A language model that decides has its place behind `Decider`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.op import Op
from repro.methods.serving.service_profile import NOTHING, DeviceProfile, Spent
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo, decisions, kept_tokens

FALLBACKS = ("random", "release")


@dataclass(frozen=True)
class ServiceRequest:
    """One request to the service.

    Attributes:
        id: tells requests apart; chance is drawn by it, so that no request's draw depends on another's.
        prompt: all its tokens.
        answer: the most tokens to generate.
        objective: what it may take.
        spare: how many tokens of the prompt's beginning may be dropped; `None` is any token. Instructions and
            examples that all requests of an app begin with can go, and the request itself stays whole.
        granule: see `slo.kept_tokens`.
    """

    id: str
    prompt: tuple[int, ...]
    answer: int
    objective: LatencySlo
    spare: int | None = None
    granule: int = 1

    def read(self, level: float) -> int:
        """How many tokens of the prompt are read at one of its levels."""
        return kept_tokens(len(self.prompt), level, self.spare, self.granule)


class Infeasible(InputError):
    """Nothing that the service can do meets a request's objective."""


class Decider(Protocol):
    """What chooses the levels of prompt and model for a request."""

    def decide(self, request: ServiceRequest, feasible: Sequence[Decision]) -> Decision:
        """Any decision; one that is not feasible is caught by the check.

        Args:
            ask: the request.
            feasible: what meets its objective, never empty; a language model decides without looking.
        """

    def ops(self, request: ServiceRequest, on: str) -> tuple[Op, ...]:
        """What deciding takes on a processor, before the prefill; nothing where nobody computes."""
        return ()


class Rule(Protocol):
    """What may be decided for a request."""

    def feasible(
        self, request: ServiceRequest, present: float | None, deciding: Spent = NOTHING
    ) -> list[Decision]:
        """All decisions that meet its objective.

        Args:
            ask: the request.
            present: the level that the model is on, if any.
            deciding: what making the decision takes.
        """


@dataclass(frozen=True)
class ByProfile(Rule):
    """By what a device was measured to take (footnote 6), switching and deciding included, strictly."""

    profile: DeviceProfile
    prompts: tuple[float, ...] = LEVELS

    def feasible(
        self, request: ServiceRequest, present: float | None, deciding: Spent = NOTHING
    ) -> list[Decision]:
        """See `Rule`."""
        full = self.profile.whole(len(request.prompt), request.answer)
        return [
            decision
            for decision in decisions(self.prompts, sorted(self.profile.levels))
            if request.objective.met(
                self.profile.costs(
                    decision.model, request.read(decision.prompt), request.answer, present, deciding
                ),
                full,
            )
        ]


@dataclass(frozen=True)
class Nominal(Rule):
    """By products of the levels alone, as ElastiLM's release checks; no device is asked."""

    prompts: tuple[float, ...] = LEVELS
    models: tuple[float, ...] = LEVELS

    def feasible(
        self, request: ServiceRequest, present: float | None, deciding: Spent = NOTHING
    ) -> list[Decision]:
        """See `Rule`."""
        every = decisions(self.prompts, self.models)
        return [decision for decision in every if request.objective.met_nominally(decision)]


class Checked(NamedTuple):
    """A decision that meets its objective, and whether it had to be replaced for that."""

    decision: Decision
    fell_back: bool


@dataclass(frozen=True)
class SloGuard:
    """Runs a decider and lets nothing through that breaks the objective.

    Attributes:
        decider: whose decisions these are.
        rule: what is feasible.
        fallback: `random` draws a feasible decision (3.3); `release` keeps the prompt's level and takes the
            largest model that is feasible with it, else the largest of all.
        seed: of the draw.
    """

    decider: Decider
    rule: Rule
    fallback: str = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            raise InputError(unknown("fallback", self.fallback, FALLBACKS))

    def decide(
        self, request: ServiceRequest, present: float | None = None, deciding: Spent = NOTHING
    ) -> Checked:
        """A feasible decision.

        Raises:
            Unmet: there is none.
        """
        feasible = self.rule.feasible(request, present, deciding)
        if not feasible:
            raise Infeasible(
                f"request {request.id} asks for {request.objective.asked}, which no level of prompt and "
                "model meets; ask for less"
            )
        decision = self.decider.decide(request, feasible)
        if decision in feasible:
            return Checked(decision, False)
        return Checked(self._instead(request, decision, feasible), True)

    def _instead(self, request: ServiceRequest, decision: Decision, feasible: Sequence[Decision]) -> Decision:
        if self.fallback == "random":
            return _drawn(feasible, self.seed, request)
        same = [one for one in feasible if one.prompt == decision.prompt]
        return max(same or feasible, key=lambda one: (one.model, one.prompt))


@dataclass(frozen=True)
class Uniform(Decider):
    """Any feasible decision, each as likely."""

    seed: int = 0

    def decide(self, request: ServiceRequest, feasible: Sequence[Decision]) -> Decision:
        """See `Decider`."""
        return _drawn(feasible, self.seed, request)


@dataclass(frozen=True)
class Fixed(Decider):
    """Always the same, whatever is feasible."""

    decision: Decision

    def decide(self, request: ServiceRequest, feasible: Sequence[Decision]) -> Decision:
        """See `Decider`."""
        return self.decision


@dataclass(frozen=True)
class Largest(Decider):
    """As much of the prompt as is feasible, and of the model what goes with it; what pruning alone does.

    Attributes:
        first: `prompt`, or `model` for the largest model and as much of the prompt as goes with that.
    """

    first: str = "prompt"

    def __post_init__(self) -> None:
        if self.first not in Decision._fields:
            raise InputError(unknown("first", self.first, Decision._fields))

    def decide(self, request: ServiceRequest, feasible: Sequence[Decision]) -> Decision:
        """See `Decider`."""
        return max(feasible, key=lambda one: (getattr(one, self.first), *one))


@dataclass(frozen=True)
class Oracle(Decider):
    """The lightest decision that answers right, known beforehand; where none does, any feasible one.

    The paper orders decisions by no more than "lightweight". Here the product of both levels comes first, as
    TTFT does, and of equal ones the smaller model.

    Attributes:
        right: by request the decisions that answer right.
        seed: of the draw where none does.
    """

    right: Mapping[str, Collection[Decision]] = field(default_factory=dict)
    seed: int = 0

    def decide(self, request: ServiceRequest, feasible: Sequence[Decision]) -> Decision:
        """See `Decider`; InputError for a request that nobody has tried."""
        if request.id not in self.right:
            raise InputError(f"the oracle's table has no request {request.id!r}; it has {len(self.right)}")
        fitting = [decision for decision in feasible if decision in self.right[request.id]]
        return min(fitting, key=_weight) if fitting else _drawn(feasible, self.seed, request)


def _weight(decision: Decision) -> tuple[float, float]:
    # Nine decimals: 0.2 x 0.6 and 0.3 x 0.4 are one weight.
    return round(decision.prompt * decision.model, 9), decision.model


def _drawn(feasible: Sequence[Decision], seed: int, request: ServiceRequest) -> Decision:
    return random.Random(f"{seed}/{request.id}").choice(feasible)
