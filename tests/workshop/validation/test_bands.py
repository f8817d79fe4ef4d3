"""Bands: what is drawn and what is held, replays that go on, and a table's figures over the draws."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from repro.core.paths import project_root
from repro.device.device_file import facts, machine
from repro.device.engines import draws
from repro.device.engines.draws import DRAWS, drawn, factor
from repro.device.engines.engine_file import device_file, device_files, device_with_engine
from repro.device.engines.evidence import forms
from repro.experiments.composing import load_components
from repro.experiments.plan import cell_config
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.tables.bands import BANDS_PATH, band_range, draw_counts, read_bands, read_draws
from repro.scenarios.registry import made
from workshop.validation.__main__ import main
from workshop.validation.bands.page import HEADINGS, write_bands
from workshop.validation.bands.replay import Figures, Replayed, ReplayFile
from workshop.validation.bands.table_bands import CommittedTable, ReplayPlan, TableBands, table_bands

ASSUMED, KNOWN = {"source": "assumed"}, {"source": "datasheet"}


TOY: dict[str, Any] = {
    "name": "Toy",
    "processors": {
        "cpu": {
            "peak": {"int8": {"value": 1.0, "unit": "TOP/s", **ASSUMED}},
            "efficiency": {"points": [[1, 0.5], [8, 0.99]], "unit": "share", **ASSUMED},
            "bandwidth": {"value": 10, "unit": "GB/s", **KNOWN},
            "tile": {"value": 16, "unit": "rows", **ASSUMED},
            "launch": {"value": 0, "unit": "us", **ASSUMED},
        }
    },
    "flash": {"bandwidth": {"value": 1, "unit": "GB/s", **ASSUMED}},
    "dram": {
        "budget": {"value": 6, "unit": "GB", **ASSUMED},
        "bandwidth": {"value": 20, "unit": "GB/s", **KNOWN},
        "read_ahead": {"value": 0.9, "unit": "share", **ASSUMED},
    },
    "power": {"idle": {"value": 1, "unit": "W", **ASSUMED}},
}


def values(described: Mapping[str, Any]) -> dict[str, Any]:
    return {fact.path: fact.points or fact.value for fact in facts(described)}


def test_factors_are_fixed_log_uniform_and_within_30_percent() -> None:
    found = [log(factor("Toy", f"place{i}", draw)) / log(1.3) for i in range(40) for draw in range(DRAWS)]
    assert all(-1 <= one <= 1 for one in found)
    assert sum(found) / len(found) == pytest.approx(0, abs=0.05)
    assert sum(one > 0.5 for one in found) / len(found) == pytest.approx(0.25, abs=0.03)
    assert factor("Toy", "flash.bandwidth", 3) == factor("Toy", "flash.bandwidth", 3)
    assert (
        len({factor("Toy", "a", 0), factor("Toy", "b", 0), factor("Toy", "a", 1), factor("Other", "a", 0)})
        == 4
    )


def test_assumed_rates_are_drawn_and_sizes_whole_numbers_and_sources_held() -> None:
    before = values(TOY)
    after = values(drawn(TOY, 0))
    changed = {path for path, value in before.items() if after[path] != value}
    assert changed == {
        "processors.cpu.peak.int8",
        "processors.cpu.efficiency",
        "flash.bandwidth",
        "dram.read_ahead",
        "power.idle",
    }
    assert values(TOY) == before, "a draw changes no description that it is given"
    assert after["flash.bandwidth"] == pytest.approx(1e9 * factor("Toy", "flash.bandwidth", 0))


def test_forms_are_held() -> None:
    """A start for each row, a rate that is what is reached, and a start that the fit tied to another."""
    fitted = {"source": "fitted", "cells": ["a"]}
    rate = {"peak": {"int8": {"value": 1.0, "unit": "TOP/s", **fitted}}}
    whole = {"value": 1.0, "unit": "share", **ASSUMED}
    start = {"int8": {"value": 5, "unit": "ms", **fitted}, "fp16": {"value": 5, "unit": "ms", **ASSUMED}}
    start["fp32"] = {"value": 6, "unit": "ms", **ASSUMED}
    exponent = {"value": 1, **ASSUMED}
    cpu = {**rate, "efficiency": whole, "start": start, "start_exponent": exponent}
    place = "processors.cpu"
    found = forms(facts({"name": "Toy", "processors": {"cpu": cpu}}))
    assert found == {f"{place}.efficiency", f"{place}.start.fp16", f"{place}.start_exponent"}
    drawn_paths = {
        path
        for path, value in values(drawn({"name": "Toy", "processors": {"cpu": cpu}}, 0)).items()
        if value != values({"processors": {"cpu": cpu}})[path]
    }
    assert drawn_paths == {f"{place}.start.fp32"}
    printed = {"peak": {"int8": {"value": 1.0, "unit": "TOP/s", **KNOWN}}}
    reached = {**cpu, **printed, "start_exponent": {"value": 0.9, **ASSUMED}}
    found = forms(facts({"processors": {"cpu": reached}}))
    assert found == {f"{place}.start.fp16"}, "what share of a printed peak is reached is an assumption"


def test_a_95_percent_range_needs_40_draws() -> None:
    assert band_range([*range(41)], 20) == (1.0, 39.0)
    assert band_range([*range(39)], 20) == (0.0, 38.0)
    assert band_range([*range(41)], 40) == (1.0, 40.0), "the machine as it is is one of the machines"


def test_a_curve_has_one_factor_and_a_share_stays_a_share() -> None:
    for draw in range(DRAWS):
        found = values(drawn(TOY, draw))
        (_, low), (_, high) = found["processors.cpu.efficiency"]
        assert high / low == pytest.approx(0.99 / 0.5)
        assert found["dram.read_ahead"] <= 1.0
    assert any(values(drawn(TOY, draw))["dram.read_ahead"] == 1.0 for draw in range(DRAWS))


def test_a_phone_is_drawn_alike_under_two_engines_and_is_a_machine() -> None:
    own, other = (device_with_engine("xiaomi_14", engine) for engine in ("own", "mllm_npu"))
    one, two = values(drawn(own, 5)), values(drawn(other, 5))
    assert one["processors.cpu.watts"] == two["processors.cpu.watts"] != values(own)["processors.cpu.watts"]
    for draw in range(3):
        assert machine(drawn(other, draw), "mnn_cpu").dram_budget == machine(other).dram_budget


def test_every_device_file_can_be_drawn_and_cores_keep_their_ratios() -> None:
    """A file that is drawn is a machine, whatever kinds of facts it has."""
    cores = 0
    for name in device_files():
        before = device_file(name)
        if before["kind"] != "emulated":
            continue
        after = drawn(before, 0)
        machine(after)
        for path, rates in values(before).items():
            if ".cores." in path:
                ratios = {y / x for (_, x), (_, y) in zip(rates, values(after)[path], strict=True)}
                assert max(ratios) == pytest.approx(min(ratios)), f"{name} {path}"
                cores += 1
    assert cores > 100


@pytest.fixture(scope="module")
def cost_only() -> Record:
    """A cell of llama.cpp that reads no text."""
    load_components()
    config = cell_config(
        *("method=llama_cpp_cpu", "device=xiaomi_14", "engine=mllm_npu", "prompts=1", "max_tokens=3"),
        *("model@target=qwen1_5_1_8b_int8", "target.checkpoint=null", "prompt_tokens=64"),
    )
    return made(config).run(lambda what, done, total: None).record


def test_a_replay_of_the_same_machine_gives_the_record_s_figures(cost_only: Record, tmp_path: Path) -> None:
    found = ReplayFile(tmp_path / "r.jsonl").figures(Replayed(None, 5, None).config(cost_only))
    assert found == {n: v for n, v in cost_only.values.items() if isinstance(v, int | float)}


def test_a_drawn_machine_takes_another_time(
    cost_only: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ReplayFile(tmp_path / "r.jsonl")
    found = [file.figures(Replayed(draw, 5, None).config(cost_only))["decode_seconds"] for draw in (0, 1)]
    assert found[0] != found[1]
    assert all(1 / 1.3 <= one / cost_only.values["decode_seconds"] <= 1.3 for one in found)  # type: ignore[operator]
    monkeypatch.setattr(draws, "factor", lambda name, path, draw: 1.0)
    same = ReplayFile(tmp_path / "same.jsonl").figures(Replayed(0, 5, None).config(cost_only))
    assert same["decode_seconds"] == pytest.approx(cost_only.values["decode_seconds"])


def test_a_replay_that_is_known_is_not_computed_again(cost_only: Record, tmp_path: Path) -> None:
    path, how = tmp_path / "r.jsonl", Replayed(0, 5, None)
    first = ReplayFile(path)
    figures = first.figures(how.config(cost_only))
    path.write_text(path.read_text(encoding="utf-8") + '{"key": "unfini', encoding="utf-8")
    again = ReplayFile(path)
    assert again.figures(how.config(cost_only)) == figures
    assert (first.computed, again.computed) == (1, 0)
    again.figures(Replayed(1, 5, None).config(cost_only))
    assert len(ReplayFile(path).known) == 2


@pytest.fixture(scope="module")
def quickstart() -> CommittedTable:
    load_components()
    return CommittedTable.read(open_results(project_root() / "results"), "quickstart")


def slower(record: Record, how: Replayed) -> Figures:
    """Chain-SD takes nine times or a ninth of its time on drawn machines, Std some percent more or less."""
    figures = {n: float(v) for n, v in record.values.items() if isinstance(v, int | float)}
    factors = {"chain_sd": (9.0, 1 / 9.0), "std": (1.05, 1 / 1.05)}.get(record.labels["method"], (1.0, 1.0))
    figures["decode_seconds"] *= 1.0 if how.draw is None else factors[how.draw]
    return figures


def test_a_table_s_band_is_the_range_of_its_figures_over_the_draws(quickstart: CommittedTable) -> None:
    found = table_bands("quickstart", quickstart, ReplayPlan(2, 2, 5, 12), slower)
    bands = {(band.row, band.column.key): band for band in found.bands}
    assert ("std", "acceptance_length") not in bands, "no clock and no cost decides it"
    same = bands["flash_ar", "speed"]
    assert same.ends == (same.value, same.value)
    assert same.replayed == same.value
    own = bands["chain_sd", "speed"]
    assert [figure / own.value for figure in own.drawn] == pytest.approx([1 / 9, 9.0])
    assert own.ends == (min(own.drawn), max(own.drawn)), "two draws have no 95% range"
    assert own.conclusion == "", "a speed compares nothing"
    assert bands["chain_sd", "speedup"].conclusion == "either"
    assert bands["std", "speedup"].conclusion == "above"
    assert bands["flash_ar", "speedup"].conclusion == "", "it is the baseline"
    assert (found.draws, found.cells) == (2, 7)
    assert 0 < found.sources["assumed"] < found.sources.total()


def test_a_table_takes_the_place_of_its_older_lines(quickstart: CommittedTable, tmp_path: Path) -> None:
    found = table_bands("quickstart", quickstart, ReplayPlan(2, 2, 5, 12), slower)
    other = TableBands("another", found.bands[:3], 1, 0, 5, found.sources)
    folder = tmp_path / BANDS_PATH.parent
    for one in (found, other, replace(found, draws=1)):
        write_bands(folder, one)
    lines = list(csv.DictReader((folder / "table.csv").open(encoding="utf-8")))
    assert [line["table"] for line in lines] == ["another"] * 3 + ["quickstart"] * len(found.bands)
    assert {line["draws"] for line in lines} == {"1"}
    assert tuple(lines[0]) == HEADINGS
    read = read_bands(tmp_path)
    assert len(read) == 3 + len(found.bands)
    for band in found.bands:
        ends, digest = read["quickstart", band.row, band.column.key]
        assert (ends, digest) == (pytest.approx(band.ends, rel=1e-3), band.digest)
        assert read_draws(tmp_path)["quickstart", band.row, band.column.key] == pytest.approx(
            band.drawn, rel=1e-5
        )
    assert draw_counts(tmp_path) == {"another": 1, "quickstart": 1}
    compared = [line for line in lines if line["conclusion"]]
    page = (folder / "table.md").read_text(encoding="utf-8")
    turning = sum(line["conclusion"] == "either" for line in compared)
    assert turning >= 1
    assert f"Of {len(compared)} comparisons {turning} may turn" in page


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--paper", "levers"], "lever"),
        (["--draws", "0"], "--draws is 0"),
        (["--text-draws", "0"], "--text-draws is 0"),
        (["--table", "lever/claims"], "lever/claims"),
        (["--table", "lever/fig10_mean", "--paper", "lever"], "give one"),
    ],
)
def test_wrong_input_is_a_sentence(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bands", *given]) == 2
    assert said in capsys.readouterr().err
