"""LEVER's experiments: all published values stand beside ours, and rows are those that the sweeps make."""

from __future__ import annotations

import csv
from functools import partial
from itertools import product

import pytest
from omegaconf import OmegaConf

import experiment_files
from repro import data
from repro.core.paths import conf_dir
from repro.experiments.plan import plain
from repro.reports.reference.reference import load_cells, select
from repro.reports.spec.experiment import experiment_file, grid_of
from tiny_project import composed

section, table = partial(experiment_files.section, "lever"), partial(experiment_files.table, "lever")
swept = partial(experiment_files.swept, "lever")
NAMES = experiment_files.names("lever")
PAIRS = {
    "lever_llama_3_1_8b": ("Llama-3.1-8B", "llama_3_1_8b"),
    "lever_qwen3_4b": ("Qwen3-4B", "qwen3_4b"),
    "lever_qwen3_8b": ("Qwen3-8B", "qwen3_8b"),
    "lever_qwen3_14b": ("Qwen3-14B", "qwen3_14b"),
}
DATASETS = ("humaneval", "mbpp", "gsm8k", "mt_bench")
PHONES = ("oneplus_12", "honor_500_pro", "honor_magic_v5")
PROXY = "model@draft=smollm2_135m_draft"


def tables() -> list[str]:
    """Experiments whose tables are made of cells."""
    return [name for name in NAMES if swept(name)]


def published_in(name: str) -> list[str]:
    """The ids of cells that an experiment sets ours beside."""
    content = section(name)
    if "claims" in content:
        return [claim["id"] for claim in content["claims"]]
    if "facts" in content:
        return [fact["id"] for fact in content["facts"] if "id" in fact]
    columns = table(name).columns
    return [published for column in columns for published in column.reference.values()]


def test_every_published_value_stands_beside_one_of_ours() -> None:
    found = [published for name in NAMES for published in published_in(name)]
    assert sorted(found) == sorted(cell.id for cell in select(load_cells(), paper="lever"))


def test_every_table_and_picture_with_data_has_its_experiment() -> None:
    with (conf_dir() / "reference" / "artifacts.csv").open(newline="", encoding="utf-8") as file:
        known = {row["artifact"]: row for row in csv.DictReader(file) if row["paper"] == "lever"}
    drawn = {name for name, row in known.items() if "diagram" in row["what_it_shows"] or name == "algorithm1"}
    assert drawn == {"fig1", "fig2", "fig3", "fig6", "fig7", "fig8", "fig9", "algorithm1"}
    assert set(known) - drawn <= set(NAMES)
    assert {"claims", *(f"fig10_{by}" for by in ("mean", *GROUPS))} <= set(NAMES)


GROUPS = {"datasets": DATASETS, "devices": PHONES, "models": tuple(PAIRS)}


@pytest.mark.parametrize("by", ["mean", *GROUPS])
def test_the_means_are_over_the_cells_of_fig_10(by: str) -> None:
    assert swept(f"fig10_{by}") == swept("fig10")
    assert table(f"fig10_{by}").footnotes[0].startswith("Geometric means")


def test_fig_10_has_48_configurations() -> None:
    sweep = swept("fig10")
    assert sweep == {
        "setup": list(PAIRS),
        "device": list(PHONES),
        "dataset": list(DATASETS),
        "method": ["flash_ar", "chain_sd", "lever", "edgellm"],
        "method.provisional": ["never"],
        "method.fallback": ["false"],
        "method.length": ["8"],
        "engine.verifies": ["cpu"],
        "labels.variant": ["usual", "printed", "cpu"],
    }
    assert len(table("fig10").rows.names) == 48


def labelled(name: str) -> dict[str, list[str]]:
    """What is swept, by the labels of cells: a setup's is called its workload."""
    return {"workload" if setting == "setup" else setting: values for setting, values in swept(name).items()}


@pytest.mark.parametrize("name", tables())
def test_named_rows_are_the_rows_that_the_sweep_makes(name: str) -> None:
    """Of labels that are settings themselves; the others come of interpolation."""
    rows, sweep = table(name).rows, labelled(name)
    if not set(rows.by) <= {"workload", "dataset", "method"}:
        return
    made = {" / ".join(labels) for labels in product(*(sweep[label] for label in rows.by))}
    assert set(rows.names) == made


@pytest.mark.parametrize("name", tables())
def test_columns_look_for_methods_and_datasets_that_are_swept(name: str) -> None:
    sweep = labelled(name)
    for column in table(name).columns:
        for where in (column.where, column.over):
            for label in {"method", "dataset", "workload"} & set(where):
                assert where[label] in sweep[label], f"{column.key} wants {label} {where[label]}"


@pytest.mark.parametrize("name", PAIRS)
def test_a_workload_is_a_target_with_its_own_head(name: str) -> None:
    target, stem = PAIRS[name]
    chosen = OmegaConf.load(conf_dir() / "setup" / f"{name}.yaml")
    assert {"override /model@draft": f"eagle3_{stem}"} in chosen.defaults
    config = plain(composed(f"setup={name}", PROXY))
    assert (config["target"]["name"], config["target"]["precision"]) == (target, "q4_0")
    assert config["device"] == plain(composed("device=oneplus_12"))["device"]
    assert config["engine"] == plain(composed("engine=lever_serial"))["engine"]
    assert data.parse(config["dataset"]).name == "humaneval"
    assert (config["calibrate_draft_to"], config["labels"]) == (None, {"workload": name})


def test_what_is_asked_for_beside_a_workload_comes_first() -> None:
    asked = ("device=honor_500_pro", "engine=lever_overlapped", "dataset=mbpp", PROXY)
    config = plain(composed("setup=lever_qwen3_14b", *asked))
    assert config["engine"]["name"] == "LEVER, reads overlapped"
    assert config["device"]["name"] == "Honor 500 Pro"
    assert data.parse(config["dataset"]).name == "mbpp"


def test_both_forms_of_the_engine_run_the_same_methods() -> None:
    points = grid_of(experiment_file("lever/engines")).points() or []
    methods = {
        label: [str(point["method"]) for point in points if point["labels.engine"] == label]
        for label in ("overlapped", "serial", "serial_npu")
    }
    assert methods["overlapped"] == methods["serial"] == ["flash_ar", "chain_sd", "lever"]
    assert methods["serial_npu"] == ["chain_sd"]
    beside = {(aside.id, aside.column) for aside in table("engines").aside}
    assert {column for published, column in beside if published == "lever.table5.eagle3.lever.gsm8k"} == {
        "overlapped",
        "serial",
    }
