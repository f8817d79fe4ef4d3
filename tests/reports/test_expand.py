"""A short table is written out: rows and columns from the grid, and published values by coordinates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from invented_tables import cells_csv
from repro.core import paths
from repro.core.errors import InputError
from repro.experiments.pages import computes_nothing, fact_sources, written_out
from repro.experiments.tree_drawings.forms import DiagramsSpec
from repro.reports.claims.claims import ClaimsSpec
from repro.reports.hardware_facts.facts import FactsSpec, read_facts
from repro.reports.reference.reference import find, load_cells
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.grid import ExperimentGrid
from repro.reports.spec.metric import load_metrics
from repro.reports.spec.spec import TableSpec

GRID: dict[str, Any] = {"setup": ["t5_cnn", "mt5_squad"], "method": ["sp", "edgellm"]}
TABLE: dict[str, Any] = {
    "title": "T",
    "rows": "workload",
    "columns": [{"metric": "rouge_l", "each": "method"}],
}
NAMES = """mine:
  method: {sp: SP, edgellm: Ours}
  length: {"*": {name: "*", condition: "n=*"}}
"""


def made(grid: Any = GRID, experiment: str = "mine/one", labels: Any = None, **table: Any) -> TableSpec:
    content = {"name": experiment, "grid": grid, "labels": labels or {}}
    return expand(experiment, TABLE | table, content)


def value(name: str, system: str = "Ours", **fields: str) -> dict[str, str]:
    """A published value of 1.5% of an artifact `table1`."""
    usual = {"paper": "mine", "artifact": "table1", "metric": "rouge_l", "unit": "%"}
    return {
        "id": f"mine.{name}",
        "value_low": "1.5",
        "value_high": "1.5",
        "system": system,
        **usual,
        **fields,
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `conf/reference/` of another package, with names and a paper."""
    monkeypatch.setattr(paths, "_folders_of_packages", lambda: (tmp_path,))
    reference = tmp_path / "reference"
    reference.mkdir()
    (reference / "names.yaml").write_text(NAMES, encoding="utf-8")
    (reference / "papers.bib").write_text("@article{mine,\n title={Mine}\n}\n", encoding="utf-8")
    return reference


def publish(package: Path, *values: dict[str, str]) -> None:
    (package / "cells.csv").write_text(cells_csv(*values), encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"method": {"a": 1}}, "here, method: .* must be a list of values"),
        ({"cells": [1]}, "here, cells: .* must be a list of settings"),
        ({"a": [1], "cells": [{"a": 2}]}, "here: 'a' stands both among the axes and in `cells`"),
    ],
)
def test_a_wrong_grid_is_said(content: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ExperimentGrid.parse(content, "here")


def test_a_table_like_another_takes_what_it_lacks() -> None:
    own = {"title": "Own", "like": "edgellm/table4", "notes": None, "rows": "workload"}
    content = {"name": "edgellm/own", "grid": "edgellm/table4"}
    table = expand("edgellm/own", own, content)
    other = expand("edgellm/table4", experiment_file("edgellm/table4")["table"], content)
    assert (table.title, table.footnotes) == ("Own", ())
    assert table.columns == other.columns
    with pytest.raises(InputError, match=r"no experiment .*44'\. Did you mean edgellm/table4"):
        expand("edgellm/own", own | {"like": "edgellm/table44"}, content)


def test_a_comparison_of_two_values_has_its_own_unit_and_direction() -> None:
    words = {"ratio": "edgellm over sp", "gain": "edgellm less sp", "fewer": "edgellm below sp"}
    columns = made(columns=[{"metric": "rouge_l", "each": "method", "pairs": words}]).columns
    units = [("ratio", "x"), ("difference", "percentage_point"), ("reduction", "%")]
    assert [(column.compare, column.unit) for column in columns] == units
    assert [column.better for column in columns] == ["higher", "higher", "lower"]


class TestPublishedValues:
    @pytest.mark.parametrize(
        ("values", "references"),
        [
            (
                [value("a", dataset="CNN/Daily"), value("b", "SP", dataset="SQuAD")],
                [{"mt5_squad": "mine.b"}, {"t5_cnn": "mine.a"}],
            ),
            ([value("a", "Theirs")], [{}, {}]),
            ([value("a", dataset="GSM8K")], [{}, {}]),
            ([value("a", device="Xiaomi 14")], [{}, {}]),
            ([value("a", metric="accuracy")], [{}, {}]),
            ([value("a", unit="s")], [{}, {}]),
        ],
    )
    def test_they_are_found_by_all_coordinates(
        self, values: list[dict[str, str]], references: list[dict[str, str]], package: Path
    ) -> None:
        publish(package, *values)
        columns = made(paper={"artifact": "table1"}).columns
        assert [dict(column.reference) for column in columns] == references

    def test_two_that_fit_are_named(self, package: Path) -> None:
        publish(package, value("a"), value("b"))
        several = r"column 'edgellm', fits several .*: mine\.a, mine\.b; say more"
        with pytest.raises(InputError, match=several):
            made(paper={"artifact": "table1"})

    def test_a_label_may_be_a_condition(self, package: Path) -> None:
        publish(package, *(value(f"v{n}", condition=f"n={n}; average") for n in (64, 128)))
        grid = {"setup": "t5_cnn", "method": "edgellm", "max_tokens": [64, 128]}
        table = made(grid, labels={"length": "${max_tokens}"}, rows="length", paper={"artifact": "table1"})
        assert dict(table.columns[0].reference) == {"64": "mine.v64", "128": "mine.v128"}

    def test_a_speedup_belongs_to_what_is_faster(self, package: Path) -> None:
        publish(package, value("a", metric="speedup", relative_to="SP", unit="x"))
        column = {"metric": "ttft", "each": "method", "pairs": {"gain": "sp over edgellm"}}
        said, unsaid = column | {"paper": {"metric": "speedup"}}, column | {"key": "unsaid"}
        said_of, not_of = (made(columns=[c], paper={"artifact": "table1"}).columns[0] for c in (said, unsaid))
        assert set(said_of.reference.values()) == {"mine.a"}
        assert not_of.reference == {}

    def test_asides_are_found_for_every_row(self, package: Path) -> None:
        publish(package, value("a", dataset="CNN/Daily", condition="average"))
        paper = {"artifact": "table1", "condition": "average", "metric": "rouge_l"}
        table = made(aside=[{"paper": paper, "note": "n", "columns": ["sp", "edgellm"]}])
        assert [(a.id, a.row, a.column, a.note) for a in table.aside] == [
            ("mine.a", "t5_cnn", "edgellm", "n")
        ]

    def test_a_folder_is_a_paper_if_values_were_published(self, package: Path) -> None:
        assert made().cite == ("mine",), "it is in the bibliography"
        (package / "papers.bib").unlink()
        assert made().cite == ()
        assert made(cite=["lever"]).cite == ("lever",)
        assert made(experiment="edgellm/one").cite == ("edgellm",)
        publish(package, value("a"))
        with pytest.raises(InputError, match="cites 'mine': there is no BibTeX entry 'mine'"):
            made(paper={"artifact": "table1"})


def column(**settings: Any) -> dict[str, Any]:
    return {"columns": [{"metric": "ttft", **settings}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"colums": []}, "there is no field 'colums'. Did you mean columns"),
    ({"footnotes": ["Ours."]}, "has the key 'footnotes', which is no more: write `notes`"),
    ({"cite": ["levr"]}, "cites 'levr': there is no BibTeX entry 'levr'. Did you mean lever"),
    ({"aside": [{"id": "nope", "note": "x"}]}, "there is no table or figure 'nope'"),
    ({"notes": [{"a": 1}]}, r"notes\.0 is {'a': 1}; it must be a text"),
    ({"notes": ["nothing_like_it"]}, "no shared footnote 'nothing_like_it'"),
    ({"figure": {"columns": ["tfft"]}}, "no column 'tfft'. Did you mean ttft"),
    ({"figure": {"without": ["nope"]}}, "figure, without: there is no row 'nope'"),
    ({"columns": []}, "has no columns"),
    ({"columns": ["ttft", "ttft"]}, "two columns with the key 'ttft'"),
    ({"columns": ["rouge"]}, "no metric 'rouge'. Did you mean rouge_l"),
    ({"columns": [{"each": "method"}]}, r"columns\.0: the field 'metric' is lacking"),
    (
        column(against={"method": "sp"}),
        r"columns\.0 has the key 'against', which is no more: write `relative_to` with labels",
    ),
    (column(value="ttft"), "stand in conf/metric/; name a `metric`"),
    (column(unit="GB"), "ttft is in 's', not in 'GB'"),
    (column(digits=-3), r"columns\.0\.digits is -3; .* number from 0 to 15"),
    (column(scale=0), "has the scale 0"),
    (column(over={"method": "sp"}, relative_to="std"), "column 'ttft' has two baselines"),
    (column(compare="difference"), "column 'ttft' has no baseline"),
    (column(relative_to="nope"), "there is no row 'nope'. Choices: sp, std"),
    (column(where={"method": "nope"}), "there is no method 'nope'"),
    (column(reference="nope"), "there is no table or figure 'nope'"),
    (column(reference={"nope": "edgellm.table1"}), "there is no row 'nope'"),
    (column(each="dev"), "the grid does not tell the values of 'dev'"),
    (column(each="method", pairs={"x": "sp and bld"}), "'sp and bld' must be two values"),
    (column(each="method", pairs={"x": "sp over bld"}), "no method 'bld'"),
    ({"paper": {"artifact": "table4"}}, "paper: there is no paper 'mine'. .*Choices: edgellm"),
    ({"paper": {"paper": "edgellm", "artifact": "nope"}}, "there is no artifact 'nope'. Choices: fig1, "),
    ({"rows": {"label": "a"}}, "rows: there is no field 'label'. .*Choices: also, apart, by"),
    ({"rows": {"by": "method", "name": "{nope}"}}, r"rows\.name: '{nope}' may name method in braces"),
]


@pytest.mark.parametrize(("table", "said"), WRONG)
def test_a_mistake_in_a_section_is_an_error_of_the_section(table: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"title": "T", "rows": "method", "columns": ["ttft"]}
    assert made({"method": ["std", "sp"]}, **right).title == "T"
    with pytest.raises(InputError, match=said):
        made({"method": ["std", "sp"]}, **{**right, **table})


def test_the_examples_of_the_page_are_right(tmp_path: Path) -> None:
    """As if each of docs/tables.md were EdgeLLM's; what a page compares is published."""
    text = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    examples = [content for content in map(yaml.safe_load, blocks) if "table" in content]
    named, cells = [], load_cells()
    for example in examples:
        section = example["table"]
        if "claims" in section:
            named += [claim.id for claim in ClaimsSpec.parse("page", section).claims]
        elif "masks" in section:
            named += [name for form in DiagramsSpec.parse("page", section).masks for name in form.match]
        elif "facts" in section:
            facts = FactsSpec.parse("page", written_out("edgellm/page", section))
            named += [fact.spec.id for fact in read_facts(facts, fact_sources()) if fact.spec.id]
        elif not computes_nothing(section):
            table = expand("edgellm/page", section, example)
            assert table.columns
            assert table.rows.names
    assert len(named) > 5
    assert [find(cells, name).id for name in named] == named
    (metrics,) = (block for block in blocks if block.startswith("# conf/metric/"))
    (tmp_path / "metric").mkdir()
    (tmp_path / "metric" / "mine.yaml").write_text(metrics, encoding="utf-8")
    assert {*load_metrics([tmp_path])} == {"hops", "hop_time"}
