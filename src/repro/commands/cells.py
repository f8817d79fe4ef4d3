"""Write all records of a folder of results as one Parquet or CSV file, for pandas, DuckDB and Polars.

repro cells                                        outputs/results, to cells.parquet
repro cells --results results --out all.parquet    the committed ones
repro cells --experiment lever/fig10               those of one experiment
repro cells --out cells.csv                        as CSV, without units

One row a cell: labels, values and their units, settings (docs/python.md); `repro.cells()` is the same frame.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.records.results import open_results
from repro.reports.cell_frame import cell_frame, write_frame


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "repro cells", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("outputs/results"), help="a folder of results")
    parser.add_argument("--experiment", metavar="NAME", help="only records that it made")
    parser.add_argument("--out", type=Path, default=Path("cells.parquet"), help="the file, .parquet or .csv")
    options = parser.parse_args(arguments)
    try:
        records = open_results(options.results).all(options.experiment)
        if not records:
            of = f" of {options.experiment}" if options.experiment else ""
            raise InputError(f"{options.results} has no records{of}; choose --results FOLDER")
        frame = cell_frame(records)
        write_frame(frame, options.out)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    except OSError as wrong:
        print(f"error: {options.out}: {wrong.strerror}; choose another --out", file=sys.stderr)
        return 2
    print(f"{len(frame)} cells, {len(frame.columns)} columns: {options.out}")
    return 0
