"""The one-shot latency profile of a device (ElastiLM 3.3, footnote 6): what each level of a model takes.

Owns measuring and interpolating. Must not know what is chosen by it, nor whether the device is emulated.
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

PROMPTS = (1, 17, 33, 64, 128, 256, 512, 1024, 2048)
"""Tokens at which passes are measured; below 33 the emulated phones' efficiency bends."""


class Spent(NamedTuple):
    """Seconds, and joules where the device's power is known."""

    seconds: float
    joules: float | None

    def times(self, factor: float) -> Spent:
        """So many of it."""
        return Spent(factor * self.seconds, None if self.joules is None else factor * self.joules)

    def plus(self, other: Spent) -> Spent:
        """Both, one after the other."""
        known = self.joules is not None and other.joules is not None
        return Spent(
            self.seconds + other.seconds, (self.joules or 0.0) + (other.joules or 0.0) if known else None
        )


NOTHING = Spent(0.0, 0.0)


@dataclass(frozen=True)
class LevelProfile:
    """One level on one device.

    Attributes:
        prompts: tokens at which it was measured, ascending.
        prefill: a pass over so many tokens.
        step: a pass of one token after so many.
        switch: coming to this level from another.
    """

    prompts: tuple[int, ...]
    prefill: tuple[Spent, ...]
    step: tuple[Spent, ...]
    switch: Spent = NOTHING

    def prefill_at(self, tokens: int) -> Spent:
        """Between two measurements on the line between them.

        Raises:
            InputError: fewer or more tokens than were measured.
        """
        return self._between(self.prefill, tokens)

    def step_at(self, tokens: float) -> Spent:
        """Likewise; half a token is the mean of two steps."""
        return self._between(self.step, tokens)

    def _between(self, measured: Sequence[Spent], tokens: float) -> Spent:
        if not self.prompts[0] <= tokens <= self.prompts[-1]:
            raise InputError(
                f"{tokens:g} tokens were not profiled; the profile reaches from {self.prompts[0]} to "
                f"{self.prompts[-1]}"
            )
        high = bisect_left(self.prompts, tokens)
        if self.prompts[high] == tokens:
            return measured[high]
        share = (tokens - self.prompts[high - 1]) / (self.prompts[high] - self.prompts[high - 1])
        return measured[high - 1].times(1.0 - share).plus(measured[high].times(share))


@dataclass(frozen=True)
class DeviceProfile:
    """All levels of one system on one device.

    Attributes:
        levels: by their share of the model.
        full: the whole model, of whose latency objectives are shares.
    """

    levels: Mapping[float, LevelProfile]
    full: LevelProfile

    def costs(
        self, model: float, read: int, answer: int, present: float | None, deciding: Spent = NOTHING
    ) -> RequestCosts:
        """What a request takes if it is served so.

        Args:
            model: its level of the model.
            read: tokens of the prompt that are read.
            answer: tokens that will be generated, at least 1.
            present: the level that the model is on; None is none, as before the first request.
            deciding: what making the decision takes.

        Raises:
            InputError: a level or a length that was not profiled.
        """
        if model not in self.levels:
            raise InputError(
                f"level {model:g} of the model was not profiled; choose from "
                f"{', '.join(f'{level:g}' for level in sorted(self.levels))}"
            )
        level = self.levels[model]
        before = deciding if model == present else deciding.plus(level.switch)
        return _costs(level, read, answer, before)

    def whole(self, prompt: int, answer: int) -> RequestCosts:
        """What the full model takes for the whole prompt, with nothing to decide or to switch."""
        return _costs(self.full, prompt, answer, NOTHING)


def _costs(level: LevelProfile, prompt: int, answer: int, before: Spent) -> RequestCosts:
    first = before.plus(level.prefill_at(prompt))
    if answer < 2:
        return RequestCosts(first.seconds, 0.0, *first)
    # Steps follow prompt, prompt + 1, ... tokens; the one in the middle stands for all.
    step = level.step_at(prompt + (answer - 2) / 2)
    return RequestCosts(first.seconds, step.seconds, *first.plus(step.times(answer - 1)))


def profiled(
    device: Device,
    sessions: Mapping[float, Session],
    full: Session,
    switching: Mapping[float, Iterable[Op]],
    prompts: Sequence[int] = PROMPTS,
    steps: Mapping[float, Session] | None = None,
) -> DeviceProfile:
    """Measure all levels once.

    Args:
        device: where they run; what they compute is of no interest, so that blank networks do.
        sessions: of each level.
        full: of the whole model; where it is a level's session too, it is measured once, so that both are
            equal to the last digit.
        switching: of each level what it takes to come to it.
        prompts: tokens to measure at, ascending, at least one.
        steps: of levels whose passes over one token another session makes, that session.
    """
    stepping = steps or {}

    async def measured() -> DeviceProfile:
        levels = {
            level: await _level(
                device, session, stepping.get(level, session), prompts, tuple(switching[level])
            )
            for level, session in sessions.items()
        }
        same = [levels[level] for level, session in sessions.items() if session is full]
        return DeviceProfile(levels, same[0] if same else await _level(device, full, full, prompts, ()))

    return device.play(measured())


async def _level(
    device: Device, session: Session, stepping: Session, prompts: Sequence[int], switch: Sequence[Op]
) -> LevelProfile:
    switched = await ran(device, switch)
    prefill, step = [], []
    for tokens in prompts:
        text = Prefix.of([0] * tokens)
        session.start(text)
        start = device.now
        await session.forward([text])
        prefill.append(spent(device, start))
        if stepping is not session:
            stepping.start(text)
            await stepping.forward([text])
        longer = text.then(0)
        stepping.keep(longer)
        start = device.now
        await stepping.forward([longer])
        step.append(spent(device, start))
    return LevelProfile(tuple(prompts), tuple(prefill), tuple(step), switched)


async def ran(device: Device, ops: Iterable[Op]) -> Spent:
    """Run ops one after the other: what they took together."""
    start = device.now
    for op in ops:
        await device.run(op)
    return spent(device, start) if device.now > start else NOTHING


def spent(device: Device, start: float) -> Spent:
    """What a device has used since a moment of its clock."""
    return Spent(device.now - start, device.trace.joules(start, device.now))
