"""Forms of verification that an experiment draws: the `trees:` or `masks:` section of its table.

Owns the schema and what is drawn of a form. Must not know how trees are searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from repro.core.errors import InputError
from repro.core.typed import typed

Path = tuple[int, ...]
"""A node of a tree by the ranks that lead to it; the root is ()."""

Mask = tuple[tuple[bool, ...], ...]
"""A line for each verified token: which of them its attention looks at."""


@dataclass(frozen=True)
class LookaheadSpec:
    """Lookahead decoding's step: `window` columns of `ngram` - 1 levels, and `guesses` n-grams to verify."""

    window: int
    ngram: int
    guesses: int


@dataclass(frozen=True)
class DiagramSpec:
    """One form, from one of these: its text, branching, a search, or Lookahead's pattern.

    Attributes:
        name: what it is called.
        tree: paths of ranks, "0;1;0.0".
        expansion: children of every node of a level, level by level, as SpecInfer branches.
        match: two published acceptance lengths (`repro.heads_fit`) whose heads grow a tree of `width`.
        checkpoint: heads (`conf/model/checkpoint`) with recorded ranks, which grow and refine one.
        width: of a searched tree, the root included.
        heads: that a searched tree may use, the first ones; 0 for all.
        lookahead: not a tree.
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
        given = [bool(x) for x in (self.tree, self.expansion, self.match, self.checkpoint, self.lookahead)]
        if sum(given) != 1:
            raise InputError(
                f"form {self.name!r} needs one of tree, expansion, match, checkpoint and lookahead"
            )
        if self.searched != bool(self.width):
            raise InputError(
                f"form {self.name!r}: `width` goes with `match` and `checkpoint`, and they with it"
            )

    @property
    def searched(self) -> bool:
        """Whether a search makes it."""
        return bool(self.match or self.checkpoint)


@dataclass(frozen=True)
class DiagramsSpec:
    """The `table:` section of an experiment of forms: `trees` or `masks` of them; `picture` is its title."""

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
            if not form.searched:
                raise InputError(
                    f"form {form.name!r}: trees come from match or checkpoint; masks draw others"
                )

    @classmethod
    def parse(cls, experiment: str, section: Mapping[str, Any]) -> DiagramsSpec:
        """The spec of a section given as plain dictionaries and lists; InputError if it is none."""
        return typed(cls, {"experiment": experiment, **section}, f"table {experiment!r}")


@dataclass(frozen=True)
class VerificationDiagram:
    """A tree as it is drawn.

    Attributes:
        name: what it is called.
        paths: its nodes without the root, parents before children.
        estimated: the nodes of the tree that growth alone gives; the same where nothing was refined.
        accuracies: `[head][rank]` of the heads that were searched; empty for a tree that was not.
        expected: tokens a verification by the estimate, of the estimated tree and of this one.
        measured: tokens a verification of both along recorded answers; None where none are.
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
        """How often a node is accepted by the estimate: the product of the accuracies that lead to it."""
        product = 1.0
        for head, rank in enumerate(path):
            product *= self.accuracies[head][rank]
        return product


def tree_mask(paths: Sequence[Path], rootless: bool = False) -> Mask:
    """Which tokens each node of a tree looks at: its ancestors and itself, the root first unless left out."""
    nodes = [*([] if rootless else [()]), *paths]
    return tuple(tuple(row[: len(seen)] == seen for seen in nodes) for row in nodes)


def lookahead_mask(spec: LookaheadSpec) -> Mask:
    """Lookahead decoding's pattern (Fu et al., ICML 2024).

    Of the window's first level each token looks at those before it, the first of them being the last emitted
    token; one of a later level looks at the first level up to its own column, and at its own column. A token
    of an n-gram under verification looks at the last emitted one and at its own n-gram so far.
    """
    levels = spec.ngram - 1
    window = [("window", level, column) for level in range(levels) for column in range(spec.window)]
    guesses = [("guess", place, number) for number in range(spec.guesses) for place in range(levels)]

    def looks(at: tuple[str, int, int], to: tuple[str, int, int]) -> bool:
        if to == ("window", 0, 0):
            return True
        if at[0] != to[0]:
            return False
        if at[0] == "window" and to[1] == 0:
            return to[2] <= at[2]
        return at[2] == to[2] and to[1] <= at[1]

    tokens = [*window, *guesses]
    return tuple(tuple(looks(at, to) for to in tokens) for at in tokens)


def branching(expansion: Sequence[int]) -> tuple[Path, ...]:
    """The nodes of a tree in which every node of a level has so many children."""

    def deeper(level: list[Path], children: int) -> list[Path]:
        return [(*path, rank) for path in level for rank in range(children)]

    root: list[Path] = [()]
    levels = list(accumulate(expansion, deeper, initial=root))
    return tuple(path for level in levels[1:] for path in level)
