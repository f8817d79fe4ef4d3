"""A cell's configuration from shared choices is what Hydra composes for that cell alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from repro.core.paths import conf_dir
from repro.experiments.composing import publish
from repro.experiments.plan import CellPlan, experiment_names, plain, planning, shared_by

FEW = ("quickstart", "lever/fig10", "mllm_npu/table4", "elastilm/fig10a", "ghidorah/fig9")


@pytest.fixture(autouse=True)
def published() -> None:
    publish()


@pytest.fixture
def plan() -> Iterator[CellPlan]:
    with planning(conf_dir()) as plan:
        yield plan


def composed(overrides: Sequence[str]) -> str:
    """What Hydra's own loader composes, as JSON, whose order counts."""
    config = compose("config", [*overrides], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return json.dumps(plain(config))


def require_alike(plan: CellPlan, experiment: str, count: int | None) -> int:
    """Compare cells of an experiment, spread over it; all without a count. Returns how many."""
    cells = plan.jobs([f"experiment={experiment}"])
    some = cells if count is None else cells[:: max(1, len(cells) // count)]
    plan.shared = shared_by(cells)
    for cell in some:
        assert json.dumps(plan.cell(cell)) == composed(cell), cell
    return len(some)


@pytest.mark.parametrize("experiment", FEW)
def test_some_cells_are_what_hydra_composes(plan: CellPlan, experiment: str) -> None:
    assert require_alike(plan, experiment, 3) >= 3


@pytest.mark.slow
def test_all_cells_of_all_experiments_are_what_hydra_composes(plan: CellPlan) -> None:
    assert sum(require_alike(plan, experiment, None) for experiment in experiment_names()) > 3000


@pytest.mark.parametrize(
    "overrides",
    [
        ("prompts=3", "method.length=2"),
        ("method.length=2", "method.length=4"),
        ("method=lever", "labels.own=1", "++labels.own=2"),
        ("+labels.depth=${method.length}", "method.length=5"),
        ("+labels.name=${hydra:runtime.choices.method}", "method=edgellm"),
        ("+labels={a: x, b: '${max_tokens}'}", "max_tokens=9"),
        ("~sampling.top_p",),
        ("target.checkpoint=null", "draft=null"),
        ("corpus={texts: 1, tokens: 2}", "corpus.texts=3"),
        ("metrics=[ter]", "outputs=elsewhere"),
        ("device.name=Mine", "device.cooling=null"),
        ("weights=own", "model@target=llama_2_7b"),
        ("sampling=null", "seed=${prompts}"),
        ("metrics=[ter]", "metrics.0=bleu"),
        ("+alias=${sampling}", "alias.top_p=0.5"),
    ],
)
def test_values_of_every_kind(plan: CellPlan, overrides: tuple[str, ...]) -> None:
    try:
        expected: object = composed(overrides)
    except (HydraException, OmegaConfBaseException) as wrong:
        with pytest.raises(type(wrong)):
            plan.cell(overrides)
        return
    assert json.dumps(plan.cell(overrides)) == expected


def test_what_refers_to_a_value_has_it(tmp_path: Path) -> None:
    write_conf(tmp_path / "conf", config="a: 1\nb: ${a}\nc: {d: '${b}'}\n")
    with planning(tmp_path / "conf") as plan:
        assert [plan.cell((f"a={a}",)) for a in (2, 3)] == [{"a": a, "b": a, "c": {"d": a}} for a in (2, 3)]


def test_one_cell_leaves_nothing_to_the_next(plan: CellPlan) -> None:
    before = plan.cell(())
    changed = plan.cell(("method.length=2", "+labels.a=${prompts}", "corpus={texts: 1}", "prompts=7"))
    assert (changed["prompts"], changed["labels"], changed["corpus"]["texts"]) == (7, {"a": 7}, 1)
    changed["method"]["length"] = "spoilt"
    assert plan.cell(()) == before
    assert plan.cell(("+labels.b=${prompts}",))["labels"] == {"b": before["prompts"]}


def test_cells_share_what_no_value_of_theirs_changes(plan: CellPlan) -> None:
    one, other = plan.cell(("method.length=2",)), plan.cell(("method.length=3",))
    assert one["device"] is other["device"], "so that a batch of cells has it once"
    assert (one["method"]["length"], other["method"]["length"]) == (2, 3)


def test_a_choice_is_named_as_its_cell_has_it(plan: CellPlan) -> None:
    of_sweep = compose("config", ["method=edgellm"], return_hydra_config=True)
    HydraConfig.instance().set_config(of_sweep)
    name = "+labels.name=${hydra:runtime.choices.method}"
    for method in ("std", "chain_sd", "std"):
        assert plan.cell((f"method={method}", name))["labels"] == {"name": method}


def write_conf(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
