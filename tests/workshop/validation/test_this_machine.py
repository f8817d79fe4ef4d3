"""This machine's cells: which there are, a comparison on an invented machine, and the command's files."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from repro.device.probing.quiet import Quiet
from repro.models.calibration.board_calibrator import CONTEXTS as PROBE_CONTEXTS
from repro.models.calibration.board_calibrator import ROWS as PROBE_ROWS
from repro.models.calibration.passes import cost_of
from repro.models.calibration.probe import HEAD, LAYER, REST, SHAPES
from repro.models.transformer.config import DecoderConfig
from workshop.validation.__main__ import main as validation
from workshop.validation.this_machine import command, predicting
from workshop.validation.this_machine.cells import (
    CONTEXTS,
    DECODE_ROWS,
    DTYPES,
    ENGINES,
    LLAMA_CPP,
    MODELS,
    OURS,
    PROMPT_ROWS,
    ROWS,
    CellGroup,
    MachineCell,
    all_cells,
    cells_of,
    groups,
)
from workshop.validation.this_machine.measuring import ARMS, PROBE, MeasuredGroup, MeasuringPlan
from workshop.validation.this_machine.page import errors, framed, markdown, sets, speeds
from workshop.validation.this_machine.predicting import PredictedPass, predictions

SIZES = dict(
    zip(MODELS, ((576, 9, 64, 1536, 30), (896, 14, 64, 4864, 24), (1536, 12, 128, 8960, 28)), strict=True)
)


def config(model: str) -> DecoderConfig:
    hidden, heads, width, inner, layers = SIZES[model]
    like = SHAPES["small"]
    sizes = {"hidden": hidden, "heads": heads, "kv_heads": 1, "head_dim": width, "intermediate": inner}
    return replace(like, layers=layers, vocab=49152, **sizes)


# Which cells


def test_every_combination_is_a_cell_once() -> None:
    found = groups(ENGINES, MODELS, DTYPES)
    cells = list(all_cells(found, every=True))
    assert len({cell.id for cell in cells}) == len(cells)
    ours = len(MODELS) * len(DTYPES) * len(ROWS) * len(CONTEXTS)
    assert len(cells) == 2 * ours + len(MODELS) * len(ROWS) * len(CONTEXTS)


def test_no_cell_has_a_setting_of_a_probe_but_for_decoding_s_row() -> None:
    assert set(ROWS) & set(PROBE_ROWS) == {DECODE_ROWS}
    assert not set(CONTEXTS) & set(PROBE_CONTEXTS)


# The comparison


START, ATTENTION, DISK = 1e-4, 2e10, 1e9
BETWEEN_ROWS = 0.035
"""What the emulator may be off by where a curve lies between two rows of probes, and a machine's does not."""


def each(rows: int) -> float:
    """Seconds a weight of an invented machine."""
    return 2e-10 + 2e-11 * rows


def layer_seconds(of: DecoderConfig, rows: int, context: int) -> float:
    shape = cost_of(of, "float32").shape
    return START + each(rows) * shape.layer_weights + shape.attention_flops(rows, context) / ATTENTION


def invented(group: CellGroup, slower: float = 1.0) -> MeasuredGroup:
    """What the bench would measure on a machine that obeys the form of the costs."""
    found = MeasuredGroup(
        group, threads=1, seconds=60.0, bandwidth=1e12, disk=[DISK] if group.streamed else []
    )
    ours = group.engine == OURS
    probes = [MachineCell(group, rows, context) for rows in PROBE_ROWS for context in PROBE_CONTEXTS]
    arms = [(cell, ARMS) for cell in cells_of(group, every=False)]
    for cell, names in arms if ours else [*arms, *((probe, (PROBE,)) for probe in probes)]:
        own = config(group.model)
        head = cost_of(own, "float32").shape.head_weights * each(1 if cell.last_only else cell.rows)
        layer = layer_seconds(own, cell.rows, cell.context)
        seconds = own.layers * layer + head
        if group.streamed:
            read = cost_of(own, group.dtype).layer_bytes / DISK
            seconds = read + (own.layers - 1) * max(read, layer) + layer + head
        found.passes += 5 * [(cell.rows, cell.context, arm, slower * seconds) for arm in names]
    for name, rows, context in product(SHAPES if ours else (), PROBE_ROWS, PROBE_CONTEXTS):
        own = SHAPES[name]
        shape = cost_of(own, "float32").shape
        flops = shape.attention_flops(rows, context)
        asked = rows, context
        found.timings += [
            (LAYER, shape.layer_weights, flops, *asked, layer_seconds(own, *asked), 0.0),
            (HEAD, shape.head_weights, 0.0, *asked, each(rows) * shape.head_weights, 0.0),
            (REST, 0, 0.0, *asked, 0.0, 0.0),
        ]
    return found


@pytest.fixture
def machine_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "config_of", lambda group: config(group.model))


@pytest.mark.usefixtures("machine_of_models")
def test_a_machine_that_obeys_the_costs_is_predicted() -> None:
    found = [invented(group) for group in groups([OURS], MODELS, ["float32"])]
    compared = list(predictions(found, pace=2e9))
    assert len(compared) == len(list(all_cells(groups([OURS], MODELS, ["float32"]), every=False)))
    assert max(abs(c.error) for c in compared) < BETWEEN_ROWS
    assert all(c.noise == 0.0 for c in compared)
    assert min(c.roofline / c.predicted for c in compared) < 0.9


@pytest.mark.usefixtures("machine_of_models")
def test_llama_cpp_s_model_is_predicted_from_the_others_alone() -> None:
    found = [replace_bits(invented(group)) for group in groups([LLAMA_CPP], MODELS, DTYPES)]
    compared = list(predictions(found, 1e9))
    assert len(compared) == len(MODELS) * len(ROWS) * len(CONTEXTS)
    assert max(abs(c.error) for c in compared) < BETWEEN_ROWS
    # A model that is measured twice as slow is predicted as before: it does not see itself.
    slow = [replace_bits(invented(one.group, 2.0)) if i == 1 else one for i, one in enumerate(found)]
    again = {c.cell: c for c in predictions(slow, 1e9)}
    for one in compared:
        if one.cell.group.model == MODELS[1]:
            assert again[one.cell].predicted == pytest.approx(one.predicted)
            assert again[one.cell].error == pytest.approx(-0.5, abs=0.02)
    assert list(predictions(found[:2], 1e9)) == []


def replace_bits(found: MeasuredGroup) -> MeasuredGroup:
    found.bits = 4.5
    return found


def test_errors_are_counted_beyond_the_null_arm() -> None:
    cell = MachineCell(CellGroup(OURS, MODELS[0], DTYPES[0]), 1, 64)
    found = [
        PredictedPass(cell, 1.0, 1.0 + n, 1.0 + e, 2, 0.5)
        for n, e in ((0.02, 0.1), (-0.04, -0.2), (0.06, 0.3))
    ]
    cells = framed(found)
    counted = errors(cells)[["n", "median", "null_median", "plain"]]
    assert [*counted] == pytest.approx([3, 20.0, 4.0, 50.0])
    assert "Beyond the null arm: median 16.0%" in markdown(cells, ())
    assert {*sets(cells)} >= {"all", "ours", "ours, in memory", "SmolLM2-135M", "1 row"}
    assert "ours, streamed" not in sets(cells)


@pytest.mark.usefixtures("machine_of_models")
def test_prefill_and_decode_of_llama_cpp_stand_beside_ours() -> None:
    found = [replace_bits(invented(group)) for group in groups(ENGINES, MODELS, ["int4"])]
    lines = speeds(framed(list(predictions(found, pace=2e9))))
    assert len(lines) == len(MODELS) * len(CONTEXTS) * 2
    own = config(MODELS[0])
    head = cost_of(own, "float32").shape.head_weights * each(1)
    for rows, phase in ((DECODE_ROWS, "decode"), (PROMPT_ROWS, "prefill")):
        speed = rows / (own.layers * layer_seconds(own, rows, CONTEXTS[0]) + head)
        (line,) = (line for line in lines if line[:3] == ["SmolLM2-135M", phase, str(CONTEXTS[0])])
        ours, _, theirs, _, ratio = map(float, line[3:])
        assert (ours, theirs, ratio) == pytest.approx((speed, speed, 1.0), rel=0.01)
    assert "Ours beside llama.cpp was not measured" in markdown(framed(list(predictions(found[:3], 2e9))), ())


def test_a_group_with_too_few_passes_is_measured_again() -> None:
    group = invented(CellGroup(OURS, MODELS[0], DTYPES[0]))
    plan = MeasuringPlan(threads=1)
    assert group.has_all(plan)
    assert not group.has_all(replace(plan, rounds=6))
    assert not group.has_all(replace(plan, threads=2))
    group.passes = [one for one in group.passes if one[:3] != (ROWS[-1], CONTEXTS[0], ARMS[1])]
    assert not group.has_all(plan)


# The command


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, machine_of_models: None) -> list[str]:
    """The groups that were measured, of an invented machine."""
    asked: list[str] = []

    class Invented:
        def __init__(self, *_: object) -> None:
            pass

        def measure(self, together: Sequence[CellGroup]) -> list[MeasuredGroup]:
            asked.extend(group.id for group in together)
            return [invented(group) for group in together]

    monkeypatch.setattr(command, "MachineBench", Invented)
    monkeypatch.setattr(command, "self_test", lambda _: Quiet(0.01, 0.01, 0.0, 0.0, 0.0))
    return asked


def test_the_command_writes_its_files_and_goes_on_where_it_was(bench: list[str], tmp_path: Path) -> None:
    given = ["this_machine", "--engines", OURS, "--dtypes", "float32", "--threads", "1"]
    given += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert validation(given) == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    expected = {"table.md", "table.csv", "rows.csv", "measured.json.gz", "figure.png", "figure.pdf"}
    assert set(files) == expected
    assert len(bench) == 2 * len(MODELS)
    cells = list(all_cells(groups([OURS], MODELS, ["float32"]), every=False))
    assert len(files["rows.csv"].decode().splitlines()) == 1 + len(cells)
    one = next((tmp_path / "work").iterdir())
    assert MeasuredGroup.read(
        tmp_path / "work", CellGroup(**json.loads(one.read_text(encoding="utf-8"))["group"])
    )
    assert validation(given) == 0
    assert len(bench) == 2 * len(MODELS)  # nothing was measured again
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files
    assert validation([*given, "--fresh"]) == 0
    assert len(bench) == 4 * len(MODELS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--models", "smolm"], "smollm2_135m_instruct"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--engines", LLAMA_CPP, "--models", MODELS[0]], "predicted from those of two others"),
        (["--threads", "-1"], "--threads is -1"),
    ],
)
def test_a_wrong_option_is_said_before_anything_is_measured(
    given: list[str], said: str, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert validation(["this_machine", "--engines", OURS, *given]) == 2
    assert said in capsys.readouterr().err
    assert bench == []


def test_a_busy_machine_is_not_measured(
    bench: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "self_test", lambda _: Quiet(0.01, 0.02, 0.0, 2.0, 0.0))
    assert validation(["this_machine", "--engines", OURS]) == 3
    assert "too busy to measure" in capsys.readouterr().err
    assert bench == []
