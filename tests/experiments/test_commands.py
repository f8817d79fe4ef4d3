"""Every command that a page, a YAML file or a message tells users to write is taken; nothing is computed.

Cells are composed and made, scripts parse their arguments, names exist.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import runpy
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from wandb.cli.cli import cli as wandb_cli

from commands import COMMAND, ROOT, SETTINGS, Written, written_commands
from repro.commands import VERBS
from repro.core.overrides import word
from repro.core.paths import conf_dir
from repro.core.registry import registered
from repro.experiments.command_words import check_arguments
from repro.experiments.guide.choices import names, option_names
from repro.experiments.plan import plain, table_section
from repro.reports.spec.experiment import experiment_file, grid_of
from repro.scenarios.registry import made
from tiny_project import composed

GUIDE = "src/repro/experiments/guide"
WRONG = {f"{GUIDE}/explaining.py"}
"""They name what was replaced, is wrong or half typed; `test_guide` holds the answers."""
RIGHT = ("python -m repro --help", "model/checkpoint@target.checkpoint=NAME")
"""What is to be taken of these all the same."""
LATER = {
    "my_laptop": "oneplus_12",
    "my_phone": "oneplus_12",
    "lookup": "chain_sd",
    "mine/lookups": "quickstart",
}
LATER |= {"mine": "chain_sd", "my_questions": "humaneval", "my_model": "smollm2_135m", "distinct": "rouge_l"}
"""What commands before make, or a package of the user's brings, and what stands for it here."""
LATER |= {"model/checkpoint@target.checkpoint=NAME": "model/checkpoint@target.checkpoint=gpt2"}
LATER |= {"engine=NAME": "engine=llama_cpp_cpu", "device=NAME": "device=oneplus_12"}
LATER |= {"+model@NAME=NAME": "+model@draft_2=smollm2_135m"}
LATER |= {
    "model@NAME=NAME": "model@target=smollm2_135m",
    "resident=NAME": "resident=0.5",
    "NAME.resident": "method.resident",
}
LATER |= {"engine=my_board": "engine=own", "my_board": "oneplus_12", "engine=my_board_streamed": "engine=own"}
FILLED = {
    "N": "4",
    "ID": "edgellm.table1.truthful_qa",
    "DEVICE": "oneplus_12",
    "TRACE": "six_apps",
    "A,B": "std,sp",
}
FILLED |= {"[NAME]": "[rouge_l]", "[ID,ID]": "[ghidorah.table1.gsm8k.width2,ghidorah.table1.gsm8k.width4]"}
NEEDS = {
    "metrics=[task_score]": "dataset=gsm8k",
    "method=tree_attention": "device=local_cpu",
    "engine=edgellm_flat": "device=jetson_tx2",
    "engine=ghidorah_memory": "device=jetson_xavier_nx",
    "target.rounded=null": "model@target=vicuna_7b",
    "draft.rounded=null": "model@draft=vicuna_7b",
    "device.main=npu": "service=elastilm trace=six_apps device=xiaomi_14",
    "calibrate_draft_to=[ID,ID]": "setup=ghidorah_gsm8k method=ghidorah",
}
"""What settings alone rest on, beside what the file that names them says."""
FORMATS = {
    "method=lever": "model@target=qwen3_8b_q4_0 model@draft=qwen3_0_6b_q4_0",
    "method=mllm_npu": "model@target=qwen1_5_1_8b_int8",
}
"""Models whose format an NPU computes in, for methods that need one."""
ABSENT = {"lm_eval", "xllamacpp"}
"""Packages of the extras, which this environment may lack."""
BLANK = re.compile(r"\.\.\.|GROUP=\S+|SETTING=\S+|OMP_NUM_THREADS=\d+")
ROLES = ("target", "draft")


class Parsed(Exception):
    """A command's arguments were parsed; it would begin to work."""


@cache
def settings() -> frozenset[str]:
    """First words of the settings and groups of a cell."""
    return frozenset([*map(str, composed()), *(path.name for path in conf_dir().iterdir() if path.is_dir())])


def is_ours(written: Written) -> bool:
    """Whether settings alone are a run's: `expansion=[1,1,3]` on a method's page is not."""
    of_python = re.search("=(True|False|None)$", written.text)
    return not of_python and re.split(r"[.@/=]", written.text.lstrip("+~"))[0] in settings()


def filled(word: str, folder: Path) -> str:
    """A word of a command with a name in place of each blank."""
    for made_before, present in LATER.items():
        word = re.sub(rf"(?<![\w/]){re.escape(made_before)}(?![\w/])", present, word)
    key, equals, value = word.partition("=")
    value = FILLED.get(value, value) if equals else "4" if key == "NAME" else FILLED.get(key, key)
    group = key.lstrip("+").partition("@")[0]
    if value in ("NAME", "...") and equals:
        value = "smollm2_135m" if group.startswith("model") else (option_names(group) or ["4"])[0]
    elif value.endswith("/NAME"):
        value = next(name for name in names("experiments") if name.startswith(value.removesuffix("NAME")))
    elif re.fullmatch("FOLDER|<[a-z -]+>", value):
        value = str(folder)
    return f"{key}={value}" if equals else value


def resting_on(written: Written, words: list[str]) -> list[str]:
    """Choices that settings alone rest on: those of the file that names them, or one that has the setting."""
    stem, group = written.path.stem, written.path.parent.name
    keys = [word.lstrip("+~").partition("=")[0] for word in words]
    choices = [need for text in words if text in NEEDS for need in NEEDS[text].split()]
    if group == "model" and choices:
        choices = []
    choices += [f"model@{ROLES[any('draft' in key for key in keys)]}={stem}"] if group == "model" else []
    for key in keys:
        choice, dot, setting = key.partition(".")
        if dot and choice in ("method", "service", "compression", "probe") and choice not in keys:
            having = [
                name
                for name, cls in registered(choice).items()
                if setting in getattr(cls, "__dataclass_fields__", ())
            ]
            choices.append(f"{choice}={stem if stem in having else having[0]}")
        if choice in ("app", "trace") and "service" not in keys:
            choices += [
                "service=elastilm",
                *(["trace=standalone"] if choice == "app" and "trace" not in keys else []),
            ]
        if (choice, stem) == ("device", "local") and dot:
            choices.append("device=local_cpu")
    if group == "model" and "target.checkpoint" in keys:
        choices.append("method=std")
    for method in FORMATS.keys() & {*choices, *words}:
        choices += FORMATS[method].split()
    return [choice for choice in dict.fromkeys(choices) if choice.partition("=")[0] not in keys]


def taken(arguments: list[str]) -> None:
    """Check all names, compose the first cell, see that every override took effect, and make the cell.

    Raises:
        InputError: an override is not taken.
    """
    if "-sc" in arguments:
        return
    words = check_arguments(arguments)
    overrides = [word for word in words if re.match(r"\+{0,2}[a-z][^ ]*=|~", word)]
    assert [word for word in words if re.match("[+a-z].*[ =]", word) and word not in overrides] == []
    overrides = [
        word for word in overrides if not word.startswith(("hydra/launcher=", "hydra.launcher", "+hydra"))
    ]
    swept = {word for word in overrides if "," in word and not re.search(r"=[\[{'\"]", word)}
    cell = [word.partition(",")[0] if word in swept else word for word in overrides]
    experiment = next((word.partition("=")[2] for word in cell if word.startswith("experiment=")), "")
    points = grid_of(experiment_file(experiment)).points() if experiment else None
    keys = {word.partition("=")[0] for word in cell}
    point = {key: value for key, value in (points or [{}])[0].items() if key not in keys}
    of_grid = [f"{'++' * key.startswith('labels.')}{key}={word(value)}" for key, value in point.items()]
    config = composed(*cell[:1], *of_grid, *cell[1:])
    for override in cell:
        key, _, value = override.lstrip("+").partition("=")
        if "@" in key:
            chosen = OmegaConf.select(config, key.partition("@")[2])
            assert "layers" in chosen or chosen.name, "a shape has no name"
        elif "." in key and not key.startswith(("hydra", "~")) and re.fullmatch(r"[\w.]+", value):
            now = OmegaConf.select(config, key)
            assert word(now) == value or float(now) == float(value)
    section = table_section(config) if experiment else None
    if not isinstance(section, dict):
        for name, label in OmegaConf.to_container(
            config.labels
        ).items():  # choices are known in Hydra's run only
            config.labels[name] = "" if "hydra:" in str(label) else label
        made(plain(config))


def _stopping(parse: Callable[..., Any]) -> Callable[..., None]:
    def stop(*given: Any, **more: Any) -> None:
        raise Parsed(parse(*given, **more))

    return stop


def parsed(target: str, arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """Start a module or a file as the main one and stop it where it has parsed its arguments."""
    for name in ("parse_args", "parse_intermixed_args"):
        patch.setattr(argparse.ArgumentParser, name, _stopping(getattr(argparse.ArgumentParser, name)))
    patch.setattr(sys, "argv", [target, *arguments])
    spec = None if target.endswith(".py") else importlib.util.find_spec(target)
    source = (
        Path(spec.origin) if spec and spec.origin and not spec.submodule_search_locations else ROOT / target
    )
    if source.is_file() and "argparse" not in source.read_text(encoding="utf-8"):
        return
    start = runpy.run_path if target.endswith(".py") else runpy.run_module
    place = str(ROOT / target) if target.endswith(".py") else target
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        with pytest.raises(Parsed):
            start(place, run_name="__main__")


def words_of(written: Written, folder: Path) -> tuple[str, ...]:
    """The words of a command without blanks, and what settings alone rest on."""
    words = [word for word in written.words if "=..." not in word and not BLANK.fullmatch(word)]
    alone = SETTINGS.fullmatch(written.text) and not COMMAND.match(written.text)
    before = ["python", "-m", "repro", *resting_on(written, words)] if alone else []
    return tuple(filled(word, folder) for word in (*before, *words))


def run(words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    """Take a command; an error if it is not taken."""
    match words:
        case ["repro", verb, *arguments] | ["python", "-m", "repro", verb, *arguments] if verb in VERBS:
            parsed("repro", [verb, *arguments], patch)
        case ["repro", *arguments] | ["python", "-m", "repro", *arguments]:
            taken(arguments)
        case ["python", "-m", "pytest", *_]:
            pass
        case ["python", "-m", module, *_] if module.endswith(".NAME"):
            folder = Path(module.replace(".", "/")).parent
            assert (ROOT / "src" / folder).is_dir() or (ROOT / folder).is_dir()
        case ["python", "-m", module, *arguments]:
            parsed(module, arguments, patch)
        case ["python", script, *arguments]:
            parsed(script, arguments, patch)
        case ["bash", script, *flags]:
            text = (ROOT / script).read_text(encoding="utf-8")
            assert all(flag in text for flag in flags if flag.startswith("--"))
        case ["pip", "install", *_]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
                "optional-dependencies"
            ]
            named = re.search(r"\[(.+)\]", words[-1])
            assert not named or set(named[1].split(",")) <= set(extras)
        case ["wandb", verb, *_]:
            assert verb in wandb_cli.commands
        case ["eval", inner]:
            taken(inner.strip("$()").split()[1:])
        case [".venv-test/bin/pre-commit", "install"]:
            assert (ROOT / ".pre-commit-config.yaml").exists()
        case [("grep" | "xzgrep"), *_]:
            assert subprocess.run(words, cwd=ROOT, capture_output=True).returncode == 0
        case _:
            raise AssertionError("a command of a kind that this test does not know")


def test_every_command_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    monkeypatch.setattr("repro.scenarios.settings.cuda_stream", lambda: object())
    monkeypatch.setattr("repro.experiments.guide.explaining.has_dask", lambda: True)
    found: dict[tuple[str, ...], Written] = {}
    written = [w for w in written_commands() if str(w.path.relative_to(ROOT)) not in WRONG or w.text in RIGHT]
    written = [w for w in written if COMMAND.search(w.text) or not SETTINGS.fullmatch(w.text) or is_ours(w)]
    for command in written:
        found.setdefault(words_of(command, tmp_path), command)
    wrong = {}
    for words, command in found.items():
        with monkeypatch.context() as patch:
            try:
                run(words, patch)
            except (Exception, SystemExit, pytest.fail.Exception) as error:
                bare = isinstance(error, SystemExit) and (len(words) < 4 or not error.code)
                if not bare and getattr(error, "name", None) not in ABSENT:
                    wrong[str(command)] = f"{type(error).__name__}: {error}"[:300]
    assert not wrong, "\n".join(f"{command}\n    {error}" for command, error in wrong.items())
    assert len(written) > 500
    assert len(found) > 300
