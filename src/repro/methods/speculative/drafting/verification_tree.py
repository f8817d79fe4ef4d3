"""Verification trees of Medusa heads' ranks, and their search (Ghidorah III-C).

Owns trees, their estimated and measured acceptance length. Must not know sessions, devices or passes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from repro.core.errors import InputError
from repro.methods.speculative.drafting.head_ranks import TOP_RANKS, Calibration, HeadRanks

Path = tuple[int, ...]
"""A node as its path of ranks: first the rank in head 0's logits, then in head 1's, and so on."""

Accuracies = Sequence[Sequence[float]]
"""`[head][rank]`: frequency with which that rank of that head is the target's token."""


@dataclass(frozen=True)
class VerificationTree:
    """A tree of head ranks. The root, the last emitted token, is implicit.

    Attributes:
        paths: all other nodes, parents before children.
    """

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        nodes: set[Path] = {()}
        for path in self.paths:
            if path in nodes or path[:-1] not in nodes or min(path) < 0:
                raise InputError(
                    f"verification tree {self}: node {_text(path)!r} is there before, or its parent "
                    "is not, or it has a rank below 0; give each node once and after its parent"
                )
            nodes.add(path)

    @property
    def width(self) -> int:
        """Verification width, root included (Table I's width 1 is the root alone)."""
        return 1 + len(self.paths)

    @property
    def height(self) -> int:
        """Number of heads used."""
        return max(map(len, self.paths), default=0)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Index of each node's parent, the root first; -1 for the root."""
        index = {(): 0} | {path: i for i, path in enumerate(self.paths, 1)}
        return (-1, *(index[path[:-1]] for path in self.paths))

    def leaves(self) -> Iterator[Path]:
        """Nodes without children, in the order of `paths`."""
        parents = {path[:-1] for path in self.paths}
        return (path for path in self.paths if path not in parents)

    def __str__(self) -> str:
        return ";".join(map(_text, self.paths))

    @classmethod
    def parse(cls, text: str) -> VerificationTree:
        """Parse a tree such as "0;1;0.0": nodes joined by ";", ranks by "."; "" is the root alone.

        Raises:
            InputError: the text is not a valid tree.
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
        """The tree of these nodes, sorted by level and ranks."""
        return cls(tuple(sorted(paths, key=lambda path: (len(path), path))))


def _text(path: Path) -> str:
    return ".".join(map(str, path))


# The estimate


def value(path: Path, accuracies: Accuracies) -> float:
    """Estimated acceptance probability of a node, assuming independent heads."""
    product = 1.0
    for head, rank in enumerate(path):
        product *= accuracies[head][rank]
    return product


def expected_acceptance(tree: VerificationTree, accuracies: Accuracies) -> float:
    """Estimated acceptance length, the target's own token included: 1 plus the values of all nodes."""
    return 1.0 + sum(value(path, accuracies) for path in tree.paths)


def estimate_tree(accuracies: Accuracies, width: int) -> VerificationTree:
    """The estimated tree (Ghidorah III-C): greedily adds the reachable node of largest value.

    Reachable are the first child and the next sibling of each added node. The result is optimal if
    accuracies do not increase with rank, since a node's value never exceeds that of the nodes leading to it.

    Raises:
        InputError: the heads have fewer nodes than the width requires.
    """
    _require_width(width)
    frontier: list[tuple[float, int, Path]] = [(-accuracies[0][0], 1, (0,))]
    paths: list[Path] = []
    while len(paths) < width - 1:
        if not frontier:
            raise InputError(
                f"a width of {width} is beyond {len(accuracies)} heads of {len(accuracies[0])} ranks, "
                f"which make {len(paths) + 1} nodes with the root"
            )
        _, _, path = heapq.heappop(frontier)
        paths.append(path)
        sibling, child = (*path[:-1], path[-1] + 1), (*path, 0)
        for node in (sibling, child):
            if len(node) <= len(accuracies) and node[-1] < len(accuracies[len(node) - 1]):
                heapq.heappush(frontier, (-value(node, accuracies), len(node), node))
    return VerificationTree.of(paths)


def _require_width(width: int) -> None:
    if width < 1:
        raise InputError(f"a verification's width is {width}; it must be at least 1, which is the root alone")


# The measurement


def measured_acceptance(tree: VerificationTree, ranks: HeadRanks) -> float:
    """Acceptance length of this tree on the recorded answers.

    Equals greedy decoding: the longest path of recorded ranks is accepted, the target's next token becomes
    the root, and the end of an answer truncates. The first token of an answer, from the prefill, is excluded.
    """
    from repro.methods.speculative.drafting.tree_replay import Replay  # late import, since it needs numba

    return ranks.positions / Replay(ranks).rounds(tree.paths)


def refine(
    tree: VerificationTree, ranks: HeadRanks, report: Callable[[int], None] = lambda exchanges: None
) -> VerificationTree:
    """Brute-force local search around a tree: exchange nodes while that saves verifications.

    An exchange removes a leaf and adds a node at any free place among the first `TOP_RANKS` of the remaining
    nodes. Each step tries all exchanges and makes the one that saves the most verifications of the recorded
    answers (ties go to the first: leaves in the tree's order, places by level and ranks), until none does.

    Args:
        tree: initial tree.
        ranks: the recorded answers.
        report: callback with the number of exchanges so far.
    """
    from repro.methods.speculative.drafting.tree_replay import Replay

    replay, paths, exchange_count = Replay(ranks), tree.paths, 0
    while True:
        report(exchange_count)
        exchange = replay.exchange(paths, TOP_RANKS)
        if exchange is None:
            return VerificationTree.of(paths)
        leaf, node = exchange
        paths = VerificationTree.of([*(path for path in paths if path != leaf), node]).paths
        exchange_count += 1


def search_tree(
    calibration: Calibration, width: int, report: Callable[[int], None] = lambda exchanges: None
) -> VerificationTree:
    """The tree for a width (Ghidorah III-C): the estimated one, refined if ranks are recorded."""
    tree = estimate_tree(calibration.accuracies, width)
    return tree if calibration.ranks is None else refine(tree, calibration.ranks, report)
