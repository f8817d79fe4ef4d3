"""ElastiLM's experiments: every published value of what is built stands beside ours once."""

from __future__ import annotations

import csv
from functools import partial

import pytest
import yaml

import experiment_files
from repro.paths import conf_dir
from repro.tables.claims import is_prose
from repro.tables.facts import read_settings
from repro.tables.reference import load_cells, select
from repro.tables.spec import TableSpec

section = partial(experiment_files.section, "elastilm")
NAMES = experiment_files.names("elastilm")
MISSING = (
    "fig2",
    "fig3",
    "fig4",
    "fig5",
    "fig13",
    "fig14",
    "fig15",
    "fig16",
    "fig18",
    "fig19",
    "fig20",
    "fig21",
)
"""Artifacts that are not built yet; neither are the claims, for the numbers of the prose."""
DRAWN = ("fig1", "fig6", "fig7", "fig8", "fig9", "fig11", "fig12")
"""Diagrams, without a number."""
PARTS = {"fig10b": ("fig10",), "fig17": ("fig17", "fig17a")}
"""The artifacts of the reference files that an experiment holds, where that is not the one of its name."""
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
    spec = TableSpec.parse(f"elastilm/{name}", content)
    named = [published for column in spec.columns for published in column.reference.values()]
    return [*named, *(aside.id for aside in spec.aside)]


def artifacts_of(name: str) -> tuple[str, ...]:
    return PARTS.get(name, (name,))


def test_every_artifact_is_built_or_said_to_be_missing() -> None:
    with (conf_dir() / "reference" / "artifacts.csv").open(newline="") as file:
        known = {row["artifact"] for row in csv.DictReader(file) if row["paper"] == "elastilm"}
    built = {artifact for name in NAMES for artifact in artifacts_of(name)}
    assert known == {*MISSING, *DRAWN} | built & known
    assert not built & {*MISSING, *DRAWN}


@pytest.mark.parametrize("name", NAMES)
def test_every_published_value_of_what_is_built_stands_beside_ours_once(name: str) -> None:
    cells = select(load_cells(), paper="elastilm")
    if name == "claims":
        wanted = [cell.id for cell in cells if is_prose(cell)]
    else:
        wanted = [cell.id for cell in cells if cell.artifact in artifacts_of(name)]
    found = published_in(name)
    assert sorted(found) == sorted(wanted)


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
