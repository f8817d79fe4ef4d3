"""`repro list`: names with a few words each, and one name in full.

Owns the layout of these lists. Must not know where names come from.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.experiments.guide.choices import GROUPS, choices, described, group_named, header, names, yaml_file
from repro.experiments.guide.components import Component, Setting
from repro.experiments.guide.explaining import no_such

SETTING = re.compile(r"^(\w+): *(\$?\{.*?\}|[^#{]*?) *(?:# *(.*))?$")
INDENT = "    "


def show_choices(group: str | None, name: str | None) -> None:
    """Print the names of a group of choices, or one choice and its settings; the groups without arguments.

    Raises:
        InputError: there is no such group or choice.
    """
    width = min(shutil.get_terminal_size((110, 24)).columns, 110)
    for line in _lines(group, name, width):
        print(line)


def _lines(group: str | None, name: str | None, width: int) -> Iterator[str]:
    if group is None:
        rows = [(key, f"{len(names(key))} {one.what}: {one.how}") for key, one in GROUPS.items()]
        yield from _columns([("settings", "of every run: NAME=VALUE"), *rows], width)
        yield "repro list methods       names, with a few words each"
        yield "repro list method lever  one of them, with its settings"
    elif group in ("setting", "settings"):
        yield from _settings_of_a_run(width)
    elif name is None:
        found = choices(group_named(group)).values()
        yield from _columns([(one.name, one.title) for one in found], width)
    else:
        yield from _one(group_named(group), name, width)


def _columns(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """Names and their words in two columns, one line each."""
    rows = list(rows)
    first = max((len(name) for name, _ in rows), default=0)
    for name, title in rows:
        yield f"{name:<{first}}  {_short(title, max(width - first - 2, 20))}".rstrip()


def _short(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


def _one(group: str, name: str, width: int) -> Iterator[str]:
    if name not in names(group):
        raise InputError(no_such(GROUPS[group].option, name, names(group)))
    path = yaml_file(group, name)
    if path is not None:
        about = header(path).partition("\n\n")[0] or choices(group)[name].title
        yield from _wrapped(about, width)
        yield f"choose it:  {GROUPS[group].how.replace('NAME', name)}"
        yield f"file:       {_below_project(path)}"
        return
    found = described(GROUPS[group].option, name)
    assert found is not None, "names are of files or of components"
    yield from _wrapped(re.split(r"\n(?:Attributes|Args|Raises):\n", found.doc)[0], width)
    yield f"choose it:  {GROUPS[group].how.replace('NAME', name)}"
    yield f"source:     {_below_project(found.path)}"
    if paper := _paper(name, found):
        yield f"paper:      {paper}"
    yield ""
    yield from _settings(GROUPS[group].option, found.settings, width)


def _settings(option: str, settings: Sequence[Setting], width: int) -> Iterator[str]:
    if not settings:
        yield "It has no settings."
        return
    yield f"settings, each as {option}.NAME=VALUE:"
    first = max(len(one.name) for one in settings)
    for one in settings:
        yield f"  {one.name:<{first}} = {one.default}  ({one.values})"
        yield from textwrap.wrap(one.meaning, width, initial_indent=INDENT * 2, subsequent_indent=INDENT * 2)


def _settings_of_a_run(width: int) -> Iterator[str]:
    """The scalar settings of conf/config.yaml with their comments."""
    yield from _columns(run_settings(), width)


def run_settings() -> Iterator[tuple[str, str]]:
    """(`name=default`, comment) of the settings of every run, in the order of conf/config.yaml."""
    text = (conf_dir() / "config.yaml").read_text(encoding="utf-8")
    body = text.partition("\n\n")[2].partition("\nhydra:")[0]
    above = ""
    for line in body.splitlines():
        own = SETTING.match(line.strip())
        if not own:
            continue
        name, default, comment = own.groups()
        above = "" if not line.startswith(" ") else above
        if not default:
            above = f"{name}."
            continue
        yield f"{above}{name}={default}", comment or ""


def _paper(name: str, found: Component) -> str:
    """The paper that a component is from: its page of documentation, if it has one."""
    pages = {path.stem for path in (project_root() / "docs").glob("*.md")}
    papers = re.findall(
        r"^@\w+\{(\w+),", (conf_dir() / "reference" / "papers.bib").read_text(encoding="utf-8"), re.MULTILINE
    )
    text = f"{name} {found.path.parent.name} {found.doc} {found.module_doc}".lower().replace("-", "_")
    own = [paper for paper in papers if paper in pages and paper in text]
    return ", ".join(f"docs/{paper}.md" for paper in own)


def _wrapped(text: str, width: int) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from textwrap.wrap(" ".join(paragraph.split()), width)
        yield ""


def _below_project(path: Path) -> str:
    root = project_root()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
