"""The groups of things to choose, their names, and what each name means.

Reads component classes, the first lines of YAML files and tables' lines; composes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from repro.core import registry
from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.device.products import Product, products
from repro.experiments.guide.components import first_sentence
from repro.models.costs.public_models import PublicModel, public_models

FIELD_PATTERNS = (r'^  title: *"?(.+?)"?$', r"^hub: .*\bid: ([^,}]+)", r"kind: (\w+)")
"""What a YAML file without a comment says of itself: a table's title, else where it is from, its kind."""

BASH_WORDBREAKS = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@}"
"""A line for bash, which would else complete only what stands after the `@` of `model@target=`."""


@dataclass(frozen=True)
class Group:
    """A kind of things to choose.

    Attributes:
        option: the setting that chooses one; "" for those chosen in another way.
        meaning: what the things are.
        how: how to choose one.
        folder: the folder of its YAML files below `conf/`; "" without any.
    """

    option: str
    meaning: str
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

DASK_LAUNCHER = "dask"
"""The launcher that needs an extra, and the extra."""


def has_dask() -> bool:
    """Whether the launcher `dask` is installed."""
    return find_spec("distributed") is not None


def titles(group: str) -> dict[str, str]:
    """All names of a group of `GROUPS` in alphabetical order, each with a few words."""
    texts = {name: _title_of_class(GROUPS[group].option, name) for name in _registered_names(group)}
    texts |= {name: line.title for name, line in lines(group).items()}
    texts |= {name: _title_of_file(path) for name, path in files(group).items()}
    return dict(sorted(texts.items()))


def names(group: str) -> list[str]:
    """The names of a group of `GROUPS`, in alphabetical order."""
    return sorted({*_registered_names(group), *files(group), *lines(group)})


def option_names(option: str) -> list[str]:
    """The names that a setting takes (`method`, `model`); empty if it chooses nothing."""
    spelled_out = products() if option == "device" else ()
    return next(
        (sorted({*names(group), *spelled_out}) for group, entry in GROUPS.items() if entry.option == option),
        [],
    )


def lines(group: str) -> Mapping[str, Product | PublicModel]:
    """The lines of a group's table by name, without those that a file has the name of."""
    all_lines: Iterable[Product | PublicModel] = ()
    if group == "devices":
        all_lines = products().values()
    elif group == "models":
        all_lines = public_models().values()
    return {line.name: line for line in all_lines if line.name not in files(group)}


def class_of(option: str, name: str) -> type | None:
    """A registered component's class, whose module is imported; `None` if it is none."""
    return registry.lookup(option, name) if name in registry.names(option) else None


def completions(line: str) -> list[str] | None:
    """The words that complete the last one of a command line; `None` if it chooses from no group of ours.

    Hydra's own completion knows only the top of a folder, and nothing behind `model@target=`.
    """
    word = line.rpartition(" ")[2]
    key, equals, value_start = word.partition("=")
    group, at, _ = key.partition("@")
    names = option_names(group.lstrip("+"))
    if not (equals and names) or (group == "model" and not at):
        return None
    earlier_values, comma, last_value = value_start.rpartition(",")
    return [f"{key}={earlier_values}{comma}{name}" for name in names if name.startswith(last_value)]


def header(path: Path) -> str:
    """A YAML file's leading comment, without its package line, one paragraph a line; "" without one."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return "\n".join(line for line in lines if not line.startswith("@package")).strip()


def _registered_names(group: str) -> list[str]:
    registry.discover("repro.methods", "repro.data", "repro.metrics")
    return registry.names(GROUPS[group].option)


def _title_of_class(option: str, name: str) -> str:
    try:
        return first_sentence(registry.lookup(option, name).__doc__ or "")
    except InputError as wrong:  # somebody's own module, which fails to import
        return str(wrong)


def _title_of_file(path: Path) -> str:
    if comment := header(path):
        return first_sentence(comment)
    text = path.read_text(encoding="utf-8")
    title, *origin = (re.search(field, text, re.MULTILINE) for field in FIELD_PATTERNS)
    return title[1] if title else ", ".join(match[1] for match in origin if match) or path.stem


def files(group: str) -> dict[str, Path]:
    """YAML files of a group by name (`lever/fig10`), ours and those of other packages."""
    folder = GROUPS[group].folder
    return _list_files(folder, tuple(conf_folders())) if folder else {}


@cache
def _list_files(folder: str, roots: tuple[Path, ...]) -> dict[str, Path]:
    paths = {}
    for root in roots:
        for path in sorted((root / folder).rglob("*.yaml")):
            name = path.relative_to(root / folder).with_suffix("").as_posix()
            if folder == "experiment" or "/" not in name:
                paths[name] = path
    return paths


def group_named(name: str) -> str:
    """The group of a name as users may write it: `methods`, `method`.

    Raises:
        InputError: there is none.
    """
    for group, entry in GROUPS.items():
        if name in (group, entry.option):
            return group
    raise InputError(registry.unknown("group", name, GROUPS))
