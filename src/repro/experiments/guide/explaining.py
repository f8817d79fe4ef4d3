"""Sentences about names that do not exist: the nearest ones first, and where all are listed.

Must not know Hydra; `experiments.cli` hands over what it said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import unknown
from repro.experiments.guide.choices import DASK, GROUPS, class_of, has_dask, option_names
from repro.experiments.guide.components import settings_of

FEW = 12
"""How many choices a sentence lists; of more, only the nearest."""
ROLES = ("target", "draft")
PARTS = ("model/checkpoint", "model/shape")
"""Groups of parts of a model: `model/checkpoint@target.checkpoint=NAME`."""


def no_such(option: str, name: str, choices: Collection[str]) -> str:
    """The sentence for an unknown name of a group: all its choices if they are few, else the nearest."""
    group = next((key for key, about in GROUPS.items() if about.option == option), None)
    if len(choices) <= FEW or group is None:
        return unknown(option, name, choices)
    near = nearest(name, choices)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {option} {name!r}.{hint} All {len(choices)}: repro list {group}"


def nearest(name: str, choices: Collection[str], most: int = 3) -> list[str]:
    """The choices most like a name; those in the same folder and those of that name in any folder count.

    `fig10` is like `lever/fig10`, and `lever/fig99` like other figures of `lever`.
    """
    folder, _, last = name.rpartition("/")
    beside = [choice for choice in choices if folder and choice.startswith(f"{folder}/")]
    if near := get_close_matches(name, beside, n=most):
        return near
    by_last: dict[str, list[str]] = {}
    for choice in sorted(choices):
        by_last.setdefault(choice.rpartition("/")[2], []).append(choice)
    alike = [choice for part in get_close_matches(last, by_last, n=most) for choice in by_last[part]]
    same, close = by_last.get(last, []), get_close_matches(name, choices, n=most)
    return list(dict.fromkeys([*same, *close, *alike]))[:most]


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
        if key == "hydra/launcher" and value == DASK and not has_dask():
            raise InputError(f"{override} is not installed; `pip install 'repro[{DASK}]'` brings it")
        top, slash, rest = group.partition("/")
        names = option_names(top)
        if not (equals and names) or key.startswith("~"):
            continue
        if group in PARTS:
            top, names = group, [path.stem for at in conf_folders() for path in (at / group).glob("*.yaml")]
        elif slash:
            raise InputError(f"{override} is written {top}={rest}/{value}")
        if top == "model" and not role:
            roles = " or ".join(f"model@{role}={value}" for role in ROLES)
            raise InputError(f"a model is a target or a draft: {roles}")
        if value == "null":
            raise InputError(f"{override}: a group has no value null; leave it out with ~{key.lstrip('+')}")
        for name in _single(value):
            if name not in names and not (top == "model" and model_file(name)):
                hint = "; one's own is a folder, a .gguf file or org/repo" if top == "model" else ""
                raise InputError(no_such(top, name, names) + hint)


def _single(value: str) -> list[str]:
    """The names of a sweep `a,b`; none if the value is more than names."""
    names = [name.strip().strip("'\"") for name in value.split(",")]
    return names if all(re.fullmatch(r"[\w./-]+", name) for name in names) else []


def no_setting(path: str, key: str, parent: Mapping[str, object]) -> str:
    """The sentence for an unknown setting `key` of the section `path`, which has the settings `parent`."""
    if path == "labels":
        return f"there is no label {key!r} to change; +labels.{key}=VALUE adds it"
    sentence = unknown("setting", key, [str(name) for name in parent if name != "name"])
    if not path:
        return sentence
    section = f"{path} {parent['name']}" if "name" in parent else path
    sentence = sentence.replace("there is no", f"{section} has no", 1)
    having = [name for name in option_names(path) if _has_setting(path, name, key)]
    if not having:
        return sentence
    way = (
        f"{path}={having[0]} {path}.{key}=VALUE sets it, or {having[0]}.{key}=VALUE in a sweep with a "
        f"row for each {path}"
    )
    return f"{sentence}; {', '.join(having)} {'has' if len(having) == 1 else 'have'} it, and {way}"


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
    blank = next(index for index, name in enumerate(names) if " " in name)
    for name in reversed(names[blank:]):  # `a.b c.d=1` is `a={b c: {d: 1}}`
        value = f"{{{name}: {value}}}"
    mapping = f"{'.'.join(names[:blank])}={value}"
    return f"{key} has a name with a blank, which only a mapping takes: '{mapping}'"


def in_order(arguments: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Arguments with all flags first, since argparse takes no override after a flag behind overrides.

    Args:
        arguments: the command's, without its name.
        flags: how many values each flag takes: 0, 1, or -1 for one that may have a value.

    Raises:
        InputError: an unknown flag.
    """
    flagged, overrides, waiting = [], [], [*arguments]
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flag, equals, _ = argument.partition("=")
        if flag not in flags:
            near = get_close_matches(flag, flags, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; python -m repro --help shows all"
            raise InputError(f"there is no flag {flag}{hint}")
        flagged.append(argument)
        following, takes = waiting[:1], 0 if equals else flags[flag]
        if following and (takes == 1 or (takes == -1 and not re.search("^-|=", following[0]))):
            flagged.append(waiting.pop(0))
    return [*flagged, *overrides]
