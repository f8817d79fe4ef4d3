"""Classes of components as their source describes them: docstring, settings, defaults, choices.

Reads source by `ast`, so that listing imports no component and none of its libraries. Must not know groups.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path

ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
SENTENCE = re.compile(r"(?<!\bsec)(?<!\bFig)(?<!\bFigs)(?<!\bEq)(?<!\bAlg)\. (?=[A-Z`])")
NOT_SETTINGS = ("ClassVar", "InitVar")


@dataclass(frozen=True)
class Setting:
    """A field of a component: its type and default as written, its choices and its meaning, if stated."""

    name: str
    type: str
    default: str
    choices: tuple[str, ...] = ()
    meaning: str = ""


@dataclass(frozen=True)
class Component:
    """A registered class: its docstring, that of its module, where it is, and its settings."""

    doc: str
    module_doc: str
    path: Path
    settings: tuple[Setting, ...]

    @property
    def title(self) -> str:
        """The first sentence of its docstring."""
        return first_sentence(self.doc)


def first_sentence(text: str) -> str:
    """A text's first sentence or paragraph, on one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return SENTENCE.split(paragraph)[0].rstrip(".")


def component(module: str, group: str, name: str) -> Component | None:
    """The class that a module registers; `None` if its source does not say so literally."""
    read = _read(module)
    if read is None:
        return None
    path, tree = read
    own = {cls for cls, *registered in _registrations(tree) if registered == [group, name]}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in own:
            settings = {s.name: s for s in _settings(module, node)}
            doc, module_doc = ast.get_docstring(node) or "", ast.get_docstring(tree) or ""
            return Component(doc, module_doc, path, tuple(settings.values()))
    return None


@cache
def _read(module: str) -> tuple[Path, ast.Module] | None:
    spec = find_spec(module)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return None
    path = Path(str(spec.origin))
    return path, ast.parse(path.read_text(encoding="utf-8"))


def _registrations(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(class, group, name) of each `@register(group, name)` and each `register(group, name)(Class)`."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            calls = [(node.name, decorator) for decorator in node.decorator_list]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            calls = [(one.id, node.value.func) for one in node.value.args if isinstance(one, ast.Name)]
        else:
            continue
        for cls, call in calls:
            match call:
                case ast.Call(args=[ast.Constant(value=str(group)), ast.Constant(value=str(name))]):
                    yield cls, group, name


def _settings(module: str, node: ast.ClassDef) -> Iterator[Setting]:
    """A class's fields, those of its base classes first."""
    for base in node.bases:
        if isinstance(base, ast.Name) and (found := _defined(module, base.id)):
            where, definition = found
            if isinstance(definition, ast.ClassDef):
                yield from _settings(where, definition)
    meanings = dict(ATTRIBUTE.findall(cleandoc(ast.get_docstring(node) or "")))
    choices = dict(_checked(module, node))
    for line in node.body:
        if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
            continue
        name, kind = line.target.id, ast.unparse(line.annotation)
        if name.startswith("_") or kind.startswith(NOT_SETTINGS):
            continue
        default = ast.unparse(line.value) if line.value else "required"
        allowed = _literal(module, line.annotation) or choices.get(name, ())
        yield Setting(name, kind, default, allowed, " ".join(meanings.get(name, "").split()))


def _defined(module: str, name: str) -> tuple[str, ast.ClassDef | ast.expr] | None:
    """The class or value of a name of a module, and the module that defines it."""
    read = _read(module)
    for node in read[1].body if read else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return module, node.value
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _defined(node.module, alias.name)
    return None


def _literal(module: str, annotation: ast.expr) -> tuple[str, ...]:
    """The values of `Literal[...]`, or of a name for it."""
    if isinstance(annotation, ast.Name) and (found := _defined(module, annotation.id)):
        where, value = found
        return _literal(where, value) if isinstance(value, ast.expr) else ()
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return tuple(str(value) for value in _values(annotation.slice))
    return ()


def _checked(module: str, node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Choices that a class checks: `self.name not in CHOICES`, or a pair `("name", CHOICES)`."""
    for one in ast.walk(node):
        match one:
            case ast.Compare(left=ast.Attribute(attr=name), ops=[ast.NotIn()], comparators=[checked]):
                found = name, _choices(module, checked)
            case ast.Tuple(elts=[ast.Constant(value=str(name)), checked]):
                found = name, _choices(module, checked)
            case _:
                continue
        if found[1]:
            yield found


def _choices(module: str, value: ast.expr) -> tuple[str, ...]:
    if isinstance(value, ast.Name):
        where, named = _defined(module, value.id) or (module, None)
        return _choices(where, named) if isinstance(named, ast.expr) else ()
    if isinstance(value, ast.Dict):
        return tuple(str(key.value) for key in value.keys if isinstance(key, ast.Constant))
    return tuple(str(one) for one in _values(value)) if isinstance(value, (ast.Tuple, ast.Set)) else ()


def _values(value: ast.expr) -> list[object]:
    elements = value.elts if isinstance(value, (ast.Tuple, ast.Set, ast.List)) else [value]
    return [one.value for one in elements if isinstance(one, ast.Constant)]
