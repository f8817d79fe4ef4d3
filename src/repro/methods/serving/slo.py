"""SLOs of apps, as shares of the full model's latency (ElastiLM 3.1), and decisions.

Owns SLOs, decisions, and whether costs meet an SLO. Must not know deciders or how costs are estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import NamedTuple

from repro.core.errors import InputError

LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Levels of the model and of the prompt (ElastiLM 3.2, 3.3)."""


class Decision(NamedTuple):
    """Prompt level and model level of a request."""

    prompt: float
    model: float


class RequestCosts(NamedTuple):
    """Costs of a request from its arrival.

    Attributes:
        ttft: seconds to the first token, including deciding and switching.
        tpot: seconds per later token; `None` if there is none.
        time: seconds to the last token.
        energy: joules; `None` if the device's power is unknown.
    """

    ttft: float
    tpot: float | None
    time: float
    energy: float | None


@dataclass(frozen=True)
class LatencySlo:
    """Upper bounds on a request's costs, as shares of the full model's; `None` sets no bound.

    Attributes:
        ttft: share of the full model's TTFT.
        tpot: share of its TPOT.
        time: share of its time to the last token (ElastiLM 5.6).
        energy: share of its energy (ElastiLM 5.6).

    Raises:
        InputError: no bound is set, or a share is not above 0 and at most 1.
    """

    ttft: float | None = None
    tpot: float | None = None
    time: float | None = None
    energy: float | None = None

    def __post_init__(self) -> None:
        if not self.bounds:
            raise InputError(
                f"an objective asks nothing; give one of {', '.join(field.name for field in fields(self))}"
            )
        for name, share in self.bounds.items():
            if not 0.0 < share <= 1.0:
                raise InputError(f"an objective's {name} is {share}; it must be above 0 and at most 1")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by name."""
        shares = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: share for name, share in shares.items() if share is not None}

    def met(self, costs: RequestCosts, full_costs: RequestCosts) -> bool:
        """Whether costs stay within their shares of the full model's, without tolerance.

        Raises:
            InputError: energy is bounded and the device's power is unknown.
        """
        for name, share in self.bounds.items():
            cost, full_cost = getattr(costs, name), getattr(full_costs, name)
            if name == "tpot" and cost is None:
                continue  # no later token is late
            if cost is None or full_cost is None:
                raise InputError(
                    f"an objective asks for {name}, which this device does not tell; leave it out"
                )
            if cost > share * full_cost:
                return False
        return True

    def met_nominally(self, decision: Decision) -> bool:
        """The release's check: product of both levels against TTFT, model level against TPOT.

        Costs outside the levels (output projection, switching, deciding) are ignored.

        Raises:
            InputError: time or energy is bounded.
        """
        nominal_shares = {"ttft": decision.prompt * decision.model, "tpot": decision.model}
        if other_bounds := set(self.bounds) - set(nominal_shares):
            raise InputError(f"the nominal rule knows ttft and tpot, not {', '.join(sorted(other_bounds))}")
        # Rounding to nine decimals removes floating-point error in products of levels.
        return all(round(nominal_shares[name] - share, 9) <= 0 for name, share in self.bounds.items())


def decisions(prompts: Sequence[float] = LEVELS, models: Sequence[float] = LEVELS) -> tuple[Decision, ...]:
    """All pairs of prompt and model level."""
    return tuple(Decision(*pair) for pair in product(prompts, models))


def kept_tokens(token_count: int, level: float, spare: int | None = None, granule: int = 1) -> int:
    """Number of prompt tokens that a level keeps: its share rounded down, at least 1.

    Args:
        token_count: tokens of the whole prompt.
        level: prompt level.
        spare: number of tokens that may be dropped; `None`: all. The others are kept even if they exceed
            the level.
        granule: kept spare tokens are rounded down to a multiple of this, so that an app's requests of
            similar length keep the same beginning.
    """
    if level == 1.0:
        return token_count
    fixed_tokens = 0 if spare is None else token_count - spare
    kept_spare = max(0, int(round(level * token_count, 6)) - fixed_tokens)
    return max(1, fixed_tokens + kept_spare - kept_spare % granule)
