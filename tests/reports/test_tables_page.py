"""The examples of docs/tables.md are sections that parse, of cells that are published."""

import re
from pathlib import Path
from typing import Any

import yaml

from repro.experiments.sweep import fact_sources
from repro.reports.claims.claims import ClaimsSpec
from repro.reports.hardware_facts.facts import FactsSpec, read_facts
from repro.reports.reference.reference import find, load_cells
from repro.reports.spec.spec import TableSpec
from repro.reports.tree_drawings.forms import DiagramsSpec

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
EXAMPLES: list[dict[str, Any]] = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
]


def test_every_example() -> None:
    assert len(EXAMPLES) == 7
    named, cells = [], load_cells()
    for section in (example["table"] for example in EXAMPLES):
        if "claims" in section:
            named += [claim.id for claim in ClaimsSpec.parse("page", section).claims]
        elif "masks" in section:
            named += [name for form in DiagramsSpec.parse("page", section).masks for name in form.match]
        elif "facts" in section:
            stated = read_facts(FactsSpec.parse("page", section), fact_sources())
            named += [one.spec.id for one in stated if one.spec.id]
        else:
            named += [name for c in TableSpec.parse("page", section).columns for name in c.reference.values()]
    assert len(named) == 8
    assert [find(cells, name).id for name in named] == named
