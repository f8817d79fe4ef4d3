"""What a dataset's task expects of a generated answer.

Owns the entry `score` of a dataset's scoring. Must not know how an answer is scored: that is a metric's work.
"""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.errors import InputError
from repro.data.template import Row, text_at, texts_at


@dataclass(frozen=True)
class TaskScoring:
    """The task's metrics, and where an example says what they expect.

    Attributes:
        metrics: names of metrics that score one answer; the first one's mean is the task's score.
        first_line: score an answer's first line alone, leading line ends left out.
        unscored: the reason why the task has no score, in place of metrics.
        tests: path of the tests that generated code must pass (a list has one test a line).
        before: path of the code that the answer continues, for tests; "" if there is none.
        function: path of the name of the function that the tests' `check` is called with; "" if the tests
            are plain statements.
    """

    metrics: tuple[str, ...] = ()
    first_line: bool = False
    unscored: str = ""
    tests: str = ""
    before: str = ""
    function: str = ""

    def __post_init__(self) -> None:
        """InputError unless there is either a metric or a reason for having none."""
        if bool(self.metrics) == bool(self.unscored):
            raise InputError(
                f"scoring.score has metrics {list(self.metrics)} and unscored {self.unscored!r}; "
                "give either metrics, or the reason why there are none"
            )

    def columns(self) -> set[str]:
        """The columns that it reads."""
        return {path.split(".")[0] for path in (self.tests, self.before, self.function) if path}

    def scored_part(self, answer: str) -> str:
        """The part of an answer that the metrics score."""
        return answer.lstrip("\n").split("\n")[0] if self.first_line else answer

    def expected(self, row: Row, references: tuple[str, ...]) -> tuple[str, ...]:
        """What the metrics compare an answer with.

        For code these are the code before the answer, the function's name and the tests; otherwise the
        references, any of which is right.

        Raises:
            InputError: the example lacks a path, or has no text there.
        """
        if not self.tests:
            return references
        before, function = (text_at(row, path) if path else "" for path in (self.before, self.function))
        return before, function, "\n".join(texts_at(row, self.tests))
