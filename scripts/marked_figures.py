"""Hold the marked figures of docs/*.md and README.md to the tables of results/.

python scripts/marked_figures.py              name the figures that differ
python scripts/marked_figures.py --update     write the tables' values in their place

repro.reports.fidelity.marked says how a figure is marked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.records.record import write_atomically
from repro.reports.fidelity.marked import FigureSources, correct_figures, marked_figures
from repro.reports.reference.reference import load_cells


def pages(root: Path) -> list[Path]:
    """The pages whose figures are held to the tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="rewrite the figures that differ")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the tables")
    options = parser.parse_args(arguments)
    sources, differ = FigureSources(options.results, load_cells()), 0
    try:
        for page in pages(project_root()):
            text = page.read_text(encoding="utf-8")
            for figure in marked_figures(text, sources):
                if not figure.agrees:
                    differ += 1
                    print(f"{page.name}: {figure.stands} is {figure.true_text} in {figure.address}")
            if options.update and (new := correct_figures(text, sources)) != text:
                write_atomically(page, new)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 1 if differ and not options.update else 0


if __name__ == "__main__":
    sys.exit(main())
