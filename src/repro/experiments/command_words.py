"""The words of a command before Hydra reads them, and what is wrong with them in a sentence.

Owns flags, folders that a command adds, its experiments, settings of cells. Must not know what a
configuration means, nor how cells are planned.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from repro.core.errors import InputError
from repro.core.foreign import HYDRA, require_settings
from repro.core.overrides import unquote, word
from repro.core.paths import conf_folders
from repro.core.reading import read_mapping
from repro.experiments.guide.explaining import check_overrides, in_order, no_setting, no_such, unreadable
from repro.experiments.hydra_private import get_args_parser
from repro.records.build_cache import file_error
from repro.reports.spec.beside import carry, carry_all
from repro.reports.spec.experiment import experiment_file, experiments, grid_of
from repro.scenarios.registry import GROUPS
from repro.scenarios.sections import DRAFT_ROLE, SECTION_OPTIONS

FIRST_FILE = "the first file is conf/config.yaml, to which --config-dir adds a folder"
REFUSED_FLAGS = {
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn"), FIRST_FILE),
    "--experimental-rerun": "it reads a pickle, which may run code",
}
"""Hydra's flags that would have others' files where ours belong."""
HOME_PATTERN, QUOTE_PATTERN = re.compile(r"(?<=[=,\[:])~[\w.@/+:-]*"), re.compile("['\"]")
AMBIGUOUS_VALUE = re.compile("Ambiguous value for argument '(.*)'")
CLASS_LINES = re.compile(r"^\s*(full_key: *$|(object|reference)_type=.*$)", re.MULTILINE)
"""Lines in which OmegaConf names classes."""
FOLDER_FLAGS = ("--config-dir", "-cd")
COMMAND_FLAGS = ("run", "multirun", "cfg", "info", "shell_completion")
"""Flags of which a command has one."""
CONFIG_FLAGS = ("--resolve", "--package", "-p")
EXPERIMENT = "experiment"
SEARCH_PATH = "hydra.searchpath"
SEARCH_PATTERN = re.compile(r"\s*hydra\.searchpath\s*=")
SCHEME = "conf"
"""Of folders that are read by `composing.ConfFolder`, which checks what files of others say."""

_parser = OverridesParser.create()


@lru_cache(maxsize=10_000)
def parse(override: str) -> Override:
    """An override of the command line, which nobody changes; HydraException if it cannot be read."""
    return _parser.parse_overrides([override])[0]  # which names it in its error


def without_sweeps(overrides: Iterable[str]) -> list[str]:
    """The overrides that say the same of all cells, which alone can be composed outside a sweep."""
    return [override for override in overrides if not parse(override).is_sweep_override()]


def is_group(key: str) -> bool:
    """Whether an override of this key chooses from a group of ours, or of an installed package."""
    return key in GROUPS or any((folder / key).is_dir() for folder in conf_folders())


def _require_one_choice(overrides: Iterable[str]) -> None:
    for override in map(parse, overrides):
        values = override._value
        if isinstance(values, list) and is_group(override.key_or_group):
            raise InputError(
                f"{override.input_line} would mix the parts of all; choose one, or one after the other: "
                f"-m {override.get_key_element()}={','.join(map(str, values))}"
            )


def by_experiment(arguments: list[str]) -> list[list[str]]:
    """A command, or one for each experiment that it names: each has cells and a table of its own.

    Experiments without a grid and a table are cells of one sweep, as other choices are.
    """
    for index, argument in enumerate(arguments):
        if not argument.startswith(f"{EXPERIMENT}=") or not (override := parse(argument)).is_sweep_override():
            continue
        values = override._value
        all_names = sorted(experiments())
        texts = values.filter(all_names) if isinstance(values, Glob) else [*override.sweep_string_iterator()]
        names = [*dict.fromkeys(map(unquote, texts))]
        if any({"grid", "table"} & experiment_file(name).keys() for name in names):
            return [[*arguments[:index], f"{EXPERIMENT}={name}", *arguments[index + 1 :]] for name in names]
    return [arguments]


def as_conf(path: str) -> str:
    """An element of a search path for `ConfFolder`; InputError for a package that is not one folder."""
    scheme, _, folder_path = path.rpartition("://")
    if scheme == "pkg":
        try:
            spec = find_spec(folder_path.replace("/", "."))
        except ImportError:
            spec = None
        folders = [*(spec.submodule_search_locations or ())] if spec else []
        if len(folders) != 1:
            raise InputError(f"{path} is not one folder of configuration files")
        folder_path = folders[0]
    return f"{SCHEME}://{folder_path}" if scheme in ("", "file", "pkg") else path


def with_checked_folders(words: Sequence[str], *folders: str) -> list[str]:
    """A command's words, with Hydra's search path of these folders and its own, all read by `ConfFolder`.

    Raises:
        InputError: a file there, which is another's, would be put among Hydra's settings (`a@hydra.b=c`).
    """
    search_paths = [*folders, *_search_path(words)]
    other_words = [text for text in words if not SEARCH_PATTERN.match(text)]
    paths = [as_conf(path) for path in search_paths]
    roots = [*conf_folders()[1:], *(Path(path.rpartition("://")[2]) for path in paths)]
    for text in other_words:
        key, _, name = text.lstrip("+~").partition("=")
        group, _, package = key.partition("@")
        for path in (root / group / f"{name}.yaml" for root in roots if HYDRA in package):
            if path.exists():
                require_settings({HYDRA: {}}, str(path))
    return [*other_words, *([f"{SEARCH_PATH}=[{','.join(map(word, paths))}]"] if paths else [])]


def _search_path(words: Iterable[str]) -> list[str]:
    """The folders of a command's search path."""
    paths: list[str] = []
    for text in filter(SEARCH_PATTERN.match, words):
        value = parse(text).value()
        paths += map(str, value if isinstance(value, list) else [value])
    return paths


def judged_in_cells(words: Sequence[str]) -> list[str]:
    """The words of a command as the sweeper takes them where choices vary.

    What is set in a section that a choice fills is carried to the cells: the first choice may not have it.

    Raises:
        InputError: a word lists choices of one group, whose parts Hydra would mix.
    """
    _require_one_choice(text for text in words if not text.startswith("-"))
    if not any(map(_is_set_in_a_choice, words)):
        return [*words]
    overrides = [parse(text) for text in words if not text.startswith("-")]
    axes = {override.key_or_group for override in overrides if override.is_sweep_override()} | _axes(words)
    if not any(is_group(name.partition("@")[0]) for name in axes):
        return [*words]
    return [carry(text) if _is_set_in_a_choice(text) else text for text in words]


def _axes(words: Sequence[str]) -> set[str]:
    """The settings that the grid of a command's experiment varies."""
    names = [text.partition("=")[2] for text in words if text.startswith(f"{EXPERIMENT}=")]
    folders = [*conf_folders(), *(Path(path.rpartition("://")[2]) for path in _search_path(words))]
    for path in (folder / EXPERIMENT / f"{name}.yaml" for folder in folders for name in names):
        if path.is_file():
            with suppress(InputError):  # composing says what is wrong
                grid = grid_of({"name": names[-1], **read_mapping(path)})
                return {*grid.params}.union(*grid.choices)
    return set()


def _is_set_in_a_choice(override: str) -> bool:
    """Whether an override sets something in a section that a choice fills, to the same in all cells."""
    section, dot, _ = override.partition("=")[0].partition(".")
    is_filled = section in (*SECTION_OPTIONS, "draft") or DRAFT_ROLE.fullmatch(section)
    return bool(dot and is_filled) and not parse(override).is_sweep_override()


def check_arguments(arguments: list[str]) -> list[str]:
    """The command's arguments, flags first; InputError for an unknown flag or an unknown name.

    What begins with `~`, the home folder, is quoted for Hydra, which cannot read it otherwise.
    """
    literals = [
        text if QUOTE_PATTERN.search(text) else HOME_PATTERN.sub(lambda at: word(at[0]), text)
        for text in arguments
    ]
    flags = get_args_parser()._option_string_actions
    arities = {flag: -1 if action.nargs == "?" else int(action.nargs != 0) for flag, action in flags.items()}
    words = in_order(literals, arities)
    commands: dict[str, str] = {}
    for text in words:
        flag = text.partition("=")[0]
        if flag in REFUSED_FLAGS:
            raise InputError(f"{flag} is not taken here: {REFUSED_FLAGS[flag]}")
        if flag in flags and flags[flag].dest in COMMAND_FLAGS:
            commands.setdefault(flags[flag].dest, text)
    if len(commands) > 1:
        conflict = " and ".join(commands.values())
        raise InputError(f"{conflict} exclude each other; leave one out (sweep=list shows a sweep's cells)")
    for flag in CONFIG_FLAGS:
        if flag in words and not any(re.match("(--cfg|-c|--help|-h)(=|$)", each) for each in words):
            raise InputError(
                f"{flag} is for --cfg, which shows a configuration; leave it out, or add --cfg job"
            )
    if {"-sc", "--shell-completion"} & {*words}:
        return words
    folders = []
    while at := next((n for n, each in enumerate(words) if each.partition("=")[0] in FOLDER_FLAGS), -1) + 1:
        flag, _, folder = words.pop(at - 1).partition("=")
        folders.append(folder or words.pop(at - 1))
        if not Path(folders[-1]).is_dir():
            raise InputError(f"{flag} {folders[-1]}: there is no such folder")
    if not folders and not any(each.lstrip("+").startswith(SEARCH_PATH) for each in words):
        check_overrides(words)  # of folders beside ours only Hydra knows the names
    is_sweep = {"-m", "--multirun"} & {*words} or any(each.startswith(f"{EXPERIMENT}=") for each in words)
    return carry_all(with_checked_folders(words, *map(os.path.abspath, folders)), bool(is_sweep))


def explain(wrong: Exception) -> str:
    """An error of the command line or of the disk as a sentence that names the valid choices."""
    cause = wrong.__cause__
    if isinstance(wrong, InputError):
        return str(wrong)
    if isinstance(wrong, RecursionError):
        return "the defaults list of a configuration file leads back to the file"
    if isinstance(wrong, MissingConfigException) and wrong.options:
        group, _, name = str(wrong.missing_cfg_file).rpartition("/")
        return no_such(group, name, wrong.options)
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and isinstance(
        cause.parent_node, DictConfig
    ):
        section = str(cause.full_key).rpartition(".")[0]
        settings = OmegaConf.to_container(cause.parent_node)  # as written: what they refer to may be missing
        return no_setting(section, str(cause.key), cast("dict[str, object]", settings))
    if isinstance(wrong, OSError) and wrong.filename:
        return file_error(wrong)
    if isinstance(wrong, OverrideParseException):
        return unreadable(str(wrong.override))
    if match := AMBIGUOUS_VALUE.search(str(wrong)):
        key, _, value = match[1].partition("=")
        quoted = f"{key}='\"{value}\"'"
        return f"{match[1]} has several values: -m runs a cell for each, and quotes make it one: {quoted}"
    sentences = [" ".join(CLASS_LINES.sub("", str(part)).split()) for part in (wrong, cause or "")]
    return sentences[0] if sentences[1] in sentences[0] else ": ".join(filter(None, sentences))
