"""Sentences about names that do not exist: the nearest ones first, and where all are listed.

Must not know Hydra; `experiments.cli` hands over what it said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import unknown
from repro.experiments.guide.choices import DASK_LAUNCHER, GROUPS, class_of, has_dask, option_names
from repro.experiments.guide.components import settings_of
from repro.experiments.guide.table_lines import line_names
from repro.scenarios.sections import deeper_paths

FEW_CHOICES = 12
"""How many choices a sentence lists; of more, only the nearest."""
ROLES = ("target", "draft")
MODEL_PARTS = ("model/checkpoint", "model/shape")
"""Groups of parts of a model: `model/checkpoint@target.checkpoint=NAME`."""


def no_such(option: str, name: str, choices: Collection[str]) -> str:
    """The sentence for an unknown name of a group: all its choices if they are few, else the nearest."""
    group = next((key for key, entry in GROUPS.items() if entry.option == option), None)
    if len(choices) <= FEW_CHOICES or group is None:
        return unknown(option, name, choices)
    nearest_names = nearest(name, choices)
    hint = f" Did you mean {' or '.join(nearest_names)}?" if nearest_names else ""
    return f"there is no {option} {name!r}.{hint} All {len(choices)}: repro list {group}"


def nearest(name: str, choices: Collection[str], limit: int = 3) -> list[str]:
    """The choices most like a name; those in the same folder and those of that name in any folder count.

    `fig10` is like `lever/fig10`, and `lever/fig99` like other figures of `lever`.
    """
    folder, _, base_name = name.rpartition("/")
    same_folder = [choice for choice in choices if folder and choice.startswith(f"{folder}/")]
    if matches := get_close_matches(name, same_folder, n=limit):
        return matches
    leaf_groups: dict[str, list[str]] = {}
    for choice in sorted(choices):
        leaf_groups.setdefault(choice.rpartition("/")[2], []).append(choice)
    similar = [
        choice for part in get_close_matches(base_name, leaf_groups, n=limit) for choice in leaf_groups[part]
    ]
    equal_names, close_names = leaf_groups.get(base_name, []), get_close_matches(name, choices, n=limit)
    return list(dict.fromkeys([*equal_names, *close_names, *similar]))[:limit]


def check_overrides(overrides: Iterable[str]) -> None:
    """Check the groups that overrides choose from, before anything is composed.

    Raises:
        InputError: `experiment/lever=fig10`, `model=NAME`, `model@draft=null`, a name that does not exist, a
            launcher that is not installed, or an override of an experiment's `grid`, which its sweep has read
            before.
    """
    from repro.models.checkpoints.origin import model_file  # late: listing names needs none of it

    for override in overrides:
        key, equals, value = override.partition("=")
        group, _, role = key.lstrip("+~").partition("@")
        if re.match(r"grid\b", group):
            setting = group.removeprefix("grid").lstrip(".") or "method"
            raise InputError(
                f"{override} would come too late: the sweep is the file's grid; vary a setting itself, as in "
                f"{setting}=A,B, or give one component's beside the rest, as in chain_sd.length=2,4"
            )
        if key == "hydra/launcher" and value == DASK_LAUNCHER and not has_dask():
            raise InputError(f"{override} is not installed; `pip install 'repro[{DASK_LAUNCHER}]'` brings it")
        stem, slash, subgroup = group.partition("/")
        names = option_names(stem)
        if not (equals and names) or key.startswith("~"):
            continue
        if group in MODEL_PARTS:
            stem, names = group, [*part_names(group)]
        elif slash:
            raise InputError(f"{override} is written {stem}={subgroup}/{value}")
        if stem == "model" and not role:
            roles = " or ".join(f"model@{role}={value}" for role in ROLES)
            raise InputError(f"a model is a target or a draft: {roles}")
        if value == "null":
            raise InputError(f"{override}: a group has no value null; leave it out with ~{key.lstrip('+')}")
        for name in _single_names(value):
            takes_weights = stem in ("model", "model/checkpoint")
            if name not in names and not (takes_weights and model_file(name)):
                hint = "; one's own is a folder, a .gguf file or org/repo" if takes_weights else ""
                raise InputError(no_such(stem, name, names) + hint)


def part_names(group: str) -> Iterator[str]:
    """The names of parts of models: files, and shapes that are a table's lines."""
    for folder in conf_folders():
        yield from (path.stem for path in (folder / group).glob("*.yaml"))
        yield from line_names(folder, group)


def _single_names(value: str) -> list[str]:
    """The names of a sweep `a,b`; none if the value is more than names."""
    names = [name.strip().strip("'\"") for name in value.split(",")]
    return names if all(re.fullmatch(r"[\w./-]+", name) for name in names) else []


def no_setting(path: str, key: str, parent: Mapping[str, object]) -> str:
    """The sentence for an unknown setting `key` of the section `path`, which has the settings `parent`."""
    if path == "labels":
        return f"there is no label {key!r} to change; +labels.{key}=VALUE adds it"
    if path.endswith(".checkpoint") and not parent:
        return f"{path} is null; model/checkpoint@{path}=FOLDER or =NAME chooses one, with its {key}"
    elsewhere = deeper_paths(key, parent, path)
    sentence = unknown("setting", key, [str(name) for name in parent if name != "name"], elsewhere=elsewhere)
    if not path:
        return sentence
    section = f"{path} {parent['name']}" if "name" in parent else path
    sentence = sentence.replace("there is no", f"{section} has no", 1)
    owners = [name for name in option_names(path) if _has_setting(path, name, key)]
    if not owners:
        return sentence
    advice = (
        f"{path}={owners[0]} {path}.{key}=VALUE sets it, or {owners[0]}.{key}=VALUE in a sweep with a "
        f"row for each {path}"
    )
    return f"{sentence}; {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it, and {advice}"


def _has_setting(option: str, name: str, key: str) -> bool:
    component = class_of(option, name)
    return component is not None and any(setting.name == key for setting in settings_of(component))


def unreadable(override: str) -> str:
    """The sentence for an override that Hydra's grammar does not read, because of a character or bracket."""
    key, equals, value = override.partition("=")
    if not equals:
        return f"{override!r} is no setting; write NAME=VALUE"
    if " " not in key:
        return f"{key}={value} cannot be read; quote a value with special characters: '{key}=\"{value}\"'"
    names = key.split(".")
    blank_index = next(index for index, name in enumerate(names) if " " in name)
    for name in reversed(names[blank_index:]):  # `a.b c.d=1` is `a={b c: {d: 1}}`
        value = f"{{{name}: {value}}}"
    mapping = f"{'.'.join(names[:blank_index])}={value}"
    return f"{key} has a name with a blank, which only a mapping takes: '{mapping}'"


def in_order(arguments: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Arguments with all flags first, since argparse takes no override after a flag behind overrides.

    Args:
        arguments: the command's, without its name.
        flags: how many values each flag takes: 0, 1, or -1 for one that may have a value.

    Raises:
        InputError: an unknown flag.
    """
    flag_words, overrides, remaining = [], [], [*arguments]
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flag, equals, _ = argument.partition("=")
        if flag not in flags:
            names = get_close_matches(flag, flags, n=2)
            hint = f"; did you mean {' or '.join(names)}?" if names else "; python -m repro --help shows all"
            raise InputError(f"there is no flag {flag}{hint}")
        flag_words.append(argument)
        following, value_count = remaining[:1], 0 if equals else flags[flag]
        if following and (value_count == 1 or (value_count == -1 and not re.search("^-|=", following[0]))):
            flag_words.append(remaining.pop(0))
    return [*flag_words, *overrides]
