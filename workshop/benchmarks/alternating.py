"""What timings share: their command line, arms that take turns, medians beside a floor and a base, intervals.

Arms of a round run one after the other, in another order each round, after a round that warms up. A ratio is
taken within each round, with a 95% interval over all rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from math import exp, fsum, log
from pathlib import Path
from random import Random
from typing import TypeVar

import pandas as pd
import torch

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.models.calibration.machine_files import read_bandwidth
from repro.models.calibration.passes import cost_of
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from repro.models.transformer.config import DecoderConfig

DRAWS = 10_000
"""Resamples of an interval."""

T = TypeVar("T")
Interval = tuple[float, float]
Strata = Sequence[Sequence[T]]
"""Prompts by dataset."""


def mean_ratio(strata: Strata[float]) -> float:
    """Geometric mean over prompts, then over datasets, which have equal weight."""
    means = [fsum(map(log, ratios)) / len(ratios) for ratios in strata]
    return exp(fsum(means) / len(means))


def interval(strata: Strata[T], figure: Callable[[Strata[T]], float]) -> Interval | None:
    """95% interval of a figure, by prompts drawn again within datasets; None if one has a single prompt."""
    if min(map(len, strata)) < 2:
        return None
    chance = Random(0)
    drawn = sorted(figure([chance.choices(own, k=len(own)) for own in strata]) for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]


def ends(interval: Interval | None) -> str:
    """An interval in words; `-` if there is none."""
    return "-" if interval is None else " to ".join(f"{end:.3g}" for end in interval)


def command_line(about: str | None, rounds: int, threads: int = 1) -> argparse.ArgumentParser:
    """The options that timings of a checkpoint have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkpoint", default="smollm2_135m_instruct", help="a file of conf/model/checkpoint"
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"that are timed ({rounds})")
    parser.add_argument("--threads", type=int, default=threads, help=f"of the CPU ({threads})")
    return parser


def checkpoint_folder(name: str) -> Path:
    """The folder of one of `conf/model/checkpoint`; InputError if there is none of that name."""
    files = {path.stem: path for path in (conf_dir() / "model" / "checkpoint").glob("*.yaml")}
    if name not in files:
        raise InputError(unknown("checkpoint", name, files))
    return open_checkpoint(Checkpoint.from_yaml(files[name]))


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """A function that calls another one and returns its seconds, those of freeing its result included."""

    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return seconds


def take_turns(arms: Mapping[str, Callable[[], float]], rounds: int, pause_s: float = 0.0) -> pd.DataFrame:
    """The seconds that each arm returns, in a column each, by round."""
    chance, lines = Random(0), []
    for _ in range(rounds + 1):
        lines.append({name: arms[name]() for name in chance.sample(sorted(arms), len(arms))})
        time.sleep(pause_s)
    return pd.DataFrame(lines[1:], columns=list(arms)).reset_index(drop=True)


def weights_read(config: DecoderConfig, dtype: str) -> float:
    """Bytes of weights that a token reads: layers and output projection."""
    cost = cost_of(config, dtype)
    return cost.block_bytes + cost.head(1)[1]


def read_seconds(size: float) -> float:
    """Seconds that memory takes to give so many bytes: the floor of a pass that reads them once."""
    return size / read_bandwidth(torch.device("cpu"))


def times_as_fast(seconds: pd.DataFrame, arm: str, base: str) -> str:
    """How many times as fast as another an arm is, with its interval."""
    ratios = [list(seconds[base] / seconds[arm])]
    spread = ends(interval(ratios, mean_ratio))
    return f"{mean_ratio(ratios):.3g} ({spread}) times as fast as {base}"


def show(seconds: pd.DataFrame, floors: Mapping[str, float], bases: tuple[str, ...], work: float = 1) -> None:
    """Print each arm: the median with its range, units of work a second, the share of its floor, and ratios.

    Args:
        seconds: by round and arm.
        floors: least seconds by arm, where they are known.
        bases: arms that the others are set beside.
        work: tokens, or other units, of an arm's turn.
    """
    for arm in seconds:
        middle, low, high = (1e3 * seconds[arm].agg(how) for how in ("median", "min", "max"))
        line = f"  {arm:26}{middle:10.3f} ms ({low:.3f} to {high:.3f}){1e3 * work / middle:10.1f} a second"
        if arm in floors:
            line += f", {1e3 * floors[arm] / middle:4.0%} of the floor"
        ratios = [times_as_fast(seconds, arm, base) for base in bases if base != arm]
        print("; ".join([line, *ratios]), flush=True)
