"""The papers' experiments: all published values stand beside ours, and tables look for what is swept."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import product

import pytest

from experiment_files import names, section, swept, table
from repro.core.paths import conf_dir
from repro.experiments.plan import plain
from repro.reports.claims.claims import is_prose
from repro.reports.hardware_facts.facts import read_settings
from repro.reports.reference.reference import load_cells, select
from tiny_project import composed
from workshop.studies.fit_mllm.closed_forms import FITTED

PAPERS = ("edgellm", "elastilm", "ghidorah", "lever", "mllm_npu")
REPEATED = {"edgellm": 21, "mllm_npu": 4}
"""How many values stand in several tables: a baseline's beside each of its searches, a bar's steps."""
DRAWN = {
    "edgellm": {"fig2", "fig4", "fig6", "fig7", "fig8", "fig10", "fig14"},
    "elastilm": {"fig1", "fig6", "fig7", "fig8", "fig9", "fig11", "fig12"},
    "ghidorah": {"fig1", "fig2", "fig4", "fig5", "fig6", "fig7"},
    "lever": {"fig1", "fig2", "fig3", "fig6", "fig7", "fig8", "fig9", "algorithm1"},
    "mllm_npu": {"fig3", "fig5", "fig6", "fig7", "fig9"},
}
"""Diagrams, without a number."""
LABELS = {"workload", "dataset", "method", "service", "compression", "width"}
"""Labels of rows and columns that are a setting's value, as a sweep has it."""


@cache
def published_in(paper: str, name: str) -> tuple[str, ...]:
    """The ids of published values that an experiment sets ours beside, but for those beside its table."""
    content = section(paper, name)
    if content:
        listed = [*content.get("claims", ()), *content.get("facts", ())]
        return tuple(entry["id"] for entry in listed if "id" in entry)
    columns = table(paper, name).columns
    return tuple(published for column in columns for published in column.reference.values())


def beside_its_table(paper: str, name: str) -> set[str]:
    return set() if section(paper, name) else {aside.id for aside in table(paper, name).aside}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_published_value_stands_beside_ours(paper: str) -> None:
    """Those of the prose in the claims, each once; the others once in a table."""
    cells = select(load_cells(), paper=paper)
    prose = {cell.id for cell in cells if is_prose(cell)}
    printed = {cell.id for cell in cells} - prose
    by_name = {name: published_in(paper, name) for name in names(paper)}
    claims = by_name.pop("claims")
    assert prose <= set(claims)
    assert len(claims) == len(set(claims))
    in_tables = Counter(published for ids in by_name.values() for published in ids)
    asides = set().union(*(beside_its_table(paper, name) for name in by_name))
    assert printed <= in_tables.keys() | asides | set(claims)
    assert sum(in_tables[published] > 1 for published in printed) == REPEATED.get(paper, 0)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_artifact_with_a_number_has_its_experiment(paper: str) -> None:
    with (conf_dir() / "reference" / "artifacts.csv").open(newline="", encoding="utf-8") as file:
        known = {row["artifact"] for row in csv.DictReader(file) if row["paper"] == paper}
    built = {a for a in known for name in names(paper) if re.match(rf"{a.rstrip('abcd')}(?!\d)", name)}
    assert known - built == DRAWN[paper]


def by_label(sweep: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """What is swept, by the labels of cells: a setup's is called its workload."""
    return {setting.removeprefix("labels."): sweep[setting] for setting in sweep} | (
        {"workload": sweep["setup"]} if "setup" in sweep else {}
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_tables_look_for_what_is_swept(paper: str) -> None:
    """Rows of labels that are settings themselves, and columns of those that have them."""
    compared = 0
    for name in names(paper):
        if section(paper, name):
            continue
        spec, sweep = table(paper, name), by_label(swept(paper, name))
        if set(spec.rows.by) <= LABELS & sweep.keys():
            rows = product(*(sweep[label] for label in spec.rows.by))
            assert set(spec.rows.names) == {" / ".join(row) for row in rows}, name
            compared += 1
        for column in spec.columns:
            for label, value in [*column.where.items(), *column.over.items()]:
                assert label not in LABELS & sweep.keys() or value in sweep[label], (name, column.key)
            base = column.relative_to
            assert not (isinstance(base, str) and base and spec.rows.names) or base in spec.rows.names
        for aside in spec.aside:
            assert not aside.column or aside.column in {column.key for column in spec.columns}
            assert not (aside.row and spec.rows.names) or aside.row in spec.rows.names
    assert compared >= 1


@pytest.mark.parametrize(
    ("name", "component"), [("table1", "slo.table1"), ("table2", "hardware.table2"), ("table3", "slo.table3")]
)
def test_every_entry_of_elastilm_s_tables_in_words_is_a_fact(name: str, component: str) -> None:
    settings = read_settings(conf_dir() / "reference" / "settings.csv")
    entries = {entry for paper, of, entry in settings if (paper, of) == ("elastilm", component)}
    facts = [tuple(fact["setting"]) for fact in section("elastilm", name)["facts"]]
    assert len(facts) == len(set(facts))
    assert {entry for of, entry in facts if of == component} == entries


def test_values_of_mllm_npu_s_second_version_were_used_in_no_fit() -> None:
    """Persona-Chat's requests, Fig. 18(a)'s and Fig. 19's bars."""
    fitted = {cell for cells in FITTED.values() for cell in cells}
    for name, count in (("persona", 22), ("fig18a", 3), ("fig17", 15), ("fig16", 6)):
        published = {*published_in("mllm_npu", name), *beside_its_table("mllm_npu", name)}
        second = {cell_id for cell_id in published if cell_id.startswith("mllm_npu_v2.")}
        assert len(second) == count
        assert not second & fitted


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_asked_for_beside_a_setup_comes_first(reverse: bool) -> None:
    asked = ["setup=mt5_iwslt17", "device=jetson_orin_nx", "model@draft=t5_small", "calibrate_draft_to=null"]
    config = plain(composed(*(reversed(asked) if reverse else asked)))
    assert config["device"]["name"] == "Jetson Orin NX"
    assert (config["target"]["name"], config["draft"]["name"]) == ("mT5-large", "T5-small")
    assert config["calibrate_draft_to"] is None
