"""Traces of requests by several apps, synthesized from datasets (ElastiLM 5.1).

Owns the number of requests per app, their examples and their arrival times. Must not know how they are
served. Every draw has its own seed; global random state is neither read nor changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval, MinLen

from repro.core.bounds import Part, Text, Tokens
from repro.core.errors import InputError
from repro.core.typed import typed


@dataclass(frozen=True)
class App:
    """One app.

    Attributes:
        name: its name.
        dataset: the dataset of its requests.
        tokens: without a dataset, the length of its dummy prompts.
        ttft: SLO on the time to first token, as a share of the full model's; None for no limit.
        tpot: SLO on the time per later token, likewise.
        time: SLO on the time to the last token, likewise (ElastiLM 5.6).
        energy: SLO on energy, likewise.
    """

    name: Text
    dataset: Text | None = None
    tokens: Tokens | None = None
    ttft: Part | None = None
    tpot: Part | None = None
    time: Part | None = None
    energy: Part | None = None

    @property
    def source(self) -> str:
        """The dataset's name, or a description of the dummy prompts."""
        return self.dataset or f"{self.tokens} blanks"


@dataclass(frozen=True)
class TraceConfig:
    """One trace: `conf/trace/<name>.yaml`.

    Attributes:
        name: its short name.
        requests: total number of requests.
        alpha: skew: 0 gives all apps equal shares, above 0 favours later apps, below 0 earlier ones.
        rate: requests per hour of the Poisson process.
        seed: seed of examples, order and times.
        answer: tokens per answer; TPOT is a mean over them.
        concise: share of the common prompt prefix that callers keep when they shorten it (ElastiLM 5.5).
        apps: the apps, tightest SLO first (the paper's i = 1).
    """

    name: Text
    requests: Annotated[int, Interval(ge=1, le=100_000)]
    alpha: Annotated[float, Interval(ge=-100, le=100)]
    rate: Annotated[float, Interval(gt=0, le=1e9)]
    seed: Annotated[int, Interval(ge=0)]
    answer: Tokens
    concise: Part
    apps: Annotated[tuple[App, ...], MinLen(1)]


class Arrival(NamedTuple):
    """One request: its app, the index of its example in the app's dataset, and its arrival in seconds."""

    app: App
    row: int
    seconds: float


def parse_trace(mapping: Mapping[str, Any]) -> TraceConfig:
    """Parse the content of a file of `conf/trace/`.

    Raises:
        InputError: an entry is missing, unknown or invalid.
    """
    config = typed(TraceConfig, mapping, "trace")
    names = [app.name for app in config.apps]
    if len(set(names)) < len(names):
        raise InputError(f"trace {config.name}: apps are {names}; name none twice")
    for app in config.apps:
        if (app.dataset is None) == (app.tokens is None):
            raise InputError(
                f"trace {config.name}: app {app.name} has dataset {app.dataset} and tokens {app.tokens}; "
                "give one of them"
            )
    return config


def counts(request_count: int, alpha: float, apps: int) -> tuple[int, ...]:
    """Number of requests per app, the first being i = 1: Num(i) = requests e^(alpha i) / sum of e^(alpha k).

    Deviation: the paper does not specify rounding, and rounding down loses up to one request per app. Here
    each is rounded down, and the missing requests go to the largest remainders, ties to the first.
    """
    weights = [math.exp(alpha * i) for i in range(1, apps + 1)]
    shares = [request_count * weight / sum(weights) for weight in weights]
    app_counts = [math.floor(share) for share in shares]
    apps_by_remainder = sorted(range(apps), key=lambda i: (round(app_counts[i] - shares[i], 9), i))
    for i in apps_by_remainder[: request_count - sum(app_counts)]:
        app_counts[i] += 1
    return tuple(app_counts)


def trace(config: TraceConfig, rows: Mapping[str, int]) -> tuple[Arrival, ...]:
    """All requests in order of arrival.

    Args:
        config: the trace.
        rows: number of examples by `App.source`. An app repeats an example only after it has used all.

    Raises:
        InputError: a dataset has no rows.
    """
    app_counts = counts(config.requests, config.alpha, len(config.apps))
    requests = [
        (app, row)
        for app, count in zip(config.apps, app_counts, strict=True)
        for row in _rows(rows.get(app.source, 0), count, app, config.seed)
    ]
    random.Random(f"{config.seed}/order").shuffle(requests)
    return tuple(
        Arrival(app, row, seconds)
        for (app, row), seconds in zip(requests, _times(config, len(requests)), strict=True)
    )


def _rows(row_count: int, request_count: int, app: App, seed: int) -> Sequence[int]:
    if row_count < 1:
        raise InputError(f"app {app.name} takes its requests from {app.source}, which has no rows here")
    generator, rows = random.Random(f"{seed}/{app.source}"), list[int]()
    while len(rows) < request_count:
        order = list(range(row_count))
        generator.shuffle(order)
        rows += order
    return rows[:request_count]


def _times(config: TraceConfig, count: int) -> Sequence[float]:
    """Arrival times of a Poisson process, with exponential gaps."""
    generator, seconds, moments = random.Random(f"{config.seed}/times"), 0.0, list[float]()
    for _ in range(count):
        seconds += generator.expovariate(config.rate / 3600.0)
        moments.append(seconds)
    return moments
