"""All cells as data: columns, their types and units, and one file that pandas, Polars and DuckDB read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from records import provenance, record
from repro import commands
from repro.core.paths import project_root
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.cell_frame import cell_frame
from repro.reports.spec.metric import load_metrics


def with_config(method: str, config: dict[str, Any], **labels: str) -> Record:
    return record(method, {"ttft": 0.5}, labels=labels, provenance=provenance(config=config))


def test_settings_are_columns_named_as_on_the_command_line() -> None:
    config = {
        "method": {"name": "chain_sd", "length": 8, "expansion": [1, 1, 3]},
        "prompts": 3,
        "target": {"name": "T", "checkpoint": {"name": "small", "hub": {"repo": "a/b"}}},
        "draft": None,
        "name": "table",
        "labels": {"length": 8},
    }
    frame = cell_frame([with_config("chain_sd", config, length="8")])
    expected = {"method.length": 8, "cell.prompts": 3, "method.expansion": "[1,1,3]", "length": "8"}
    expected["target.checkpoint.name"] = "small"
    assert frame.loc[0, list(expected)].to_dict() == expected
    assert not {"cell.draft", "cell.name", "cell.labels", "target.checkpoint.hub.repo"} & {*frame.columns}


def test_what_differs_between_cells_of_one_device_is_a_column_and_the_rest_of_its_file_is_not() -> None:
    def phone(gigabytes: float) -> dict[str, Any]:
        budget = {"value": gigabytes, "unit": "GB", "source": "assumed", "note": "half"}
        bandwidth = {"value": 60, "unit": "GB/s", "source": "paper"}
        return {"name": "Phone", "dram": {"budget": budget, "bandwidth": bandwidth}}

    cells = [with_config("std", {"device": phone(gigabytes)}, part=str(gigabytes)) for gigabytes in (2, 6)]
    frame = cell_frame(cells)
    assert [*frame["device.dram.budget.value"]] == [2, 6]
    assert frame.attrs["units"]["device.dram.budget.value"] == "GB"
    assert not [name for name in frame if "bandwidth" in name or name.endswith(("note", "source"))]


def test_a_column_has_one_type_also_where_a_value_is_absent() -> None:
    settings: list[dict[str, Any]] = [
        {"a": True, "b": 1, "c": 1, "d": False, "e": "auto"},
        {"a": False, "b": 2, "c": 0.5, "d": 0.3, "e": 4},
        {},
    ]
    cells = [with_config(str(n), {"method": each, "seed": 0}) for n, each in enumerate(settings)]
    frame = cell_frame(cells)
    types = {name: str(frame[f"method.{name}"].dtype) for name in "abcde"}
    assert types == {"a": "boolean", "b": "Int64", "c": "float64", "d": "str", "e": "str"}
    assert [*frame["method.d"][:2]] == ["false", "0.3"]
    assert frame[[f"method.{name}" for name in "abcde"]].isna().sum(axis=1).tolist() == [0, 0, 5]
    absent = cell_frame([record("std", {"ttft": None, "prompts": None})])
    assert [str(absent[name].dtype) for name in ("ttft", "n", "method")] == ["float64", "Int64", "str"]
    assert str(cell_frame([record("std", {}, status="failed", error="Traceback")])["n"].dtype) == "Int64"


def test_a_label_never_shares_a_column_with_a_value_and_a_standard_error_gives_ends() -> None:
    """The column is the same in every folder; 1.96 of the error to both sides. Units are the numbers' own."""
    labels, errors = {"ttft": "0.6", "part": "mlp"}, {"ttft": 1.0}
    values = {"ttft": 10.0, "prompts": 3, "memory_bytes": 2e9, "error_rate": 0.1}
    frame = cell_frame([record("std", values, labels=labels, uncertainty=errors)])
    assert frame.loc[0, ["ttft_label", "part", "n"]].tolist() == ["0.6", "mlp", 3]
    assert frame.loc[0, ["ttft_low", "ttft_high"]].tolist() == pytest.approx([8.04, 11.96])
    assert "prompts_low" not in frame
    units = frame.attrs["units"]
    assert [units[name] for name in ("ttft", "memory_bytes", "error_rate")] == ["s", "B", "share"]
    assert not [name for name, metric in load_metrics().items() if " / " in metric.stored_unit]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file `all.parquet` of three cells, one of them LEVER's at length 8, one failed."""
    results = Results(tmp_path / "results")
    for experiment, length in (("lever/fig10", 8), ("lever/fig10", 4), ("edgellm/fig10", 8)):
        config = {"method": {"name": "chain_sd", "length": length}}
        results.put(
            record(
                "chain_sd",
                {"ttft": 0.5},
                labels={"part": f"{experiment} {length}"},
                experiment=experiment,
                provenance=provenance(config=config),
            )
        )
    results.put(record("std", {}, status="failed", error="Traceback"))
    monkeypatch.chdir(tmp_path)
    assert commands.run("cells", ["--results", "results", "--out", "all.parquet"]) == 0
    return tmp_path


def documented(language: str, word: str) -> str:
    """The block of the page that has a word."""
    page = (project_root() / "docs" / "run.md").read_text(encoding="utf-8")
    return next(block for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if word in block)


def test_pandas_reads_the_file_as_it_was_written(stored: Path) -> None:
    frame = pd.read_parquet("all.parquet")
    assert frame.attrs["units"] == {"ttft": "s"}
    assert frame["status"].value_counts().to_dict() == {"done": 3, "failed": 1}
    pd.testing.assert_frame_equal(frame, cell_frame(Results("results").all()))
    of_lever = ["--results", "results", "--experiment", "lever/fig10"]
    assert commands.run("cells", [*of_lever, "--out", "lever.parquet"]) == 0
    assert len(pd.read_parquet("lever.parquet")) == 2


def test_polars_and_duckdb_read_the_file_as_the_page_says(stored: Path) -> None:
    pytest.importorskip("polars")
    names: dict[str, Any] = {}
    exec(documented("python", "polars"), names)
    assert names["lever"]["part"].to_list() == ["lever/fig10 8"]
    assert json.loads(names["units"]) == {"ttft": "s"}
    duckdb = pytest.importorskip("duckdb")
    cells, units = documented("sql", "SELECT").strip().removesuffix(";").split(";\n")
    assert duckdb.sql(cells.replace("*", "part")).fetchall() == [("lever/fig10 8",)]
    assert json.loads(duckdb.sql(units).fetchall()[0][0]) == {"ttft": "s"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--results", "empty"], "empty"),
        (["--results", "results", "--out", "absent/all.parquet"], "choose another --out"),
        (["--results", "results", "--experiment", "lever/fig11"], "'lever/fig11'. Did you mean lever/fig10"),
        (["--results", "results", "--out", "all.tsv"], "all.tsv ends in "),
        (["--results", "results", "--out", "all"], "all ends in "),
    ],
)
def test_what_cannot_be_written_is_said(
    arguments: list[str], said: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("cells", arguments) == 2
    assert said in capsys.readouterr().err
    assert not Path(arguments[-1]).is_file()


def test_a_file_of_csv_has_the_same_columns(stored: Path) -> None:
    assert commands.run("cells", ["--results", "results", "--out", "all.CSV"]) == 0
    frame = pd.read_csv("all.CSV")
    assert [*frame.columns] == [*cell_frame(Results("results").all()).columns]
    assert sorted(frame["method.length"].dropna()) == [4, 8, 8, 8]


@pytest.mark.parametrize("name", ["sweeps/length-2-4", "length-2-4", "sweeps"])
def test_the_cells_of_a_sweep_s_table_are_found_with_its_labels_and_intervals(
    tmp_path: Path, name: str
) -> None:
    """Six prompts of 3 tokens each in 1 to 6 s: 18 tokens in 21 s, and no draw of them is out of 1/2 to 3."""
    results, members = Results(tmp_path), []
    of_prompt = {"rows": 1, "drafted": 0, "emitted": 3, "accepted": 0, "start": 0.0}
    lines = [{"request": f"p/{i}", "end": i, **of_prompt} for i in range(1, 7)]
    for length in ("2", "4"):
        values, labels = {"decode_tokens_per_s": 18 / 21}, {"of": length}
        made = record("chain_sd", values, labels=labels, experiment="default")
        results.put(made, lines)
        members.append(Member(made.key, {**made.labels, "length": length}))
    results.put(record("std", {"ttft": 1.0}))
    results.set_members("sweeps/length-2-4", members)
    out = str(tmp_path / "cells.parquet")
    assert commands.run("cells", ["--results", str(tmp_path), "--experiment", name, "--out", out]) == 0
    frame = pd.read_parquet(out)
    assert sorted(frame["length"]) == ["2", "4"]
    assert frame["decode_tokens_per_s_low"].between(1 / 2, 18 / 21, inclusive="neither").all()
    assert frame["decode_tokens_per_s_high"].between(18 / 21, 3, inclusive="neither").all()
    assert frame.attrs["units"]["decode_tokens_per_s_low"] == "tokens/s"
