"""Time of commands that compute nothing, and of a table of costs: CPU and wall seconds, medians.

    python -m workshop.benchmarks.startup --data FOLDER
    python -m workshop.benchmarks.startup --only help typo --rounds 5

Every command is a separate process. Finished cells are computed beforehand, into a folder that is removed at
the end; checkpoints and dataset rows come from where any run finds them. Wall seconds mean little under load.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from repro.core.overrides import override

METHODS = "std,flash_ar,draft,chain_sd"
SWEEP = ("hydra.mode=MULTIRUN", f"method={METHODS}", "max_tokens=1,2,3", "prompts=1")
CELL = ("method=chain_sd", "prompts=1", "max_tokens=2")
COSTS = "experiment=mllm_npu/table4"


class Command(NamedTuple):
    """A command line, its preparation, and whether its results folder is empty each time."""

    arguments: Sequence[str]
    before: Sequence[str] = ()
    afresh: bool = False


COMMANDS: Mapping[str, Command] = {
    "help": Command(("--help",)),
    "typo": Command(("method=chian_sd",)),
    "list": Command((*SWEEP, "sweep=list"), before=SWEEP),
    "cell": Command(CELL, before=SWEEP),
    "sweep": Command(SWEEP, before=SWEEP),
    "costs_list": Command((COSTS, "sweep=list")),
    "costs": Command((COSTS,), afresh=True),
}


def run(arguments: Sequence[str], folder: Path, data: str | None) -> tuple[float, float]:
    """CPU and wall seconds of one command."""
    own = [override(name, folder / name) for name in ("results", "outputs")] + ["wandb.mode=disabled"]
    own += [override("data_dir", data)] if data else []
    before, begun = os.times(), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "repro", *own, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, time.perf_counter() - begun


def measured(command: Command, rounds: int, data: str | None) -> list[tuple[float, float]]:
    """Seconds of every round."""
    with tempfile.TemporaryDirectory() as name:
        if command.before:
            run(command.before, Path(name), data)
        folders = [Path(name, str(i)) if command.afresh else Path(name) for i in range(rounds)]
        return [run(command.arguments, folder, data) for folder in folders]


def main() -> None:
    """Time the selected commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", help="a folder of datasets, as data_dir")
    asked = parser.parse_args()
    print(f"{'command':<12} {'cpu s':>8} {'wall s':>8}")
    for name in asked.only:
        seconds = measured(COMMANDS[name], asked.rounds, asked.data)
        cpu, wall = (median(column) for column in zip(*seconds, strict=True))
        print(f"{name:<12} {cpu:8.2f} {wall:8.2f}", flush=True)


if __name__ == "__main__":
    main()
