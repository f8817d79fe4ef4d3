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
from repro.experiments.guide.choices import DASK, GROUPS, described, has_dask, option_names

FEW = 12
"""How many choices a sentence lists; of more, only the nearest."""
ROLES = ("target", "draft")
PARTS = ("model/checkpoint", "model/shape")
"""Groups of parts of a model: `model/checkpoint@target.checkpoint=NAME`."""


def no_such(what: str, name: str, choices: Collection[str]) -> str:
    """The sentence for an unknown name of a group: all its choices if they are few, else the nearest."""
    group = next((key for key, one in GROUPS.items() if one.option == what), None)
    if len(choices) <= FEW or group is None:
        return unknown(what, name, choices)
    near = nearest(name, choices)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {what} {name!r}.{hint} All {len(choices)}: repro list {group}"


def nearest(name: str, choices: Collection[str], most: int = 3) -> list[str]:
    """The choices most like a name; those in the same folder and those of that name in any folder count.

    `fig10` is like `lever/fig10`, and `lever/fig99` like other figures of `lever`.
    """
    folder, _, last = name.rpartition("/")
    beside = [one for one in choices if folder and one.startswith(f"{folder}/")]
    if near := get_close_matches(name, beside, n=most):
        return near
    same = sorted(one for one in choices if one.rpartition("/")[2] == last)
    near = get_close_matches(name, choices, n=most)
    by_last = get_close_matches(last, {one.rpartition("/")[2] for one in choices}, n=most)
    near += [one for part in by_last for one in sorted(choices) if one.rpartition("/")[2] == part]
    return list(dict.fromkeys([*same, *near]))[:most]


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
        known = option_names(top)
        if not (equals and known) or key.startswith("~"):
            continue
        if group in PARTS:
            top, known = group, [path.stem for at in conf_folders() for path in (at / group).glob("*.yaml")]
        elif slash:
            raise InputError(f"{override} is written {top}={rest}/{value}")
        if top == "model" and not role:
            roles = " or ".join(f"model@{role}={value}" for role in ROLES)
            raise InputError(f"a model is a target or a draft: {roles}")
        if value == "null":
            raise InputError(f"{override}: a group has no value null; leave it out with ~{key.lstrip('+')}")
        for name in _single(value):
            if name not in known and not (top == "model" and model_file(name)):
                hint = "; one's own is a folder, a .gguf file or org/repo" if top == "model" else ""
                raise InputError(no_such(top, name, known) + hint)


def _single(value: str) -> list[str]:
    """The names of a sweep `a,b`; none if the value is more than names."""
    names = [name.strip().strip("'\"") for name in value.split(",")]
    return names if all(re.fullmatch(r"[\w./-]+", name) for name in names) else []


def no_setting(path: str, key: str, parent: Mapping[str, object]) -> str:
    """The sentence for an unknown setting `key` of the section `path`, which has the settings `parent`."""
    names = [str(name) for name in parent if name != "name"]
    if path == "labels":
        return f"there is no label {key!r} to change; +labels.{key}=VALUE adds it"
    if not path:
        return _without_first(unknown("setting", key, names), f"there is no setting {key!r}")
    section = f"{path} {parent['name']}" if "name" in parent else path
    sentence = _without_first(unknown("setting", key, names), f"{section} has no setting {key!r}")
    having = [name for name in option_names(path) if _has_setting(path, name, key)]
    if not having:
        return sentence
    way = (
        f"{path}={having[0]} {path}.{key}=VALUE sets it, or {having[0]}.{key}=VALUE in a sweep with a "
        f"row for each {path}"
    )
    return f"{sentence}; {', '.join(having)} {'has' if len(having) == 1 else 'have'} it, and {way}"


def _has_setting(option: str, name: str, setting: str) -> bool:
    known = described(option, name)
    return known is not None and any(each.name == setting for each in known.settings)


def unreadable(override: str) -> str:
    """The sentence for an override that Hydra's grammar does not read, because of a character or bracket."""
    key, equals, value = override.partition("=")
    if not equals:
        return f"{override!r} is no setting; write NAME=VALUE"
    if " " in key:
        return f"{key} has a name with a blank, which only a mapping takes: '{_as_mapping(key, value)}'"
    return f"{key}={value} cannot be read; quote a value with special characters: '{key}=\"{value}\"'"


def _as_mapping(key: str, value: str) -> str:
    """`a.b c.d=1` as `a={b c: {d: 1}}`, from the first name with a blank on."""
    names = key.split(".")
    blank = next(place for place, name in enumerate(names) if " " in name)
    below = value
    for name in reversed(names[blank:]):
        below = f"{{{name}: {below}}}"
    return f"{'.'.join(names[:blank])}={below}"


def _without_first(sentence: str, first: str) -> str:
    """A sentence of `unknown` with another beginning."""
    return first + sentence[sentence.index(".") :]


def in_order(arguments: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Arguments with all flags first, since argparse takes no override after a flag behind overrides.

    Args:
        arguments: the command's, without its name.
        flags: how many values each flag takes: 0, 1, or -1 for one that may have a value.

    Raises:
        InputError: an unknown flag.
    """
    first: list[str] = []
    others: list[str] = []
    left = list(arguments)
    while left:
        one = left.pop(0)
        if not one.startswith("-"):
            others.append(one)
            continue
        flag = one.partition("=")[0]
        if flag not in flags:
            near = get_close_matches(flag, flags, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; python -m repro --help shows all"
            raise InputError(f"there is no flag {flag}{hint}")
        first.append(one)
        takes = flags[flag] if "=" not in one else 0
        if left and (takes == 1 or (takes == -1 and "=" not in left[0] and not left[0].startswith("-"))):
            first.append(left.pop(0))
    return [*first, *others]
