"""The groups of things to choose, their names, and what each name means.

Reads component classes and the first lines of YAML files; composes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from repro.core import registry
from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.experiments.guide.components import Component, first_sentence

FIELD = re.compile(r"^(name|  title|  kind|hub): *(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Group:
    """A kind of things to choose.

    Attributes:
        option: the setting that chooses one; "" for those chosen in another way.
        what: what the things are.
        how: how to choose one.
        folder: the folder of its YAML files below `conf/`; "" without any.
    """

    option: str
    what: str
    how: str
    folder: str = ""


GROUPS = {
    "methods": Group("method", "ways to decode", "method=NAME"),
    "devices": Group("device", "phones, boards, this machine", "device=NAME", "device"),
    "engines": Group("engine", "how a program uses a device", "engine=NAME", "engine"),
    "models": Group("model", "targets and drafts", "model@target=NAME or model@draft=NAME", "model"),
    "datasets": Group("dataset", "prompts, questions, texts", "dataset=NAME", "dataset"),
    "weights": Group(
        "weights", "what computes: stand-ins, or the models themselves", "weights=NAME", "weights"
    ),
    "metrics": Group("metric", "scores beside the usual ones", "metrics=[NAME]"),
    "setups": Group("setup", "device, models and dataset of a paper's row", "setup=NAME", "setup"),
    "experiments": Group("experiment", "tables and figures of papers", "experiment=NAME", "experiment"),
    "compressions": Group("compression", "quantizers, prunings", "compression=NAME"),
    "probes": Group("probe", "looks at activations", "probe=NAME"),
    "services": Group(
        "service", "systems that serve under objectives", "service=NAME [trace=TRACE]", "service"
    ),
    "traces": Group("trace", "requests of apps over time", "trace=NAME", "trace"),
}
"""All groups by their name in `repro list`."""

DASK = "dask"
"""The launcher that needs an extra, and the extra."""


def has_dask() -> bool:
    """Whether the launcher `dask` is installed."""
    return find_spec("distributed") is not None


@dataclass(frozen=True)
class NamedChoice:
    """One thing to choose: its name and what it is, in a few words; its file if it is a YAML file."""

    name: str
    title: str
    path: Path | None = None


def choices(group: str) -> dict[str, NamedChoice]:
    """All choices of a group of `GROUPS` by name, in alphabetical order."""
    one = GROUPS[group]
    found = {name: _described(one.option, name) for name in names(group, yaml=False)}
    for name, path in _files(one.folder).items():
        found[name] = NamedChoice(name, _title(path), path)
    return dict(sorted(found.items()))


def names(group: str, yaml: bool = True) -> list[str]:
    """The names of a group of `GROUPS`, in alphabetical order; `yaml`: those of YAML files as well."""
    registry.discover("repro.methods", "repro.data", "repro.metrics")
    one = GROUPS[group]
    return sorted({*registry.names(one.option), *(_files(one.folder) if yaml else ())})


def option_names(option: str) -> list[str]:
    """The names that a setting takes (`method`, `model`); empty if it chooses nothing."""
    return next((names(group) for group, one in GROUPS.items() if one.option == option), [])


def described(option: str, name: str) -> Component | None:
    """A registered component as its class describes it; `None` if it is none. Imports its module."""
    return Component.of(registry.lookup(option, name)) if name in registry.names(option) else None


def yaml_file(group: str, name: str) -> Path | None:
    """The YAML file of a choice, if it is one."""
    return _files(GROUPS[group].folder).get(name)


def header(path: Path) -> str:
    """A YAML file's leading comment, without its package line, one paragraph a line; "" without one."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return "\n".join(line for line in lines if not line.startswith("@package")).strip()


def _described(option: str, name: str) -> NamedChoice:
    try:
        component = described(option, name)
    except InputError as wrong:  # somebody's own module, which fails to import
        return NamedChoice(name, str(wrong))
    return NamedChoice(name, component.title if component else "")


def _title(path: Path) -> str:
    """A file's first comment, else its title or what its fields say."""
    if about := header(path):
        return first_sentence(about)
    said: Mapping[str, str] = dict(FIELD.findall(path.read_text(encoding="utf-8")))
    hub = re.search(r"id: ([^,}]+)", said.get("hub", ""))
    kind = re.search(r"kind: (\w+)", path.read_text(encoding="utf-8"))
    about = said.get("  title", "") or ", ".join(x[1] for x in (hub, kind) if x)
    return about.strip('"') or said.get("name", "").strip('"')


def _files(folder: str) -> dict[str, Path]:
    """YAML files of a group's folder by name (`lever/fig10`), ours and those of other packages."""
    return _listed(folder, tuple(conf_folders())) if folder else {}


@cache
def _listed(folder: str, roots: tuple[Path, ...]) -> dict[str, Path]:
    found = {}
    for root in roots:
        for path in sorted((root / folder).rglob("*.yaml")):
            name = path.relative_to(root / folder).with_suffix("").as_posix()
            if folder == "experiment" or "/" not in name:
                found[name] = path
    return found


def group_named(name: str) -> str:
    """The group of a name as users may write it: `methods`, `method`.

    Raises:
        InputError: there is none.
    """
    for group, one in GROUPS.items():
        if name in (group, one.option):
            return group
    raise InputError(registry.unknown("group", name, GROUPS))
