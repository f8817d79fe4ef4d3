"""Traces of requests by several apps, synthesized from datasets (ElastiLM 5.1).

Owns how many requests an app makes, of which rows, and when they come. Must not know who serves them. Every
draw has a seed of its own, and no library's global state is read or changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from repro.core.errors import InputError
from repro.core.typed import typed


@dataclass(frozen=True)
class App:
    """One app.

    Attributes:
        name: its own.
        dataset: what its requests are rows of.
        tokens: without a dataset its prompts are so many blanks, which cost as much and say nothing.
        ttft: the time to its first token, at most, as a share of the full model's; None asks nothing.
        tpot: likewise the time of each later token.
        time: likewise of the time to the last token (ElastiLM 5.6).
        energy: likewise of energy.
    """

    name: str
    dataset: str | None = None
    tokens: int | None = None
    ttft: float | None = None
    tpot: float | None = None
    time: float | None = None
    energy: float | None = None

    @property
    def source(self) -> str:
        """What its prompts are drawn from."""
        return self.dataset or f"{self.tokens} blanks"


@dataclass(frozen=True)
class TraceConfig:
    """One trace: `conf/trace/<name>.yaml`.

    Attributes:
        name: its short name.
        requests: in all.
        alpha: skew: 0 gives every app as many, above 0 the later ones more, below 0 the first ones.
        rate: requests an hour, in a Poisson process.
        seed: of rows, order and times.
        answer: tokens of an answer, which the latency of each later token is a mean over.
        concise: the share of their prompts that callers leave, having streamlined them (ElastiLM 5.5).
        apps: the tightest objective first, which is the paper's i = 1.
    """

    name: str
    requests: int
    alpha: float
    rate: float
    seed: int
    answer: int
    concise: float
    apps: tuple[App, ...]


class Arrival(NamedTuple):
    """One request: whose it is, which row of the app's dataset, and when it comes, in seconds."""

    app: App
    row: int
    seconds: float


def parse_trace(mapping: Mapping[str, Any]) -> TraceConfig:
    """The trace that one file of `conf/trace/` describes.

    Raises:
        InputError: an entry is missing, unknown or impossible.
    """
    config = typed(TraceConfig, mapping, "a trace")
    names = [app.name for app in config.apps]
    if not names or len(set(names)) < len(names):
        raise InputError(f"trace {config.name}: apps are {names}; name at least one, and none twice")
    if config.requests < 1 or config.rate <= 0 or config.answer < 1:
        raise InputError(
            f"trace {config.name}: {config.requests} requests at {config.rate} an hour of {config.answer} "
            "tokens; all must be above 0"
        )
    if not 0.0 < config.concise <= 1.0:
        raise InputError(
            f"trace {config.name}: concise is {config.concise}; it must be above 0 and at most 1"
        )
    for app in config.apps:
        if (app.dataset is None) == (app.tokens is None) or (app.tokens or 1) < 1:
            raise InputError(
                f"trace {config.name}: app {app.name} has dataset {app.dataset} and tokens {app.tokens}; "
                "give one of them, tokens of at least 1"
            )
    return config


def counts(requests: int, alpha: float, apps: int) -> tuple[int, ...]:
    """Requests of each app, the first being i = 1: Num(i) = requests e^(alpha i) / sum of e^(alpha k).

    Deviation: the paper does not say how to round, and rounding down loses up to one request an app. Here
    each is rounded down, and what is missing goes to the largest remainders, of equal ones to the first.
    """
    weights = [math.exp(alpha * i) for i in range(1, apps + 1)]
    shares = [requests * weight / sum(weights) for weight in weights]
    found = [math.floor(share) for share in shares]
    by_remainder = sorted(range(apps), key=lambda i: (round(found[i] - shares[i], 9), i))
    for i in by_remainder[: requests - sum(found)]:
        found[i] += 1
    return tuple(found)


def trace(config: TraceConfig, rows: Mapping[str, int]) -> tuple[Arrival, ...]:
    """All requests in the order in which they come.

    Args:
        config: the trace.
        rows: how many rows each source has (`App.source`). None is drawn twice before all were drawn once.

    Raises:
        InputError: a dataset has no rows.
    """
    wanted = counts(config.requests, config.alpha, len(config.apps))
    drawn = [
        (app, row)
        for app, count in zip(config.apps, wanted, strict=True)
        for row in _rows(rows.get(app.source, 0), count, app, config.seed)
    ]
    random.Random(f"{config.seed}/order").shuffle(drawn)
    return tuple(
        Arrival(app, row, seconds)
        for (app, row), seconds in zip(drawn, _times(config, len(drawn)), strict=True)
    )


def _rows(available: int, count: int, app: App, seed: int) -> Sequence[int]:
    if available < 1:
        raise InputError(f"app {app.name} takes its requests from {app.source}, which has no rows here")
    chance, drawn = random.Random(f"{seed}/{app.source}"), list[int]()
    while len(drawn) < count:
        every = list(range(available))
        chance.shuffle(every)
        drawn += every
    return drawn[:count]


def _times(config: TraceConfig, count: int) -> Sequence[float]:
    """Moments of a Poisson process: gaps are exponential."""
    chance, now, moments = random.Random(f"{config.seed}/times"), 0.0, list[float]()
    for _ in range(count):
        now += chance.expovariate(config.rate / 3600.0)
        moments.append(now)
    return moments
