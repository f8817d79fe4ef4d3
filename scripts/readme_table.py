"""Copy the quickstart's table, as the run wrote it, into README.md between its markers.

python scripts/readme_table.py
python scripts/readme_table.py --table outputs/results/quickstart/table.md

Owns which part of the table's file the README shows. Must not know what is in the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.records.record import write_atomically
from repro.reports.marked_block import fill_block

BLOCK = "quickstart"
TABLE = Path("results/quickstart/table.md")


def shown(table: str) -> str:
    """The part of a table's Markdown that the README shows: everything but the citations."""
    return table.partition("\n```bibtex")[0].strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, default=project_root() / TABLE, help="Markdown of the table")
    parser.add_argument("--readme", type=Path, default=project_root() / "README.md")
    options = parser.parse_args(arguments)
    try:
        if not options.table.is_file():
            raise InputError(f"there is no table {options.table}; make it with results=results")
        readme = options.readme.read_text(encoding="utf-8")
        table = shown(options.table.read_text(encoding="utf-8"))
        write_atomically(options.readme, fill_block(readme, BLOCK, table, options.readme.name))
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
