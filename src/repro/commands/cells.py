"""Write all records of a folder of results as one Parquet or CSV file, for pandas, DuckDB and Polars.

repro cells                                        outputs/results, to cells.parquet
repro cells --results results --out all.parquet    the committed ones
repro cells --experiment lever/fig10               those of an experiment, a paper or a sweep's table
repro cells --out cells.csv                        as CSV, without units

One row a cell: labels, values and their units, settings (docs/python.md); `repro.cells()` is the same frame.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.experiments.python_interface import cells
from repro.reports.cell_frame import write_frame


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "repro cells", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("outputs/results"), help="a folder of results")
    parser.add_argument("--experiment", metavar="NAME", help="only cells that it made or shows")
    parser.add_argument("--out", type=Path, default=Path("cells.parquet"), help="the file, .parquet or .csv")
    options = parser.parse_args(arguments)
    try:
        frame = cells(options.results, options.experiment)
        if frame.empty:
            raise InputError(f"{options.results} has no records; choose --results FOLDER")
        write_frame(frame, options.out)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    except OSError as wrong:
        print(f"error: {options.out}: {wrong.strerror}; choose another --out", file=sys.stderr)
        return 2
    print(f"{len(frame)} cells, {len(frame.columns)} columns: {options.out}")
    return 0
