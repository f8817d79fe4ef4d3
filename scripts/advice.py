"""Write which system answers first into README.md and docs/compare.md, between their markers.

python scripts/advice.py

Owns where the sentences stand. What they say follows from results/compare alone (repro.reports.advice).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.records.record import write_atomically
from repro.reports.advice import compare_block, readme_block
from repro.reports.marked_block import fill_block

BLOCK = "advice"
PAGES: dict[str, Callable[[Path], str]] = {"README.md": readme_block, "docs/compare.md": compare_block}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    parser.add_argument("--pages", type=Path, default=project_root(), help="folder of the two pages")
    options = parser.parse_args(arguments)
    try:
        for page, written in PAGES.items():
            path = options.pages / page
            text = fill_block(path.read_text(encoding="utf-8"), BLOCK, written(options.results), page)
            write_atomically(path, text)
    except (InputError, OSError) as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
