"""A user's broken package is named in one warning and left out; commands that do not need it work."""

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tiny_project import Project, write_project

METHOD = '''
from dataclasses import dataclass
from repro.core.registry import register
from repro.methods.speculative.chain_sd import ChainSD

@register("method", "{name}")
@dataclass(frozen=True)
class Mine(ChainSD):
    """Another name of it."""
'''

COMMANDS = """
import json, sys
from repro.experiments.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["repro", *arguments]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    loaded = "imported" if "sound.mine" in sys.modules else "not imported"
    print(f"exit {code}, {loaded}", file=sys.stderr, flush=True)
"""


def write(site: Path, package: str, files: Mapping[str, str], conf: str = "") -> None:
    """A package as an installer leaves it, announced for its components and, if given, its configuration."""
    for name, content in files.items():
        (site / package / name).parent.mkdir(parents=True, exist_ok=True)
        (site / package / name).write_text(content, encoding="utf-8")
    info = site / f"{package}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n", encoding="utf-8"
    )
    announced = f"[repro.components]\n{package} = {package}\n"
    announced += f"[repro.conf]\n{package} = {conf}\n" if conf else ""
    (info / "entry_points.txt").write_text(announced, encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages of which `sound` alone is sound."""
    site = tmp_path_factory.mktemp("site")
    sound = METHOD.format(name="sound")
    phone = "defaults: [oneplus_12, _self_]\nname: Sound phone\n"
    write(site, "sound", {"mine.py": sound, "conf/device/sound_phone.yaml": phone}, "sound.conf")
    write(site, "looped", {"mine.py": METHOD.replace('"{name}"', 'str("computed")')})
    write(site, "gone", {}, "gone.conf")
    write(site, "without_conf", {"mine.py": METHOD.format(name="no_conf")}, "without_conf.conf")
    write(site, "begins_badly", {"__init__.py": "1 / 0"}, "begins_badly.conf")
    write(site, "leaves", {"__init__.py": "", "below/__init__.py": "", "below/a.py": ""}, "leaves.conf")
    (site / "leaves" / "__init__.py").write_text("raise SystemExit('no')", encoding="utf-8")
    write(site, "taken", {"mine.py": METHOD.format(name="lever")})
    write(site, "computed", {"mine.py": "import nowhere\nregister = print\nregister(1, 2)\n"})
    write(site, "chosen_badly", {"mine.py": METHOD.format(name="unimportable") + "\nimport nowhere\n"})
    bad = {"conf/device/no_yaml.yaml": "name: [", "conf/device/not_text.yaml": "name: x"}
    write(site, "bad_files", bad, "bad_files.conf")
    (site / "bad_files" / "conf" / "device" / "not_text.yaml").write_bytes(b"name: \xff\xfe")
    return site


@pytest.fixture(scope="module")
def said(project: Project, site: Path) -> list[tuple[str, str]]:
    """Of each command how it ended, and what it says to stderr."""
    usual = project.overrides
    commands = [
        ["--help"],
        [*usual, "method=sound", "device=sound_phone"],
        [*usual, "method=unimportable"],
        [*usual, "method=std", "device=no_yaml"],
        [*usual, "method=std", "device=not_text"],
        [*usual, "method=mllm_npu", "device=jetson_orin_nx"],
        [*usual, "method=computed", "sweep=list"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=project.root,
        env=project.environment(site),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    parts = done.stderr.split("exit ")
    assert len(parts) == len(commands) + 1, done.stderr
    return [(after.splitlines()[0], before) for before, after in pairwise(parts)]


def test_each_broken_package_is_named_once_with_the_reason(said: list[tuple[str, str]]) -> None:
    warned = [line for _, text in said for line in text.splitlines() if line.startswith("warning: ")]
    named = {line.split()[2]: line for line in warned}
    assert sorted(named) == ["begins_badly", "computed", "gone", "leaves", "taken", "without_conf"]
    assert len(warned) == len(named)
    assert named["gone"] == (
        "warning: package gone 0.1 cannot be read, so its repro.conf gone.conf is left out: "
        "ModuleNotFoundError: No module named 'gone'"
    )
    assert named["without_conf"].endswith(
        "without_conf.conf is left out: FileNotFoundError: no folder without_conf/conf"
    )
    assert named["begins_badly"].endswith("ZeroDivisionError: division by zero")
    assert named["leaves"].endswith("SystemExit: no")
    assert "method 'lever' is registered twice" in named["taken"]
    assert named["computed"].endswith("No module named 'nowhere'")


def test_commands_that_need_no_broken_package_work(project: Project, said: list[tuple[str, str]]) -> None:
    assert [ended for ended, _ in said[:2]] == ["0, not imported", "0, imported"]
    assert said[6][0].startswith("0,"), "a name that is not written out is found by importing its module"
    (record,) = project.store.all()
    assert (record.labels["method"], record.labels["device"]) == ("sound", "Sound phone")


def test_what_is_chosen_and_broken_is_named(said: list[tuple[str, str]], site: Path) -> None:
    (_, module), (_, syntax), (_, text) = said[2:5]
    assert [ended.split(",")[0] for ended, _ in said[2:5]] == ["2", "2", "2"]
    assert "error: method 'unimportable' cannot be used, as chosen_badly.mine fails to import: " in module
    folder = site / "bad_files" / "conf" / "device"
    assert f"error: {folder}/no_yaml.yaml is not YAML: " in syntax
    assert f"error: {folder}/not_text.yaml is not YAML: " in text


def test_devices_that_can_are_named_beside_broken_files(said: list[tuple[str, str]]) -> None:
    (ended, text) = said[5]
    assert ended.split(",")[0] == "2"
    assert "method mllm_npu runs on a device with cpu and npu" in text
    assert "choose device=" in text
