"""One-shot latency profile of a device (ElastiLM 3.3, footnote 6): prefill and decode per model level.

Owns measuring and interpolating. Must not know deciders or whether the device is emulated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repro.core.errors import InputError
from repro.device.emulated import Device
from repro.device.op import Op
from repro.methods.serving.slo import RequestCosts
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix

PROMPT_LENGTHS = (1, 17, 33, 64, 128, 256, 512, 1024, 2048)
"""Prompt lengths to profile; short ones because emulated phones' efficiency is nonlinear below 33."""


class Spent(NamedTuple):
    """Seconds, and joules if the device's power is known."""

    seconds: float
    joules: float | None

    def times(self, factor: float) -> Spent:
        """Multiply by a factor."""
        return Spent(factor * self.seconds, None if self.joules is None else factor * self.joules)

    def plus(self, spent: Spent) -> Spent:
        """Sum of both; joules are unknown if either's are."""
        has_joules = self.joules is not None and spent.joules is not None
        return Spent(
            self.seconds + spent.seconds, (self.joules or 0.0) + (spent.joules or 0.0) if has_joules else None
        )


NO_COST = Spent(0.0, 0.0)


@dataclass(frozen=True)
class LevelProfile:
    """Costs of one model level on one device.

    Attributes:
        prompts: measured prompt lengths, ascending.
        prefill: prefill of each length.
        step: decode step after each length.
        switch: switch to this level from another.
    """

    prompts: tuple[int, ...]
    prefill: tuple[Spent, ...]
    step: tuple[Spent, ...]
    switch: Spent = NO_COST

    def prefill_at(self, token_count: int) -> Spent:
        """Prefill cost, linearly interpolated.

        Raises:
            InputError: the length is outside the measured range.
        """
        return self._interpolate(self.prefill, token_count)

    def step_at(self, token_count: float) -> Spent:
        """Decode step cost, linearly interpolated; errors as `prefill_at`."""
        return self._interpolate(self.step, token_count)

    def _interpolate(self, costs: Sequence[Spent], token_count: float) -> Spent:
        if not self.prompts[0] <= token_count <= self.prompts[-1]:
            raise InputError(
                f"{token_count:g} tokens were not profiled; the profile reaches from {self.prompts[0]} to "
                f"{self.prompts[-1]}"
            )
        index = bisect_left(self.prompts, token_count)
        if self.prompts[index] == token_count:
            return costs[index]
        share = (token_count - self.prompts[index - 1]) / (self.prompts[index] - self.prompts[index - 1])
        return costs[index - 1].times(1.0 - share).plus(costs[index].times(share))


@dataclass(frozen=True)
class DeviceProfile:
    """All levels of one system on one device.

    Attributes:
        levels: profiles by level.
        full: profile of the whole model, to which SLOs are relative.
    """

    levels: Mapping[float, LevelProfile]
    full: LevelProfile

    def costs(
        self,
        model: float,
        token_count: int,
        answer_length: int,
        current_level: float | None,
        decision_cost: Spent = NO_COST,
    ) -> RequestCosts:
        """Costs of a request at a model level.

        Args:
            model: model level.
            token_count: prompt tokens kept.
            answer_length: tokens to generate, at least 1.
            current_level: current model level; `None` before the first request.
            decision_cost: cost of making the decision.

        Raises:
            InputError: the level or the length was not profiled.
        """
        if model not in self.levels:
            raise InputError(
                f"level {model:g} of the model was not profiled; choose from "
                f"{', '.join(f'{level:g}' for level in sorted(self.levels))}"
            )
        level = self.levels[model]
        spent_before = decision_cost if model == current_level else decision_cost.plus(level.switch)
        return _costs(level, token_count, answer_length, spent_before)

    def whole(self, prompt_length: int, answer_length: int) -> RequestCosts:
        """Costs of the full model with the whole prompt, without deciding and switching."""
        return _costs(self.full, prompt_length, answer_length, NO_COST)


def _costs(level: LevelProfile, prompt_length: int, answer_length: int, spent_before: Spent) -> RequestCosts:
    spent_to_first = spent_before.plus(level.prefill_at(prompt_length))
    if answer_length < 2:
        return RequestCosts(spent_to_first.seconds, None, *spent_to_first)
    # Contexts grow from prompt to prompt + answer - 2; the middle one gives the mean step.
    step = level.step_at(prompt_length + (answer_length - 2) / 2)
    return RequestCosts(
        spent_to_first.seconds, step.seconds, *spent_to_first.plus(step.times(answer_length - 1))
    )


def profile_levels(
    device: Device,
    sessions: Mapping[float, Session],
    target: Session,
    switching: Mapping[float, Iterable[Op]],
    prompts: Sequence[int] = PROMPT_LENGTHS,
    decode_sessions: Mapping[float, Session] | None = None,
) -> DeviceProfile:
    """Measure all levels once.

    Args:
        device: the device; outputs are not used, so networks may be blank.
        sessions: session of each level.
        target: session of the whole model; if it is also a level's session, it is measured only once.
        switching: ops of switching to each level.
        prompts: prompt lengths to measure, ascending, at least one.
        decode_sessions: sessions for decode steps, for levels where they differ from `sessions`.
    """
    step_sessions = decode_sessions or {}

    async def measure() -> DeviceProfile:
        levels = {
            level: await _level(
                device, session, step_sessions.get(level, session), prompts, tuple(switching[level])
            )
            for level, session in sessions.items()
        }
        same = [levels[level] for level, session in sessions.items() if session is target]
        return DeviceProfile(levels, same[0] if same else await _level(device, target, target, prompts, ()))

    return device.play(measure())


async def _level(
    device: Device, session: Session, step_session: Session, prompts: Sequence[int], switch_ops: Sequence[Op]
) -> LevelProfile:
    switch_cost = await run_ops(device, switch_ops)
    prefill_costs, step_costs = [], []
    for prompt_length in prompts:
        text = Prefix.of([0] * prompt_length)
        session.start(text)
        start = device.now
        await session.forward([text])
        prefill_costs.append(spent_since(device, start))
        if step_session is not session:
            step_session.start(text)
            await step_session.forward([text])
        longer_text = text.then(0)
        step_session.keep(longer_text)
        start = device.now
        await step_session.forward([longer_text])
        step_costs.append(spent_since(device, start))
    return LevelProfile(tuple(prompts), tuple(prefill_costs), tuple(step_costs), switch_cost)


async def run_ops(device: Device, ops: Iterable[Op]) -> Spent:
    """Run ops one after the other and return their total cost."""
    start = device.now
    for op in ops:
        await device.run(op)
    return spent_since(device, start) if device.now > start else NO_COST


def spent_since(device: Device, start: float) -> Spent:
    """Seconds and joules of the device since `start`."""
    return Spent(device.now - start, device.trace.joules(start, device.now))
