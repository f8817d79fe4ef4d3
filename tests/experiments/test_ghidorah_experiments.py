"""Ghidorah's experiments: all published values stand beside ours, and rows are those that the sweeps make."""

from __future__ import annotations

import csv
from functools import partial
from itertools import product

import pytest
from hydra.utils import instantiate

import experiment_files
from repro.core.paths import conf_dir
from repro.experiments import plan
from repro.experiments.plan import plain
from repro.reports.reference.reference import load_cells, select
from repro.reports.spec.experiment import experiment_file, grid_of
from tiny_project import composed

section, table = partial(experiment_files.section, "ghidorah"), partial(experiment_files.table, "ghidorah")
swept = partial(experiment_files.swept, "ghidorah")
NAMES = experiment_files.names("ghidorah")
WORKLOADS = ("ghidorah_mt_bench", "ghidorah_gsm8k", "ghidorah_mbpp", "ghidorah_humaneval")
ROWS = {"humaneval": "human_eval"}
"""Names of datasets in the reference file where they differ from ours."""


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
    if content:
        return []
    columns = table(name).columns
    return [published for column in columns for published in column.reference.values()]


def test_every_published_value_stands_beside_one_of_ours() -> None:
    found = [published for name in NAMES for published in published_in(name)]
    assert sorted(found) == sorted(cell.id for cell in select(load_cells(), paper="ghidorah"))


def test_every_table_and_picture_with_data_has_its_experiment() -> None:
    with (conf_dir() / "reference" / "artifacts.csv").open(newline="", encoding="utf-8") as file:
        known = {row["artifact"]: row for row in csv.DictReader(file) if row["paper"] == "ghidorah"}
    wanted = {"fig3", "fig8", "table1", "fig9", "fig10a", "fig10b"}
    assert wanted - {"fig10a", "fig10b"} <= set(known)
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", ["fig9", "fig9_mean"])
def test_fig_9_sweeps_all_four_rows_and_five_widths(name: str) -> None:
    sweep = swept(name)
    assert tuple(sweep["setup"]) == WORKLOADS
    assert sweep["labels.width"] == ["4", "8", "16", "32", "64"]


def test_named_rows_of_fig_9_are_those_that_the_sweep_makes() -> None:
    datasets = [name.removeprefix("ghidorah_") for name in WORKLOADS]
    made = {" / ".join(labels) for labels in product(datasets, swept("fig9")["labels.width"])}
    assert set(table("fig9").rows.names) == made


@pytest.mark.parametrize("method", ["medusa", "medusa_em", "ghidorah"])
def test_a_method_has_the_width_of_its_label(method: str) -> None:
    """In the cells as Hydra's sweeper has them, where a label is not resolved yet."""
    sweeper = instantiate(plan.composed("experiment=ghidorah/fig9").hydra.sweeper)
    (cell,) = (one for one in sweeper.cells if one["method"] == [method])
    overrides = [f"{name}={value}" for name, [value] in cell.items()]
    config = plain(composed("setup=ghidorah_mbpp", *overrides, "+labels.width=16"))
    assert (config["method"]["name"], config["method"]["width"]) == (method, 16)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_vicuna_brought_to_its_row_of_table_1(name: str) -> None:
    config = plain(composed(f"setup={name}"))
    dataset = name.removeprefix("ghidorah_")
    row = f"ghidorah.table1.{ROWS.get(dataset, dataset)}"
    assert config["calibrate_draft_to"] == [f"{row}.width2", f"{row}.width4"]
    assert (config["device"]["name"], config["target"]["name"]) == ("Jetson Xavier NX", "Vicuna-7B")
    assert config["target"]["precision"] == config["draft"]["precision"] == "fp16"
    assert config["draft"]["shape"]["medusa"] == 5


def test_both_hypotheses_run_the_same_cells() -> None:
    points = grid_of(experiment_file("ghidorah/engines")).points() or []
    by_engine = {
        engine: sorted(
            (str(one["method"]), str(one["labels.width"])) for one in points if one["engine"] == engine
        )
        for engine in ("own", "ghidorah_memory")
    }
    assert by_engine["own"] == by_engine["ghidorah_memory"]
    assert len(by_engine["own"]) == 2 * 4 * 5, "with tensor cores and with CUDA cores alone"
