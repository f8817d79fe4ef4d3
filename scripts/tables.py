"""Rebuild tables and figures from the records, without running anything.

python scripts/tables.py                      every experiment that has records
python scripts/tables.py quickstart           one of them
python scripts/tables.py quickstart --format tex --out paper/
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from rich.console import Console

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.experiments.cli import publish, screen, table_section
from repro.experiments.sweep import computes_nothing, write_read
from repro.records.record import Store
from repro.reports.figures.timeline import chosen, write_timeline
from repro.reports.files import FORMATS, write_all
from repro.reports.formats.layout import Page, page
from repro.reports.formats.render import to_screen
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.reference import load_cells
from repro.reports.spec.spec import TableSpec
from repro.reports.tables import members
from repro.reports.tables.build import build


def experiments() -> list[str]:
    """Names of all experiments, as `experiment=` accepts them."""
    root = conf_dir() / "experiment"
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def table_of(experiment: str) -> dict[str, Any]:
    """The `table:` section of an experiment's file, as plain dictionaries and lists.

    Raises:
        InputError: there is no such experiment, or its file has no table.
    """
    if experiment not in experiments():
        raise InputError(unknown("experiment", experiment, experiments()))
    publish()  # the configuration names methods, which Hydra knows only after this
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=[f"experiment={experiment}"])
    section = table_section(config)
    if section is None:
        raise InputError(f"experiment {experiment!r} has no `table` section")
    return section


def regenerate(experiment: str, records: Path, out: Path, formats: Sequence[str], console: Console) -> None:
    """Build one experiment's page, from its records if it needs any; show it and write it."""
    section, store = table_of(experiment), Store(records)
    if computes_nothing(section):
        show(console, *write_read(experiment, section, out, formats))
        return
    bibliography = load_bibliography(conf_dir() / "reference" / "papers.bib")
    spec = TableSpec.parse(experiment, section)
    known = members.read(out, experiment, store)
    table = build(spec, known or store.all(experiment), load_cells(), {r.key for r in known} or None)
    files = write_all(table, out, bibliography, formats)
    if spec.timeline and known:
        rounds = store.rounds(chosen(spec.timeline, known).key)
        files |= write_timeline(table, spec.timeline, known, rounds, out)
    show(console, page(table), files)


def show(console: Console, shown: Page, files: Mapping[str, Path]) -> None:
    """Print a table and the paths of its files."""
    console.print(to_screen(shown))
    for file in files.values():
        console.print(f"{file}", style="dim", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT", help="all with records when none is given"
    )
    parser.add_argument("--format", nargs="+", choices=list(FORMATS), default=list(FORMATS), dest="formats")
    parser.add_argument("--records", type=Path, default=Path("results/records"), help="folder of the records")
    parser.add_argument("--out", type=Path, default=Path("results/tables"), help="folder for the tables")
    options = parser.parse_args(arguments)
    made = {record.experiment for record in Store(options.records).all()}
    # Tables made only of other experiments' cells.
    made |= {name for name in experiments() if members.exist(options.out, name)}
    try:
        wanted = options.experiments or [name for name in experiments() if name in made]
        if not wanted:
            raise InputError(
                f"there are no records in {options.records}; experiments: {', '.join(experiments())}"
            )
        for experiment in wanted:
            regenerate(experiment, options.records, options.out, options.formats, screen())
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
