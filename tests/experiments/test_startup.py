"""Commands import nothing heavy that they do not use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from repro.core import registry
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments import composing
from repro.experiments.hydra_private import get_yaml_loader
from repro.libraries import Late
from tiny_project import Project, write_project

HEAVY = {
    *("torch", "transformers", "evaluate", "datasets", "numba", "matplotlib", "wandb", "accelerate"),
    *("pandas", "scipy", "pyarrow", "numpy", "httpx2", "gguf"),
}
"""Libraries that take long to import. `huggingface_hub` is not among them: it loads its own parts late."""

TELL = """
import json, sys
from repro.experiments.cli import main
try:
    main()
finally:
    json.dump(sorted({name.partition(".")[0] for name in sys.modules}), open(sys.argv.pop(0), "w"))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


def imported(project: Project, *arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The heavy libraries that a command has imported at its end, and how it ended."""
    told = project.out / "modules.json"
    code = TELL.replace("sys.argv.pop(0)", repr(str(told)))
    command = [sys.executable, "-c", code, *project.overrides, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=project.environment(), check=False, encoding="utf-8"
    )
    return HEAVY & set(json.loads(told.read_text(encoding="utf-8"))), done


def test_what_is_imported_is_seen(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TELL", f"import numpy\n{TELL}")
    assert imported(project, "--help")[0] == {"numpy"}


def test_help_imports_nothing_heavy(project: Project) -> None:
    heavy, done = imported(project, "--help")
    assert "  method  " in done.stdout
    assert heavy == set()


def test_a_misspelt_name_imports_nothing_heavy(project: Project) -> None:
    heavy, done = imported(project, "method=chian_sd")
    assert "Did you mean chain_sd?" in done.stderr
    assert heavy == set()


def test_a_finished_cell_and_its_list_import_nothing_heavy(project: Project) -> None:
    done = project.here("method=chain_sd")
    assert done.returncode == 0, done.stderr
    again, done = imported(project, "method=chain_sd")
    assert "Acceptance length" in done.stdout
    assert again == set()
    listed, done = imported(project, "hydra.mode=MULTIRUN", "method=chain_sd,std", "sweep=list")
    assert "1 of 2 cells to do" in done.stdout
    assert "left" not in done.stderr, "a list has no progress"
    assert "cells" not in done.stderr
    assert listed == set()


def test_a_late_module_is_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = Late("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hsv(1.0, 1.0, 1.0) == (0.0, 0.0, 1.0)
    assert "colorsys" in sys.modules
    with pytest.raises(AttributeError, match="colorsys"):
        module.nothing  # noqa: B018


def write_package(folder: Path, name: str, **modules: str) -> None:
    (folder / name).mkdir()
    for module, text in {"__init__": "", **modules}.items():
        (folder / name / f"{module}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for packages, and a registry of its own."""
    for own in ("_components", "_modules"):
        monkeypatch.setattr(registry, own, {})
    registry._read.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    registry._read.cache_clear()


REGISTERED = "from repro.core.registry import register\n\n\n@register('method', '{name}')\nclass Mine: ...\n"


def test_a_name_is_known_before_its_module_is_imported(empty: Path) -> None:
    write_package(empty, "early", one=REGISTERED.format(name="first"), two="raise ImportError('too early')\n")
    registry.discover("early")
    assert registry.names("method") == ["first"]
    assert "early.one" not in sys.modules
    assert registry.lookup("method", "first").__name__ == "Mine"
    assert registry.lookup("method", "first").__module__ == "early.one"
    with pytest.raises(InputError, match="Did you mean first"):
        registry.lookup("method", "fisrt")


def test_a_package_whose_names_are_not_written_out_is_imported(empty: Path) -> None:
    made = (
        "from repro.core.registry import register\n\n"
        "def family(name):\n    register('method', name)(type(name, (), {}))\n"
    )
    used = "from made.base import family\n\nfamily('computed')\n"
    write_package(empty, "made", base=made, member=used)
    registry.discover("made")
    assert registry.names("method") == ["computed"]


def test_one_name_in_two_modules_is_refused(empty: Path) -> None:
    text = REGISTERED.format(name="same")
    write_package(empty, "double", one=text, two=text)
    with pytest.raises(InputError, match=r"'same' is registered twice: in double\.one and in double\.two"):
        registry.discover("double")


def test_the_c_parser_reads_every_file_as_omegaconf_does() -> None:
    files = sorted(conf_dir().rglob("*.yaml"))
    assert len(files) > 300
    for path in files[::7]:
        text = path.read_text(encoding="utf-8")
        ours, theirs = (yaml.load(text, Loader=of) for of in (composing._loader(), get_yaml_loader()))
        assert repr(ours) == repr(theirs), path


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [1\n", "a: b: c\n"])
def test_the_c_parser_refuses_what_omegaconf_refuses(text: str) -> None:
    for loader in (composing._loader(), get_yaml_loader()):
        with pytest.raises(yaml.YAMLError):
            yaml.load(text, Loader=loader)
