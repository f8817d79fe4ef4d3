"""Kinds of scoring: compare with a reference text, or compare the likelihoods of continuations.

Owns the kinds of scoring, and what a dataset's task expects of a generated answer. A new kind is a dataclass
registered under `scoring` with the members of `Scoring`. Must not know models, which dataset uses which kind,
nor how an answer is scored: that is a metric's work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from annotated_types import MinLen

from repro.core.bounds import Count, Text
from repro.core.errors import InputError
from repro.core.registry import register, unknown
from repro.data.builders import letter, split_last_word, without_markup
from repro.data.template import Row, as_text, at, fill, names, text_at, texts_at


@dataclass(frozen=True)
class Target:
    """The expected answer of one example.

    Attributes:
        reference: the dataset's reference answer; "" if there is none.
        continuations: (context, continuation) pairs of text; empty for generation.
        texts: the choice's text for each continuation; `acc_norm` divides by its length in bytes.
        answer: index of the correct continuation; None for generation.
    """

    reference: str
    continuations: tuple[tuple[str, str], ...] = ()
    texts: tuple[str, ...] = ()
    answer: int | None = None


class Scoring(Protocol):
    """The interface of all kinds of scoring."""

    scores_continuations: ClassVar[bool]

    def columns(self) -> set[str]:
        """The columns that it reads."""

    def target(self, row: Row, context: str) -> Target:
        """The expected answer of an example; `context` is the prompt's text."""


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
        prefix, function = (text_at(row, path) if path else "" for path in (self.before, self.function))
        return prefix, function, "\n".join(texts_at(row, self.tests))


@register("scoring", "generation")
@dataclass(frozen=True)
class GeneratedText:
    """Generated text, with the dataset's reference and the task's score.

    Attributes:
        reference: path of the reference (of a list, its first item is used); "" if there is none.
        score: how the task scores an answer; None if the dataset's file does not say.
    """

    reference: str = ""
    score: TaskScoring | None = None

    scores_continuations: ClassVar[bool] = False

    def columns(self) -> set[str]:
        """The columns of the reference and of the task's score."""
        columns = {self.reference.split(".")[0]} if self.reference else set()
        return columns | (self.score.columns() if self.score else set())

    def references(self, row: Row) -> tuple[str, ...]:
        """All references as text; an empty one if the example has none."""
        return (texts_at(row, self.reference) if self.reference else ()) or ("",)

    def target(self, row: Row, context: str) -> Target:
        """The first reference as text."""
        return Target(self.references(row)[0])

    def expected(self, row: Row) -> tuple[str, ...]:
        """What the task's metrics compare an answer with; see `TaskScoring.expected`."""
        references = self.references(row)
        return self.score.expected(row, references) if self.score else references


@register("scoring", "last_word")
@dataclass(frozen=True)
class LastWord:
    """LAMBADA: correct if the passage's last word is the greedy continuation, token by token."""

    passage: str = "text"

    scores_continuations: ClassVar[bool] = True

    def columns(self) -> set[str]:
        """The passage's column."""
        return {self.passage.split(".")[0]}

    def target(self, row: Row, context: str) -> Target:
        """The last word as the only continuation."""
        word = split_last_word(text_at(row, self.passage))[1]
        return Target(word, ((context, f" {word}"),), (word,), 0)


@register("scoring", "whole_text")
@dataclass(frozen=True)
class WholeText:
    """The likelihood of a text after its first word; nothing is right or wrong."""

    passage: str = "text"

    scores_continuations: ClassVar[bool] = True

    def columns(self) -> set[str]:
        """The passage's column."""
        return {self.passage.split(".")[0]}

    def target(self, row: Row, context: str) -> Target:
        """All after the first word as the only continuation."""
        text = text_at(row, self.passage).strip()
        first_word, _, later_words = text.partition(" ")
        if not later_words.strip():
            raise InputError(f"text {text!r} has fewer than two words, so nothing of it can be scored")
        return Target(later_words, ((first_word, f" {later_words}"),), (later_words,), 0)


AnswerIs = Literal["index", "number", "label", "text", "marks"]


@register("scoring", "choice")
@dataclass(frozen=True)
class Choice:
    """The likeliest of several continuations.

    Attributes:
        choices: paths of the choices; a list contributes all its items.
        answer: path of the answer.
        answer_is: format of the answer: `index` (from 0), `number` (from 1), `label` (one of `labels`),
            `text` (the choice itself) or `marks` (a list with a 1 at its index).
        labels: path of the list of labels, for `label`.
        continuation: a template over `{choice}` and `{letter}`.
        metric: as evaluation harnesses report: `acc`, or `acc_norm` (log-likelihood per byte of the choice).
        markup: remove HellaSwag's bracketed markup from the choices.
    """

    choices: Annotated[tuple[Text, ...], MinLen(1)]
    answer: Text
    answer_is: AnswerIs = "index"
    labels: str = ""
    continuation: str = " {choice}"
    metric: Literal["acc", "acc_norm"] = "acc"
    markup: bool = False

    scores_continuations: ClassVar[bool] = True

    def columns(self) -> set[str]:
        """The columns of the choices, the answer and the labels."""
        return {path.split(".")[0] for path in (*self.choices, self.answer, self.labels) if path}

    def target(self, row: Row, context: str) -> Target:
        """Every choice after the same context."""
        texts, answer = self.options(row)
        has_letters = "letter" in names(self.continuation)
        tails = [
            fill(self.continuation, {"choice": text, "letter": letter(i) if has_letters else ""})
            for i, text in enumerate(texts)
        ]
        return Target(tails[answer].strip(), tuple((context, tail) for tail in tails), texts, answer)

    def options(self, row: Row) -> tuple[tuple[str, ...], int]:
        """The choices' texts, and the index of the correct one.

        Raises:
            InputError: a choice is no text, or the answer is not one of them.
        """
        texts = [text for path in self.choices for text in texts_at(row, path)]
        value = at(row, self.answer)
        if value is None:
            raise InputError(
                f"a row's {self.answer!r} is null, where its answer is needed; leave its row out"
            )
        labels = at(row, self.labels) if self.labels else texts
        if not isinstance(labels, (list, tuple)):
            raise InputError(f"a row's {self.labels!r} is {labels!r}; it must be a list of labels")
        try:
            answer = _ANSWERS[self.answer_is](value, labels)
        except ValueError:
            raise InputError(f"answer {value!r} ({self.answer_is}) is none of {list(labels)}") from None
        if not 0 <= answer < len(texts):
            raise InputError(f"answer {value!r} ({self.answer_is}) is none of the {len(texts)} choices")
        return tuple(map(without_markup, texts) if self.markup else texts), answer


def _whole(value: Any) -> int:
    """A whole number, be it written as text or as a fraction (2, "2", 2.0); ValueError for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]+\s*", value):
        return int(value)
    if type(value) is int or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError(value)


def _place(value: Any, labels: Sequence[Any]) -> int:
    """The first place of a value, where true is no 1; ValueError if it has none."""
    return [(item, isinstance(item, bool)) for item in labels].index((value, isinstance(value, bool)))


def _index_of_mark(marks: Any, choices: Sequence[Any]) -> int:
    """The place of the only 1; ValueError unless there is one mark for each choice."""
    if not isinstance(marks, (list, tuple)) or len(marks) != len(choices) or marks.count(1) != 1:
        raise ValueError(marks)
    return marks.index(1)


_ANSWERS: Mapping[str, Callable[[Any, Sequence[Any]], int]] = {
    "index": lambda value, among: _whole(value),
    "number": lambda value, among: _whole(value) - 1,
    "label": _place,
    "text": lambda value, among: _place(as_text(value, "answer"), among),
    "marks": _index_of_mark,
}


@register("scoring", "filled_blank")
@dataclass(frozen=True)
class FilledBlank(Choice):
    """WinoGrande: fill the blank with each choice, and score the rest of the sentence after it.

    All choices share the continuation; their contexts differ.
    """

    sentence: str = "sentence"

    def columns(self) -> set[str]:
        """As `Choice`, and the sentence's column."""
        return super().columns() | {self.sentence.split(".")[0]}

    def target(self, row: Row, context: str) -> Target:
        """The same continuation after one context per choice."""
        texts, answer = self.options(row)
        tail = " " + text_at(row, self.sentence).partition("_")[2].strip()
        # The context ends with the text before the blank, which may be empty.
        space = "" if not context or context[-1].isspace() else " "
        pairs = tuple((f"{context}{space}{text}", tail) for text in texts)
        return Target(texts[answer], pairs, (tail.strip(),) * len(texts), answer)


@register("scoring", "named")
@dataclass(frozen=True)
class Named(Choice):
    """A choice among names that are the same for every example.

    Attributes:
        choices: the names themselves, not paths to them.
        answer: path of the correct name, spelled as in `choices`.
        best: an answer is correct if its name is among this many likeliest ones (top-k).
    """

    answer_is: AnswerIs = "text"
    best: Count = 1

    def __post_init__(self) -> None:
        """InputError if all of the names would count."""
        if self.best >= len(self.choices):
            raise InputError(
                f"best is {self.best}; of {len(self.choices)} names 1 to {len(self.choices) - 1} may count"
            )

    def columns(self) -> set[str]:
        """The answer's column."""
        return {self.answer.split(".")[0]}

    def target(self, row: Row, context: str) -> Target:
        """Every name after the same context; `continuation` can use only `{choice}`."""
        names, answer = self.options(row)
        tails = [fill(self.continuation, {"choice": name}) for name in names]
        return Target(tails[answer].strip(), tuple((context, tail) for tail in tails), names, answer)

    def options(self, row: Row) -> tuple[tuple[str, ...], int]:
        """The names, and the index of the correct one.

        Raises:
            InputError: the answer is not one of them.
        """
        answer = text_at(row, self.answer)
        if answer not in self.choices:
            raise InputError(unknown("name among the choices", answer, self.choices))
        return self.choices, self.choices.index(answer)
