"""Every YAML under `conf/` composes into a whole configuration, and none of those that were there is lost."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

from changed import is_changed
from repro import data
from repro.core.paths import conf_dir
from repro.core.registry import registered
from repro.data.traces import parse_trace
from repro.device.device_file import machine
from repro.experiments.pages import fact_sources
from repro.experiments.plan import plain
from repro.experiments.tree_drawings.forms import DiagramsSpec
from repro.models.checkpoints.origin import Checkpoint
from repro.models.costs.model_cost import Shape
from repro.models.runtime.model import ModelConfig
from repro.reports.claims.claims import ClaimsSpec, require_complete
from repro.reports.hardware_facts.facts import FactsSpec, read_facts
from repro.reports.reference.reference import PublishedCell, find, load_cells
from repro.reports.spec.spec import TableSpec
from repro.reports.tables.build import in_unit
from repro.scenarios.serving.asked import read_model
from tiny_project import composed, composed_by_hydra, spec_of


def names(group: str) -> list[str]:
    """The options of a group, by their files."""
    folder = conf_dir() / group
    depth = folder.rglob if group == "experiment" else folder.glob
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in depth("*.yaml"))


LEAST = {
    "device": 18,
    "engine": 2,
    "dataset": 43,
    "model": 56,
    "model/checkpoint": 48,
    "model/shape": 33,
    "setup": 32,
    "trace": 2,
    "weights": 2,
    "service": 7,
    "experiment": 114,
}
"""How many options there were; the tests below go through all that there are."""


def test_nothing_is_lost() -> None:
    counts = {group: len(names(group)) for group in LEAST}
    assert {group: counts[group] for group, least in LEAST.items() if counts[group] < least} == {}
    assert len(registered("method")) >= 27
    assert len(registered("service")) >= 9


@cache
def every(group: str) -> dict[str, Any]:
    """All options of a group, beside each other in one configuration: composing is what takes the time."""
    options = names(group) if (conf_dir() / group).is_dir() else list(registered(group))
    config = plain(composed(*(f"+{group}@options.{name}={name}" for name in options)))["options"]
    assert list(config) == options
    return dict(config)


def test_devices() -> None:
    for name, device in every("device").items():
        assert device["kind"] == ("local" if name.startswith("local") else "emulated"), name
        assert device["kind"] == "local" or machine(device).processors, name


def test_datasets_and_checkpoints() -> None:
    read = {name: data.parse(dataset).name for name, dataset in every("dataset").items()}
    read |= {name: Checkpoint.from_mapping(one).name for name, one in every("model/checkpoint").items()}
    assert [name for name in read if read[name] != name] == []


def test_models_are_the_same_read_without_hydra() -> None:
    models = every("model")
    assert [name for name, model in models.items() if ModelConfig.parse(model) != read_model(name)] == []


def test_shapes() -> None:
    assert all(Shape.parse(shape).parameters > 1e7 for shape in every("model/shape").values())


@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment=quickstart", "method=chain_sd", "prompts=3", "method.length=4"),
        ("+labels.mine=1", "model@target=qwen3_8b_q4_0", "target.checkpoint=null", "~sampling.top_p"),
        ("service=layerwise", "+model/shape@target.shape=llama_7b", "trace=standalone", "app.ttft=0.7"),
    ],
)
def test_settings_on_choices_that_tests_share_are_what_hydra_makes_of_all(overrides: tuple[str, ...]) -> None:
    assert composed(*overrides) == composed_by_hydra(conf_dir(), overrides)


@pytest.mark.parametrize("name", names("trace"))
def test_trace(name: str) -> None:
    config = parse_trace(plain(composed(f"trace={name}"))["trace"])
    assert config.name == name
    assert {app.dataset for app in config.apps} <= set(names("dataset"))


def experiments() -> list[Any]:
    """All; those that did not change, but for one of six, every night."""
    every = enumerate(names("experiment"))
    return [
        pytest.param(name, marks=[] if number % 6 == 0 or is_changed(name) else pytest.mark.slow)
        for number, name in every
    ]


@pytest.mark.parametrize("name", experiments())
def test_experiment(name: str) -> None:
    config = composed(f"experiment={name}")
    assert config.name == name, "the table's footer names the command by it"
    section, cells = spec_of(config), load_cells()
    if isinstance(section, TableSpec):
        require_published(section, cells)
        return
    if "facts" in section:
        assert read_facts(FactsSpec.parse(name, section), fact_sources())
        return
    if "trees" in section or "masks" in section:
        assert DiagramsSpec.parse(name, section).paper
        return
    require_complete(ClaimsSpec.parse(name, section), cells)


def require_published(spec: TableSpec, cells: Mapping[str, PublishedCell]) -> None:
    """Assert that a table's published values are there, in units of its columns, of rows by their names."""
    assert spec.columns
    for column in spec.columns:
        strangers = set(column.reference) - set(spec.rows.names)
        assert not (spec.rows.names and strangers), f"{strangers} are no rows by their names"
        for published in column.reference.values():
            in_unit(find(cells, published), column.unit, f"column {column.key!r}")
    for aside in spec.aside:
        find(cells, aside.id)


def fields_of(option: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in option.items() if name != "name"}


@pytest.mark.parametrize("group", ["method", "service"])
def test_every_component_is_an_option_whose_settings_are_its_fields(group: str) -> None:
    classes = registered(group)
    config = composed(*(f"+{group}@options.{name}={name}" for name in classes)).options
    options = OmegaConf.to_container(config)
    assert options == {
        name: {"name": name, **vars(component(**fields_of(plain(config)[name])))}
        for name, component in classes.items()
    }


def test_no_line_of_yaml_is_longer_than_120_characters() -> None:
    files = {path: path.read_text(encoding="utf-8").splitlines() for path in conf_dir().rglob("*.yaml")}
    assert [path.name for path, lines in files.items() if max(map(len, lines), default=0) > 120] == []
