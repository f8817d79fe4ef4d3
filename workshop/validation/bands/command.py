"""`python -m workshop.validation bands`: how far a paper's headline figures move with the assumed numbers.

    python -m workshop.validation bands                        the headline tables of all papers
    python -m workshop.validation bands --paper lever          those of one
    python -m workshop.validation bands --table edgellm/fig16  any committed table
    python -m workshop.validation bands --draws 4 --prompts 2 --out FOLDER    quickly, elsewhere

Runs the cells of committed tables again on machines whose assumed numbers are drawn (docs/emulator.md).
What a killed run has computed lies in outputs/validation/bands, and is not computed again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.core.registry import unknown
from repro.device.engines.draws import DRAWS
from repro.experiments.composing import load_components
from repro.records.results import open_results
from workshop.validation.bands.page import COMMAND, write_bands
from workshop.validation.bands.replay import ReplayFile
from workshop.validation.bands.table_bands import CommittedTable, ReplayPlan, table_bands

NAME = "bands"
HEADLINES = {
    "lever": ("lever/fig10_mean",),
    "mllm_npu": tuple(
        f"mllm_npu/{name}" for name in ("table4", "table4_mean", "fig14", "fig14_mean", "fig15")
    ),
    "edgellm": ("edgellm/fig15",),
    "ghidorah": ("ghidorah/fig9",),
    "elastilm": ("elastilm/fig14",),
}
"""Tables with a paper's headline claims."""

TEXT_DRAWS, PROMPTS, CONFIGURATIONS = 8, 5, 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 2 for an input that does not exist."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paper", help=f"one of {', '.join(HEADLINES)}; all by default")
    parser.add_argument("--table", help="a committed table in their place (lever/fig10_mean)")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"of cells without texts ({DRAWS})")
    parser.add_argument("--text-draws", type=int, default=TEXT_DRAWS, help=f"of others ({TEXT_DRAWS})")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"that those answer ({PROMPTS})")
    parser.add_argument(
        "--configurations",
        type=int,
        default=CONFIGURATIONS,
        help=f"of a row that is a mean ({CONFIGURATIONS})",
    )
    parser.add_argument("--data", default=os.environ.get("REPRO_DATA"), help="a folder of dataset rows")
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    parser.add_argument("--out", type=Path, help="default: validation/bands of the results")
    parser.add_argument("--work", type=Path, default=project_root() / "outputs" / "validation" / NAME)
    given, console = parser.parse_args(arguments), Console()
    try:
        for name in ("draws", "text_draws", "prompts", "configurations"):
            if getattr(given, name) < 1:
                raise InputError(
                    f"--{name.replace('_', '-')} is {getattr(given, name)}; it must be 1 or more"
                )
        if given.paper is not None and given.paper not in HEADLINES:
            raise InputError(unknown("paper", given.paper, HEADLINES))
        if given.paper and given.table:
            raise InputError("--paper names the headline tables of a paper and --table one table; give one")
        load_components()
        chosen = [given.paper] if given.paper else [*HEADLINES]
        names = [given.table] if given.table else [name for paper in chosen for name in HEADLINES[paper]]
        results = open_results(given.results)
        plan = ReplayPlan(given.draws, given.text_draws, given.prompts, given.configurations, given.data)
        out = given.out or given.results / "validation" / NAME
        for name in names:
            started = sum(os.times()[:2])
            file = ReplayFile(given.work / f"{name.partition('/')[0]}.jsonl")  # tables of a paper share cells
            table = CommittedTable.read(results, name)
            found = table_bands(name, table, plan, file.replay)
            write_bands(out, found)
            seconds = sum(os.times()[:2]) - started
            console.print(f"{name}: {len(found.bands)} figures, {found.draws} draws, {file.computed} replays")
            console.print(f"in {seconds:.0f} CPU seconds; written to {out}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
