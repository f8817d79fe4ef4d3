"""What an answer is held against: a reference text, or continuations whose likelihoods are compared.

Owns the kinds of scoring. A new one is a dataclass registered under `scoring` with the members of `Scoring`.
Must not know models, nor which dataset uses which kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from repro.core.errors import InputError
from repro.core.registry import register, unknown
from repro.data.builders import LETTERS, split_last_word, without_markup
from repro.data.template import Row, at, fill


@dataclass(frozen=True)
class Target:
    """What one row's answer is held against.

    Attributes:
        reference: the dataset's own answer, "" where it has none.
        continuations: pairs of (what precedes, what is scored), both text; empty for generation.
        texts: the bare text of each continuation, whose bytes `acc_norm` divides by.
        answer: the right continuation's position; None for generation.
    """

    reference: str
    continuations: tuple[tuple[str, str], ...] = ()
    texts: tuple[str, ...] = ()
    answer: int | None = None


class Scoring(Protocol):
    """What every kind of scoring has."""

    scores_continuations: ClassVar[bool]

    def columns(self) -> set[str]:
        """The columns that it reads."""

    def target(self, row: Row, context: str) -> Target:
        """What the row's answer is held against, given the prompt's text."""


@register("scoring", "generation")
@dataclass(frozen=True)
class GeneratedText:
    """Free text, beside the dataset's reference.

    Attributes:
        reference: path of the reference; of a list its first item counts; "" where a dataset has none.
    """

    reference: str = ""

    scores_continuations: ClassVar[bool] = False

    def columns(self) -> set[str]:
        """The reference's column."""
        return {self.reference.split(".")[0]} if self.reference else set()

    def target(self, row: Row, context: str) -> Target:
        """The reference as text."""
        value = at(row, self.reference) if self.reference else ""
        if isinstance(value, (list, tuple)):
            value = value[0] if value else ""
        return Target(str(value))


@register("scoring", "last_word")
@dataclass(frozen=True)
class LastWord:
    """A passage's last word, right when it is the greedy continuation token by token (LAMBADA)."""

    passage: str = "text"

    scores_continuations: ClassVar[bool] = True

    def columns(self) -> set[str]:
        """The passage's column."""
        return {self.passage.split(".")[0]}

    def target(self, row: Row, context: str) -> Target:
        """The last word, as the one continuation."""
        word = split_last_word(str(at(row, self.passage)))[1]
        return Target(word, ((context, f" {word}"),), (word,), 0)


@register("scoring", "choice")
@dataclass(frozen=True)
class Choice:
    """The likeliest of several continuations.

    Attributes:
        choices: paths of the choices; a path that leads to a list stands for its items.
        answer: path of what names the right one.
        answer_is: how it does: `index` (from 0), `number` (from 1), `label` (its place in `labels`), `text`
            (the choice itself) or `marks` (a list with a 1 at its place).
        labels: path of the list of labels, for `label`.
        continuation: a template over `{choice}` and `{letter}`.
        metric: what the harnesses report: `acc`, or `acc_norm` (likelihood per byte of the choice).
        markup: the choices carry HellaSwag's bracketed marks, to be dropped.
    """

    choices: tuple[str, ...]
    answer: str
    answer_is: str = "index"
    labels: str = ""
    continuation: str = " {choice}"
    metric: str = "acc"
    markup: bool = False

    scores_continuations: ClassVar[bool] = True

    def columns(self) -> set[str]:
        """The columns of the choices, the answer and the labels."""
        return {path.split(".")[0] for path in (*self.choices, self.answer, self.labels) if path}

    def target(self, row: Row, context: str) -> Target:
        """Every choice after the same context."""
        texts, answer = self.options(row)
        tails = [fill(self.continuation, {"choice": t, "letter": LETTERS[i]}) for i, t in enumerate(texts)]
        return Target(tails[answer].strip(), tuple((context, tail) for tail in tails), texts, answer)

    def options(self, row: Row) -> tuple[tuple[str, ...], int]:
        """The choices' texts, and which is right.

        Raises:
            InputError: the answer is none of them, or `answer_is` is no known way to name it.
        """
        found: list[str] = []
        for path in self.choices:
            value = at(row, path)
            found += map(str, value) if isinstance(value, (list, tuple)) else [str(value)]
        texts = tuple(map(without_markup, found) if self.markup else found)
        if self.answer_is not in _ANSWERS:
            raise InputError(unknown("way to name an answer", self.answer_is, _ANSWERS))
        value = at(row, self.answer)
        among = list(at(row, self.labels)) if self.labels else found
        try:
            answer = _ANSWERS[self.answer_is](value, among)
        except ValueError:
            raise InputError(f"answer {value!r} ({self.answer_is}) is none of {among}") from None
        if not 0 <= answer < len(texts):
            raise InputError(f"answer {value!r} ({self.answer_is}) is none of the {len(texts)} choices")
        return texts, answer


_ANSWERS: Mapping[str, Callable[[Any, list[Any]], int]] = {
    "index": lambda value, among: int(value),
    "number": lambda value, among: int(value) - 1,
    "label": lambda value, among: among.index(value),
    "text": lambda value, among: among.index(value),
    "marks": lambda value, among: list(value).index(1),
}


@register("scoring", "filled_blank")
@dataclass(frozen=True)
class FilledBlank(Choice):
    """What follows a blank, after the blank is filled with each choice (WinoGrande): the same continuation in
    as many contexts as there are choices."""

    sentence: str = "sentence"

    def columns(self) -> set[str]:
        """As for choices, and the sentence."""
        return super().columns() | {self.sentence.split(".")[0]}

    def target(self, row: Row, context: str) -> Target:
        """One context a choice."""
        texts, answer = self.options(row)
        tail = " " + str(at(row, self.sentence)).partition("_")[2].strip()
        # The context ends with the sentence's opening, which is empty when the blank comes first.
        space = "" if not context or context[-1].isspace() else " "
        pairs = tuple((f"{context}{space}{text}", tail) for text in texts)
        return Target(texts[answer], pairs, (tail.strip(),) * len(texts), answer)
