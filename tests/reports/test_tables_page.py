"""The examples of docs/tables.md are read to the end: grids, tables whose published values exist, metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.experiments.pages import computes_nothing, fact_sources, written_out
from repro.experiments.tree_drawings.forms import DiagramsSpec
from repro.reports.claims.claims import ClaimsSpec
from repro.reports.hardware_facts.facts import FactsSpec, read_facts
from repro.reports.reference.reference import find, load_cells
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import grid_of
from repro.reports.spec.metric import load_metrics
from repro.reports.spec.spec import TableSpec

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
TEXTS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(text) for text in TEXTS]


def spec(example: dict[str, Any]) -> TableSpec:
    """The table of an example, as if it were an experiment of EdgeLLM."""
    return expand("edgellm/page", example["table"], example)


TABLES = [one for one in EXAMPLES if "table" in one and not computes_nothing(one["table"])]


@pytest.mark.parametrize("example", TABLES, ids=lambda example: str(example["table"]["title"]))
def test_a_table_has_rows_and_columns_from_its_grid(example: dict[str, Any]) -> None:
    table, points = spec(example), grid_of(example).points()
    assert points
    assert table.columns
    assert table.rows.names


def test_what_the_examples_say_comes_out() -> None:
    tables = {table.title: table for table in map(spec, TABLES)}
    energy = tables["Energy and quality"]
    assert [column.key for column in energy.columns] == [
        "std_flash",
        "sp",
        "edgellm",
        "over_std",
        "over_sp",
        "rouge_l",
    ]
    assert energy.columns[0].reference == {"t5_cnn": "edgellm.table5.t5.cnn_daily.std"}
    assert (energy.columns[0].unit, energy.columns[3].unit) == ("J", "x")
    assert len(grid_of(EXAMPLES[1]).points() or []) == 10
    length = tables["Speed by length"]
    assert list(length.rows.names.values())[:3] == ["mT5, 64 tokens", "mT5, 128 tokens", "mT5, 256 tokens"]
    speed = {column.key: column for column in tables["Speedups a workload"].columns}
    assert (speed["faster"].where, speed["faster"].over) == ({"method": "std_flash"}, {"method": "edgellm"})
    assert (speed["gain"].unit, speed["fewer"].unit) == ("percentage_point", "%")
    quality = tables["Quality"].columns[0].reference
    assert quality["mt5_iwslt17"] == "edgellm.table4.mt5_large.iwslt17_de_en.sti"


def test_every_published_value_is_one() -> None:
    named, cells = [], load_cells()
    for section in (example["table"] for example in EXAMPLES if "table" in example):
        if "claims" in section:
            named += [claim.id for claim in ClaimsSpec.parse("page", section).claims]
        elif "masks" in section:
            named += [name for form in DiagramsSpec.parse("page", section).masks for name in form.match]
        elif "facts" in section:
            written = written_out("edgellm/page", section)
            stated = read_facts(FactsSpec.parse("page", written), fact_sources())
            named += [one.spec.id for one in stated if one.spec.id]
    named += [aside.id for table in map(spec, TABLES) for aside in table.aside]
    named += [name for table in map(spec, TABLES) for c in table.columns for name in c.reference.values()]
    assert len(named) > 10
    assert [find(cells, name).id for name in named] == named


def test_the_metrics_of_the_page_are_read(tmp_path: Path) -> None:
    (text,) = (text for text in TEXTS if text.startswith("# conf/metric/"))
    (tmp_path / "metric").mkdir()
    (tmp_path / "metric" / "mine.yaml").write_text(text, encoding="utf-8")
    metrics = load_metrics([tmp_path])
    assert {name: metrics[name].group for name in metrics} == {"hops": "mine", "hop_time": "mine"}
