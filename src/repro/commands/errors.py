"""List a paper's predicted values with their errors over all existing tables, worst first.

    repro errors edgellm             of one paper
    repro errors --results results   of all papers, and the page over them, fidelity.md

Reads the tables' CSV files and conf/reference/; writes <results>/<paper>/errors/ and <results>/fidelity.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments.claim_draws import CommittedDraws
from repro.experiments.tables import fitted_ids, older_keys
from repro.records.results import open_results
from repro.reports.fidelity.choices import read_choices, readings
from repro.reports.fidelity.errors_page import Evidence, page, report, write_report
from repro.reports.fidelity.fidelity_page import write_fidelity
from repro.reports.fidelity.headlines import read_headlines
from repro.reports.fidelity.reading import read_comparisons
from repro.reports.fidelity.reasons import read_reasons
from repro.reports.fidelity.skill import read_floors, trivial_predictor
from repro.reports.intervals.samples import Samples
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import load_names
from repro.reports.reference.reference import load_cells
from repro.reports.tables.bands import draw_counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "repro errors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "papers", nargs="*", metavar="PAPER", help="as in conf/reference/cells.csv; default all"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the tables")
    parser.add_argument("--out", type=Path, help="folder of the pages; that of the tables by default")
    options = parser.parse_args(arguments)
    out = options.out or options.results
    reference, cells, bibliography = conf_dir() / "reference", load_cells(), load_bibliography()
    try:
        found = read_comparisons(options.results, cells)
        results = open_results(options.results)
        records = results.all()
        headlines = read_headlines(reference / "headlines.yaml", cells)
        evidence = Evidence(
            reasons=read_reasons(reference / "reasons.yaml", cells),
            floors=read_floors(reference / "contradictions.csv", cells),
            predictor=trivial_predictor(cells, fitted_ids(records), headlines, load_names()),
        )
        compared = [paper for paper in dict.fromkeys(c.paper for c in cells.values()) if found.of(paper)]
        reports = [report(paper, found, cells, evidence) for paper in options.papers or compared]
        for one in reports:
            files = write_report(one, out, bibliography, found.origin(one.paper))
            print("\n".join((*page(one).notes[:-1], f"{files['md']}", "")))
        if not options.papers:
            choices = read_choices(reference / "choices.yaml", cells)
            others = readings(choices, options.results, cells, CommittedDraws(results, Samples(results)))
            older, drawn = older_keys(records), draw_counts(options.results)
            print(
                write_fidelity(reports, found, cells, headlines, choices, others, records, older, drawn, out)
            )
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0
