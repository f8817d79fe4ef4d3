"""A cell's configuration from shared choices is what Hydra composes for that cell alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from repro.core.paths import conf_dir
from repro.experiments.cell_configs import CellConfigs, parsed, plain, shared_by
from repro.experiments.cli import experiment_names, needless, publish
from repro.experiments.composing import Composer, Loader
from repro.experiments.compositions import composing_in

FEW = ("quickstart", "lever/fig10", "mllm_npu/table4", "elastilm/fig10a", "ghidorah/fig9")


@pytest.fixture(autouse=True)
def published() -> None:
    publish()


@pytest.fixture
def composer() -> Iterator[Composer]:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield Composer(GlobalHydra.instance().config_loader(), needless)


@pytest.fixture
def master(composer: Composer) -> DictConfig:
    return composer.load_configuration("config", [], RunMode.MULTIRUN)


@pytest.fixture
def configs(composer: Composer, master: DictConfig) -> CellConfigs:
    return composer.cells(master)


def composed(master: DictConfig, overrides: Sequence[str]) -> str:
    """What Hydra's own loader composes, as JSON, whose order counts."""
    loader = Loader(GlobalHydra.instance().config_loader().get_search_path())
    config = loader.load_sweep_config(master, [*overrides])
    HydraConfig.instance().set_config(config)
    return json.dumps(plain(config))


def require_alike(experiment: str, count: int | None) -> int:
    """Compare cells of an experiment, spread over it; all without a count. Returns how many."""
    with composing_in(conf_dir(), needless) as compositions:
        loader = Loader(GlobalHydra.instance().config_loader().get_search_path())
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        cells = compositions.cells([f"experiment={experiment}"])
        some = cells if count is None else cells[:: max(1, len(cells) // count)]
        compositions.configs.shared = shared_by(cells)
        for cell in some:
            assert json.dumps(compositions.configs.plain(cell)) == composed(master, cell), cell
        return len(some)


@pytest.mark.parametrize("experiment", FEW)
def test_some_cells_are_what_hydra_composes(experiment: str) -> None:
    assert require_alike(experiment, 3) >= 3


@pytest.mark.slow
def test_all_cells_of_all_experiments_are_what_hydra_composes() -> None:
    assert sum(require_alike(experiment, None) for experiment in experiment_names()) > 3000


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
def test_values_of_every_kind(configs: CellConfigs, master: DictConfig, overrides: tuple[str, ...]) -> None:
    try:
        expected: object = composed(master, overrides)
    except (HydraException, OmegaConfBaseException) as wrong:
        with pytest.raises(type(wrong)):
            configs.plain(overrides)
        return
    assert json.dumps(configs.plain(overrides)) == expected


def test_one_cell_leaves_nothing_to_the_next(configs: CellConfigs) -> None:
    before = configs.plain(())
    changed = configs.plain(("method.length=2", "+labels.a=${prompts}", "corpus={texts: 1}", "prompts=7"))
    assert (changed["prompts"], changed["labels"], changed["corpus"]["texts"]) == (7, {"a": 7}, 1)
    changed["method"]["length"] = "spoilt"
    assert configs.plain(()) == before
    assert configs.plain(("+labels.b=${prompts}",))["labels"] == {"b": before["prompts"]}


def test_cells_share_what_no_value_of_theirs_changes(configs: CellConfigs) -> None:
    one, other = configs.plain(("method.length=2",)), configs.plain(("method.length=3",))
    assert one["device"] is other["device"], "so that a batch of cells has it once"
    assert (one["method"]["length"], other["method"]["length"]) == (2, 3)


@pytest.mark.parametrize("value", ["0", "12", "-3", "-0", "007", "1_000", "+4", "1.0", "1e3", " 5", "5 ", ""])
@pytest.mark.parametrize("key", ["seed", "method.max_length", "+labels.a", "a@b", "metrics.0", ".a", "a..b"])
def test_a_number_is_what_hydras_grammar_says(key: str, value: str) -> None:
    try:
        expected = OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        with pytest.raises(HydraException):
            parsed(f"{key}={value}")
        return
    assert parsed(f"{key}={value}") == expected
    assert type(parsed(f"{key}={value}").value()) is type(expected.value())


def test_a_wrong_value_is_refused_and_the_next_is_whole(configs: CellConfigs) -> None:
    with pytest.raises(HydraException, match="no_such"):
        configs.plain(("prompts=2", "method.no_such=1"))
    assert configs.plain(())["prompts"] == 10


def test_what_all_cells_set_is_composed_with_their_choices() -> None:
    cells = [("method=std", "prompts=2", "labels.a=1", f"labels.b={n}", f"seed={n}") for n in range(3)]
    assert shared_by(cells) == {"method=std", "prompts=2"}, "labels.a may come after what sets all labels"
    assert shared_by([("model@target=a", "target.tokens=3"), ("model@target=b", "target.tokens=3")]) == {
        "target.tokens=3"
    }


def test_choices_are_composed_once(composer: Composer, master: DictConfig) -> None:
    asked: list[list[str]] = []

    def compose(choices: list[str], changed: frozenset[str]) -> DictConfig:
        asked.append(choices)
        return composer.load_sweep_config(master, choices, changed)

    configs = CellConfigs(compose, composer.repository.group_exists)
    for prompts in range(3):
        for method in ("std", "chain_sd"):
            assert configs.plain((f"method={method}", f"prompts={prompts}"))["prompts"] == prompts
    assert asked == [["method=std"], ["method=chain_sd"]]


def write_conf(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


def test_cells_of_several_choices_in_turn(tmp_path: Path) -> None:
    """They share entries, whose references are resolved in the cell that is asked for."""
    write_conf(
        tmp_path,
        config='defaults: [size: small, _self_]\nabout: {length: "${size}"}\n',
        size__small="# @package _global_\nsize: 1\n",
        size__large="# @package _global_\nsize: 2\n",
    )
    with composing_in(tmp_path, needless) as compositions:
        for size, length in [("small", 1), ("large", 2), ("small", 1), ("large", 2)]:
            found = compositions.configs.plain([f"size={size}"])
            assert found == {"size": length, "about": {"length": length}}


def test_a_file_that_says_more_of_what_another_refers_to(tmp_path: Path) -> None:
    write_conf(
        tmp_path,
        config="defaults: [first: a, then: b, _self_]\n",
        first__a="# @package _global_\nlarge: {size: 1}\nsmall: ${large}\n",
        then__b="# @package _global_\nsmall: {more: 2}\n",
    )
    with composing_in(tmp_path, needless) as compositions:
        loader = Loader(GlobalHydra.instance().config_loader().get_search_path())
        config = loader.load_configuration("config", [], RunMode.RUN)
        assert compositions.configs.plain(()) == plain(config)
        assert plain(config)["small"] == {"size": 1, "more": 2}
