"""mllm-NPU's experiments: all published values stand beside ours; rows are those of the sweeps."""

from __future__ import annotations

import csv
from functools import partial
from itertools import product

import pytest

import experiment_files
from repro import data
from repro.core.paths import conf_dir
from repro.experiments import plan
from repro.experiments.plan import plain
from repro.experiments.tables import Asked
from repro.reports.claims.claims import is_prose
from repro.reports.reference.reference import load_cells, select
from repro.reports.spec.experiment import experiment_file, grid_of
from tiny_project import composed
from workshop.studies.fit_mllm.closed_forms import FITTED

section, table = partial(experiment_files.section, "mllm_npu"), partial(experiment_files.table, "mllm_npu")
swept = partial(experiment_files.swept, "mllm_npu")
NAMES = experiment_files.names("mllm_npu")
DRAWN = ("fig3", "fig5", "fig6", "fig7", "fig9")
"""Diagrams, without a number."""
PARTS = {
    "table4_mean": "table4",
    "fig1a": "fig1",
    "fig1b": "fig1",
    "fig4_overhead": "fig4",
    "fig12_importance": "fig12",
    "fig13a": "fig13",
    "fig13b": "fig13",
    "fig14_mean": "fig14",
    "table5_mean": "table5",
}
"""Experiments that are a part of an artifact, or its means."""
DATASETS = {"2wiki": 1500, "triviaqa": 1500, "clock": 800, "applauncher": 600}


def published_in(name: str) -> set[str]:
    """The ids of cells that an experiment sets ours beside."""
    content = section(name)
    if "claims" in content:
        return {claim["id"] for claim in content["claims"]}
    if "facts" in content:
        return {fact["id"] for fact in content["facts"] if "id" in fact}
    spec = table(name)
    named = [published for column in spec.columns for published in column.reference.values()]
    return {*named, *(aside.id for aside in spec.aside)}


def test_every_published_value_stands_beside_ours_once() -> None:
    """Those of the prose in the claims, whatever other table they point at; there, too, ratios of a table."""
    cells = select(load_cells(), paper="mllm_npu")
    prose = {cell.id for cell in cells if is_prose(cell)}
    printed = {cell.id for cell in cells} - prose
    second = {cell.id for cell in select(load_cells(), paper="mllm_npu_v2")}
    found = {name: published_in(name) - second for name in NAMES}
    assert prose <= found["claims"]
    named = sorted(one for ids in found.values() for one in ids - prose)
    assert named == sorted(printed)


def test_values_of_the_second_version_stand_beside_ours() -> None:
    """Persona-Chat's requests, Fig. 18(a)'s and Fig. 19's bars: none of them was used in a fit."""
    fitted = {cell for cells in FITTED.values() for cell in cells}
    for name, count in (("persona", 22), ("fig18a", 3), ("fig17", 15), ("fig16", 6)):
        named = [one for one in published_in(name) if one.startswith("mllm_npu_v2.")]
        assert len(named) == count
        assert not {*named} & fitted


def test_every_artifact_has_its_experiment() -> None:
    with (conf_dir() / "reference" / "artifacts.csv").open(newline="", encoding="utf-8") as file:
        known = {row["artifact"] for row in csv.DictReader(file) if row["paper"] == "mllm_npu"}
    built = {PARTS.get(name, name) for name in NAMES}
    assert known - {*DRAWN} == built & known
    assert {*DRAWN} < known


def test_table_4_has_the_paper_s_rows_and_dashes() -> None:
    spec = table("table4")
    assert len(spec.rows.names) == 20
    shown = {column.where["method"]: len(column.reference) for column in spec.columns[:6]}
    engines = ("mlc_gpu", "llama_cpp_cpu", "mnn_cpu", "powerinfer2_npu", "tflite_gpu", "mllm_npu")
    assert shown == dict(zip(engines, [20, 20, 12, 8, 8, 20], strict=True))
    assert len(grid_of(experiment_file("mllm_npu/table4")).points() or []) == sum(shown.values())
    speedups = {one for one in published_in("claims") if one.startswith("mllm_npu.table4.")}
    assert speedups == {
        cell.id
        for cell in select(load_cells(), paper="mllm_npu")
        if cell.artifact == "table4" and cell.id.endswith(".speedup")
    }
    assert len(speedups) == len(spec.rows.names)


def test_table_5_has_our_models_and_the_paper_s() -> None:
    spec, sweep = table("table5"), swept("table5")
    ours = [str(composed(f"model@target={name}").target.name) for name in sweep["model@target"]]
    theirs = ("qwen1_5_1_8b", "gemma_2b", "phi_2", "llama_2_7b", "mistral_7b")
    models = [*ours, *(str(composed(f"model@target={name}").target.name) for name in theirs)]
    assert list(spec.rows.names) == [" / ".join(row) for row in product(sweep["dataset"], models)]
    assert [len(column.reference) for column in spec.columns] == [25] * 5 + [0] * 3 + [25, 0, 0] + [0] * 2
    assert swept("table5_mean") == sweep
    assert {column.where["compression"] for column in spec.columns} == set(sweep["compression"])


@pytest.mark.parametrize(("name", "of"), [("table4_mean", "table4"), ("fig14_mean", "fig14")])
def test_means_are_over_the_cells_of_their_table(name: str, of: str) -> None:
    assert swept(name) == swept(of)
    for column in table(name).columns:
        assert (column.aggregate, column.over) == ("geomean", {"method": "mllm_npu"})


@pytest.mark.parametrize("name", [name for name in NAMES if swept(name)])
def test_columns_look_for_what_is_swept(name: str) -> None:
    sweep = swept(name)
    methods = set(sweep.get("method", ()))
    for column in table(name).columns:
        for where in (column.where, column.over):
            assert where.get("workload", sweep.get("setup", [""])[0]) in sweep.get("setup", [""])
            if methods and "method" in where:
                assert where["method"] in methods, f"{column.key} wants {where['method']}"


@pytest.mark.parametrize("name", ["table4", "fig14"])
def test_named_rows_are_the_rows_that_the_sweep_makes(name: str) -> None:
    sweep = swept(name)
    models = {str(composed(f"model@target={model}").target.name) for model in sweep["model@target"]}
    values = {
        "workload": sweep["setup"],
        "target": models,
        "length": sweep.get("prompt_tokens", []),
        "device": [str(composed(f"device={d}").device.name) for d in sweep.get("device", [])],
    }
    rows = table(name).rows
    assert set(rows.names) == {" / ".join(row) for row in product(*(values[by] for by in rows.by))}


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_workload_is_a_blank_prompt_of_the_printed_length(dataset: str) -> None:
    config = plain(composed(f"setup=mllm_{dataset}", "method=mnn_cpu", "model@target=phi_2_int8"))
    assert config["prompt_tokens"] == DATASETS[dataset]
    assert (config["device"]["name"], config["target"]["checkpoint"]) == ("Xiaomi 14", None)
    assert config["labels"] == {"workload": f"mllm_{dataset}"}
    assert data.parse(config["dataset"]).name in ("longbench_2wikimqa", "longbench_triviaqa", "droidtask")


def test_settings_of_a_grid_s_cells_are_varied_by_its_sweep() -> None:
    """So another model or method joins the table instead of making one of its own."""
    varied = plan.axes(plan.composed("experiment=mllm_npu/fig14"))
    assert {"method", "model@target", "setup"} <= varied
    joins = Asked("mllm_npu/fig14", ("method=mllm_npu", "model@target=phi_2_int8"), frozenset(varied))
    assert (joins.settings, joins.whole, joins.folder) == ((), False, "mllm_npu/fig14")
    apart = Asked("mllm_npu/fig14", ("model@draft=smollm2_135m_draft",), frozenset(varied))
    assert apart.folder == "mllm_npu/fig14@model_draft=smollm2_135m_draft"
