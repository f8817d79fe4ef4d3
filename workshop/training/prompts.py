"""Owns which prompts the target answers, and their form; knows nothing of models.

Rows of datasets have the templates of the experiments. Few of them are outside the evaluated ones, so math
problems are asked again with other numbers (`sums`), and functions with docstrings from the standard library
and the installed packages become HumanEval-like stubs and MBPP-like tasks, whose first example is the test.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.data.config import builder_of, read_config
from repro.data.rows import load_rows
from repro.records.record import write_atomically

CODE_REQUEST = (
    "Complete the following Python function. Answer with the whole function.\n\n```python\n{prompt}```"
)
MAX_DOC_CHARACTERS = 400
MAX_EXAMPLE_LINES = 8
SAMPLING_TEMPERATURE = 0.7
SMALLEST_CHANGED = 3  # smaller numbers are often part of the wording, such as "one of two"
NUMBER = re.compile(r"(?<![\d.,/])\d+(?![\d/]|[.,]\d)")
EXAMPLE = re.compile(r">>> (\w[\w.]*\(.*\))\n\s*([^\s<>.].*)")


@dataclass(frozen=True)
class Item:
    """One prompt for the target: `kind` is `code`, `raw` or `chat`; temperature 0 is greedy."""

    kind: str
    source: str
    text: str
    temperature: float


def code_roots() -> list[tuple[str, Path]]:
    """Folders with Python source: the standard library, then the installed packages."""
    paths = sysconfig.get_paths()
    return [("stdlib", Path(paths["stdlib"])), ("site-packages", Path(paths["purelib"]))]


def harvest(roots: Iterable[tuple[str, Path]]) -> list[tuple[str, str]]:
    """`(package, stub)` of every suitable function below `roots`, in path order, each docstring once."""
    seen: set[str] = set()
    found = []
    for label, root in roots:
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root)
            if {"site-packages", "tests", "test", "idlelib"} & set(inside.parts):
                continue
            package = label if label == "stdlib" else inside.parts[0].removesuffix(".py")
            for stub, doc in _stubs(path):
                if doc not in seen:
                    seen.add(doc)
                    found.append((package, stub))
    return found


def _stubs(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return  # Templates and files for other Python versions cannot be parsed.
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            doc = _shorten(ast.get_docstring(node) or "")
            if doc and _is_simple(node):
                yield _render(node, doc), doc


def _is_simple(node: ast.FunctionDef) -> bool:
    arguments = node.args
    count = len(arguments.args) + len(arguments.kwonlyargs)
    return 0 < count <= 6 and not node.name.startswith("__") and not node.name.startswith("test")


def _shorten(doc: str) -> str:
    """The first paragraph and the first examples, as in a HumanEval prompt."""
    paragraph = doc.strip().split("\n\n")[0]
    if not 20 <= len(paragraph) <= MAX_DOC_CHARACTERS or not paragraph.isascii():
        return ""
    return "\n".join([paragraph, *_examples(doc)]) if ">>>" not in paragraph else paragraph


def _examples(doc: str) -> list[str]:
    lines: list[str] = []
    for line in doc.splitlines():
        if line.lstrip().startswith(">>>") or (lines and line.strip()):
            lines.append(line.strip())
        elif lines:
            break
    short = all(len(line) <= 90 for line in lines[:MAX_EXAMPLE_LINES])
    return lines[:MAX_EXAMPLE_LINES] if short else []


def _render(node: ast.FunctionDef, doc: str) -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments = ast.arguments(
            arguments.posonlyargs, arguments.args[1:], arguments.vararg, arguments.kwonlyargs,
            arguments.kw_defaults, arguments.kwarg, arguments.defaults[: len(arguments.args) - 1],
        )  # fmt: skip
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = f"def {node.name}({ast.unparse(arguments)}){returns}:"
    body = "\n".join(f"    {line}".rstrip() for line in f'"""{doc}\n"""'.splitlines())
    typing_names = sorted(
        {name for name in ("Any", "Dict", "List", "Optional", "Tuple") if f"{name}[" in head}
    )
    imports = f"from typing import {', '.join(typing_names)}\n\n\n" if typing_names else ""
    return f"{imports}{head}\n{body}\n"


@dataclass(frozen=True)
class Share:
    """Rows `start..stop-1` of a dataset: each is used once greedily, and `more` times sampled or changed."""

    name: str
    start: int
    stop: int
    more: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read `dataset:start:stop` or `dataset:start:stop:more`."""
        name, *bounds = text.split(":")
        if len(bounds) not in (2, 3) or not all(bound.isdigit() for bound in bounds):
            raise InputError(f"rows {text!r}: write dataset:start:stop or dataset:start:stop:more")
        start, stop, more = (int(bound) for bound in [*bounds, "0"][:3])
        if start >= stop:
            raise InputError(f"rows {text!r}: holds no row; give a start below the stop")
        return cls(name, start, stop, more)

    def texts(self) -> list[str]:
        """The prompts of the rows in the dataset's own template."""
        config = read_config(self.name)
        builder = builder_of(config)
        texts = [builder.text(row) for row in load_rows(config, self.stop).rows[self.start :]]
        if not texts:
            raise InputError(f"dataset {self.name!r}: no rows in {self.start}:{self.stop}")
        return texts


def rows(share: Share) -> list[Item]:
    """Each row once with greedy decoding, and `more` times sampled."""
    heats = (0.0, *[SAMPLING_TEMPERATURE] * share.more)
    return [Item("chat", share.name, text, heat) for text in share.texts() for heat in heats]


def sums(share: Share, chance: random.Random) -> list[Item]:
    """Each row as it is, and `more` times with other numbers; all decoded greedily."""
    texts = share.texts()
    changed = [other_numbers(text, chance) for text in texts * share.more]
    return [Item("chat", share.name, text, 0.0) for text in [*texts, *changed]]


def other_numbers(text: str, chance: random.Random) -> str:
    """The text with whole numbers of 3 and above replaced by similar ones, equal numbers by equal ones."""
    chosen: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        number = match.group()
        value, step = int(number), 10 if number.endswith("0") else 1
        if value < SMALLEST_CHANGED:
            return number
        drawn = step * chance.randint(max(1, value // (2 * step)), 2 * value // step)
        return chosen.setdefault(number, str(max(2, drawn)))

    return NUMBER.sub(other, text)


def task(package: str, stub: str) -> Item | None:
    """An MBPP-like task from a stub whose docstring has a one-line example that calls the function."""
    head, _, doc = stub.partition('"""')
    name = head.rpartition("def ")[2].partition("(")[0]
    found = EXAMPLE.search(doc)
    if found is None or not found.group(1).startswith(f"{name}("):
        return None
    words = " ".join(doc.partition(">>>")[0].split())
    row = {
        "text": f"Write a python function to {words[:1].lower()}{words[1:]}",
        "test_list": [f"assert {found.group(1)} == {found.group(2).strip()}"],
    }
    return Item("chat", package, builder_of(read_config("mbpp")).text(row), 0.0)


def mixture(
    functions: list[tuple[str, str]],
    shares: list[Share],
    sum_shares: list[Share],
    *,
    tasks: int,
    stubs: int,
    seed: int,
    others: Sequence[Item] = (),
    raw: float = 0.0,
    sampled: float = 0.0,
) -> list[Item]:
    """All prompts, `others` included, in one seeded random order.

    Of `functions` (see `harvest`) up to `tasks` become tasks and up to `stubs` become stubs; those with
    examples, as in HumanEval's prompts, go first. No function is used in both forms. The share `raw` of the
    stubs is given bare, as a completion, and the share `sampled` is answered by sampling.
    """
    chance = random.Random(seed)
    asked = [item for share in shares for item in rows(share)]
    asked += [item for share in sum_shares for item in sums(share, chance)]
    left = list(functions)
    chance.shuffle(left)
    left.sort(key=lambda function: ">>>" not in function[1])
    made: list[Item] = []
    code: list[Item] = []
    for package, stub in left:
        if len(made) < tasks and (item := task(package, stub)):
            made.append(item)
        elif len(code) < stubs:
            kind = "raw" if raw and chance.random() < raw else "code"
            heat = SAMPLING_TEMPERATURE if sampled and chance.random() < sampled else 0.0
            code.append(Item(kind, package, stub, heat))
    mixed = [*asked, *made, *code, *others]
    chance.shuffle(mixed)
    return mixed


def write_plan(items: list[Item], path: Path) -> None:
    """Write one JSON line per item, atomically."""
    write_atomically(path, "".join(json.dumps(asdict(item)) + "\n" for item in items))


def read_plan(path: Path) -> list[Item]:
    """Read the items that `write_plan` wrote."""
    return [Item(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def describe(items: list[Item]) -> dict[str, Any]:
    """Counts and a hash of the prompts, for the training record."""
    text = "\0".join(f"{item.kind}{item.temperature}{item.text}" for item in items)
    return {
        "prompts": len(items),
        "by_kind": dict(Counter(item.kind for item in items)),
        "by_source": dict(Counter(item.source for item in items).most_common(40)),
        "sampled": sum(item.temperature > 0 for item in items),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
