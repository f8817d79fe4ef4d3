"""Every YAML under `conf/` composes into a whole configuration, and none of those that were there is lost."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from changed import is_changed
from repro import data
from repro.core.errors import InputError
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
FITS = (
    "classes/phones jetson_orin_nx jetson_tx2 oneplus_12 xiaomi_10 xiaomi_14 edgellm_orin_16gb "
    "edgellm_orin_nx edgellm_tx2 edgellm_xiaomi_11 lever_overlapped lever_serial mllm_baselines_lcpp "
    "mllm_baselines_mlc mllm_baselines_mnn mllm_baselines_pi mllm_baselines_tflite mllm_npu_lcpp "
    "mllm_npu_mlc mllm_npu_mnn mllm_npu_pi mllm_npu_products mllm_npu_tflite"
)
REFERENCE = "choices colours headlines names notes reasons"
OTHERS = (
    *(Path(f"fit/{name}.yaml") for name in FITS.split()),
    *(Path(f"reference/{name}.yaml") for name in REFERENCE.split()),
    Path("observations.yaml"),
    *(Path(f"{name}.yaml") for name in ("check", "config", "hydra/sweeper/grid")),
)
METHODS = (
    "bld chain_sd corrected draft edgellm flash_ar ghidorah lever llama_cpp_cpu medusa medusa_em mlc_gpu "
    "mllm_npu mnn_cpu nav opt_tree powerinfer2_npu prompt_lookup sequential sp specinfer spl std std_flash "
    "sti tflite_gpu tree_attention"
)
SERVICES = "attn_drop elastilm full laco layerwise llm_pruner llmlingua2_cs pfs shortgpt"


def test_nothing_is_lost() -> None:
    found = {group: set(names(group)) for group in LEAST}
    assert {group: count for group, count in LEAST.items() if len(found[group]) < count} == {}
    assert set(registered("method")) >= set(METHODS.split())
    assert set(registered("service")) >= set(SERVICES.split())
    grouped = {Path(group, f"{name}.yaml") for group, known in found.items() for name in known}
    metrics = {path.relative_to(conf_dir()) for path in (conf_dir() / "metric").glob("*.yaml")}
    every = {path.relative_to(conf_dir()) for path in conf_dir().rglob("*.yaml")} - metrics
    assert every - grouped == set(OTHERS), "a YAML is in no group"


@cache
def every(group: str) -> dict[str, Any]:
    """All options of a group, beside each other in one configuration: composing is what takes the time."""
    options = names(group) if (conf_dir() / group).is_dir() else list(registered(group))
    config = plain(composed(*(f"+{group}@options.{name}={name}" for name in options)))["options"]
    assert list(config) == options
    return dict(config)


@pytest.mark.parametrize("group", ["device", "dataset", "model", "model/checkpoint", "method"])
def test_an_option_is_the_same_in_its_place_and_beside_others(group: str) -> None:
    place = {"model": "target", "model/checkpoint": "target.checkpoint"}.get(group, group)
    name = list(every(group))[-1]
    config = composed(f"{group}@{place}={name}" if place != group else f"{group}={name}")
    assert OmegaConf.to_container(OmegaConf.select(config, place), resolve=True) == every(group)[name]


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


def test_each_role_takes_its_own_model() -> None:
    first, *_, last = names("model")
    config = plain(composed(f"model@target={first}", f"model@draft={last}"))
    for role, name in (("target", first), ("draft", last)):
        assert ModelConfig.parse(config[role]) == read_model(name)


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


def test_a_service_of_a_file_is_a_registered_one_with_other_settings() -> None:
    registered_ones = registered("service")
    usual = plain(composed(*(f"+service@options.{name}={name}" for name in registered_ones)))["options"]
    for name, option in every("service").items():
        built = registered_ones[option["name"]](**fields_of(option))
        assert vars(built) != fields_of(usual[option["name"]]), name


LONGEST = 120


def test_no_line_of_yaml_is_longer_than_120_characters() -> None:
    long = [
        f"{path.relative_to(conf_dir())}:{number}"
        for path in conf_dir().rglob("*.yaml")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LONGEST
    ]
    assert long == []


def test_a_model_that_there_is_not_has_near_misses() -> None:
    with pytest.raises(InputError, match=r"no model 'llama_7b_fp61'.*Did you mean llama_7b_fp16"):
        read_model("llama_7b_fp61")
