"""pass@1 of generated code: the share of answers that pass their task's tests.

Owns what of an answer is the code, and the programs made of it and of its tests. Must not know how both are
kept from doing harm, nor how they talk; that is in `isolation` and `code_calls`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from repro.core.errors import InputError
from repro.core.registry import register
from repro.metrics import code_calls, isolation
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


def program(text: str, before: str, function: str, tests: str) -> tuple[str, str]:
    """The program of the tests, which passes if the answer does, and the program of the answer.

    The answer's code is its first fenced block, or all of it without one. Code that defines the function
    follows the prompt's own, whose imports and helpers it may need; other code continues it.
    """
    code = code_of(text)
    whole = f"{before}\n{code}" if not before or _defines(code, function) else before + code
    calls = f"{_source_of_calls()}\nchannel = Channel(*map(int, sys.argv[1:]))\n"
    judge = f"{calls}TestsEnd(channel).run({before!r}, {function!r}, {tests!r})\n"
    return judge, f"{calls}AnswerEnd(channel, {whole!r}).serve()\n"


@cache
def _source_of_calls() -> str:
    """Read once: a file that is edited during a run changes no later score of it."""
    return inspect.getsource(code_calls)


def code_of(text: str) -> str:
    """The first fenced block of an answer, even if it has no end; the whole answer without a fence."""
    found = FENCE.search(text)
    return found[1] if found else text


def _defines(code: str, function: str) -> bool:
    return re.search(rf"^def\s+{re.escape(function)}\s*\(", code, re.MULTILINE) is not None
