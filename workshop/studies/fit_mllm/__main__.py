"""`python -m workshop.studies.fit_mllm`: fit the engines of mllm-NPU's latency table, predict the rest of it.

    python -m workshop.studies.fit_mllm                        parameters, then errors by engine and protocol
    python -m workshop.studies.fit_mllm --prompts range        with other lengths of prompts
    python -m workshop.studies.fit_mllm --quadratic attention  with the baselines' other form
    python -m workshop.studies.fit_mllm --readings             mllm-NPU under each reading that is left open
    python -m workshop.studies.fit_mllm --left-out             each cell of a baseline by the other models

These are closed forms. The emulator has the whole schedule:

    python -m workshop.studies.fit_mllm --check            the engine files' numbers beside the fits'
    python -m workshop.studies.fit_mllm --cpu 0.3          rate and errors with another float rate of the CPU
    python -m workshop.studies.fit_mllm --anchored         errors of the anchored variant
    python -m workshop.studies.fit_mllm --score table.csv  errors of a made table4, trivial ones, the order
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from workshop.studies.fit_mllm import emulated, yardsticks
from workshop.studies.fit_mllm.closed_forms import (
    BASELINES,
    COLUMNS,
    DATASETS,
    MODELS,
    OURS,
    PROMPTS,
    QUADRATICS,
    Fits,
    errors,
    micro,
)
from workshop.studies.fit_mllm.yardsticks import in_words


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a checked file differs from its fit."""
    parser = argparse.ArgumentParser(
        prog="python -m workshop.studies.fit_mllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--prompts", choices=PROMPTS, default=PROMPTS[0], help="lengths of prompts")
    add("--quadratic", choices=QUADRATICS, default=QUADRATICS[0], help="the baselines' form")
    add("--readings", action="store_true", help="mllm-NPU under each reading")
    add("--left-out", action="store_true", help="baselines, one model left out")
    add("--check", action="store_true", help="where the engine files differ from the fits")
    add("--cpu", type=float, metavar="TFLOPS", help="float rate of the CPU")
    add("--anchored", action="store_true", help="errors of the anchored variant")
    add("--score", type=Path, metavar="CSV", help="table.csv of a made mllm_npu/table4")
    options, console = parser.parse_args(arguments), Console(width=160)
    fits = Fits(options.prompts, options.quadratic)
    if options.check:
        return check(console)
    if options.score:
        score(options.score, console)
    elif options.anchored:
        signed = errors(lambda m, d: emulated.row(emulated.engine(emulated.ANCHORED), m, d), OURS, MODELS)
        is_fitted = signed.index.get_level_values("model").isin(COLUMNS[OURS].fitted)
        fitted, rest = signed[is_fitted], signed[~is_fitted]
        console.print(f"anchored: {in_words(fitted)} on its own rows, {in_words(rest)} on {len(rest)} others")
    elif options.cpu:
        rate = emulated.solve_rate(options.cpu * 1e12)
        on = emulated.with_npu(*micro(), rate, options.cpu * 1e12)
        signed = errors(lambda m, d: emulated.row(on, m, d), OURS, MODELS)
        console.print(f"CPU {options.cpu} TFLOP/s: NPU {rate / 1e12:.3g} TOP/s, errors {in_words(signed)}")
    elif options.readings:
        show(yardsticks.READINGS, yardsticks.readings_rows(), console)
    elif options.left_out:
        show(yardsticks.LEFT_OUT, yardsticks.left_out_rows(fits), console)
    else:
        closed_forms(fits, console)
    return 0


def show(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print errors."""
    table = Table(*heads, title="Median error (90th percentile)")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def closed_forms(fits: Fits, console: Console) -> None:
    """Print each engine's numbers and errors, and how often mllm-NPU is predicted to be the fastest."""
    engines = yardsticks.engines(fits)
    show(yardsticks.HEADS, [engine.row(fits) for engine in engines], console)
    baselines, ours = engines[: len(BASELINES)], engines[len(BASELINES) :]
    for engine in ours:
        fastest = yardsticks.first(engine.form.predict, baselines)
        console.print(f"{engine.name}: fastest in {fastest} of {len(MODELS) * len(DATASETS)} rows")


def check(console: Console) -> int:
    """Print the engine files' numbers beside the fits'; 1 if one differs."""
    wrong = 0
    for name, in_file, fit in emulated.fitted_numbers():
        differs = emulated.differs(in_file, fit)
        wrong += differs
        console.print(f"{name}: {in_file:.4g}, fit {fit:.4g}{', which differs' * differs}")
    return int(wrong > 0)


def score(path: Path, console: Console) -> None:
    """Print errors of the predicted cells of a made table, and how often the order is the paper's."""
    signed = yardsticks.read_ratios(path)
    console.print(yardsticks.score(signed))
    predicted = {e.column: signed[e.column].loc[e.predicted] for e in yardsticks.engines(Fits())[:-1]}
    for what, chosen in (("all", signed), ("predicted", predicted)):
        first, rows, right, pairs = yardsticks.order(chosen)
        console.print(f"{what} cells: mllm-NPU the fastest in {first} of {rows} rows; ", end="")
        console.print(f"pairs of systems in the printed order: {right} of {pairs}")


if __name__ == "__main__":
    sys.exit(main())
