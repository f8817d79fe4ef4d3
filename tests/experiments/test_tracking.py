"""wandb: every run is finished and whole on the disk, and its troubles cost nothing else."""

import getpass
import json
import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb

import wandb_logs
from invented_tables import BIBTEX, cell, table_spec
from records import record
from repro.core.errors import InputError
from repro.experiments.tracking.tracker import Tracker
from repro.records.record import Record
from repro.reports.files import write_all
from repro.reports.tables.build import build
from repro.reports.tables.table import Table
from tiny_project import Project, write_project
from wandb_logs import ROUNDS


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No login and no settings of the user or of an earlier test; nothing is left in the home folder."""
    wandb.teardown()  # its settings, read once a process, hold the key of the environment of that moment
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_DATA_HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def summary(run: Path | None) -> dict[str, Any]:
    assert run is not None
    return wandb_logs.summary(run)


def table_file(run: Path, name: str) -> dict[str, Any]:
    found = list((run / "files" / "media" / "table").glob(f"{name}_*.table.json"))
    assert len(found) == 1
    return dict(json.loads(found[0].read_text(encoding="utf-8")))


def history(run: Path) -> list[dict[str, Any]]:
    """What a run logged, step after step."""
    return [line["history"]["item"] for line in wandb_logs.lines(run) if line["type"] == "history"]


def test_a_cell_is_one_finished_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(b"[]")
    values = {"decode_tokens_per_s": 2.5, "rouge_l": None, "acceptance_histogram": "1 2", "invented": 3}
    kept = record("edgellm", values, labels={"device": "phone", "target": "t", "alpha": "0.3"})
    answers = [{"prompt": 0, "answer": "four", "target": "4", "score": 0.5}]
    kept = replace(kept, uncertainty={"decode_tokens_per_s": (2.25, 2.75)})
    section = {"mode": "offline", "project": "p", "entity": "team", "tags": ["mine"], "notes": "why"}
    run = Tracker.parse(section, tmp_path / "out").cell(kept, ROUNDS, trace, answers)
    found = summary(run)
    assert (found["state"], found["exit_code"], found["project"]) == ("finished", 0, "p")
    assert found["name"] == f"edgellm phone alpha=0.3 {kept.key[:6]}"
    labels = {"method": "edgellm", "device": "phone", "target": "t", "alpha": "0.3"}
    settings = {"method.length": 8, "provenance.clock": "virtual"}
    assert {n: v for n, v in found["config"].items() if n in {**labels, **settings}} == labels | settings
    assert not [name for name, value in found["config"].items() if isinstance(value, dict) and name[0] != "_"]
    assert run is not None
    assert run.name.endswith(f"-edgellm-phone-alpha-0-3-{kept.key[:12]}")
    log = wandb_logs.lines(run)
    steps = history(run)
    (first,) = [{k: v for k, v in step.items() if "/" in k} for step in steps[:1]]
    parts = ("_type", "values", "bins")
    bars = [first.pop(f"acceptance/acceptance_histogram/bars.{part}") for part in parts]
    assert bars == ["histogram", [1, 2], [-0.5, 0.5, 1.5]]
    assert first == {"speed/decode_tokens_per_s": 2.5, "other/invented": 3}
    ends = [found["summary"][f"speed/decode_tokens_per_s_{end}"] for end in ("low", "high")]
    assert ends == [2.25, 2.75]
    told = {k: found["summary"][k] for k in ("acceptance/acceptance_histogram", "status", "key")}
    assert told == {"acceptance/acceptance_histogram": "1 2", "status": "done", "key": kept.key}
    rounds = table_file(run, "rounds")
    assert rounds["columns"] == ["round", "rows", "stop"]
    assert rounds["data"] == [[n, 4 - n % 2, "confidence"] for n in range(5)]
    curves = [{k: v for k, v in step.items() if "/" in k} for step in steps if "round/index" in step]
    assert curves == [{"round/index": n, "round/rows": 4 - n % 2} for n in range(5)]
    assert any(line.get("metric", {}).get("step_metric") == "round/index" for line in log)
    assert table_file(run, "answers")["data"] == [[0, "four", "4", 0.5]]
    about = next(line["run"] for line in log if line["type"] == "run")
    assert about["run_group"] == "table"
    assert set(about["tags"]) == {"edgellm", "phone", "weights: real", "clock: virtual", "mine"}
    assert (about["entity"], about["notes"]) == ("team", "why")
    assert "timeline" in {line["artifact"]["type"] for line in log if line["type"] == "artifact"}
    assert capfd.readouterr() == ("", "")
    assert wandb.run is None
    assert not list((tmp_path / "home").rglob("staging/*")), "files were left in the user's home"


def test_a_cell_that_runs_again_takes_the_place_of_its_run(tmp_path: Path) -> None:
    tracker = Tracker(outputs=tmp_path)
    failed = record("std", {}, status="failed", error="Traceback")
    runs = [
        tracker.cell(each) for each in (failed, record("std", {"ttft": 1.0}), record("std", {"ttft": 2.0}))
    ]
    left = list((tmp_path / "wandb").glob("offline-run-*"))
    assert left == [runs[-1]]
    assert summary(left[0])["summary"]["latency/ttft"] == 2
    assert tracker.cell(failed) != left[0]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2, "a failure took a finished run's place"


def test_runs_hold_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are named relative to the working folder; what wandb notes about itself is not uploaded."""
    monkeypatch.chdir(tmp_path)
    trace = Path("outputs/timelines/t.json.gz")
    trace.parent.mkdir(parents=True)
    trace.write_bytes(b"[]")
    kept = record("std", {"ttft": 1.0})
    made = invented_table(kept)
    files = write_all(made, tmp_path / "results", BIBTEX)
    tracker = Tracker()
    cell_run = tracker.cell(kept, ROUNDS, trace, [{"answer": "a"}], "mine")
    runs = [cell_run, tracker.sweep("mine", made, files, [kept])]
    for run in runs:
        assert run is not None
        text = json.dumps([wandb_logs.lines(run), wandb_logs.summary(run)])
        assert '"local_path": "outputs/' in text
        for word in (str(tmp_path), str(Path.home()), getpass.getuser(), socket.gethostname()):
            assert f"/{word.strip('/')}/" not in text
            assert f'"{word}"' not in text


def test_a_failed_cell_is_a_failed_run(tmp_path: Path) -> None:
    failed = record("edgellm", {}, status="failed", error="Traceback\nOSError: gone")
    found = summary(Tracker(outputs=tmp_path).cell(failed))
    assert (found["state"], found["exit_code"]) == ("failed", 1)
    assert found["summary"]["error"] == "Traceback\nOSError: gone"


def invented_table(*records: Record) -> Table:
    section = {
        "title": "Invented",
        "rows": {"by": ["method"]},
        "columns": [
            {"key": "calls", "heading": "Calls", "value": "target_calls"},
            {
                **{"key": "ttft", "heading": "TTFT", "value": "ttft", "unit": "s", "better": "lower"},
                "reference": {"std": "edgellm.fig1.std"},
            },
        ],
    }
    published = {"edgellm.fig1.std": cell("edgellm.fig1.std", 1.0, 3.0, "s")}
    return build(table_spec("table", section), list(records), published)


def test_a_sweep_is_one_run_with_numbers_a_chart_and_a_row_for_each_cell(tmp_path: Path) -> None:
    records = [record("std", {"ttft": 2.0, "target_calls": 7}), record("edgellm", {"ttft": 1.0})]
    table = invented_table(*records)
    files = write_all(table, tmp_path / "results", BIBTEX)
    tracker = Tracker(outputs=tmp_path / "out")
    cells = [tracker.cell(each, group="mine") for each in records]
    (live,) = (tmp_path / "out" / "wandb").glob("offline-run-*mine-table-*")
    assert "exit" not in {line["type"] for line in wandb_logs.lines(live)}, "it is open while cells run"
    run = tracker.sweep("mine", table, files, records)
    groups = [
        next(x["run"]["run_group"] for x in wandb_logs.lines(r) if x["type"] == "run") for r in (run, *cells)
    ]
    assert groups == ["mine"] * 3
    steps = [step for step in history(run) if "cells/done" in step]
    assert [step["cells/done"] for step in steps] == [1, 2]
    assert [step["latency/ttft"] for step in steps] == [2, 1]
    found = summary(run)
    assert found["state"] == "finished"
    assert found["name"] == "table table"
    assert found["config"]["command"] == "python -m repro experiment=table"
    assert "commit 0123456789" in found["summary"]["notes"]
    assert run is not None
    shown = table_file(run, "table")
    assert shown["columns"] == [
        "method",
        "Calls",
        "TTFT (s)",
        "TTFT (s) paper, from",
        "TTFT (s) paper, to",
        "TTFT (s) ratio",
    ]
    assert shown["data"] == [["EdgeLLM", None, 1, None, None, None], ["Std", 7, 2, 1, 3, 1]]
    assert table_file(run, "bars")["data"] == [["EdgeLLM", 1], ["Std", 2]]
    assert "wandb/bar/v0" in json.dumps(wandb_logs.lines(run))
    cells = table_file(run, "cells")
    rows = [dict(zip(cells["columns"], row, strict=True)) for row in cells["data"]]
    assert [(row["key"], row["method"], row["ttft"], row["target_calls"]) for row in rows] == [
        (records[0].key, "std", 2, 7),
        (records[1].key, "edgellm", 1, None),
    ]
    assert {"method.length", "provenance.clock", "status"} <= {*cells["columns"]}
    assert len(list((run / "files" / "media" / "images").glob("*.png"))) == len(
        [path for path in files.values() if path.suffix == ".png"]
    )
    artifacts = [line["artifact"] for line in wandb_logs.lines(run) if line["type"] == "artifact"]
    manifest = next(a for a in artifacts if a["type"] == "table")["manifest"]
    assert sorted(each["path"] for each in manifest["contents"]) == sorted(p.name for p in files.values())


def test_a_sweep_whose_cells_were_done_before_has_a_run_only_for_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = record("std", {"ttft": 1.0})
    table = invented_table(kept)
    files = write_all(table, tmp_path / "results", BIBTEX)
    tracker = Tracker(outputs=tmp_path / "out")
    assert tracker.sweep("mine", table, files, [kept]) is None
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    assert summary(tracker.sweep("mine", table, files, [kept]))["state"] == "finished"


def test_trouble_is_reported_and_costs_only_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with caplog.at_level(logging.ERROR):
        assert Tracker(outputs=tmp_path / "file").cell(record("std", {"speed": 1.0})) is None
    assert "wandb could not write the run 'std' of 'table'; its record is kept" in caplog.messages
    caplog.clear()
    tracker = Tracker(outputs=tmp_path / "out")
    assert tracker.cell(record("std", {"speed": 1.0}), trace=tmp_path / "gone.json") is None
    said = [each.message for each in caplog.records if each.name.startswith("repro")]
    assert said == ["wandb could not write the run 'std' of 'table'; its record is kept"]
    half = next((tmp_path / "out" / "wandb").glob("offline-run-*"))
    assert summary(half)["state"] == "failed", "the run was left unfinished"
    assert summary(tracker.cell(record("std", {"speed": 1.0})))["state"] == "finished"


NULL = dict.fromkeys(("mode", "project", "entity", "tags", "notes", "dir"))


@pytest.mark.parametrize(
    ("environment", "section", "expected"),
    [
        ({}, {}, {"mode": "offline", "project": "repro", "root_dir": "out"}),
        ({"WANDB_MODE": "disabled"}, {}, {"mode": "disabled"}),
        ({"WANDB_MODE": "online"}, {"mode": "offline"}, {"mode": "offline"}),
        ({"WANDB_DIR": "/runs"}, {}, {"root_dir": "/runs"}),
        ({"WANDB_DIR": "/runs"}, {"dir": "here"}, {"root_dir": "here"}),
        ({"HOME": "/home/me"}, {"dir": "~/runs"}, {"root_dir": "/home/me/runs"}),
        ({"WANDB_PROJECT": "theirs"}, {}, {"project": "theirs"}),
        ({"WANDB_PROJECT": "theirs"}, {"project": "mine"}, {"project": "mine"}),
        ({"WANDB_TAGS": "a"}, {"tags": []}, {"run_tags": ()}),
    ],
)
def test_wandb_s_variables_count_where_a_setting_is_not_given(
    environment: dict[str, str],
    section: dict[str, Any],
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Tracker.parse(NULL | section, Path("out")).settings
    assert {name: settings[name] for name in expected} == expected


def test_a_folder_or_a_mode_that_cannot_work_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"no folder that can be written to; choose another wandb\.dir"):
        Tracker(outputs=tmp_path / "file" / "below").check()
    Tracker(outputs=tmp_path / "new" / "folder").check()
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "home"}, "home is wandb's own"
    with pytest.raises(InputError, match="needs WANDB_API_KEY"):
        Tracker(mode="online").check()
    wandb.teardown()
    monkeypatch.setenv("WANDB_API_KEY", "secret" * 8)
    Tracker(mode="online").check()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path).apart(tmp_path, "wandb.mode=offline", "prompts=1", "max_tokens=2")


def test_under_an_agent_each_command_writes_the_agent_s_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    for run, command in {
        "r1": ["method=std"],
        "r2": ["method=std"],  # from the cache
        "r3": ["-m", "method=std,draft"],
        "r4": ["-m", "method=std,draft", "wandb.cells=true", "wandb.again=true"],
    }.items():
        monkeypatch.setenv("WANDB_RUN_ID", run)
        wandb.teardown()  # its variables are read once a process
        done = project.here(*command)
        assert done.returncode == 0, done.stderr
        folders = (project.out / "outputs" / "wandb").glob("offline-run-*")
        assert sorted(folder.name.rpartition("-")[2] for folder in folders)[-1] == run
    assert len([*(project.out / "outputs" / "wandb").glob("offline-run-*")]) == 4


def test_without_network_one_run_is_tried_and_the_remedy_named(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def no_network(**settings: Any) -> None:
        tried.append(settings["name"])
        raise wandb.errors.CommError("Run initialization has timed out after 90.0 sec")

    monkeypatch.setattr("wandb.init", no_network)
    monkeypatch.setattr("wandb.login", lambda **_: True)
    done = project.here("-m", "method=std,draft", "wandb.mode=online")
    assert done.returncode == 0
    assert [*project.out.rglob("table.md")], "the table is written"
    told = [each.message for each in caplog.records if each.name.startswith("repro")]
    assert (len(tried), len(told)) == (1, 1)
    assert "timed out after 90.0 sec" in told[0]
    assert "wandb.again=true" in told[0]


def test_a_folder_that_wandb_has_disabled_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = disabled\n", encoding="utf-8")
    assert Tracker.parse(NULL, Path("out")).settings["mode"] == "disabled"
