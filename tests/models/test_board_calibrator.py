"""The program that is copied to boards: alone, on an invented board, and over a stand-in for ssh."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.commands import VERBS
from repro.core.errors import InputError
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import with_engine
from repro.device.probing import quiet
from repro.models.calibration import board_calibrator, board_ssh
from repro.models.calibration.passes import PassTimer, cost_of
from repro.models.calibration.probe import SHAPES

PROGRAM = Path(board_calibrator.__file__)
TINY_SHAPES = {
    name: {"hidden": hidden, "heads": 8, "head_dim": 16, "intermediate": 2 * hidden, "vocab": 512}
    for name, hidden in (("narrow", 32), ("small", 64), ("middle", 128), ("large", 256))
}

# Alone


def test_the_program_imports_the_standard_library_numpy_and_torch_alone() -> None:
    nodes = list(ast.walk(ast.parse(PROGRAM.read_text(encoding="utf-8"), feature_version=(3, 9))))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"numpy", "torch"}


def test_busy_means_on_a_board_what_it_means_here() -> None:
    for name in ("MOST_APART", "MOST_SPREAD", "MOST_FOREIGN", "MOST_STOLEN"):
        assert getattr(board_calibrator, name) == getattr(quiet, name)


def test_a_copy_of_it_measures_without_repro_and_its_file_is_a_machine(conf: Path, tmp_path: Path) -> None:
    copy = tmp_path / "board_calibrator.py"
    copy.write_bytes(PROGRAM.read_bytes())
    small = f"b.SHAPES, b.ROWS, b.CONTEXTS, b.BUFFER_BYTES = {TINY_SHAPES}, (1, 4), (8,), 8 << 20"
    words = ["--numpy", "--busy", "--minutes", "0.2", "--threads", "1", "--scratch", str(tmp_path)]
    file = tmp_path / "board.json"
    run = f"import sys; sys.path = [p for p in sys.path if 'repro' not in p] + [{str(tmp_path)!r}]\n"
    run += f"import board_calibrator as b; {small}; b.main({[*words, '--out', str(file)]})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", run], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert "passes of 4 shapes, numpy" in done.stderr
    assert {path.name for path in tmp_path.glob("*.*")} == {"board.json", "board_calibrator.py"}
    device, engine = calibrated(conf, "--from-json", str(file), "--name", "My board")
    cpu = machine(with_engine(device, engine)).processors["cpu"]
    assert set(cpu.peak) == {"fp32"}  # formats that were not measured are not claimed
    assert "float32 (weights of 32 bits); no other format of weights was measured" in engine["note"]


def test_torch_s_kernels_compute_a_pass_in_each_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_calibrator, "SHAPES", TINY_SHAPES)
    monkeypatch.setattr(board_calibrator, "usable_cores", lambda: 1)
    kernels = board_calibrator.kernels_here(1)
    assert [arithmetic.dtype for arithmetic in kernels] in (
        ["float32", "bfloat16", "int8"],
        ["float32", "bfloat16"],
    )
    for arithmetic in kernels:
        probe = board_calibrator.DecoderProbe(arithmetic, "small", 2)
        assert all(seconds > 0 for seconds in probe.time(4, 64))
        rows, weight = arithmetic.random(3, 64), arithmetic.weight(16, 64)
        assert arithmetic.linear(rows, weight).shape == (3, 16)
        assert arithmetic.linear(rows, arithmetic.copy(weight)).equal(arithmetic.linear(rows, weight))


def test_a_busy_board_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"first": 0.010, "second": 0.012, "spread": 0.0, "foreign": 1.3, "stolen": 0.0}
    monkeypatch.setattr(board_calibrator, "self_test", lambda _: load)
    with pytest.raises(SystemExit) as stopped:
        board_calibrator.measure_board(0.1, 1, busy=False, with_torch=False)
    assert str(stopped.value) == (
        "this machine is too busy to measure: the same product took 10.00 and 12.00 ms, "
        "other programs keep 1.3 cores busy; stop them, or add --busy"
    )


# An invented board

NORM, EACH, ATTENTION = 1e-5, {1: 2e-10, 4: 3e-10, 16: 8e-10}, {1: 1e9, 4: 3e9, 16: 9e9}
"""Seconds of a norm, seconds a weight and FLOPs per second by rows."""


class InventedKernels(board_calibrator.NumpyKernels):
    """numpy's kernels on a clock of their own, which a known law moves."""

    now = 0.0

    def linear(self, x: Any, weight: Any) -> Any:
        self.now += EACH[x.shape[0]] * weight.size
        return super().linear(x, weight)

    def normalize(self, x: Any) -> Any:
        self.now += NORM
        return super().normalize(x)

    def softmax(self, scores: Any) -> Any:
        pairs, queries, end = scores.shape
        rows = queries // board_calibrator.QUERIES_PER_KEY
        self.now += 4.0 * pairs * queries * (end - rows) * 16 / ATTENTION[rows]
        return super().softmax(scores)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    for group in ("device", "engine"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path / "conf"


def calibrated(conf: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The device and the engine that the command writes."""
    VERBS["calibrate"]([*words, "--conf", str(conf)])
    device, engine = (
        yaml.safe_load((conf / group / "my_board.yaml").read_text(encoding="utf-8"))
        for group in ("device", "engine")
    )
    return device, engine


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the program writes on a board that obeys the law."""
    kernels = InventedKernels()
    load = {"first": 0.01, "second": 0.01, "spread": 0.0, "foreign": 0.0, "stolen": 0.0}
    invented = {
        "SHAPES": TINY_SHAPES,
        "ROWS": tuple(EACH),
        "CONTEXTS": (8, 64),
        "perf_counter": lambda: kernels.now,
        "kernels_here": lambda *_: [kernels],
        "self_test": lambda _: load,
        "physical_memory": lambda: 4e9,
        "memory_bandwidth": lambda *_: 1e13,
        "flash_reads": lambda *_: {"points": [[4096, 1e6], [65536, 9e6]], "note": "invented"},
    }
    for name, value in invented.items():
        monkeypatch.setattr(board_calibrator, name, value)
    measured: dict[str, Any] = json.loads(json.dumps(board_calibrator.measure_board(1e3, 4, busy=False)))
    return measured


def test_the_device_of_a_board_that_obeys_a_law_predicts_the_law(
    board: dict[str, Any], conf: Path, tmp_path: Path
) -> None:
    assert len(board["passes"]) == board_calibrator.ROUNDS * 4 * 3 * 2
    file = tmp_path / "board.json"
    file.write_text(json.dumps(board), encoding="utf-8")
    device, engine = calibrated(conf, "--from-json", str(file), "--name", "My board")
    sizes = {"hidden": 96, "heads": 4, "kv_heads": 1, "head_dim": 16, "intermediate": 320, "vocab": 700}
    unseen = replace(SHAPES["small"], layers=3, **sizes)
    cost = cost_of(unseen, "float32")
    timer = PassTimer(EmulatedDevice(machine(with_engine(device, engine))), cost, (32,))
    for rows in EACH:
        took, attention = timer.time(rows, 32), cost.shape.attention_flops(rows, 32) / ATTENTION[rows]
        layer = 2 * NORM + EACH[rows] * cost.shape.layer_weights + attention
        assert took.layers == pytest.approx(3 * layer, rel=0.02)
        assert took.head == pytest.approx(NORM + EACH[rows] * cost.shape.head_weights, rel=0.02)
    assert device["flash"]["bandwidth"]["points"] == [[4096, 0.001], [65536, 0.009]]
    assert engine["processors"]["cpu"]["holds"] == {"rows": [1, 16]}


def test_what_the_time_does_not_suffice_for_is_left_out(
    board: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes that a board has time for are those of the least work; nothing begins that would end late."""
    settings = {(timed["shape"], timed["rows"], timed["context"]) for timed in board["passes"]}
    whole = sum(timed["layer_s"] + timed["head_s"] for timed in board["passes"]) / board_calibrator.ROUNDS
    kernels = InventedKernels()
    monkeypatch.setattr(board_calibrator, "perf_counter", lambda: kernels.now)
    passes = board_calibrator.time_passes(kernels, 20 * whole, 4e9)
    found = {(timed["shape"], timed["rows"], timed["context"]) for timed in passes}
    assert {*product(("narrow", "small"), (1,), (8, 64))} <= found < settings
    assert kernels.now < 1.1 * 20 * whole


def test_a_wrong_file_is_said(board: dict[str, Any], conf: Path, tmp_path: Path) -> None:
    file = tmp_path / "board.json"

    def said(text: str, *words: str) -> str:
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as stopped:
            calibrated(conf, "--from-json", str(file), *words)
        return str(stopped.value)

    assert "board.json is not JSON" in said("passes: 4")
    assert "'version' is lacking" in said("{}")
    assert "version" in said(json.dumps({**board, "version": 2}))
    assert "must be a number above 0" in said(
        json.dumps({**board, "passes": [{**board["passes"][0], "layer_s": 0.0}]})
    )
    assert "narrow, small, whose sizes are not" in said(json.dumps({**board, "shapes": {}}))
    assert "one size was timed" in said(
        json.dumps({**board, "passes": board["passes"][:1]}), "--name", "My board"
    )
    assert "--minutes does not go with --from-json" in said("{}", "--minutes", "2")
    assert list(conf.rglob("*.yaml")) == []


# Over ssh


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the host's programs. A stand-in for ssh runs the host's command by the shell here."""
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    write_program(
        here / "ssh", f'test "$1" = -- && test "$2" = me@board && PATH={there} exec /bin/sh -c "$3"'
    )
    (there / "sh").symlink_to("/bin/sh")
    (there / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(here))
    return there


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


PYTHON_THERE = """case "$1 $2" in
  "-c import sys"*) exit {old};;
  "-c import numpy") exit {no_numpy};;
  *) echo progress >&2; {run};;
esac"""


def test_over_ssh_the_program_goes_in_and_its_json_comes_out(
    remote: Path, board: dict[str, Any], conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "board.json").write_text(json.dumps(board) + "\n", encoding="utf-8")
    run = f'echo welcome; echo "$@" > {tmp_path}/words; cat > {tmp_path}/program; cat {tmp_path}/board.json'
    write_program(remote / "python3", PYTHON_THERE.format(old=0, no_numpy=0, run=run))
    options = ["--minutes", "2", "--threads", "3", "--busy", "--name", "My board"]
    device, engine = calibrated(conf, "--ssh", "me@board", *options)
    assert (tmp_path / "program").read_bytes() == PROGRAM.read_bytes()
    words = (tmp_path / "words").read_text(encoding="utf-8").split()
    assert words == ["-", "--out", "-", "--minutes", "2.0", "--threads", "3", "--busy"]
    assert "progress" in capsys.readouterr().err
    assert machine(with_engine(device, engine)).processors["cpu"].peak["fp32"] > 0


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "me@board has no python3; install it there"),
        ({"old": 1}, "the python3 of me@board is too old; the calibrator needs 3.9 or newer"),
        ({"no_numpy": 1}, "the python3 of me@board has no numpy; install it there"),
        ({"run": "echo this machine is too busy >&2; exit 1"}, "me@board: this machine is too busy"),
        ({"run": "exit 137"}, "the calibrator on me@board ended with status 137: progress"),
        ({"run": "exit 255"}, "ssh could not connect to me@board: progress"),
        ({"run": "cat"}, "a run on me@board is not JSON"),
    ],
)
def test_each_way_of_failing_over_ssh_is_one_sentence(
    python: dict[str, object] | None, said: str, remote: Path, conf: Path
) -> None:
    if python is not None:
        script = PYTHON_THERE.format(**{"old": 0, "no_numpy": 0, "run": "true", **python})
        write_program(remote / "python3", script)
    with pytest.raises(InputError) as stopped:
        calibrated(conf, "--ssh", "me@board")
    assert str(stopped.value).startswith(said)
    assert "\n" not in str(stopped.value)


def test_without_ssh_and_when_interrupted_it_says_so(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(process: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(board_ssh, "_converse", interrupt)
    with pytest.raises(InputError, match=r"^interrupted: me@board was not measured"):
        board_ssh.measure_over_ssh("me@board", [])
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InputError, match=r"^--ssh needs the program ssh.*--from-json$"):
        board_ssh.measure_over_ssh("me@board", [])
    with pytest.raises(InputError, match="must be a host as ssh takes it"):
        board_ssh.measure_over_ssh("-oProxyCommand=true", [])
