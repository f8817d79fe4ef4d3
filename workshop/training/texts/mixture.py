"""Owns the prompts of an EAGLE-3 head: a mix of code, tasks, math problems and questions; no models.

Dataset rows use the same templates as in experiments. Few rows are outside the evaluated ones, so two kinds
are augmented: math problems (`sums`) by other numbers, and MBPP-like tasks by the docstrings of installed
packages, whose first example becomes the test.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from repro.core.errors import InputError
from repro.data.config import builder_of, read_config
from repro.data.rows import load_rows
from workshop.training.texts.prompts import SAMPLING_TEMPERATURE, Item

SMALLEST_CHANGED = 3  # smaller numbers are often part of the wording, such as "one of two"
NUMBER = re.compile(r"(?<![\d.,/])\d+(?![\d/]|[.,]\d)")
EXAMPLE = re.compile(r">>> (\w[\w.]*\(.*\))\n\s*([^\s<>.].*)")


@dataclass(frozen=True)
class Share:
    """Rows `start..stop-1` of a dataset: each is used once greedily, and `more` times sampled or changed."""

    name: str
    start: int
    stop: int
    more: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read `dataset:start:stop` or `dataset:start:stop:more`."""
        name, *bounds = text.split(":")
        if len(bounds) not in (2, 3) or not all(bound.isdigit() for bound in bounds):
            raise InputError(f"rows {text!r}: write dataset:start:stop or dataset:start:stop:more")
        start, stop, more = (int(bound) for bound in [*bounds, "0"][:3])
        return cls(name, start, stop, more)

    def texts(self) -> list[str]:
        """The prompts of the rows in the dataset's own template."""
        config = read_config(self.name)
        builder = builder_of(config)
        texts = [builder.text(row) for row in load_rows(config, self.stop).rows[self.start :]]
        if not texts:
            raise InputError(f"dataset {self.name!r}: no rows in {self.start}:{self.stop}")
        return texts


def rows(share: Share) -> list[Item]:
    """Each row once with greedy decoding, and `more` times sampled."""
    heats = (0.0, *[SAMPLING_TEMPERATURE] * share.more)
    return [Item("chat", share.name, text, heat) for text in share.texts() for heat in heats]


def sums(share: Share, chance: random.Random) -> list[Item]:
    """Each row as it is, and `more` times with other numbers; all decoded greedily."""
    texts = share.texts()
    changed = [other_numbers(text, chance) for text in texts * share.more]
    return [Item("chat", share.name, text, 0.0) for text in [*texts, *changed]]


def other_numbers(text: str, chance: random.Random) -> str:
    """The text with whole numbers of 3 and above replaced by similar ones, equal numbers by equal ones."""
    chosen: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        number = match.group()
        value, step = int(number), 10 if number.endswith("0") else 1
        if value < SMALLEST_CHANGED:
            return number
        drawn = step * chance.randint(max(1, value // (2 * step)), 2 * value // step)
        return chosen.setdefault(number, str(max(2, drawn)))

    return NUMBER.sub(other, text)


def task(package: str, stub: str) -> Item | None:
    """An MBPP-like task from a stub whose docstring has a one-line example that calls the function."""
    head, _, doc = stub.partition('"""')
    name = head.rpartition("def ")[2].partition("(")[0]
    found = EXAMPLE.search(doc)
    if found is None or not found.group(1).startswith(f"{name}("):
        return None
    words = " ".join(doc.partition(">>>")[0].split())
    row = {
        "text": f"Write a python function to {words[:1].lower()}{words[1:]}",
        "test_list": [f"assert {found.group(1)} == {found.group(2).strip()}"],
    }
    return Item("chat", package, builder_of(read_config("mbpp")).text(row), 0.0)


def mixture(
    functions: list[tuple[str, str]],
    shares: list[Share],
    sum_shares: list[Share],
    *,
    tasks: int,
    stubs: int,
    seed: int,
    others: Sequence[Item] = (),
) -> list[Item]:
    """All prompts, `others` included, in one seeded random order.

    Of `functions` (see `prompts.harvest`) up to `tasks` become tasks and up to `stubs` become stubs; those
    with examples, as in HumanEval's prompts, go first. No function is used in both forms.
    """
    chance = random.Random(seed)
    asked = [item for share in shares for item in rows(share)]
    asked += [item for share in sum_shares for item in sums(share, chance)]
    left = list(functions)
    chance.shuffle(left)
    left.sort(key=lambda one: ">>>" not in one[1])
    made: list[Item] = []
    code: list[Item] = []
    for package, stub in left:
        if len(made) < tasks and (item := task(package, stub)):
            made.append(item)
        elif len(code) < stubs:
            code.append(Item("code", package, stub, 0.0))
    mixed = [*asked, *made, *code, *others]
    chance.shuffle(mixed)
    return mixed
