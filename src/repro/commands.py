"""The verbs of the command `repro`: each a function, whose parameters are the verb's arguments.

    repro VERB ...            one of `VERBS`; `repro VERB --help`
    repro GROUP=NAME ...      a run or, with -m, a sweep; `repro --help`
    repro --version           the release and the commit

A verb imports what does its work when it is called, so that the command answers at once. Must not know how
anything is computed.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import cleandoc
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.output import prepare_process
from repro.core.paths import project_root
from repro.core.registry import require_choice, unknown

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""What `ArgumentParser.add_argument` takes: the names, and what is said of them."""

OUTPUTS_FOLDER = Path("outputs/results")
OBJECTS_PER_COLLECTION = 20_000
"""New objects after which Python looks for garbage; its own 700 cost a command without computing a tenth."""

VERBS: dict[str, Callable[[Sequence[str]], int]] = {}
"""What runs each verb with its words and returns the exit status."""


def argument(*names: str, **about: Any) -> Argument:
    """An argument of a verb."""
    return names, about


def verb(*arguments: Argument) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Make a function a verb, with the function's name and these arguments."""

    def add(function: Callable[..., int | None]) -> Callable[..., int | None]:
        name = function.__name__.rstrip("_")

        def run_words(words: Sequence[str]) -> int:
            parser = ArgumentParser(
                f"repro {name}",
                description=cleandoc(function.__doc__ or ""),
                formatter_class=RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            for names, about in arguments:
                parser.add_argument(*names, **about)
            return function(**vars(parser.parse_args(words))) or 0

        VERBS[name] = run_words
        return function

    return add


def run(name: str, words: Sequence[str]) -> int:
    """Run a verb with its words. Returns the exit status: 2 after an error of the input, which is printed."""
    try:
        return VERBS[name](words)
    except InputError as wrong:
        return tell(wrong, 2)


def tell(wrong: object, status: int) -> int:
    """Print an error to stderr; returns the exit status."""
    print(f"error: {wrong}", file=sys.stderr)
    return status


def main() -> None:
    """The command `repro`."""
    prepare_process()
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    first_word = sys.argv[1] if len(sys.argv) > 1 else ""
    if first_word in VERBS:
        sys.exit(run(first_word, sys.argv[2:]))
    if first_word == "--version":
        from repro.core.version import version

        print(f"repro {version()}")
        return
    if first_word.isalpha():
        sys.exit(tell(f"{unknown('verb', first_word, VERBS)}; a setting is NAME=VALUE", 2))
    from repro.experiments.cli import main as run_cells

    run_cells()


# --- tables and records -------------------------------------------------------------------------------------


@verb(
    argument("tables", nargs="*", metavar="TABLE", help="all that were made when none is given"),
    argument("--format", nargs="+", dest="formats", metavar="FORMAT", help="md, csv, tex, png, pdf, bib"),
    argument("--results", type=Path, default=OUTPUTS_FOLDER, help="a folder of results"),
    argument("--out", type=Path, help="folder for the tables; that of the results by default"),
    argument("--convert", type=Path, metavar="FOLDER", help="a folder of the former layout"),
    argument("--pack", type=Path, metavar="FOLDER", help="a folder whose records go to git"),
    argument("--x", metavar="LABEL", help="draw lines over the numbers of this label of the rows"),
    argument("--by", metavar="LABEL", help="with --x: the label that names the lines"),
    argument("--paper", action="store_true", help="LaTeX floats, paper.bib, and the figure without title"),
    argument("--columns", nargs="+", metavar="KEY", help="for a paper: columns by key, in this order"),
    argument("--rows", nargs="+", metavar="ROW", help="for a paper: rows by id or name, in this order"),
    argument("--no-intervals", action="store_true", help="for a paper: values alone"),
    argument("--two-column", action="store_true", help="for a paper: 252 points wide, a column of two"),
    argument("--style", help="for a paper: floats (`float`), or everything over pages (`full`)"),
)
def table(
    tables: Sequence[str],
    formats: Sequence[str] | None,
    results: Path,
    out: Path | None,
    convert: Path | None,
    pack: Path | None,
    x: str | None,
    by: str | None,
    **of_paper: Any,
) -> int:
    """Rebuild tables and figures from their cells, without running anything.

    repro table                           all tables of outputs/results
    repro table quickstart lever/fig10    these
    repro table --results results         all tables of results, the committed ones
    repro table lever --results results   those of a paper
    repro table quickstart --format tex --out paper/
    repro table NAME --x length --by device    lines over a number, as over_length.png beside the table
    repro table quickstart --paper --out paper/    floats, and the figure without title
    repro table quickstart --two-column --no-intervals --columns speedup over_edgellm   for a paper
    repro table --convert FOLDER          bring a folder of the former layout to the present one, packed
    repro table --pack FOLDER             bring its records together for git, a paper's in one file
    """
    from repro.experiments.cli import screen
    from repro.experiments.recorded_tables import NumberLines, remake, show, tables_of
    from repro.experiments.tables import update_index
    from repro.records.former import convert as converted
    from repro.records.results import open_results
    from repro.reports.intervals.samples import Samples
    from repro.reports.paper import paper_table

    if by and not x:
        raise InputError("--by goes with --x")
    if convert:
        update_index(converted(convert))
        return 0
    if pack:
        open_results(pack).pack()
        return 0
    paper, over = paper_table(**of_paper), NumberLines(x, by) if x else None
    store = open_results(results)
    samples, errors = Samples(store), dict[str, None]()
    for name in tables_of(tables, store):
        try:
            with nullcontext() if out else store.lock():
                show(screen(), *remake(name, store, samples, out or store.root, formats, paper, over))
        except InputError as wrong:  # the other tables do not need this one
            errors[str(wrong)] = None
    for error in errors:
        tell(error, 2)
    if not (errors or paper or over or out):
        update_index(store)
    return 2 if errors else 0


@verb(
    argument("papers", nargs="*", metavar="PAPER", help="as in conf/reference/cells.csv; default all"),
    argument("--results", type=Path, default=Path("results"), help="folder of the tables"),
    argument("--out", type=Path, help="folder of the pages; that of the tables by default"),
)
def errors(papers: Sequence[str], results: Path, out: Path | None) -> None:
    """List a paper's predicted values with their errors over all existing tables, worst first.

    repro errors edgellm             of one paper
    repro errors --results results   of all papers, and the pages over them

    Reads the tables' CSV files and conf/reference/; writes <results>/<paper>/errors/, <results>/fidelity.md
    and <results>/errata.md.
    """
    from repro.experiments.recorded_tables import write_errors

    for line in write_errors(papers, results, out or results):
        print(line)


@verb(
    argument("--results", type=Path, default=OUTPUTS_FOLDER, help="a folder of results"),
    argument("--experiment", metavar="NAME", help="only cells that it made or shows"),
    argument("--out", type=Path, default=Path("cells.parquet"), help="the file, .parquet or .csv"),
)
def cells(results: Path, experiment: str | None, out: Path) -> None:
    """Write all records of a folder of results as one Parquet or CSV file, for pandas, DuckDB and Polars.

    repro cells                                        outputs/results, to cells.parquet
    repro cells --results results --out all.parquet    the committed ones
    repro cells --experiment lever/fig10               those of an experiment, a paper or a sweep's table
    repro cells --out cells.csv                        as CSV, without units

    One row a cell: labels, values and their units, settings (docs/run.md); `repro.cells()` is the same
    frame.
    """
    from repro.experiments.python_interface import cells as all_cells
    from repro.reports.cell_frame import write_frame

    frame = all_cells(results, experiment)
    if frame.empty:
        raise InputError(f"{results} has no records; choose --results FOLDER")
    try:
        write_frame(frame, out)
    except OSError as wrong:
        raise InputError(f"{out}: {wrong.strerror}; choose another --out") from wrong
    print(f"{len(frame)} cells, {len(frame.columns)} columns: {out}")


@verb(
    argument("cell", nargs="?", help="a key's first digits, or EXPERIMENT/LABEL,LABEL"),
    argument("--compute", action="store_true", help="run the cell again if it has no answers"),
    argument("--full", action="store_true", help="whole texts, not 800 characters of each"),
    argument("--data", default=os.environ.get("REPRO_DATA"), help="a folder of dataset rows"),
    argument("--results", type=Path, help="by default outputs/results, then the committed results"),
)
def show(cell: str | None, compute: bool, full: bool, data: str | None, results: Path | None) -> None:
    """Print a cell's answers beside the target's own and the dataset's references.

    repro show                              the newest record
    repro show 0047af96                     a record by its key, or the first digits of it
    repro show quickstart/edgellm           by experiment and labels (method, device, dataset, ...)
    repro show 0047af96 --compute           run a cell without stored answers again, for its answers
    """
    from repro.experiments.answers_screen import show_answers

    show_answers(
        cell, [results] if results else [OUTPUTS_FOLDER, project_root() / "results"], data, compute, full
    )


@verb(
    argument("a", metavar="A", help="a record's key or its beginning, a table's CSV, a folder of results"),
    argument("b", metavar="B", help="the same kind of thing"),
    argument("--results", type=Path, default=OUTPUTS_FOLDER, help="folder of the records"),
    argument("--all", action="store_true", dest="show_all", help="also print figures that are equal"),
    argument(
        "--worse-than", metavar="5%", help="exit with 1 if a figure is worse by more than that, or gone"
    ),
)
def compare(a: str, b: str, results: Path, show_all: bool, worse_than: str | None) -> int:
    """Compare two records, two tables or two folders of results, figure by figure.

    repro compare 3f9a21 b0c4d7                    two records, by the beginnings of their keys
    repro compare one/table.csv other/table.csv    two tables
    repro compare results outputs/results          all tables of two folders
    repro compare A B --worse-than 5%              exit status 1 if a figure of B is worse, or is gone

    Worse is in the direction of each metric, by more than 5% of A's figure, and beyond A's interval or that
    of the change over the same prompts, where one is known.
    """
    from repro.experiments.cli import screen
    from repro.experiments.summaries import comparing
    from repro.records.results import open_results

    share = None if worse_than is None else comparing.share_of(worse_than)
    if Path(a).exists() and Path(b).exists():
        figures = comparing.compare_tables(Path(a), Path(b))
        comparing.show_tables(screen(), figures, show_all)
    else:
        figures = comparing.show_records(screen(), open_results(results), (a, b))
    return 0 if share is None else comparing.show_worse(screen(), figures, share)


@verb(
    argument("tables", nargs="*", metavar="TABLE", help="tables (lever/fig10) or papers; all by default"),
    argument("--sample", type=int, metavar="N", help="so many of their cells"),
    argument("--fixed", action="store_true", help="the list of conf/check.yaml"),
    argument("--prompts", type=int, metavar="N", help="the first N answers of each cell, by round"),
    argument("--data", default=os.environ.get("REPRO_DATA"), help="a folder of dataset rows"),
    argument("--results", type=Path, default=project_root() / "results"),
)
def check(
    tables: Sequence[str],
    sample: int | None,
    fixed: bool,
    prompts: int | None,
    data: str | None,
    results: Path,
) -> int:
    """Recompute committed cells and compare the results with the committed records.

    repro check                           every cell of every table
    repro check lever/fig10 mllm_npu      cells of these tables, or of all tables of a paper
    repro check --sample 60               60 cells, sampled by the hashes of their keys
    repro check --fixed                   the short list of conf/check.yaml, which CI runs
    repro check lever/fig10 --prompts 2   the first two answers of each cell, round by round

    Says too which cells `conf/` would configure otherwise today. The exit status is 1 if a cell differs or
    too few could be checked.
    """
    from repro.experiments.check import check_results

    for option, count in (("--sample", sample), ("--prompts", prompts)):
        if count is not None and count < 1:
            raise InputError(f"{option} is {count}; it must be at least 1")
    return check_results(results, None if fixed else tables, sample, prompts, data)


# --- choices, devices and checkpoints -----------------------------------------------------------------------


@verb(
    argument("group", nargs="?", help="`settings`, or a kind of choice; without it these are listed"),
    argument("name", nargs="?", metavar="NAME"),
)
def list_(group: str | None, name: str | None) -> None:
    """List what one can choose; with NAME, one choice and its settings."""
    from repro.experiments.guide.listing import show_choices

    show_choices(group, name)


@verb(
    argument("devices", nargs="*", metavar="DEVICE", help="as `repro list devices` has them; all by default"),
    argument("--engine", default="", metavar="NAME", help="public for one device, else their own"),
    argument("--source", default="", help="list the facts of this source"),
    argument("--assumed", action="store_const", const="assumed", dest="source"),
    argument("--fitted", action="store_const", const="fitted", dest="source"),
)
def device(devices: Sequence[str], engine: str, source: str) -> None:
    """Show devices as an engine uses them: what each machine can do, and the source of every number.

    repro device                            all machines, their rates, their facts by source
    repro device galaxy_s23                 the one file that cells bill: each number, its source, its file
    repro device galaxy_s23 --engine NAME   with this engine in place of `public`
    repro device oneplus_12 pixel_8         rates beside each other, and which rows their numbers rest on
    repro device --assumed                  every number without a source, and why
    repro device --fitted oneplus_12        every fitted number and the reference cells behind it
    repro device --source paper             the same for any source
    """
    from repro.device.engines.screen import show_devices

    show_devices(devices, engine, source)


@verb(
    argument("names", nargs="*", metavar="NAME", help="files of conf/model/checkpoint, without .yaml"),
    argument("--list", action="store_true", dest="listed", help="print every checkpoint and its places"),
    argument("--for", dest="experiment", metavar="experiment=NAME", help="all that weights=own needs"),
    argument("--cache", type=Path, help="the cache folder; $REPRO_CACHE or ~/.cache/repro by default"),
    argument("--offline", action="store_true", help="leave the hub's network alone"),
)
def fetch(
    names: Sequence[str], listed: bool, experiment: str | None, cache: Path | None, offline: bool
) -> int:
    """Download checkpoints by name in advance, and print where each is stored and where it came from.

    repro fetch smollm2_135m_instruct
    repro fetch --list
    repro fetch --for experiment=lever/table5          what weights=own needs; prints it, then fetches it
    repro fetch --for experiment=lever/table5 --list   only prints it

    The exit status is 1 if a checkpoint could not be obtained.
    """
    from repro.models.checkpoints.fetching import fetch_line, source_lines
    from repro.models.checkpoints.origin import Checkpoint, checkpoint_files

    if experiment:
        from repro.experiments.needed import needs  # late, with torch

        needed = needs(experiment.removeprefix("experiment="))
        print(*needed.lines(), sep="\n")
        checkpoints: Sequence[Checkpoint] = [model.checkpoint for model in needed.models]
    else:
        files = checkpoint_files()
        for name in names:
            require_choice("checkpoint", name, files)
        if listed:
            print(*source_lines([Checkpoint.from_yaml(path) for path in files.values()]), sep="\n")
        elif not names:
            raise InputError("name at least one checkpoint, or --list them")
        checkpoints = [Checkpoint.from_yaml(files[name]) for name in names]
    status = 0
    for checkpoint in () if listed else checkpoints:
        try:
            print(fetch_line(checkpoint, cache, offline or None))
        except InputError as wrong:  # such as a licence that was not accepted; the others are fetched
            status = tell(wrong, 1)
    return status


@verb(
    argument("--name", help="of the machine, as tables show it; the files are named after it"),
    argument("--conf", type=Path, help="folder with device/ and engine/; the checkout's conf, or ./conf"),
    argument("--quick", action="store_true", help="seconds, for a look; rates are too high"),
    argument("--busy", action="store_true", help="measure although the machine is busy"),
    argument(
        "--device", help="what is measured, cpu or cuda; of rows: one of conf/device that stands behind"
    ),
    argument("--scratch", type=Path, help="folder on the disk to measure"),
    argument("--from-llama-bench", type=Path, nargs="+", metavar="FILE.json", help="measure nothing here"),
    argument("--rows", type=Path, nargs="+", metavar="FILE.csv", help="measure nothing here"),
    argument("--threads", type=int, help="of rows: whose are used (those of the fastest)"),
    argument(
        *("--setting",), action="append", default=[], metavar="FIELD=VALUE", help="of rows: which are used"
    ),
    argument(
        *("--active-parameters",),
        type=float,
        metavar="N",
        help="of rows: that a token uses of a mixture of experts",
    ),
    argument("--bandwidth", type=float, metavar="GB/S", help="of rows: that the chip's memory gives"),
    argument("--memory", type=float, metavar="GB", help="of rows: the machine's memory"),
    argument("--flash", type=float, metavar="GB/S", help="of rows: what reads from flash get"),
    argument(
        *("--watts",),
        nargs="+",
        default=[],
        metavar="[PROCESSOR=]W",
        help="of rows: of the whole machine at work, or a CSV log with seconds and watts",
    ),
    argument("--watts-idle", type=float, metavar="W", help="of rows: of the whole machine at rest"),
    argument("--from-json", type=Path, metavar="FILE.json", help="measure nothing here: a board's file"),
    argument("--ssh", metavar="HOST", help="measure that board, which needs python3 and numpy"),
    argument("--minutes", type=float, help="of --ssh: how long it may take (5)"),
)
def calibrate(
    name: str | None,
    conf: Path | None,
    quick: bool,
    busy: bool,
    device: str | None,
    scratch: Path | None,
    from_llama_bench: Sequence[Path] | None,
    rows: Sequence[Path] | None,
    from_json: Path | None,
    ssh: str | None,
    minutes: float | None,
    threads: int | None,
    setting: Sequence[str],
    active_parameters: float | None,
    bandwidth: float | None,
    **stated: Any,
) -> None:
    """Measure this machine and write a device file and an engine file, so that it can be emulated.

    repro calibrate                 conf/device/calibrated.yaml and conf/engine/calibrated.yaml
    repro calibrate --name "My board" --conf FOLDER   FOLDER/device/my_board.yaml, and its engine
    repro calibrate --quick         seconds, for a look: caches are not emptied
    repro calibrate --device cuda   the GPU in place of the CPU
    repro calibrate --from-llama-bench CPU.json GPU.json   any machine, from what llama-bench -o json wrote
    repro calibrate --rows FILE.csv   any machine, from a table with columns of conf/reference/phones.csv
        --setting n_depth=0 --threads 4 --active-parameters 3.3e9 --device bcm2712 (or --bandwidth 17.1)
        --memory 16 --flash 3.5 --watts LOG.csv (or cpu=4.2 gpu=3.1 --watts-idle 1.1)
    repro calibrate --ssh user@board   a board with python3 and numpy, by the program of the next line
    repro calibrate --from-json board.json   a board on which board_calibrator.py wrote this file

    A busy machine is refused; --busy measures it anyway, and the files say so.
    docs/emulator.md explains the figures.
    """
    from repro.models.calibration.calibrated_files import (
        RowFiles,
        conf_folder,
        write_of_rows,
        write_of_this_machine,
    )
    from repro.models.calibration.stated_facts import StatedFacts

    of_rows = {
        "setting": setting,
        "active_parameters": active_parameters,
        "bandwidth": bandwidth,
        **stated,
    }
    if from_json or ssh is not None:
        from repro.models.calibration.board_files import board_text, write_of_board

        others = {
            "from-llama-bench": from_llama_bench,
            "rows": rows,
            "quick": quick,
            "device": device,
            **of_rows,
        }
        text, where = board_text(from_json, ssh, minutes, threads, busy, scratch, others)
        write_of_board(conf_folder(conf), name, text, where)
        return
    if minutes is not None:
        raise InputError("--minutes goes with --ssh")
    files = RowFiles(from_llama_bench or (), rows or (), threads, setting, active_parameters)
    if files.paths:
        from repro.experiments.composing import load_components
        from repro.experiments.summaries.new_machine import answer_lines

        load_components()
        made = write_of_rows(conf_folder(conf), name, device, files, StatedFacts(**stated), bandwidth)
        print(*answer_lines(*made), sep="\n")
        return
    for option, value in {**of_rows, "threads": threads}.items():
        if value not in (None, []):
            raise InputError(f"--{option.replace('_', '-')} goes with --from-llama-bench or --rows")
    write_of_this_machine(conf_folder(conf), name, device or "cpu", quick, busy, scratch)
