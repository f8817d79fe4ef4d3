"""Token trees and masks that an experiment draws: the `trees:` or `masks:` section of its table.

Owns the schema and what is drawn of each form. Must not know how trees are searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from repro.core.errors import InputError
from repro.core.typed import typed

Path = tuple[int, ...]
"""A tree node as the ranks on the path to it; the root is ()."""

Mask = tuple[tuple[bool, ...], ...]
"""Attention mask, `[query][key]` over the verified tokens."""


@dataclass(frozen=True)
class LookaheadSpec:
    """A lookahead decoding step: `window` columns of `ngram` - 1 levels, `guesses` n-grams to verify."""

    window: int
    ngram: int
    guesses: int


@dataclass(frozen=True)
class DiagramSpec:
    """One form, given in one of these ways: as text, branching, a search, or lookahead's pattern.

    Attributes:
        name: its display name.
        tree: paths of ranks, "0;1;0.0".
        expansion: children of every node of a level, level by level, as SpecInfer branches.
        match: two published acceptance lengths (`heads_fit`) whose heads grow a tree of `width`.
        checkpoint: heads (`conf/model/checkpoint`) whose recorded ranks grow and refine a tree.
        width: of a searched tree, the root included.
        heads: number of heads that a searched tree may use, counted from the first; 0 for all.
        lookahead: lookahead decoding's pattern, which is not a tree.
        rootless: the root is left out of the mask.
    """

    name: str
    tree: str = ""
    expansion: tuple[int, ...] = ()
    match: tuple[str, ...] = ()
    checkpoint: str = ""
    width: int = 0
    heads: int = 0
    lookahead: LookaheadSpec | None = None
    rootless: bool = False

    def __post_init__(self) -> None:
        choices = [bool(x) for x in (self.tree, self.expansion, self.match, self.checkpoint, self.lookahead)]
        if sum(choices) != 1:
            raise InputError(
                f"form {self.name!r} needs one of tree, expansion, match, checkpoint and lookahead"
            )
        if self.is_searched != bool(self.width):
            raise InputError(
                f"form {self.name!r}: `width` goes with `match` and `checkpoint`, and they with it"
            )

    @property
    def is_searched(self) -> bool:
        """Whether the tree comes from a search."""
        return bool(self.match or self.checkpoint)


@dataclass(frozen=True)
class DiagramsSpec:
    """The `table:` section of an experiment of forms, `trees` or `masks`; `picture` is the figure's title."""

    experiment: str
    title: str
    paper: str
    picture: str
    trees: tuple[DiagramSpec, ...] = ()
    masks: tuple[DiagramSpec, ...] = ()
    footnotes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.trees) == bool(self.masks):
            raise InputError(f"table {self.experiment!r} needs either trees or masks")
        for form in self.trees:
            if not form.is_searched:
                raise InputError(
                    f"form {form.name!r}: trees come from match or checkpoint; masks draw others"
                )

    @classmethod
    def parse(cls, experiment: str, section: Mapping[str, Any]) -> DiagramsSpec:
        """Parse a section of plain dictionaries and lists; InputError if it is invalid."""
        return typed(cls, {"experiment": experiment, **section}, f"table {experiment!r}")


@dataclass(frozen=True)
class VerificationDiagram:
    """A tree as it is drawn.

    Attributes:
        name: its display name.
        paths: its nodes without the root, parents before children.
        estimated: nodes of the tree before refinement; equal to `paths` if nothing was refined.
        accuracies: `[head][rank]` of the heads that were searched; empty for a tree that was not searched.
        expected: estimated acceptance length of the estimated tree and of this one.
        measured: acceptance length of both along recorded answers; None without such answers.
        fitted: whether published values were fitted.
    """

    name: str
    paths: tuple[Path, ...]
    estimated: tuple[Path, ...] = ()
    accuracies: tuple[tuple[float, ...], ...] = ()
    expected: tuple[float, float] = (0.0, 0.0)
    measured: tuple[float, float] | None = None
    fitted: bool = False

    def value(self, path: Path) -> float:
        """Estimated acceptance probability of a node: the product of the accuracies on its path."""
        product = 1.0
        for head, rank in enumerate(path):
            product *= self.accuracies[head][rank]
        return product


def tree_mask(paths: Sequence[Path], rootless: bool = False) -> Mask:
    """Attention mask of a tree: nodes attend to their ancestors and themselves, the root first.

    With `rootless` the root is left out.
    """
    nodes = [*([] if rootless else [()]), *paths]
    return tuple(tuple(row[: len(node)] == node for node in nodes) for row in nodes)


def lookahead_mask(spec: LookaheadSpec) -> Mask:
    """Attention mask of lookahead decoding (Fu et al., ICML 2024).

    Tokens of the window's first level attend causally within it; its first token is the last emitted one.
    Tokens of later levels attend to the first level up to their column and to their own column. A token of an
    n-gram under verification attends to the last emitted token and to its own n-gram so far.
    """
    levels = spec.ngram - 1
    window = [("window", level, column) for level in range(levels) for column in range(spec.window)]
    guesses = [("guess", position, number) for number in range(spec.guesses) for position in range(levels)]

    def looks(at: tuple[str, int, int], to: tuple[str, int, int]) -> bool:
        if to == ("window", 0, 0):
            return True
        if at[0] != to[0]:
            return False
        if at[0] == "window" and to[1] == 0:
            return to[2] <= at[2]
        return at[2] == to[2] and to[1] <= at[1]

    tokens = [*window, *guesses]
    return tuple(tuple(looks(query, key) for key in tokens) for query in tokens)


def branching(expansion: Sequence[int]) -> tuple[Path, ...]:
    """Nodes of a tree whose nodes have `expansion[level]` children."""

    def deeper(level: list[Path], children: int) -> list[Path]:
        return [(*path, rank) for path in level for rank in range(children)]

    root: list[Path] = [()]
    levels = list(accumulate(expansion, deeper, initial=root))
    return tuple(path for level in levels[1:] for path in level)
