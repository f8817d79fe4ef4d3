"""Prompt builders: turn an example into prompt text with a template, and extra values for some datasets.

Owns the prompt builders. A new one subclasses `TemplateText` and is registered under `prompt`; its fields are
its configuration. Must not know tokenizers, sources, or which dataset uses which builder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from repro.core.bounds import Text
from repro.core.errors import InputError
from repro.core.registry import register
from repro.data.template import Row, at, fill, paths, text_at, texts_at

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@register("prompt", "text")
@dataclass(frozen=True)
class TemplateText:
    """A template over an example's columns.

    Attributes:
        template: the prompt, with `{column}` or `{path.into.a.column}`.
        preamble: a template for text at the start of the prompt, before any few-shot examples.
    """

    template: Text
    preamble: str = ""

    adds: ClassVar[tuple[str, ...]] = ()
    """Names that `extra` adds for the templates, beside the columns."""

    def extra(self, row: Row) -> Mapping[str, str]:
        """Extra values for the templates, beside the example's columns."""
        return {}

    def templates(self) -> tuple[str, ...]:
        """All templates of this builder, for checking the names they use."""
        return (self.template, self.preamble)

    def text(self, row: Row) -> str:
        """The question without its answer, stripped, since empty columns leave whitespace at the ends."""
        return fill(self.template, row, self.extra(row)).strip()

    def is_empty(self, row: Row) -> bool:
        """Whether all values that the template inserts are blank, so that nothing is asked."""
        values, inserted_paths = {**row, **self.extra(row)}, paths(self.template)
        return bool(inserted_paths) and not any(str(at(values, path)).strip() for path in inserted_paths)

    def opening(self, row: Row) -> str:
        """The text before the few-shot examples and the question."""
        return fill(self.preamble, row, self.extra(row))


@register("prompt", "lettered")
@dataclass(frozen=True)
class Lettered(TemplateText):
    """A question with `{options}`: lettered choices, one per line.

    Attributes:
        options: path of the list of choices.
        topic: path of a name with underscores, which templates get as `{topic}` with spaces.
    """

    options: str = "choices"
    topic: str = ""

    adds: ClassVar[tuple[str, ...]] = ("options", "topic")

    def extra(self, row: Row) -> Mapping[str, str]:
        """The lettered options and the topic."""
        lines = [f"{letter(i)}. {option}" for i, option in enumerate(texts_at(row, self.options))]
        topic = text_at(row, self.topic).replace("_", " ") if self.topic else ""
        return {"options": "\n".join(lines), "topic": topic}


@register("prompt", "activity")
@dataclass(frozen=True)
class Activity(TemplateText):
    """HellaSwag: `{activity}` and `{scene}` (`ctx_a` and capitalized `ctx_b`), without markup."""

    adds: ClassVar[tuple[str, ...]] = ("activity", "scene")

    def extra(self, row: Row) -> Mapping[str, str]:
        """The activity's name and the scene to continue."""
        activity, opening, ending = (text_at(row, name) for name in ("activity_label", "ctx_a", "ctx_b"))
        scene = f"{opening} {ending.capitalize()}"
        return {"activity": without_markup(activity), "scene": without_markup(scene)}


@register("prompt", "before_last_word")
@dataclass(frozen=True)
class BeforeLastWord(TemplateText):
    """LAMBADA: `{opening}`, the passage up to its last word."""

    passage: str = "text"

    adds: ClassVar[tuple[str, ...]] = ("opening",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The passage without its last word."""
        return {"opening": split_last_word(text_at(row, self.passage))[0]}


@register("prompt", "before_blank")
@dataclass(frozen=True)
class BeforeBlank(TemplateText):
    """WinoGrande: `{opening}`, the sentence up to its blank."""

    sentence: str = "sentence"

    adds: ClassVar[tuple[str, ...]] = ("opening",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The sentence before the blank."""
        return {"opening": text_at(row, self.sentence).partition("_")[0].rstrip()}


@register("prompt", "functions")
@dataclass(frozen=True)
class Functions(TemplateText):
    """A choice among callable functions: `{functions}` lists each signature with its description.

    Attributes:
        functions: descriptions by function signature.
    """

    functions: dict[str, str] = field(default_factory=dict)

    adds: ClassVar[tuple[str, ...]] = ("functions",)

    def extra(self, row: Row) -> Mapping[str, str]:
        """The list of functions."""
        return {"functions": "\n".join(f"- {name}: {purpose}" for name, purpose in self.functions.items())}


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


def letter(index: int) -> str:
    """The letter of a choice, from 0; InputError beyond Z."""
    if index >= len(LETTERS):
        raise InputError(f"a row has more than {len(LETTERS)} choices, and there are no letters after Z")
    return LETTERS[index]


def split_last_word(passage: str) -> tuple[str, str]:
    """The passage without its last word, and that word."""
    opening, _, word = passage.rstrip().rpartition(" ")
    return opening.rstrip(), word


def without_markup(text: str) -> str:
    """Remove WikiHow's bracketed markup from a HellaSwag text; ` [title]` becomes `. `."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ").strip()
