"""How a row becomes the text of a prompt: a template, and for some datasets a few values that it can name.

Owns the prompt builders. A new one subclasses `TemplateText` and is registered under `prompt`; its fields are
its configuration. Must not know tokenizers, sources, or which dataset uses which builder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from repro.core.registry import register
from repro.data.template import Row, at, fill

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@register("prompt", "text")
@dataclass(frozen=True)
class TemplateText:
    """A template over the row's columns.

    Attributes:
        template: the prompt, with `{column}` or `{path.into.a.column}`.
        preamble: a template that comes once, before the worked examples if there are any.
    """

    template: str
    preamble: str = ""

    adds: ClassVar[tuple[str, ...]] = ()
    """Names that `extra` makes for the templates, beside the row's columns."""

    def extra(self, row: Row) -> Mapping[str, str]:
        """Values that the templates can name beside the row's own."""
        return {}

    def templates(self) -> tuple[str, ...]:
        """Every template of this builder, for checking their names."""
        return (self.template, self.preamble)

    def text(self, row: Row) -> str:
        """The row's question, without its answer; blanks at its ends are cut, as empty columns leave them."""
        return fill(self.template, row, self.extra(row)).strip()

    def opening(self, row: Row) -> str:
        """What precedes the worked examples and the question."""
        return fill(self.preamble, row, self.extra(row))


@register("prompt", "lettered")
@dataclass(frozen=True)
class Lettered(TemplateText):
    """A question whose `{options}` stand one a line after a letter.

    Attributes:
        options: path of the list of choices.
        topic: path of a name with underscores, given to the templates as `{topic}` in plain words.
    """

    options: str = "choices"
    topic: str = ""

    adds: ClassVar[tuple[str, ...]] = ("options", "topic")

    def extra(self, row: Row) -> Mapping[str, str]:
        """The lettered options and the topic."""
        lines = [f"{LETTERS[i]}. {option}" for i, option in enumerate(at(row, self.options))]
        topic = str(at(row, self.topic)).replace("_", " ") if self.topic else ""
        return {"options": "\n".join(lines), "topic": topic}


@register("prompt", "activity")
@dataclass(frozen=True)
class Activity(TemplateText):
    """HellaSwag: `{activity}` and `{scene}`, the scene's second sentence begun and its markup dropped."""

    adds: ClassVar[tuple[str, ...]] = ("activity", "scene")

    def extra(self, row: Row) -> Mapping[str, str]:
        """The activity's name and the scene to be continued."""
        scene = f"{row['ctx_a']} {str(row['ctx_b']).capitalize()}"
        return {"activity": without_markup(str(row["activity_label"])), "scene": without_markup(scene)}


@register("prompt", "before_last_word")
@dataclass(frozen=True)
class BeforeLastWord(TemplateText):
    """LAMBADA: `{opening}`, the passage up to its last word."""

    passage: str = "text"

    adds: ClassVar[tuple[str, ...]] = ("opening",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The passage without its last word."""
        return {"opening": split_last_word(str(at(row, self.passage)))[0]}


@register("prompt", "before_blank")
@dataclass(frozen=True)
class BeforeBlank(TemplateText):
    """WinoGrande: `{opening}`, the sentence up to its blank."""

    sentence: str = "sentence"

    adds: ClassVar[tuple[str, ...]] = ("opening",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The sentence before the blank."""
        return {"opening": str(at(row, self.sentence)).partition("_")[0].rstrip()}


@register("prompt", "functions")
@dataclass(frozen=True)
class Functions(TemplateText):
    """A choice among callable functions: `{functions}` lists each signature with what it does.

    Attributes:
        functions: what each function does, by its signature.
    """

    functions: dict[str, str] = field(default_factory=dict)

    adds: ClassVar[tuple[str, ...]] = ("functions",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The list of functions."""
        return {"functions": "\n".join(f"- {name}: {does}" for name, does in self.functions.items())}


def split_last_word(passage: str) -> tuple[str, str]:
    """The passage without its last word, and that word."""
    opening, _, word = passage.rstrip().rpartition(" ")
    return opening.rstrip(), word


def without_markup(text: str) -> str:
    """A HellaSwag text without WikiHow's bracketed marks; a title mark ends a sentence."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ").strip()
