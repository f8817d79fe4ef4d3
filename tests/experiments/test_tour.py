"""Each command of the tour in docs/start.md is taken; those that must compute do so with tiny models."""

import re
import shlex
from itertools import product
from pathlib import Path

import pytest

from repro import commands
from repro.core.paths import conf_dir, project_root
from repro.core.reading import read_mapping
from repro.data.config import read_config
from repro.data.rows import load_rows
from repro.data.traces import parse_trace
from repro.device.device_file import machine
from repro.device.engines.engine_file import with_engine
from repro.device.op import Op
from repro.experiments.command_words import check_arguments
from repro.experiments.plan import plain
from repro.scenarios.registry import made
from repro.scenarios.serving.scenario import ServingScenario
from tiny_project import composed, write_project

PAGE = project_root() / "docs" / "start.md"
TOUR = PAGE.read_text(encoding="utf-8").partition("\n## A tour\n")[2].partition("\n## ")[0]
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", TOUR, re.DOTALL)
    for line in block.splitlines()
]
CELLS = {"method=edgellm": 4, "service=elastilm": 1, "method=chain_sd": 10, "resident": 6, "FOLDER": 2}
CELLS |= {"method=mllm_npu": 4, "my_board": 2}
"""Cells of a command, by a word in it; `resident` stands behind others' words."""


def test_the_page_has_the_commands_of_the_tour() -> None:
    assert [command[:3] for command in COMMANDS].count(["python", "-m", "repro"]) == 7
    (written,) = [command for command in COMMANDS if command[:2] != ["python", "-m"]]
    assert written[:3] == ["repro", "calibrate", "--from-llama-bench"]


def _split(override: str) -> list[str]:
    return override.split("=", 1)


@pytest.mark.parametrize("command", [one[3:] for one in COMMANDS if one[1] == "-m"], ids=" ".join)
def test_a_command_is_taken_by_names_alone(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its cells are made: engines, formats and companions are found, no file of weights is opened."""
    monkeypatch.setenv("REPRO_MODELS", str(tmp_path))
    write_project(tmp_path)
    (tmp_path / "target").rename(tmp_path / "FOLDER")
    text = " ".join(command)
    if "my_board" in text:
        command = [word for word in command if "my_board" not in word]  # the next test has it
    overrides = [word for word in check_arguments(command) if word != "-m"]
    axes = [[f"{key}={value}" for value in values.split(",")] for key, values in map(_split, overrides)]
    made_cells = [made(plain(composed(*cell))) for cell in product(*axes)]
    word = next(word for word in ("resident", *CELLS) if word in text)
    assert len(made_cells) == CELLS[word]
    assert len({repr(cell.decisive_settings) for cell in made_cells}) == len(made_cells)


def test_a_board_of_two_rows_runs_at_their_speed(tmp_path: Path) -> None:
    """60 tokens a second of a prompt, 12 of an answer, of a billion weights in half a gigabyte."""
    for group in ("device", "engine"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    bench = project_root() / "docs" / "tour_bench.json"
    options = ["--name", "My board", "--conf", str(tmp_path / "conf")]
    commands.run("calibrate", ["--from-llama-bench", str(bench), *options])
    device = read_mapping(tmp_path / "conf" / "device" / "my_board.yaml")
    engine = read_mapping(tmp_path / "conf" / "engine" / "my_board.yaml")
    weights, on = 1.0e9, machine(with_engine(device, engine))
    answer = on.demand(Op("cpu", "layer", "token", rows=1, flops=2 * weights, bytes=5.0e8, precision="int8"))
    prompt = on.demand(
        Op("cpu", "layer", "prompt", rows=512, flops=1024 * weights, bytes=5.0e8, precision="int8")
    )
    assert answer.launch + answer.work == pytest.approx(1 / 12, rel=0.01)
    assert prompt.launch + prompt.work == pytest.approx(512 / 60, rel=0.01)


def test_the_demonstration_is_served_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 different questions, 15 of each app, each with one right answer among its choices."""
    monkeypatch.delenv("REPRO_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trace = parse_trace(read_mapping(conf_dir() / "trace" / "demonstration.yaml"))
    assert trace.requests == 60
    rows = [row for app in trace.apps for row in load_rows(read_config(str(app.dataset))).rows]
    assert [row["app"] for row in rows].count("mail") == 15
    assert len({row["question"] for row in rows}) == len(rows) == 60
    assert all(row["choices"].count(row["answer"]) == 1 for row in rows)


def test_a_service_without_a_trace_serves_the_demonstration_and_says_so() -> None:
    cell = made(plain(composed("service=elastilm", "device=xiaomi_14")))
    assert isinstance(cell, ServingScenario)
    assert cell.labels["dataset"] == "demonstration"
    assert any("demonstration" in note for note in cell.origin["notes"])
