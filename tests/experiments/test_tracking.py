"""wandb: every run is finished and whole on the disk, and its troubles cost nothing else."""

import json
import logging
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wandb

import wandb_logs
from records import record
from repro.core.errors import InputError
from repro.experiments.tracking import Tracker
from repro.reports.files import write_all
from repro.reports.spec.spec import TableSpec
from repro.reports.tables.build import build
from wandb_logs import ROUNDS, one_cell


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No login and no settings of whoever runs the tests, and nothing left in their home."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DATA_DIR", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_DATA_HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def summary(run: Path | None) -> dict[str, Any]:
    assert run is not None
    return wandb_logs.summary(run)


def table_file(run: Path, name: str) -> dict[str, Any]:
    found = list((run / "files" / "media" / "table").glob(f"{name}_*.table.json"))
    assert len(found) == 1
    return dict(json.loads(found[0].read_text()))


def test_a_cell_is_one_finished_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("[]")
    kept = record("edgellm", {"speed": 2.5, "rouge": None, "exact": "yes"}, labels={"device": "phone"})
    run = Tracker(folder=tmp_path / "out").cell(kept, ROUNDS, trace)
    found = summary(run)
    assert (found["state"], found["exit_code"], found["project"]) == ("finished", 0, "repro")
    assert found["name"] == "edgellm phone"
    assert found["config"]["method"] == {"length": 8}
    assert found["config"]["labels"] == {"method": "edgellm", "device": "phone"}
    assert found["config"]["provenance"]["clock"] == "virtual"
    assert {k: found["summary"][k] for k in ("speed", "exact", "status")} == {
        "speed": 2.5,
        "exact": "yes",
        "status": "done",
    }
    assert run is not None
    rounds = table_file(run, "rounds")
    assert rounds["columns"] == ["round", "rows", "stop"]
    assert rounds["data"] == [[n, 4 - n % 2, "confidence"] for n in range(5)]
    log = wandb_logs.lines(run)
    curves = [
        line["history"]["item"]["round/rows"] for line in log if "round/rows" in str(line.get("history"))
    ]
    assert curves == [4, 3, 4, 3, 4]
    assert next(line["run"] for line in log if line["type"] == "run")["run_group"] == "table"
    assert "timeline" in {line["artifact"]["type"] for line in log if line["type"] == "artifact"}
    assert capfd.readouterr() == ("", "")
    assert wandb.run is None
    assert not list((tmp_path / "home").rglob("staging/*")), "files were left in the user's home"


def test_the_command_of_the_readme_shows_a_run(tmp_path: Path) -> None:
    run = Tracker(folder=tmp_path).cell(record("std", {"speed": 2.5}))
    assert run is not None
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json", str(run)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(text) == summary(run)


def test_a_failed_cell_is_a_failed_run(tmp_path: Path) -> None:
    failed = record("edgellm", {}, status="failed", error="Traceback\nOSError: gone")
    found = summary(Tracker(folder=tmp_path).cell(failed))
    assert (found["state"], found["exit_code"]) == ("failed", 1)
    assert found["summary"]["error"] == "Traceback\nOSError: gone"


def test_many_cells_of_many_processes(tmp_path: Path) -> None:
    methods = [f"method_{n}" for n in range(3)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        runs = pool.starmap(one_cell, [(str(tmp_path), method) for method in methods], chunksize=1)
    found = [summary(Path(run)) for run in runs]
    assert [each["config"]["labels"]["method"] for each in found] == methods
    assert {each["state"] for each in found} == {"finished"}
    assert {each["summary"]["speed"] for each in found} == {1}


def test_a_sweep_is_one_run_with_table_and_picture(tmp_path: Path) -> None:
    section = {
        "title": "Invented",
        "rows": {"by": ["method"]},
        "columns": [{"key": "speed", "heading": "Speed", "value": "speed", "unit": "tokens/s"}],
        "figure": {"columns": ["speed"]},
    }
    table = build(TableSpec.parse("table", section), [record("std", {"speed": 2.0})], {})
    files = write_all(table, tmp_path / "results", {"repro": "@misc{repro,\n}"})
    run = Tracker(folder=tmp_path / "out").sweep(table, files)
    found = summary(run)
    assert (found["state"], found["name"]) == ("finished", "table table")
    assert found["config"]["command"] == "python -m repro experiment=table"
    assert "commit 0123456789" in found["summary"]["notes"]
    assert run is not None
    assert table_file(run, "table")["data"] == [["std", "2.00"]]
    assert len(list((run / "files" / "media" / "images").glob("*.png"))) == 1
    artifacts = [line["artifact"] for line in wandb_logs.lines(run) if line["type"] == "artifact"]
    manifest = next(a for a in artifacts if a["type"] == "table")["manifest"]
    assert sorted(each["path"] for each in manifest["contents"]) == [
        *("figure.pdf", "figure.png", "table.csv", "table.md", "table.tex"),
    ]


def test_disabled_writes_nothing(tmp_path: Path) -> None:
    tracker = Tracker(mode="disabled", folder=tmp_path / "out")
    tracker.check()
    assert tracker.cell(record("std", {"speed": 1.0}), ROUNDS) is None
    assert list(tmp_path.iterdir()) == []


def test_trouble_is_reported_and_costs_only_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.ERROR):
        assert Tracker(folder=tmp_path / "file").cell(record("std", {"speed": 1.0})) is None
    assert "wandb could not write the run 'std' of 'table'; its record is kept" in caplog.messages
    caplog.clear()
    tracker = Tracker(folder=tmp_path / "out")
    assert tracker.cell(record("std", {"speed": 1.0}), trace=tmp_path / "gone.json") is None
    said = [each.message for each in caplog.records if each.name.startswith("repro")]
    assert said == ["wandb could not write the run 'std' of 'table'; its record is kept"]
    half = next((tmp_path / "out" / "wandb").glob("offline-run-*"))
    assert summary(half)["state"] == "failed", "the run was left unfinished"
    assert summary(tracker.cell(record("std", {"speed": 1.0})))["state"] == "finished"


def test_a_mode_that_cannot_work_is_an_error_at_once() -> None:
    with pytest.raises(InputError, match="'sometimes'; choices: online, offline, disabled"):
        Tracker(mode="sometimes").check()  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs WANDB_API_KEY"):
        Tracker(mode="online").check()
    Tracker(mode="offline").check()
