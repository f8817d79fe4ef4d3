"""Pages without cells: claims (compared with tables), facts (compared with device files), tree drawings.

Must not know Hydra.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from repro.core.paths import conf_dir
from repro.core.typed import require
from repro.experiments.tree_drawings.forms import DiagramsSpec
from repro.models.costs.model_cost import PRECISIONS
from repro.records.results import Results
from repro.reports.claims.claims import ClaimsSpec, expand_claims
from repro.reports.claims.claims_page import write_claims
from repro.reports.files import USUAL_FORMATS
from repro.reports.formats.layout import Page
from repro.reports.hardware_facts.facts import FactsSpec, Sources, expand_facts, read_settings
from repro.reports.intervals.samples import Samples
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import STAND_INS_PREFIX, footnotes, load_notes
from repro.reports.reference.reference import load_cells
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.spec import WITHDRAWN_KEYS, TableSpec, require_present


def computes_nothing(section: Mapping[str, Any]) -> bool:
    """Whether a `table:` section has claims, facts or drawings, and so no cells."""
    return not {"claims", "facts", "trees", "masks"}.isdisjoint(section)


def written_out(experiment: str, section: Mapping[str, Any]) -> TableSpec | dict[str, Any]:
    """The table of a `table:` section; of a page without cells the section as its parser reads it."""
    if not computes_nothing(section):
        return expand(experiment, section, experiment_file(experiment))
    require_present(section, WITHDRAWN_KEYS, f"table {experiment!r}")
    table = dict(section)
    if notes := table.pop("notes", None):
        require(tuple[str, ...], notes, f"table {experiment!r}: notes")
        table["footnotes"] = [note.removeprefix(STAND_INS_PREFIX) for note in footnotes(notes, load_notes())]
    if "claims" in table:
        return expand_claims(experiment, table)
    return expand_facts(table) if "facts" in table else table


def write_read(
    experiment: str,
    section: Mapping[str, Any],
    results: Results,
    samples: Samples,
    out: Path | None = None,
    formats: Collection[str] = USUAL_FORMATS,
) -> tuple[Page, dict[str, Path]]:
    """Write a page of claims (compared with tables), facts (compared with device files) or tree drawings.

    Args:
        experiment: its name.
        section: its `table:` section.
        results: have the cells behind the tables.
        samples: of these results.
        out: the folder of the page; that of the results by default.
        formats: of the page.

    Raises:
        InputError: the section is malformed or refers to something unknown, or the folder is not writable.
    """
    bibliography, folder = load_bibliography(), out or results.root
    if "claims" in section:
        from repro.experiments.recorded_tables import recorded_table  # late, as it composes experiments
        from repro.reports.claims.claims import CommittedDraws

        spec = ClaimsSpec.parse(experiment, section)
        draws = CommittedDraws(results, samples, lambda table: recorded_table(table, results).spec)
        return write_claims(spec, results.root, load_cells(), bibliography, formats, draws, out)
    if "facts" not in section:
        from repro.experiments.tree_drawings.page import write_forms
        from repro.experiments.tree_drawings.search import form  # late, with torch, numba and matplotlib

        diagrams = DiagramsSpec.parse(experiment, section)
        forms = [None if entry.lookahead else form(entry) for entry in (*diagrams.trees, *diagrams.masks)]
        return write_forms(diagrams, forms, folder, bibliography, formats)
    from repro.reports.hardware_facts.facts_page import write_facts  # late, with matplotlib

    return write_facts(FactsSpec.parse(experiment, section), folder, fact_sources(), bibliography, formats)


def fact_sources() -> Sources:
    """The project's reference values, settings, device files and precisions."""
    bits = {name: precision.bits for name, precision in PRECISIONS.items()}
    settings = read_settings(conf_dir() / "reference" / "settings.csv")
    return Sources(load_cells(), settings, conf_dir() / "device", bits)
