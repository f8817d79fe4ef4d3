"""What an app asks of the language-model service: latencies as shares of the full model's (ElastiLM 3.1).

Owns objectives, decisions, and when one meets the other. Must not know who decides, or how costs are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import NamedTuple

from repro.core.errors import InputError

LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the model and of the prompt (ElastiLM 3.2, 3.3)."""


class Decision(NamedTuple):
    """How much of the prompt and of the model serves a request, as shares of the whole."""

    prompt: float
    model: float


class RequestCosts(NamedTuple):
    """What a request takes, from its arrival on.

    Attributes:
        ttft: seconds to the first token, switching and deciding among them.
        tpot: seconds of each later token; 0 where there is none.
        time: seconds to the last token.
        energy: joules, or None where the device's power is not known.
    """

    ttft: float
    tpot: float
    time: float
    energy: float | None


@dataclass(frozen=True)
class LatencySlo:
    """The most that a request may take, as shares of what the full model takes for it.

    Attributes:
        ttft: of the time to the first token; None asks nothing.
        tpot: of the time of each later token.
        time: of the time to the last token (ElastiLM 5.6).
        energy: likewise of energy.

    Raises:
        InputError: it asks nothing, or a share is not above 0 and at most 1.
    """

    ttft: float | None = None
    tpot: float | None = None
    time: float | None = None
    energy: float | None = None

    def __post_init__(self) -> None:
        if not self.asked:
            raise InputError(
                f"an objective asks nothing; give one of {', '.join(f.name for f in fields(self))}"
            )
        for name, share in self.asked.items():
            if not 0.0 < share <= 1.0:
                raise InputError(f"an objective's {name} is {share}; it must be above 0 and at most 1")

    @property
    def asked(self) -> dict[str, float]:
        """The shares that it names."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: share for name, share in given.items() if share is not None}

    def met(self, costs: RequestCosts, full: RequestCosts) -> bool:
        """Whether costs stay within their shares of the full model's, without any tolerance.

        Raises:
            InputError: it asks for energy, and the device's power is not known.
        """
        for name, share in self.asked.items():
            spent, whole = getattr(costs, name), getattr(full, name)
            if spent is None or whole is None:
                raise InputError(
                    f"an objective asks for {name}, which this device does not tell; leave it out"
                )
            if spent > share * whole:
                return False
        return True

    def met_nominally(self, decision: Decision) -> bool:
        """What ElastiLM's release checks: the product of both shares against TTFT, the model's against TPOT.

        Nothing that stays the same on every level (the output projection, switching, deciding) counts.

        Raises:
            InputError: it asks for something else.
        """
        nominal = {"ttft": decision.prompt * decision.model, "tpot": decision.model}
        if strange := set(self.asked) - set(nominal):
            raise InputError(f"the nominal rule knows ttft and tpot, not {', '.join(sorted(strange))}")
        # Nine decimals, since products of such shares come out just beside whole tenths in binary.
        return all(round(nominal[name] - share, 9) <= 0 for name, share in self.asked.items())


def decisions(prompts: Sequence[float] = LEVELS, models: Sequence[float] = LEVELS) -> tuple[Decision, ...]:
    """All pairs of levels."""
    return tuple(Decision(*pair) for pair in product(prompts, models))


def kept_tokens(tokens: int, level: float, spare: int | None = None, granule: int = 1) -> int:
    """How many tokens of a prompt a level keeps: its share rounded down, and never none.

    Args:
        tokens: of the whole prompt.
        level: its share that may be read.
        spare: only so many may be dropped at all; `None` is any. What is left of a request whose other
            tokens alone exceed the level is these.
        granule: of the spare ones a multiple of so many stays, so that requests of one app whose lengths
            differ little read the same beginning.
    """
    if level == 1.0:
        return tokens
    fixed = 0 if spare is None else tokens - spare
    room = max(0, int(round(level * tokens, 6)) - fixed)
    return max(1, fixed + room - room % granule)
