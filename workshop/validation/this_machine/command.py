"""`python -m workshop.validation this_machine`: calibrate here, predict, measure, and write the comparison.

Owns the command and its files. A group that was measured is kept in `outputs/validation/this_machine`, so
that an interrupted run goes on where it was; `--fresh` measures all again.
"""

from __future__ import annotations

import argparse
import gzip
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from repro.core.digits import json_text
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.device.probing.quiet import self_test
from repro.libraries import torch
from repro.models.calibration.machine_files import quiet_kernel
from workshop.validation.this_machine.cells import DTYPES, ENGINES, LLAMA_CPP, MODELS, groups, in_turns
from workshop.validation.this_machine.llama_cpp import is_installed
from workshop.validation.this_machine.measuring import MachineBench, MeasuredGroup, MeasuringPlan
from workshop.validation.this_machine.page import HEADINGS, framed, lines, write_page
from workshop.validation.this_machine.picture import draw
from workshop.validation.this_machine.predicting import best_bandwidth, predictions

NAME = "this_machine"
LEAST_PEERS = 3
"""Models of llama.cpp, of which two predict the third."""


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog=f"python -m workshop.validation {NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="every streamed cell, not a fixed third of them")
    parser.add_argument(
        "--engines", nargs="+", default=list(ENGINES), metavar="NAME", help=", ".join(ENGINES)
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), metavar="NAME", help=", ".join(DTYPES))
    parser.add_argument("--rounds", type=int, default=5, help="passes of a cell in each arm, at least (5)")
    parser.add_argument("--threads", type=int, default=0, help="of torch and llama.cpp; 0: torch's default")
    parser.add_argument("--pace", type=float, default=0.5, help="GB/s that reads are held to (0.5)")
    parser.add_argument("--busy", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier run measured")
    parser.add_argument("--work", type=Path, help="folder of measured groups; default outputs/validation/...")
    parser.add_argument("--out", type=Path, help=f"folder of the result; default results/validation/{NAME}")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; 2 for an input that does not exist, 3 for a machine that is busy."""
    options = parse(given)
    try:
        return _run(options)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    for name in ("rounds", "pace"):
        if getattr(options, name) <= 0:
            raise InputError(f"--{name} is {getattr(options, name)}; it must be above 0")
    if options.threads < 0:
        raise InputError(f"--threads is {options.threads}; it must be 0 or more")
    if LLAMA_CPP in options.engines and len(set(options.models)) < LEAST_PEERS:
        raise InputError(
            f"llama.cpp's passes of a model are predicted from those of two others, and --models names "
            f"{', '.join(options.models)}; name {LEAST_PEERS} models, or choose --engines ours"
        )
    if LLAMA_CPP in options.engines and not is_installed():
        raise InputError("llama.cpp is not installed: pip install -e '.[llama]', or choose --engines ours")
    chosen = groups(options.engines, options.models, options.dtypes)
    threads = options.threads or torch.get_num_threads()
    plan = MeasuringPlan(options.rounds, threads, options.pace * 1e9, every=options.all)
    work = options.work or project_root() / "outputs" / "validation" / NAME
    if options.fresh and work.is_dir():
        shutil.rmtree(work)
    torch.set_num_threads(threads)
    quiet = self_test(quiet_kernel())
    say(quiet.sentence)
    if not quiet.is_quiet and not options.busy:
        print(
            f"this machine is too busy to measure: {quiet.sentence}; stop them, or add --busy",
            file=sys.stderr,
        )
        return 3
    bench = MachineBench(plan, say)
    found: list[MeasuredGroup] = []
    for number, together in enumerate(units := in_turns(chosen), start=1):
        read = (MeasuredGroup.read(work, group) for group in together)
        known = [one for one in read if one and one.has_all(plan)]
        if len(known) < len(together):
            say(f"{number} of {len(units)}: {', '.join(group.id for group in together)}")
            known = bench.measure(together)
            for one in known:
                one.write(work)
        found += known
    compared = list(predictions(found, plan.pace))
    out = options.out or project_root() / "results" / "validation" / NAME
    write_page(out, compared, _notes(found, threads, options.pace, quiet.sentence))
    (out / "measured.json.gz").write_bytes(
        gzip.compress(json_text([asdict(one) for one in found]).encode(), mtime=0)
    )
    for form in ("png", "pdf"):
        (out / f"figure.{form}").write_bytes(draw(compared, form))
    table = Table(*HEADINGS)
    for line in lines(framed(compared)):
        table.add_row(*line)
    Console().print(table, f"written to {out}")
    return 0


def _notes(found: Sequence[MeasuredGroup], threads: int, pace: float, quiet: str) -> list[str]:
    """What the page says of the machine and of the run."""
    minutes = sum(one.seconds for one in found) / 60
    disks = sorted(rate / 1e9 for one in found for rate in one.disk)
    disk = f", the disk gave {disks[len(disks) // 2]:.2f} GB/s (reads are held to {pace:g})" if disks else ""
    return [
        f"Measured in {minutes:.0f} minutes on {platform.machine()}, {platform.system()}, torch "
        f"{torch.__version__} with {threads} thread{'s' * (threads > 1)}; memory gave "
        f"{best_bandwidth(found) / 1e9:.1f} GB/s{disk}. Before it {quiet}.",
        "`rows.csv` has every cell, `measured.json.gz` every timed pass and layer.",
    ]
