"""Tasks whose answer is one of a fixed list of names: the prompt builder and the scoring.

Owns that builder and that scoring. Must not know the names, nor models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.errors import InputError
from repro.core.registry import register, unknown
from repro.data.builders import TemplateText
from repro.data.scoring import Choice, Target
from repro.data.template import Row, fill, text_at


@register("prompt", "listed")
@dataclass(frozen=True)
class Listed(TemplateText):
    """A template with `{items}`: a list that is the same for every example, one item per line.

    Attributes:
        items: the list.
    """

    items: tuple[str, ...] = ()

    adds: ClassVar[tuple[str, ...]] = ("items",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The list."""
        return {"items": "\n".join(self.items)}


@register("scoring", "named")
@dataclass(frozen=True)
class Named(Choice):
    """A choice among names that are the same for every example.

    Attributes:
        choices: the names themselves, not paths to them.
        answer: path of the correct name, spelled as in `choices`.
        best: an answer is correct if its name is among this many likeliest ones (top-k).
    """

    answer_is: str = "text"
    best: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.best < len(self.choices):
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
