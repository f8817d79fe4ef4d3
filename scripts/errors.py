"""List a paper's predicted values with their errors over all existing tables, worst first.

python scripts/errors.py edgellm
python scripts/errors.py edgellm --results outputs/results

Reads the tables' CSV files and conf/reference/reasons.yaml; writes <results>/<paper>/errors/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.reports.claims.errors import read_reasons, report
from repro.reports.claims.errors_page import page, write_report
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.reference import load_cells


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", help="as in the column `paper` of conf/reference/cells.csv")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the tables")
    options = parser.parse_args(arguments)
    reference, cells = conf_dir() / "reference", load_cells()
    try:
        reasons = read_reasons(reference / "reasons.yaml", cells)
        found = report(options.paper, options.results, cells, reasons)
        files = write_report(found, options.results, load_bibliography())
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    print("\n".join(page(found).notes))
    print(f"{files['md']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
