"""Configuration files of others set nothing of Hydra: these would run code, or read the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.core import paths
from repro.core.overrides import override
from repro.experiments import plan
from tiny_project import Project

SECRET = "a secret of the environment"
HYDRAS = "; Hydra's own settings come from conf/config.yaml and the command line only\n"
TRACE = "it ran"
"""A file in the folder where commands start that is there once some code of a file has run."""

HARM = {"_target_": "shutil.copyfile", "src": __file__, "dst": TRACE}
CALLBACKS = {"callbacks": {"more": HARM}}


def phone(*defaults: Any, **more: Any) -> dict[str, Any]:
    """A device like one of ours."""
    return {"defaults": ["oneplus_12", "_self_", *defaults], **more}


class Stranger:
    """A folder of somebody else's."""

    def __init__(self, project: Project, root: Path) -> None:
        self.project = project
        self.folder = root / "conf"

    @property
    def has_run(self) -> bool:
        """Whether some code of a file has run."""
        return (self.project.root / TRACE).exists()

    def write(self, name: str, content: Any, header: str = "") -> str:
        """Write a file and return its path."""
        path = self.folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        path.write_text(f"# @package {header}\n{text}" if header else text, encoding="utf-8")
        return str(path)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A cell with that folder on the command line."""
        done = self.project.here("--config-dir", str(self.folder), "method=std", *arguments)
        assert not self.has_run
        return done

    def refused(self, *arguments: str) -> str:
        """What the command says, in one sentence before any work."""
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert not (self.project.out / "results").exists()
        return done.stderr.removeprefix("error: ")


@pytest.fixture
def stranger(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    monkeypatch.setenv("A_TOKEN", SECRET)
    return Stranger(shared.apart(tmp_path / "out"), tmp_path)


@pytest.mark.filterwarnings("ignore:Callback str")  # what it makes is no callback
def test_what_these_tests_call_runs_on_the_command_line(stranger: Stranger) -> None:
    """It is the user's own there, and would do harm in a file."""
    stranger.project.here("method=std", override("+hydra.callbacks.more", HARM))
    assert stranger.has_run
    (stranger.project.root / TRACE).unlink()


# --- settings of Hydra --------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["device", "experiment", "setup"])
@pytest.mark.parametrize("header", ["", "_global_"])
def test_a_file_of_any_group_sets_nothing_of_hydra(stranger: Stranger, group: str, header: str) -> None:
    said = f"{stranger.write(f'{group}/mine', phone(hydra=CALLBACKS), header)} sets hydra{HYDRAS}"
    assert stranger.refused(f"{group}=mine") == said
    assert stranger.refused("-m", f"{group}=mine") == said
    assert stranger.refused("-m", f"{group}=mine,oneplus_12") == said


SECTIONS = [
    {"job_logging": {"handlers": {"a": {"()": "os.abort"}}}},
    {"launcher": {"_target_": "os.abort"}},
    {"searchpath": ["pkg://antigravity"]},
    "${mine}",
    None,
]
CHOICES = [
    *("override /hydra/launcher", "override hydra/launcher", "/hydra/launcher"),
    *("/hydra/launcher@hydra.more", "optional /hydra/job_logging", "/dataset@hydra.callbacks"),
    *("/dataset@_global_.hydra.callbacks", "/dataset@_global_xhydra.callbacks"),
]
AXES = [
    *("hydra.job_logging.handlers", "+hydra.callbacks.more", "++hydra.callbacks", "~hydra.callbacks.finish"),
    *("hydra/launcher", "+dataset@hydra.callbacks", "hydra", "_target_", "+labels._target_"),
]


@pytest.mark.parametrize(
    ("what", "content"),
    [
        *(("hydra", {"hydra": section}) for section in SECTIONS),
        *((choice, phone({choice: "humaneval"})) for choice in CHOICES),
        *((axis, {"grid": {axis: ["humaneval"]}}) for axis in AXES),
        *((axis, {"grid": {"cells": [{axis: "humaneval", "method": "std"}]}}) for axis in AXES),
    ],
)
def test_an_experiment_sets_chooses_and_varies_nothing_of_hydra(
    stranger: Stranger, what: str, content: Any
) -> None:
    path = stranger.write("experiment/mine", content)
    assert stranger.refused("experiment=mine") == f"{path} sets {what}{HYDRAS}"


@pytest.mark.parametrize("choice", CHOICES)
def test_a_device_chooses_nothing_of_hydra(stranger: Stranger, choice: str) -> None:
    path = stranger.write("device/mine", phone({choice: "humaneval"}))
    assert stranger.refused("device=mine") == f"{path} sets {choice}{HYDRAS}"


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("hydra/launcher/cells", "device=oneplus_12"),
        ("hydra/launcher/mine", "hydra/launcher=mine"),
        ("hydra/config", "device=oneplus_12"),
        ("hydra/more/mine", "+hydra/more@hydra.callbacks=mine"),
        ("dataset/evil", "+dataset@hydra.callbacks=evil"),
    ],
)
def test_nothing_is_put_into_hydra_from_its_own_folder_or_by_a_command(
    stranger: Stranger, name: str, override: str
) -> None:
    path = stranger.write(name, HARM)
    assert stranger.refused(override) == f"{path} sets hydra{HYDRAS}"


def test_no_file_asks_for_code_that_scores(stranger: Stranger) -> None:
    path = stranger.write("experiment/mine", {"metrics": ["evaluate:theirs"]})
    said = f"{path} asks for evaluate:theirs, whose code would run; name it on the command line\n"
    assert stranger.refused("experiment=mine") == said


@pytest.mark.parametrize(
    "header", ["hydra.callbacks", "_global_.hydra", "_global_xhydra.callbacks", "[hydra]", "hydra"]
)
def test_a_header_puts_nothing_into_hydra(stranger: Stranger, header: str) -> None:
    path = stranger.write("experiment/mine", {"more": HARM}, header)
    said = f"{path} has the header `@package {header}`; a file of experiment/ may only say _global_\n"
    assert stranger.refused("experiment=mine") == said


def test_a_header_elsewhere_is_ignored(stranger: Stranger) -> None:
    """The file's content stays in its section, where there is no such setting."""
    stranger.write("device/mine", phone(callbacks={"more": HARM}), "hydra")
    assert "callbacks" in stranger.run("device=mine").stderr


@pytest.mark.parametrize(
    "package", ["[hydra].callbacks", "_global_.[hydra].callbacks", "a._global_-.[hydra]"]
)
def test_another_spelling_of_a_place_does_not_help(stranger: Stranger, package: str) -> None:
    stranger.write("dataset/evil", {"more": HARM})
    stranger.write("experiment/mine", {"defaults": [{f"/dataset@{package}": "evil"}]})
    assert stranger.refused("experiment=mine").endswith(HYDRAS)


def test_a_file_of_another_file_s_defaults(stranger: Stranger) -> None:
    """What a file includes is as foreign as it is."""
    stranger.write("device/mine", {"defaults": ["oneplus_12", "/evil@_global_", "_self_"]})
    path = stranger.write("evil", {"hydra": CALLBACKS})
    assert stranger.refused("device=mine") == f"{path} sets hydra{HYDRAS}"


@pytest.mark.parametrize(
    "defaults", [{"device": "mine"}, [{"a": 1}], [{"a": "b", "c": "d"}], [3], [{}], "device"]
)
def test_a_defaults_list_is_a_list_of_names(stranger: Stranger, defaults: Any) -> None:
    path = stranger.write("experiment/mine", {"defaults": defaults})
    assert stranger.refused("experiment=mine").startswith(f"{path}: defaults must be a list of ")


def test_defaults_lists_in_a_circle(stranger: Stranger) -> None:
    stranger.write("experiment/mine", {"defaults": ["yours"]})
    stranger.write("experiment/yours", {"defaults": ["mine"]})
    said = "the defaults list of a configuration file leads back to the file\n"
    assert stranger.refused("experiment=mine") == said


def test_no_file_outside_of_the_folder(stranger: Stranger, tmp_path: Path) -> None:
    (tmp_path / "private.yaml").write_text("labels: {key: private}\n", encoding="utf-8")
    stranger.write("experiment/mine", {"defaults": ["/../private@_global_"]})
    assert "leaves the folder of configuration files" in stranger.refused("experiment=mine")


@pytest.mark.parametrize("flag", ["--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"])
def test_the_first_file_is_ours(stranger: Stranger, flag: str) -> None:
    stranger.write("config", {"hydra": CALLBACKS})
    assert stranger.refused(flag, str(stranger.folder)).startswith(f"{flag} is not taken here: ")


# --- places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["results", "outputs"])
def test_a_file_does_not_say_where_a_run_writes(stranger: Stranger, setting: str, tmp_path: Path) -> None:
    path = stranger.write("experiment/mine", {setting: str(tmp_path)})
    said = f"{path} sets {setting}; where a run writes is said in conf/config.yaml and "
    said += "on the command line only\n"
    assert stranger.refused("experiment=mine") == said
    stranger.write("experiment/mine", {"grid": {"method": ["std"], setting: [str(tmp_path)]}})
    assert stranger.refused("experiment=mine") == said


# --- the environment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:A_TOKEN}",
        "a${oc.env:A_TOKEN,nothing}b",
        "${oc.${labels.e}:A_TOKEN}",
        "${oc.decode:'$\\{oc.env:A_TOKEN\\}'}",
        "${oc.create:{a:1}}",
        "${oc.select:none,${oc.env:A_TOKEN}}",
        "${oc.select:none,'$\\{oc.env:A_TOKEN\\}'}",
        "${hydra:runtime.cwd}",
        "${hydra:job.env_set.A_TOKEN}",
        "$\\{oc.env\\:A_TOKEN\\}",
        "@{oc.env:A_TOKEN}",
    ],
)
def test_a_file_does_not_read_the_environment(stranger: Stranger, text: str) -> None:
    path = stranger.write("experiment/mine", {"labels": {"e": "env", "key": text}})
    assert stranger.refused("experiment=mine").startswith(f"{path} says {text!r}; it may refer to settings ")
    stranger.write("experiment/mine", {"grid": {"method": ["std"], "labels.key": [text]}})
    assert stranger.refused("experiment=mine").startswith(f"{path} says ")
    path = stranger.write("device/mine", phone(**{text: 1}))
    assert stranger.refused("device=mine").startswith(f"{path} says ")


def test_a_file_may_refer_to_settings_and_choices(stranger: Stranger) -> None:
    labels = {
        "a": "${prompts}",
        "b": "${labels.${labels.c}}",
        "c": "a",
        "d": "${hydra:runtime.choices.dataset}",
        "e": "${oc.select:method.none,${prompts}}",
    }
    stranger.write("experiment/mine", {"labels": labels})
    assert stranger.run("experiment=mine").returncode == 0
    (record,) = stranger.project.store.all()
    assert {n: record.labels[n] for n in labels} == {"a": "2", "b": "2", "c": "a", "d": "humaneval", "e": "2"}
    assert record.experiment == "mine"


# --- what works ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["", "_global_"])
@pytest.mark.parametrize("group", ["experiment", "setup"])
def test_a_file_about_everything_needs_no_header(stranger: Stranger, group: str, header: str) -> None:
    stranger.write(f"{group}/mine", {"prompts": 1, "labels": {"mine": "yes"}}, header)
    done = stranger.run(f"{group}=mine")
    assert done.returncode == 0, done.stderr
    (record,) = stranger.project.store.all()
    assert record.provenance.config["labels"]["mine"] == "yes"
    assert record.experiment == ("mine" if group == "experiment" else "cells")


@pytest.mark.parametrize("place", ["{}", "file://{}", "conf://{}"])
def test_hydra_s_search_path_is_read_alike(stranger: Stranger, place: str) -> None:
    search = f"hydra.searchpath=[{place.format(stranger.folder)}]"
    stranger.write("experiment/mine", {"labels": {"mine": "yes"}})
    assert stranger.project.here("method=std", search, "experiment=mine").returncode == 0
    path = stranger.write("experiment/mine", {"hydra": CALLBACKS})
    done = stranger.project.here("method=std", search, "experiment=mine")
    assert (done.returncode, done.stderr) == (2, f"error: {path} sets hydra{HYDRAS}")
    assert not stranger.has_run


@pytest.mark.parametrize("package", ["nowhere", "nowhere.conf", "json.decoder"])
def test_a_package_on_the_search_path_is_one_folder(stranger: Stranger, package: str) -> None:
    done = stranger.project.here("method=std", f"hydra.searchpath=[pkg://{package}]", "--cfg", "job")
    said = f"error: pkg://{package} is not one folder of configuration files\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_package_of_others_is_read_alike(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_folders_of_packages", lambda: (stranger.folder,))
    path = stranger.write("experiment/mine", {"hydra": CALLBACKS})
    done = stranger.project.here("method=std", "experiment=mine")
    assert (done.returncode, done.stderr) == (2, f"error: {path} sets hydra{HYDRAS}")
    with pytest.raises(plan.InputError, match="sets hydra"):
        plan.cell_config("experiment=mine")
    assert not stranger.has_run


# --- what is no data ----------------------------------------------------------------------------------------


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{below}: &{below} [{', '.join([f'*{above}'] * 9)}]\n"
    for above, below in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "a: !!python/object/apply:os.abort []",
            "is not YAML: could not determine a constructor for the tag",
        ),
        ("a: !mine x", "is not YAML: could not determine a constructor for the tag '!mine'"),
        (BOMB, "is not YAML: it has more than 100000 values, its aliases written out"),
        ("a: &a [*a]", "is not YAML: the alias *a is inside of what it repeats"),
        ("a: " + "[" * 100_000, "is not YAML: it is nested deeper than 100 levels"),
        ("- " * 100_000, "is not YAML: it is nested deeper than 100 levels"),
        ("a: " + "1" * 5000, "is not YAML: Exceeds the limit"),
        ("a: '" + "x" * (4 << 20) + "'", "has 4 MB; at most 4 MB are read"),
        ("# @package a b\na: 1", "in the lines before its content: Too many components"),
        ("- a\n- b\n", "must be a mapping and is a list"),
    ],
    ids=["tag", "own tag", "aliases", "circle", "deep", "deep list", "digits", "large", "header", "list"],
)
def test_yaml_is_read_under_limits(stranger: Stranger, content: str, said: str) -> None:
    path = stranger.write("experiment/mine", content)
    assert said in stranger.refused("experiment=mine").removeprefix(path)


def test_a_pipe_is_not_waited_for(stranger: Stranger) -> None:
    path = stranger.folder / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert stranger.run("experiment=mine").returncode == 2
