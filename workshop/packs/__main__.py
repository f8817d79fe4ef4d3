"""`python -m workshop.packs`: compute, export, import, verify and list packs of observations.

    python -m workshop.packs compute [NAME ...]  the targets' own texts, and what drafts and early exits
                                                     are likely to be asked there; pieces of ten minutes
    python -m workshop.packs export [NAME ...]   packs of the texts, and of other rows that runs have read
    python -m workshop.packs import FILE ...     packs made elsewhere
    python -m workshop.packs verify [NAME ...]   recompute a random hundredth of each pack's rows
    python -m workshop.packs list                packs with their sizes, and what is planned

A name is a planned pack of conf/observations.yaml, or a target (the part before the dot): all of its packs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Grid

from repro.core.errors import InputError
from repro.core.output import prepare_process
from repro.core.overrides import override
from repro.models.observations.pack import read, read_facts
from repro.models.observations.transfer import folders
from repro.records.build_cache import cache_root
from workshop.packs.compute import Paused, Piece, compute, draft_ahead, export, require_host
from workshop.packs.plan import Planned, planned
from workshop.packs.verify import SHARE, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 if a row differs, 2 for bad input, 3 if there is more to do."""
    whole = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m workshop.packs", description=__doc__, formatter_class=whole)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compute", "export", "verify"):
        one = commands.add_parser(name)
        one.add_argument("names", nargs="*", metavar="NAME", help="planned packs or targets; all by default")
        one.add_argument("--data", default=os.environ.get("REPRO_DATA"), help="a folder of dataset rows")
        one.add_argument("--host", default="cpu", choices=("cpu", "cuda"), help="where tensors are computed")
        one.add_argument("--folder", type=Path, default=folders()[0], help="where packs lie")
    commands.choices["compute"].add_argument("--minutes", type=float, default=10, help="length of the piece")
    commands.choices["verify"].add_argument("--share", type=float, default=SHARE, help="share of the rows")
    commands.add_parser("import").add_argument("files", nargs="+", type=Path, metavar="FILE")
    commands.add_parser("list")
    given, console = parser.parse_args(arguments), Console()
    try:
        if given.command == "import":
            return bring(given.files, console)
        if given.command == "list":
            return show(console)
        require_host(given.host)
        more = [f"host={given.host}", *([override("data_dir", given.data)] if given.data else [])]
        found = planned(given.names, more)
        if given.command == "compute":
            return compute_all(found, given.minutes, console)
        if given.command == "export":
            return export_all(found, given.folder, console)
        return verify_all(found, given.folder, given.share, console)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2


def compute_all(found: Sequence[Planned], minutes: float, console: Console) -> int:
    """Compute until all is known or the time is over."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    piece, left = Piece(minutes), list(found)
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bars:
        try:
            for one in found:
                task = bars.add_task(one.name, total=None)
                texts = compute(one, piece, partial(_tell, bars, task))
                console.print(f"{one.name}: {len(texts)} texts of {one.tokens} tokens", highlight=False)
                task = bars.add_task(f"{one.name}, drafts", total=None, visible=bool(one.drafts))
                draft_ahead(one, piece, partial(_tell, bars, task))
                left.remove(one)
        except Paused:
            names = " ".join(one.name for one in left)
            console.print(f"paused; the same command goes on with {names}", highlight=False)
            return 3
    return 0


def _tell(bars: Progress, task: TaskID, done: int, total: int) -> None:
    bars.update(task, completed=done, total=total)


def export_all(found: Sequence[Planned], folder: Path, console: Console) -> int:
    """Write the packs of all plans."""
    for one in found:
        for path in export(one, folder):
            console.print(f"{path}  {path.stat().st_size / 1e6:.2f} MB", highlight=False, soft_wrap=True)
    return 0


def verify_all(found: Sequence[Planned], folder: Path, share: float, console: Console) -> int:
    """Recompute a share of the rows of each plan's packs."""
    if not 0 < share <= 1:
        raise InputError(f"--share is {share}; it is above 0 and at most 1")
    wrong = count = 0
    for one in found:
        for path in sorted({*folder.glob(f"{one.name}.parquet"), *folder.glob(f"{one.name}.*.parquet")}):
            tally = verify(path, one, share)
            states = ", ".join(f"{tally[state]} {state}" for state in ("equal", "tie", "different"))
            console.print(f"{path.stem}: {states}", highlight=False)
            wrong, count = wrong + tally["different"], count + 1
    if not count:
        raise InputError(f"{folder} has none of these packs; choose another --folder, or compute and export")
    return int(wrong > 0)


def bring(files: Sequence[Path], console: Console) -> int:
    """Copy packs to the machine's folder, from which every run takes them."""
    folder = cache_root() / "observations"
    packs = [(path, read(path).facts) for path in files]  # all are whole before one is copied
    folder.mkdir(parents=True, exist_ok=True)
    for path, facts in packs:
        shutil.copyfile(path, folder / f"{facts.name}.parquet")
        console.print(f"{facts.name}: {facts.kind}, {len(facts.prompts)} prompts", highlight=False)
    return 0


def show(console: Console) -> int:
    """Print all packs, and the planned ones that there are not."""
    grid = Grid("pack", "kind", "prompts", "tokens", "ranks", "MB", "observed")
    there = set()
    for folder in folders():
        for path in sorted(folder.glob("*.parquet")):
            facts = read_facts(path)
            there.add(facts.name)
            tokens, size = sum(map(len, facts.texts)), path.stat().st_size / 1e6
            cells = (facts.name, facts.kind, len(facts.prompts), tokens, facts.ranks, f"{size:.2f}")
            grid.add_row(*map(str, cells), facts.observed)
    for one in planned(()):
        if one.name not in there:
            grid.add_row(one.name, "planned")
    console.print(grid)
    return 0


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
