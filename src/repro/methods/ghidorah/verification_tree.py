"""Which combinations of heads' guesses are verified: trees of ranks, and their search (Ghidorah III-C).

Owns trees, their estimated and their measured acceptance. Must not know sessions, devices or passes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from repro.core.errors import InputError
from repro.models.drafting.head_ranks import TOP, Calibration, HeadRanks

Path = tuple[int, ...]
"""A node by the ranks that lead to it: the first in head 0's row, the second in head 1's."""

Accuracies = Sequence[Sequence[float]]
"""`[head][rank]`: how often that rank of that head is the target's own token."""


@dataclass(frozen=True)
class VerificationTree:
    """Guesses that are verified together. The root, the last emitted token, is in every tree and is no path.

    Attributes:
        paths: the other nodes, parents before children.
    """

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        seen: set[Path] = {()}
        for path in self.paths:
            if path in seen or path[:-1] not in seen or min(path) < 0:
                raise InputError(
                    f"verification tree {self}: node {_said(path)!r} is there before, or its parent "
                    "is not, or it has a rank below 0; give each node once and after its parent"
                )
            seen.add(path)

    @property
    def width(self) -> int:
        """Tokens that are verified, the root among them, as Table I's width of 1 has it."""
        return 1 + len(self.paths)

    @property
    def height(self) -> int:
        """Heads that it takes."""
        return max(map(len, self.paths), default=0)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """For each node, the root first, the place of its parent; -1 for the root."""
        place = {(): 0} | {path: i for i, path in enumerate(self.paths, 1)}
        return (-1, *(place[path[:-1]] for path in self.paths))

    def leaves(self) -> Iterator[Path]:
        """Nodes without children, in the order of `paths`."""
        inner = {path[:-1] for path in self.paths}
        return (path for path in self.paths if path not in inner)

    def __str__(self) -> str:
        return ";".join(map(_said, self.paths))

    @classmethod
    def parse(cls, text: str) -> VerificationTree:
        """A tree from its text, "0;1;0.0": nodes joined by ";", their ranks by "."; "" is the root alone.

        Raises:
            InputError: it is none.
        """
        try:
            paths = [tuple(int(rank) for rank in path.split(".")) for path in text.split(";") if text]
        except ValueError:
            raise InputError(
                f"verification tree {text!r}: nodes are ranks joined by '.', as in '0;1;0.0'"
            ) from None
        return cls(tuple(paths))

    @classmethod
    def of(cls, paths: Sequence[Path]) -> VerificationTree:
        """The tree of these nodes in the usual order: by level, within it by ranks."""
        return cls(tuple(sorted(paths, key=lambda path: (len(path), path))))


def _said(path: Path) -> str:
    return ".".join(map(str, path))


# The estimate


def value(path: Path, accuracies: Accuracies) -> float:
    """How often a node is accepted, if the heads are right independently of each other."""
    product = 1.0
    for head, rank in enumerate(path):
        product *= accuracies[head][rank]
    return product


def expected_acceptance(tree: VerificationTree, accuracies: Accuracies) -> float:
    """Tokens a verification by the estimate, the target's own among them: 1 and all nodes' values."""
    return 1.0 + sum(value(path, accuracies) for path in tree.paths)


def grown(accuracies: Accuracies, width: int) -> VerificationTree:
    """The estimated tree (Ghidorah III-C): from the root on, always the most accurate node within reach.

    Within reach are a node's first child and its next sibling. Where no rank is more accurate than the one
    before it, no tree of the width has a larger estimate: a node is worth no more than what leads to it.

    Raises:
        InputError: the heads have fewer nodes than the width asks for.
    """
    _require_width(width)
    reach: list[tuple[float, int, Path]] = [(-accuracies[0][0], 1, (0,))]
    paths: list[Path] = []
    while len(paths) < width - 1:
        if not reach:
            raise InputError(
                f"a width of {width} is beyond {len(accuracies)} heads of {len(accuracies[0])} ranks, "
                f"which make {len(paths) + 1} nodes with the root"
            )
        _, _, path = heapq.heappop(reach)
        paths.append(path)
        sibling, child = (*path[:-1], path[-1] + 1), (*path, 0)
        for node in (sibling, child):
            if len(node) <= len(accuracies) and node[-1] < len(accuracies[len(node) - 1]):
                heapq.heappush(reach, (-value(node, accuracies), len(node), node))
    return VerificationTree.of(paths)


def best(accuracies: Accuracies, width: int) -> VerificationTree:
    """The tree of a width with the largest estimate, by looking at every one: for small widths only."""
    _require_width(width)
    trees = (
        VerificationTree.of(paths)
        for paths in _all_trees((), _children((), accuracies), accuracies, width - 1)
    )
    found = max(trees, key=lambda tree: expected_acceptance(tree, accuracies), default=None)
    if found is None:
        raise InputError(
            f"a width of {width} is beyond {len(accuracies)} heads of {len(accuracies[0])} ranks"
        )
    return found


def _all_trees(
    chosen: tuple[Path, ...], within: Sequence[Path], accuracies: Accuracies, left: int
) -> Iterator[tuple[Path, ...]]:
    """Every tree that has `left` nodes more than `chosen`, each once: nodes passed over stay out."""
    if not left:
        yield chosen
        return
    for i, path in enumerate(within):
        later = [*within[i + 1 :], *_children(path, accuracies)]
        yield from _all_trees((*chosen, path), later, accuracies, left - 1)


def _children(path: Path, accuracies: Accuracies) -> list[Path]:
    if len(path) == len(accuracies):
        return []
    return [(*path, rank) for rank in range(len(accuracies[len(path)]))]


def _require_width(width: int) -> None:
    if width < 1:
        raise InputError(f"a verification's width is {width}; it must be at least 1, which is the root alone")


# What really happens


def measured_acceptance(tree: VerificationTree, ranks: HeadRanks) -> float:
    """Tokens a verification, had this tree been verified along the recorded answers.

    Exactly what greedy decoding gives: at a root the longest path whose ranks are the recorded ones is
    accepted, the target's own token follows it and is the next root, and an answer's end cuts. An answer's
    first token, which the prefill gives, belongs to no verification.
    """
    from repro.methods.ghidorah.tree_replay import Replay  # late, with numba

    return ranks.positions / Replay(ranks).rounds(tree.paths)


def refined(
    tree: VerificationTree, ranks: HeadRanks, told: Callable[[int], None] = lambda exchanges: None
) -> VerificationTree:
    """The brute-force search around a tree: exchanges of a node while they save verifications.

    An exchange takes a leaf off and puts a node at any free place among the first `TOP` ranks below what is
    left: on the leaf's own level, under another parent or at another rank, or on another level. All exchanges
    are tried and the one is made that saves the most verifications of the recorded answers (of equals the
    first: leaves in the tree's order, places by level and ranks), until none saves any. As each saves at
    least one, it ends.

    Args:
        tree: where to begin.
        ranks: the recorded answers.
        told: hears how many exchanges were made.
    """
    from repro.methods.ghidorah.tree_replay import Replay

    replay, paths, exchanges = Replay(ranks), tree.paths, 0
    while True:
        told(exchanges)
        found = replay.exchange(paths, TOP)
        if found is None:
            return VerificationTree.of(paths)
        leaf, place = found
        paths = VerificationTree.of([*(path for path in paths if path != leaf), place]).paths
        exchanges += 1


def searched(
    calibration: Calibration, width: int, told: Callable[[int], None] = lambda exchanges: None
) -> VerificationTree:
    """The tree for a width (Ghidorah III-C): the estimated one, refined where answers are recorded."""
    tree = grown(calibration.accuracies, width)
    return tree if calibration.ranks is None else refined(tree, calibration.ranks, told)
