"""pass@1 of generated code: the share of answers that pass their task's tests.

Owns what of an answer is the code, and the program made of it. Must not know how a program is kept from doing
harm; that is in `isolation`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from repro.core.errors import InputError
from repro.core.registry import register
from repro.metrics import isolation
from repro.metrics.task import AnswerMetric

FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@register("metric", "pass_at_1")
class PassAt1(AnswerMetric):
    """Percentage of answers whose code passes the task's tests, as for HumanEval and MBPP; it runs the code.

    `expected` has three texts per prompt: the code that the answer continues, the name of the function that
    the tests' `check` is called with, and the tests; the first two may be "".
    """

    name: ClassVar[str] = "pass_at_1"
    runs_code: ClassVar[bool] = True

    def ready(self) -> None:
        """See `AnswerMetric`."""
        if reason := isolation.unable():
            raise InputError(f"metric 'pass_at_1': {reason}")

    def score(self, text: str, expected: Sequence[str]) -> float:
        """100 if the answer's code passes; InputError if this machine cannot isolate it."""
        before, function, tests = expected
        return 100.0 * isolation.run(program(text, before, function, tests)).whole


def program(text: str, before: str, function: str, tests: str) -> str:
    """The program that passes if an answer does.

    The answer's code is its first fenced block, or all of it without one. Code that defines the function
    follows the prompt's own, whose imports and helpers it may need; other code continues it.
    """
    code = code_of(text)
    whole = f"{before}\n{code}" if not before or _defines(code, function) else before + code
    return f"{whole}\n\n{tests}\n" + (f"\ncheck({function})\n" if function else "")


def code_of(text: str) -> str:
    """The first fenced block of an answer, even if it has no end; the whole answer without a fence."""
    found = FENCE.search(text)
    return found[1] if found else text


def _defines(code: str, function: str) -> bool:
    return re.search(rf"^def\s+{re.escape(function)}\s*\(", code, re.MULTILINE) is not None
