"""pass@1 of generated code: the share of answers that pass their task's tests.

Owns what of an answer is the code, and the program of it and its tests. Must not know how programs run.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import ClassVar

from repro.core.registry import register
from repro.metrics.programs import reaches_its_end, require_consent
from repro.metrics.task import AnswerMetric

FENCED_BLOCK = re.compile(
    r"^(?! {4,}[`~]+\s*$)(?P<indent> *)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^`\n]*\n"
    r"(?P<code>.*?)(?:^(?P=indent) {0,3}(?P=fence)|(?<=\S)(?P=fence)[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""A fenced block, perhaps without an end; a bare fence far to the right is one of a docstring."""

PYTHON_LANGUAGE = re.compile(r"(python|py|ipython)?[\d.]*", re.IGNORECASE)
CODE_BEGINNING = re.compile(r"^(?:(?:async +)?def|class|import|from|@)\b|^@", re.MULTILINE)
"""A line that code begins with where prose stands before it."""

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
UNREADABLE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What comes of text that is no Python."""


@register("metric", "pass_at_1")
class PassAt1(AnswerMetric):
    """Percentage of answers whose code passes the task's tests, as for HumanEval and MBPP; it runs the code.

    `expected` has three texts per prompt: the code that the answer continues, the name of the function that
    the tests' `check` is called with, and the tests; the first two may be "".
    """

    name: ClassVar[str] = "pass_at_1"
    version: ClassVar[int] = 3
    runs_code: ClassVar[bool] = True

    def ready(self) -> None:
        """See `AnswerMetric`."""
        require_consent("metric 'pass_at_1'")

    def score(self, text: str, expected: Sequence[str]) -> float:
        """100 if the answer's code passes; InputError if nobody agreed that it runs."""
        self.ready()
        code_before, function, tests = expected
        return 100.0 * reaches_its_end(program(text, code_before, function, tests))


def program(text: str, code_before: str, function: str, tests: str) -> str:
    """The program of an answer and its tests, which reaches its end if the answer passes.

    Code that defines the function follows the prompt's own, whose imports and helpers it may need; other code
    continues it.
    """
    names = {function} if function else set(re.findall(r"\b([A-Za-z_]\w*)\s*\(", tests))
    code = code_of(text, code_before, names)
    solution = f"{code_before}\n{code}" if not code_before or _defines(code, names) else code_before + code
    check = f"check({function})\n" if function else ""
    return f"{solution}\n\n{tests}\n{check}"


def code_of(text: str, code_before: str = "", names: Collection[str] = ()) -> str:
    """The code of an answer.

    It is the first fenced block of Python that defines one of `names`, else the first one, with the blocks
    before it that only define and import; without a fence, or where a fence only ends the code, the text
    itself. Prose around it, an unfinished end and `if __name__` are left out as far as the rest is valid.

    Args:
        text: the answer, whose fences may be of backticks or tildes, without an end.
        code_before: the code that it may continue.
        names: functions of which it defines one if it is whole.
    """
    fenced = [*FENCED_BLOCK.finditer(text)]
    python = [block for block in fenced if PYTHON_LANGUAGE.fullmatch(block["language"])]
    blocks = [re.sub(f"^{block['indent']}", "", block["code"], flags=re.M) for block in python or fenced]
    head = text[: fenced[0].start()] if fenced else text
    if not blocks or _defines(head, names) or (code_before and head[:1] in (" ", "\t")):
        blocks = [head]
    index = next((i for i, code in enumerate(blocks) if _defines(code, names)), 0)
    defines = _defines(blocks[index], names)
    helpers = [code for code in blocks[:index] if defines and _only_defines(code)]
    return "\n".join([*helpers, _valid(blocks[index], "" if defines else code_before)])


def _valid(code: str, code_before: str) -> str:
    """The code, or as much of it as is valid Python after `code_before`, without `if __name__ == ...`."""
    code_start = CODE_BEGINNING.search(code)
    variants = [code] if not code_before else [code, f" {code}", f"    {code}", textwrap.indent(code, "    ")]
    variants += [code[code_start.start() :]] if code_start and not code_before else []
    return (
        max((_longest(trial, code_before) for trial in variants), key=lambda valid: len(valid.splitlines()))
        or code
    )


def _longest(code: str, code_before: str) -> str:
    """The first lines of the code that are valid after `code_before`, as many as stand before an error."""
    lines, lines_above = code.splitlines(keepends=True), code_before.count("\n")
    while True:
        try:
            statements = _statements(code_before + "".join(lines))
        except SyntaxError as wrong:
            valid_count = (wrong.lineno or 1) - 1 - lines_above
            lines = lines[: max(0, min(len(lines) - 1, valid_count))]
            if not lines:
                return ""
        except UNREADABLE_ERRORS:
            return ""
        else:
            break
    main_lines = (n.lineno for n in statements if isinstance(n, ast.If) and "__name__" in ast.unparse(n.test))
    return "".join(lines[: next((line - lines_above - 1 for line in main_lines if line > lines_above), None)])


def _statements(code: str) -> list[ast.stmt]:
    """The code's statements; SyntaxError for what does not compile, such as a `return` alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = ast.parse(code)
        compile(tree, "answer", "exec")
    return tree.body


def _only_defines(code: str) -> bool:
    """Whether running the code does nothing but define and import."""
    with suppress(*UNREADABLE_ERRORS):
        return all(isinstance(statement, DEFINITIONS) for statement in _statements(code))
    return False


def _defines(code: str, names: Collection[str]) -> bool:
    any_name = "|".join(map(re.escape, names)) or "(?!)"
    return re.search(rf"^(?:(?:async +)?def +(?:{any_name})\s*\(|(?:{any_name}) *=)", code, re.M) is not None
