"""pass@1 of generated code: the share of answers that pass their task's tests.

Owns what of an answer is the code, and the program of it and its tests. Must not know how programs run.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from repro.core.registry import register
from repro.metrics.programs import reaches_its_end, require_consent
from repro.metrics.task import AnswerMetric

FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^`\n]*$")
"""The rest of a line that opens a fenced block."""

PYTHON = re.compile(r"(python|py|ipython)?[\d.]*", re.IGNORECASE)
BEGINNING = re.compile(r"^(?:(?:async +)?def|class|import|from|@)\b|^@", re.MULTILINE)
"""A line that code begins with where prose stands before it."""


@register("metric", "pass_at_1")
class PassAt1(AnswerMetric):
    """Percentage of answers whose code passes the task's tests, as for HumanEval and MBPP; it runs the code.

    `expected` has three texts per prompt: the code that the answer continues, the name of the function that
    the tests' `check` is called with, and the tests; the first two may be "".
    """

    name: ClassVar[str] = "pass_at_1"
    version: ClassVar[int] = 2
    runs_code: ClassVar[bool] = True

    def ready(self) -> None:
        """See `AnswerMetric`."""
        require_consent("metric 'pass_at_1'")

    def score(self, text: str, expected: Sequence[str]) -> float:
        """100 if the answer's code passes; InputError if nobody agreed that it runs."""
        self.ready()
        before, function, tests = expected
        return 100.0 * reaches_its_end(program(text, before, function, tests))


def program(text: str, before: str, function: str, tests: str) -> str:
    """The program of an answer and its tests, which reaches its end if the answer passes.

    Code that defines the function follows the prompt's own, whose imports and helpers it may need; other code
    continues it.
    """
    names = {function} if function else set(re.findall(r"\b([A-Za-z_]\w*)\s*\(", tests))
    code = code_of(text, before, names)
    whole = f"{before}\n{code}" if not before or _defines(code, names) else before + code
    check = f"check({function})\n" if function else ""
    return f"{whole}\n\n{tests}\n{check}"


def code_of(text: str, before: str = "", names: Collection[str] = ()) -> str:
    """The code of an answer.

    It is the first fenced block of Python that defines one of `names`, else the first one, with the blocks
    before it that only define and import; without a fence, or where a fence only ends the code, the text
    itself. Prose around it, an unfinished end and `if __name__` are left out as far as the rest is valid.

    Args:
        text: the answer, whose fences may be of backticks or tildes, indented, without an end.
        before: the code that it may continue.
        names: functions of which it defines one if it is whole.
    """
    head, *fenced = _blocks(text)
    python = [code for language, code in fenced if PYTHON.fullmatch(language)]
    blocks = python or [code for _, code in fenced]
    if not blocks or _defines(head[1], names) or (before and head[1][:1] in (" ", "\t")):
        blocks = [head[1]]
    chosen = next((i for i, code in enumerate(blocks) if _defines(code, names)), 0)
    whole = _defines(blocks[chosen], names)
    helpers = [code for code in blocks[:chosen] if whole and _only_defines(code)]
    return "\n".join([*helpers, _valid(blocks[chosen], "" if whole else before)])


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The text before the first fence, with no language, then each fenced block with its language."""
    lines = iter(text.splitlines())
    language, code, opened = "", [], None
    for line in lines:
        fence = FENCE.search(line)
        if opened is None:
            if fence is None or (line.startswith("    ") and not fence["language"]):  # of a docstring
                code.append(line)
                continue
            yield language, "\n".join(code)
            language, code, opened = fence["language"], [], fence["fence"]
            indent = len(line) - len(line.lstrip()) if line.lstrip().startswith(opened) else 0
            continue
        last, _, rest = line.rpartition(opened)
        ends = opened in line and not rest.strip(opened[0] + " \t") and opened not in last
        if ends and (last.strip() or len(last) <= indent + 3):
            yield language, "".join(f"{line}\n" for line in [*code, *([last] if last.strip() else [])])
            language, code, opened = "text", [], None
        else:
            code.append(line[indent:] if not line[:indent].strip() else line)
    if opened is not None or not language:
        yield language, "\n".join(code)


def _valid(code: str, before: str) -> str:
    """The code, or as much of it as is valid Python after `before`, without `if __name__ == ...`."""
    began = BEGINNING.search(code)
    ways = [code] if not before else [code, f" {code}", f"    {code}", textwrap.indent(code, "    ")]
    ways += [code[began.start() :]] if began and not before else []
    tree = None
    for way in ways:
        if tree := _parsed(before + way):
            return _without_main(way, tree, before)
    return max((_longest(way, before) for way in ways), key=len) or code


def _longest(code: str, before: str) -> str:
    """The first lines of the code that are valid after `before`, as many as there are before an error."""
    lines = code.splitlines()
    above = before.count("\n")
    while lines:
        try:
            tree = _compiled(before + "\n".join(lines))
        except SyntaxError as wrong:
            valid = (wrong.lineno or 1) - 1 - above
            lines = lines[: max(0, min(len(lines) - 1, valid))]
        except (ValueError, RecursionError, MemoryError):
            return ""
        else:
            return _without_main("\n".join(lines), tree, before)
    return ""


def _without_main(code: str, tree: ast.Module, before: str) -> str:
    """The code up to a first `if __name__ == ...` of its own."""
    mains = (n.lineno for n in tree.body if isinstance(n, ast.If) and "__name__" in ast.unparse(n.test))
    first = next((line - before.count("\n") for line in mains if line > before.count("\n")), None)
    return code if first is None else "\n".join(code.splitlines()[: first - 1])


def _compiled(code: str) -> ast.Module:
    """The code's tree; SyntaxError for what does not compile, such as a `return` outside of functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = ast.parse(code)
        compile(tree, "answer", "exec")
    return tree


def _parsed(code: str) -> ast.Module | None:
    try:
        return _compiled(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _only_defines(code: str) -> bool:
    """Whether running the code does nothing but define and import."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    tree = _parsed(code)
    return tree is not None and all(isinstance(statement, kinds) for statement in tree.body)


def _defines(code: str, names: Collection[str]) -> bool:
    any_name = "|".join(map(re.escape, names)) or "(?!)"
    return re.search(rf"^(?:(?:async +)?def +(?:{any_name})\s*\(|(?:{any_name}) *=)", code, re.M) is not None
