"""`repro list`: names with a few words each, and one name in full.

Owns the layout of these lists. Must not know where names come from.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.overrides import word
from repro.core.paths import conf_dir, project_root
from repro.core.reading import read_mapping
from repro.core.registry import require_choice
from repro.device.products import Product
from repro.experiments.guide.choices import GROUPS, class_of, files, group_named, header, lines, names, titles
from repro.experiments.guide.components import Setting, nested_settings, settings_of
from repro.experiments.guide.explaining import no_such
from repro.experiments.guide.headings import headings
from repro.experiments.tracking.tracker import Tracker
from repro.models.tokens.sampling import Sampling
from repro.reports.reference.bibliography import papers_of
from repro.reports.spec.spec import TableSettings
from repro.scenarios.sections import RunSettings

LIST_WIDTH = 110
INDENT = " " * 8
HEADED = "  "
"""Begins a line below a heading."""
TABLE = "table"
SECTION_CLASSES: Mapping[str, type] = {"sampling": Sampling, "wandb": Tracker}
"""Settings of every run that are settings themselves."""


def show_choices(group: str | None, name: str | None) -> None:
    """Print the names of a group of choices, or one choice and its settings; the groups without arguments.

    Raises:
        InputError: there is no such group or choice.
    """
    width = min(shutil.get_terminal_size((LIST_WIDTH, 24)).columns, LIST_WIDTH)
    for line in _lines(group, name, width):
        print(line)


def _lines(group: str | None, name: str | None, width: int) -> Iterator[str]:
    if group is None:
        groups = {key: f"{len(names(key))} {entry.meaning}: {entry.how}" for key, entry in GROUPS.items()}
        yield from _columns({"settings": "of every run: NAME=VALUE"} | groups, width)
        yield "repro list methods       names, with a few words each"
        yield "repro list method lever  one of them, with its settings"
    elif group in ("setting", "settings"):
        settings = {setting.name: setting for setting in run_settings()}
        if name is None:
            meanings = {f"{setting.name}={setting.default}": setting.meaning for setting in settings.values()}
            yield from _columns(meanings, width)
        elif name.partition(".")[0] == TABLE:
            yield from _settings(_table_settings(name), width)
        else:
            require_choice("setting", name, settings)
            yield from _settings([settings[name]], width)
    elif name is None:
        yield from _listed(group_named(group), width)
    else:
        yield from _choice(group_named(group), name, width)


def _listed(group: str, width: int) -> Iterator[str]:
    """The names of a group with a few words each, below their headings."""
    texts = titles(group)
    for number, (heading, heading_names) in enumerate(headings(group).items()):
        if heading:
            yield from ([""] if number else [])
            yield f"{heading}:"
        for line in _columns(
            {name: texts[name] for name in heading_names}, width - len(HEADED) * bool(heading)
        ):
            yield f"{HEADED if heading else ''}{line}"


def _columns(texts: Mapping[str, str], width: int) -> Iterator[str]:
    """Names and their words in two columns, one line each."""
    name_width = max(map(len, texts), default=0)
    for name, text in texts.items():
        short_text = textwrap.shorten(text.rstrip("."), max(width - name_width - 2, 20), placeholder=" ...")
        yield f"{name:<{name_width}}  {short_text}".rstrip()


def _choice(group: str, name: str, width: int) -> Iterator[str]:
    entry = GROUPS[group]
    if name not in names(group):
        raise InputError(no_such(entry.option, name, names(group)))
    path = files(group).get(name)
    if path is not None:
        yield from _wrap(header(path).partition("\n\n")[0] or titles(group)[name], width)
        yield f"choose it:  {entry.how.replace('NAME', name)}"
        yield f"file:       {_below_project(path)}"
        return
    if (line := lines(group).get(name)) is not None:
        yield from _wrap(line.title, width)
        yield f"choose it:  {entry.how.replace('NAME', name)}"
        if isinstance(line, Product):
            yield f"chip:       {line.chip} (device={line.chip_file}); repro device {name} shows its numbers"
        else:
            yield "weights:    none: add prompt_tokens=128, and format=q4_0 or another; those of one's own:"
            yield "            model/checkpoint@target.checkpoint=FOLDER, =FILE.gguf, =org/repo or =NAME"
        return
    component = class_of(entry.option, name)
    assert component is not None, "names are of files or of components"
    yield from _wrap(re.split(r"\n(?:Attributes|Args|Raises):\n", _doc(component))[0], width)
    yield f"choose it:  {entry.how.replace('NAME', name)}"
    yield f"source:     {_below_project(Path(inspect.getfile(component)))}"
    if pages := ", ".join(_pages(name, component)):
        yield f"paper:      {pages}"
    yield ""
    if settings := settings_of(component):
        yield f"settings, each as {entry.option}.NAME=VALUE:"
        yield from _settings(settings, width)
    else:
        yield "It has no settings."


def _settings(settings: Sequence[Setting], width: int) -> Iterator[str]:
    name_width = max(len(setting.name) for setting in settings)
    for setting in settings:
        yield f"  {setting.name:<{name_width}} = {setting.default}  ({setting.values})"
        yield from textwrap.wrap(setting.meaning, width, initial_indent=INDENT, subsequent_indent=INDENT)


def run_settings() -> Iterator[Setting]:
    """The settings of every run with their defaults, in the order of conf/config.yaml."""
    defaults = read_mapping(conf_dir() / "config.yaml")
    for setting in settings_of(RunSettings):
        if section := SECTION_CLASSES.get(setting.name):
            for inner_setting in _with_defaults(settings_of(section), defaults[setting.name]):
                yield replace(inner_setting, name=f"{setting.name}.{inner_setting.name}")
        else:
            yield from _with_defaults([setting], defaults)


def _table_settings(name: str) -> list[Setting]:
    """The settings of a `table:` section, or of a part of it such as `table.columns`, by their whole names.

    Raises:
        InputError: the section has no such part.
    """
    settings = [*nested_settings(TableSettings, TABLE)]
    part_names = sorted(
        {setting.name.rpartition(".")[0] for setting in settings} | {s.name for s in settings}
    )
    require_choice("setting", name, part_names)
    return [setting for setting in settings if f"{setting.name}.".startswith(f"{name}.")]


def _with_defaults(settings: Iterable[Setting], defaults: Mapping[str, Any]) -> Iterator[Setting]:
    for setting in settings:
        if setting.name in defaults:
            yield replace(setting, default=word(defaults[setting.name]).strip("'"))


def _pages(name: str, component: type) -> Iterator[str]:
    """The pages of documentation of the papers that a component names."""
    pages = (f"docs/{paper}.md" for paper in papers_of(name, component))
    return (page for page in pages if (project_root() / page).is_file())


def _doc(component: object) -> str:
    return inspect.cleandoc(component.__doc__ or "")


def _wrap(text: str, width: int) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from textwrap.wrap(" ".join(paragraph.split()), width)
        yield ""


def _below_project(path: Path) -> Path:
    root = project_root()
    return path.relative_to(root) if path.is_relative_to(root) else path
