"""Cells that serve a trace: figures by hand, objectives that hold, keys, and what cannot work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from repro.core.errors import InputError
from repro.data.config import read_config
from repro.device.emulated import EmulatedDevice
from repro.methods.serving.service import profile_of
from repro.records.record import Record, Round
from repro.reports.intervals.rounds import SERVING_RATIOS, totals
from repro.scenarios.registry import is_current
from repro.scenarios.serving import asked
from repro.scenarios.serving import scenario as serving
from repro.scenarios.serving.scenario import ServingScenario
from tiny_project import Project, write_project
from tiny_requests import REQUEST, SET, SPARE, write_rows

ELASTILM = ("service=elastilm", "service.decider=random", "service.scorer=random", "service.lora=false")
LAYERWISE = ("service=layerwise", "service.decider=largest")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny target, billed as LLaMA-7B, eight rows, and texts to calibrate on."""
    project = write_project(tmp_path_factory.mktemp("served"))
    write_rows(project.root / "data")
    usual = ("trace=standalone", "app.dataset=ways", "trace.requests=6", "prompts=8")
    of_app = ("app.ttft=0.7", "app.tpot=0.9", "device=redmi_k60_champion")
    billed = ("+model/shape@target.shape=llama_7b", "corpus.texts=3", "corpus.tokens=100")
    return project.apart(project.root, *usual, *of_app, *billed)


@pytest.fixture
def project(made: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same, with results of its own; what was answered is remembered from test to test."""
    monkeypatch.setenv("REPRO_CACHE", str(made.root / "cache"))
    monkeypatch.setattr(asked, "read_config", lambda name: SET if name == "ways" else read_config(name))
    return made.apart(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def nothing_open() -> Iterator[None]:
    """No model or row is kept from other tests, or for them."""
    serving._compressed_decoders.clear()
    asked._request_cache.clear()
    yield
    serving._compressed_decoders.clear()
    asked._request_cache.clear()


def done(project: Project, *overrides: str) -> tuple[Record, Sequence[Round]]:
    """A cell's record and its lines."""
    record = project.record(*overrides)
    assert record.done, record.error
    return record, project.store.rounds(record.key)


def number(line: Round, name: str) -> float:
    value = line[name]
    assert isinstance(value, int | float)
    return float(value)


def column(lines: Sequence[Round], name: str) -> list[float]:
    return [number(line, name) for line in lines]


def test_a_record_says_who_served_what_where(project: Project) -> None:
    record, lines = done(project, *ELASTILM)
    assert record.labels == {
        "method": "elastilm",
        "service": "elastilm",
        "decider": "random",
        "device": "Redmi K60 Champion",
        "dataset": "standalone",
        "target": "SmolLM2-135M-Instruct",
        "draft": "none",
        "agreement": "native",
    }
    assert (record.provenance.clock, record.provenance.weights) == ("virtual", "proxy")
    assert is_current(record)
    assert [str(line["id"]).split("/")[::2] for line in lines] == [["standalone", str(i)] for i in range(6)]
    assert len({str(line["id"]).split("/")[1] for line in lines}) == 6, "no row twice"


def test_figures_are_those_of_the_lines(project: Project) -> None:
    record, lines = done(project, *ELASTILM)
    values, ttft = record.values, column(lines, "ttft")
    assert values["requests"] == 6
    assert values["accuracy"] == pytest.approx(100 * mean(column(lines, "right")))
    late = [a * b for a, b in zip(column(lines, "right"), column(lines, "met"), strict=True)]
    assert values["accuracy_in_time"] == pytest.approx(100 * mean(late))
    assert values["met"] == pytest.approx(100 * mean(column(lines, "met")))
    assert values["unmet"] == 6 - sum(column(lines, "met"))
    switches = [one for one in column(lines, "switch") if one]
    assert values["switches"] == len(switches)
    assert values["switch_seconds"] == pytest.approx(mean(switches))
    assert values["switch_seconds_max"] == pytest.approx(max(switches))
    assert values["switch_share"] == pytest.approx(sum(switches) / sum(ttft))
    assert set(totals(record, lines)) >= {*SERVING_RATIOS} & {name for name, value in values.items() if value}
    assert values["ttft"] == pytest.approx(mean(ttft))
    assert values["read_share"] == pytest.approx(mean(column(lines, "read")) / (SPARE + REQUEST))
    assert (values["prompt_tokens"], values["chance"]) == (SPARE + REQUEST, 50.0)
    assert values["deciding_seconds"] == 0.0, "chance computes nothing"


def test_a_switch_is_billed_when_the_level_changes(project: Project) -> None:
    cell = ServingScenario(project.config(*ELASTILM))
    device = EmulatedDevice(cell.cell.machine())
    profile = profile_of(cell.system, device)
    _, lines = done(project, *ELASTILM)
    levels = [None, *column(lines, "model_level")]
    for line, (before, after) in zip(lines, pairwise(levels), strict=True):
        assert after is not None
        switch = profile.levels[after].switch.seconds if after != before else 0.0
        assert line["switch"] == pytest.approx(switch)
        prefill = profile.levels[after].prefill_at(int(number(line, "read"))).seconds
        assert line["ttft"] == pytest.approx(switch + prefill)
    assert len(set(levels)) > 2, "there were switches"


@pytest.mark.parametrize("decider", ["random", "largest", "oracle"])
@pytest.mark.parametrize(("ttft", "tpot"), [(0.3, 0.5), (0.6, 0.7), (1.0, 1.0)])
def test_what_is_decided_meets_the_objective(
    project: Project, decider: str, ttft: float, tpot: float
) -> None:
    asked = (f"service.decider={decider}", f"app.ttft={ttft}", f"app.tpot={tpot}")
    record, lines = done(project, *ELASTILM, *asked)
    assert (record.values["met"], record.values["unmet"], record.values["fell_back"]) == (100.0, 0, 0.0)
    full = number(record.values, "full_ttft"), number(record.values, "full_tpot")
    for line in lines:
        assert number(line, "ttft") <= ttft * full[0]
        assert number(line, "tpot") <= tpot * full[1]


def test_the_largest_that_an_objective_allows_is_taken(project: Project) -> None:
    _, lines = done(project, *LAYERWISE, "app.ttft=0.7", "app.tpot=0.9")
    assert set(column(lines, "model_level")) == {0.7}, "22 of 32 layers, and the vocabulary's projection"
    _, lines = done(project, *LAYERWISE, "app.ttft=0.5", "app.tpot=0.9")
    assert set(column(lines, "model_level")) == {0.4}, "16 of 32 layers with it are more than half"


def test_what_nothing_meets_is_served_at_its_lightest_and_counted(project: Project) -> None:
    record, lines = done(project, *LAYERWISE, "app.ttft=0.01")
    assert (record.values["met"], record.values["unmet"], record.values["fell_back"]) == (0.0, 6, 100.0)
    assert record.values["accuracy_in_time"] == 0.0
    assert set(column(lines, "model_level")) == {0.2}


def test_the_oracle_answers_no_less_than_anything_that_is_within_the_objective(project: Project) -> None:
    best = done(project, *ELASTILM, "service.decider=oracle")[0].values
    assert number(best, "accuracy") >= number(done(project, *ELASTILM)[0].values, "accuracy")
    for prompt, model in ((0.2, 0.5), (1.0, 0.4), (0.4, 0.6), (0.8, 0.2)):
        fixed = ("service.decider=fixed", f"service.fixed_prompt={prompt}", f"service.fixed_model={model}")
        found, lines = done(project, *ELASTILM, *fixed)
        assert all(column(lines[1:], "met")), "within the objective, once it is on its level"
        assert number(best, "accuracy") >= number(found.values, "accuracy")


def test_apps_share_a_trace(project: Project) -> None:
    apps = "trace.apps=[{name: Tight, dataset: ways, ttft: 0.5}, {name: Idle, dataset: ways, ttft: 1.0}]"
    record, lines = done(project, *LAYERWISE, apps)
    by_app: dict[str, list[Round]] = {"Tight": [], "Idle": []}
    for line in lines:
        by_app[str(line["id"]).split("/")[0]].append(line)
    assert [len(found) for found in by_app.values()] == [3, 3]
    for name, found in by_app.items():
        assert record.values[f"accuracy_{name}"] == pytest.approx(100 * mean(column(found, "right")))
    tight, idle = (mean(column(found, "model_level")) for found in by_app.values())
    assert (tight, idle) == (pytest.approx(0.4), 1.0)


BLANKS = ("app.dataset=null", "app.tokens=64")


@pytest.mark.parametrize("lacking", [(), ("target.checkpoint=null",)], ids=["checkpoint", "none"])
def test_blanks_cost_and_say_nothing(project: Project, lacking: tuple[str, ...]) -> None:
    record, lines = done(project, *LAYERWISE, *BLANKS, *lacking)
    assert "accuracy" not in record.values
    assert {line["right"] for line in lines} == {None}
    assert "costs alone: no checkpoint answers" in record.provenance.notes
    assert (record.values["prompt_tokens"], record.values["met"]) == (64, 100.0)


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("service.granule=4", True),
        ("service.check=nominal", True),
        ("trace.answer=8", True),
        ("trace.requests=5", True),
        ("app.ttft=0.8", True),
        ("prompts=7", True),
        ("seed=1", True),
        ("device=xiaomi_14", True),
        ("corpus.tokens=90", True),
        ("name=other", False),
        ("+labels.mine=1", False),
        ("max_tokens=7", False),
        ("skip=1", False),
        ("outputs=elsewhere", False),
    ],
)
def test_the_key_is_what_is_asked(project: Project, override: str, changes: bool) -> None:
    keys = [ServingScenario(project.config(*LAYERWISE, *more)).key for more in ((), (override,))]
    assert (keys[0] != keys[1]) == changes


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("device=local_cpu",), "is no emulated one.*choose redmi_k60_champion"),
        (("+service.granul=4",), "Did you mean granule"),
        (("service.decider=oracel",), "Did you mean oracle"),
        (("app.dataset=humaneval",), "'humaneval' are generated"),
        (("target.checkpoint=null",), "apps standalone ask for rows.*app.dataset=null app.tokens=256"),
        (("service.decider=oracle", *BLANKS), "decider is oracle, and no answers are known"),
        (("app.tokens=64",), "app standalone has dataset ways and tokens 64"),
    ],
)
def test_what_cannot_work_is_said_first(project: Project, overrides: tuple[str, ...], sentence: str) -> None:
    note = project.attempt(*LAYERWISE, *overrides)
    assert note.state == "failed"
    with pytest.raises(InputError, match=sentence):
        raise InputError(note.error)
