"""ElastiLM's experiments: every published value of what is built stands beside ours once."""

from __future__ import annotations

import csv
from functools import cache, partial

import pytest
import yaml

import experiment_files
from repro.core.paths import conf_dir
from repro.reports.claims.claims import is_prose
from repro.reports.hardware_facts.facts import read_settings
from repro.reports.reference.reference import load_cells, select

section = cache(partial(experiment_files.section, "elastilm"))
table = cache(partial(experiment_files.table, "elastilm"))
NAMES = experiment_files.names("elastilm")
DRAWN = ("fig1", "fig6", "fig7", "fig8", "fig9", "fig11", "fig12")
"""Diagrams, without a number."""
PANELS = ("fig4", "fig10", "fig13", "fig18", "fig19", "fig20")
"""Artifacts of which each panel is an experiment, named by its letter."""
TOGETHER = {"fig17a": "fig17"}
"""Panels that the reference files have as artifacts, and the experiment that holds them."""
TABLES = {"table1": "slo.table1", "table2": "hardware.table2", "table3": "slo.table3"}
"""Tables whose entries are lines of `settings.csv`, and their component there."""
APPS = {"OBQA": "openbookqa", "ARC_E": "arc_easy", "Octopus": "octopus", "PIQA": "piqa", "SCIQ": "sciq"}
"""The datasets of Table 3 under our names; of LlamaTouch the reference says how it is printed."""


def published_in(name: str) -> list[str]:
    """The ids of cells that an experiment sets ours beside."""
    content = section(name)
    if "claims" in content:
        return [claim["id"] for claim in content["claims"]]
    if "facts" in content:
        return [fact["id"] for fact in content["facts"] if "id" in fact]
    spec = table(name)
    named = [published for column in spec.columns for published in column.reference.values()]
    return [*named, *(aside.id for aside in spec.aside)]


def holder(artifact: str) -> str:
    """What an artifact's experiments are named by."""
    return TOGETHER.get(artifact, artifact)


def of_panel(name: str) -> str:
    """The same of an experiment."""
    return name[:-1] if name[:-1] in PANELS else name


def test_every_artifact_with_a_number_or_a_picture_has_its_experiment() -> None:
    with (conf_dir() / "reference" / "artifacts.csv").open(newline="", encoding="utf-8") as file:
        known = {row["artifact"] for row in csv.DictReader(file) if row["paper"] == "elastilm"}
    wanted = {holder(artifact) for artifact in known} - {*DRAWN}
    assert wanted | {"claims"} <= {of_panel(name) for name in NAMES}
    assert {*DRAWN} < known


@pytest.mark.parametrize("artifact", sorted({of_panel(name) for name in NAMES}))
def test_every_published_value_stands_beside_ours_once(artifact: str) -> None:
    """Those of the prose in the claims; there, too, what follows from a whole table, or has no figure."""
    cells, claims = select(load_cells(), paper="elastilm"), section("claims")["claims"]
    prose = {cell.id for cell in cells if is_prose(cell)}
    found = [one for name in NAMES if of_panel(name) == artifact for one in published_in(name)]
    if artifact == "claims":
        assert len(found) == len(set(found))
        assert prose <= set(found)
    else:
        beside = {claim["id"] for claim in claims if "absent" not in claim and claim["id"] not in prose}
        wanted = [cell.id for cell in cells if holder(cell.artifact) == artifact and cell.id not in beside]
        assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_and_column_that_is_named_is_there(name: str) -> None:
    if section(name):
        return
    spec = table(name)
    keys = {column.key for column in spec.columns}
    for aside in spec.aside:
        assert not aside.column or aside.column in keys
        assert not (aside.row and spec.rows.names) or aside.row in spec.rows.names
    for column in spec.columns:
        base = column.relative_to
        assert not (isinstance(base, str) and base and spec.rows.names) or base in spec.rows.names


@pytest.mark.parametrize(("name", "component"), TABLES.items())
def test_every_entry_of_a_table_in_words_is_a_fact(name: str, component: str) -> None:
    settings = read_settings(conf_dir() / "reference" / "settings.csv")
    wanted = {entry for paper, of, entry in settings if (paper, of) == ("elastilm", component)}
    stated = [fact["setting"] for fact in section(name)["facts"]]
    assert len(stated) == len({tuple(one) for one in stated})
    assert {entry for of, entry in stated if of == component} == wanted


def test_memories_and_chips_are_those_of_the_device_of_that_name() -> None:
    for fact in section("table2")["facts"]:
        if fact["setting"][0] != TABLES["table2"]:
            continue
        device = yaml.safe_load(
            (conf_dir() / "device" / f"{fact['device']}.yaml").read_text(encoding="utf-8")
        )
        assert "elastilm" in device["papers"]
        assert fact["path"] == ("soc" if fact["setting"][1].endswith(".soc") else "dram.capacity")


def test_every_app_s_dataset_has_five_shots() -> None:
    settings = read_settings(conf_dir() / "reference" / "settings.csv")
    shown = {fact["setting"][1]: fact["absent"] for fact in section("table3")["facts"]}
    for entry, said in shown.items():
        if not entry.endswith(".dataset"):
            continue
        printed = settings[("elastilm", "slo.table3", entry)]["value"]
        name = f"{APPS.get(printed, 'llamatouch')}_5shot"
        assert said == f"an input: dataset={name}"
        assert (conf_dir() / "dataset" / f"{name}.yaml").is_file()
