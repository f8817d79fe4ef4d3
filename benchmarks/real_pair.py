"""Runs a method with a real model pair on this machine and measures where the time goes.

Must not know which methods a benchmark compares, nor what it prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir

from repro.core.paths import conf_dir
from repro.device.emulated import Device
from repro.device.op import FLASH
from repro.device.trace import Trace
from repro.experiments.cli import plain, publish
from repro.methods.base import Generation
from repro.models.runtime.session import Pass, Session
from repro.scenarios.generation import figures
from repro.scenarios.generation.run import opened_sessions, prepare, serve
from repro.scenarios.generation.scenario import GenerationScenario


@dataclass(frozen=True)
class Answered:
    """Results of serving a cell's requests once; device and sessions are closed."""

    cell: GenerationScenario
    device: Device
    sessions: Mapping[str, Session]
    generations: Sequence[Generation]

    @property
    def windows(self) -> list[tuple[float, float]]:
        """Decode spans of the answers, seconds on the device's clock."""
        return figures.decode_windows(self.generations)

    @property
    def seconds(self) -> float:
        """Total seconds of the decode spans."""
        return sum(end - start for start, end in self.windows)

    @property
    def resting(self) -> float:
        """Seconds of decoding in which neither a processor nor the disk worked.

        An upper bound of the method's own Python time.
        """
        return sum(end - start - working(self.device.trace, start, end) for start, end in self.windows)


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add the options that set how much is answered."""
    parser.add_argument("--prompts", type=int, default=2, help="of each dataset")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--set", action="append", default=[], help="any other setting, as on the command line"
    )


def local_cell(
    method: str, dataset: str, pair: tuple[str, str], budget: float, chosen: argparse.Namespace, *own: str
) -> GenerationScenario:
    """The cell of a method on this machine.

    Args:
        method: name of a registered method.
        dataset: a file of conf/dataset.
        pair: files of conf/model, target and draft.
        budget: memory for models in GB.
        chosen: the options of `add_size`.
        own: settings of this method, which `--set` may override.
    """
    publish()
    names = [f"method={method}", f"dataset={dataset}", "device=local_cpu"]
    models = [f"model@target={pair[0]}", f"model@draft={pair[1]}"]
    size = [f"prompts={chosen.prompts}", f"max_tokens={chosen.tokens}", "repeats=1"]
    room = [f"device.dram.budget.value={budget}"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=[*names, *models, *room, *size, *own, *chosen.set])
    return GenerationScenario(plain(config))


def answered(cell: GenerationScenario) -> Answered:
    """Serve all requests of a cell once, after a warm-up."""
    cell.check()
    device = cell.open_device()
    with closing(device), opened_sessions(cell, device, None) as sessions:
        serving = prepare(cell, device, sessions)
        generations = serve(cell, device, sessions, serving, lambda *_: None)
    return Answered(cell, device, sessions, generations)


def working(trace: Trace, start: float, end: float, reading: bool = True) -> float:
    """Seconds of a window in which any resource worked; without `reading`, any but the disk."""
    spans = (span for span in trace.within(start, end) if reading or span.on != FLASH)
    return covered(((span.start, span.end) for span in spans), start, end)


def covered(stretches: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """Seconds of a window covered by time intervals, which may overlap each other and the window's ends."""
    total, reached = 0.0, start
    for left, right in sorted(stretches):
        total += max(0.0, min(right, end) - max(left, reached))
        reached = max(reached, right)
    return total


def drafting(
    generations: Sequence[Generation], verifications: Iterable[Pass]
) -> Iterator[tuple[float, float]]:
    """For each cycle the interval before its verification, in which a method only drafts."""
    starts = sorted(one.start for one in verifications)
    for one in (r for g in generations for r in g.rounds):
        verified = next((start for start in starts if one.start <= start < one.end), None)
        if verified is not None:
            yield one.start, verified


def alone(options: Sequence[str], *arguments: str) -> Any:
    """Run this script in a separate process and return its last output line, parsed as JSON.

    The process has its own peak resident set, which then belongs to one method.
    """
    child = [sys.executable, sys.argv[0], *options, *arguments]
    found = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(found.splitlines()[-1])
