"""Replays greedy decoding along recorded head ranks (Numba): number of verifications with a tree of ranks.

Owns the replay and the search over exchanges of one node. Must not know how trees are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from repro.methods.speculative.drafting.head_ranks import HeadRanks

Node = tuple[int, ...]
"""A tree node as its path of ranks; the root is ()."""

Integers = NDArray[np.int64]
Loop = TypeVar("Loop", bound=Callable[..., Any])


def compile_loop(loop: Loop) -> Loop:
    """The function, compiled by Numba at its first call."""
    return cast(Loop, njit(nogil=True)(loop))


class Replay:
    """Replays recorded answers with different trees."""

    def __init__(self, ranks: HeadRanks) -> None:
        self._ranks = np.ascontiguousarray(ranks.ranks.numpy().astype(np.int64))
        self._begins = np.array(ranks.begins, dtype=np.int64)
        self._ends = ranks.ends.numpy()

    def rounds(self, paths: Sequence[Node]) -> int:
        """Number of verifications over all answers with this tree."""
        depths, _ = self._accept(paths)
        return int(_rounds(depths, self._begins, self._ends))

    def exchange(self, paths: Sequence[Node], ranks: int) -> tuple[Node, Node] | None:
        """The leaf to remove and the node to add that save the most verifications.

        Args:
            paths: the tree, parents before children.
            ranks: number of ranks per head that may be used.

        Returns:
            `None` if no exchange saves a verification.
        """
        nodes, present = [(), *paths], set(paths)
        inner = {path[:-1] for path in paths}
        leaves = [i for i, node in enumerate(nodes) if node and node not in inner]
        additions = [
            (parent, rank)
            for parent, node in sorted(enumerate(nodes), key=lambda item: (len(item[1]), item[1]))
            if len(node) < self._ranks.shape[1]
            for rank in range(ranks)
            if (*node, rank) not in present
        ]
        depths, last = self._accept(paths)
        slots = np.full((len(nodes), ranks), -1, dtype=np.int64)
        for j, slot in enumerate(additions):
            slots[slot] = j
        leaf_of = np.full(len(nodes), -1, dtype=np.int64)
        leaf_of[leaves] = np.arange(len(leaves))
        gains, firsts = _group(self._missing_slots(depths, last, slots), len(additions))
        lost, lasts = _group(leaf_of[last], len(leaves))
        parents = np.array([parent for parent, _ in additions], dtype=np.int64)
        _, leaf, best = _best_exchange(
            depths,
            gains,
            firsts,
            lost,
            lasts,
            self._begins,
            self._ends,
            parents,
            np.array(leaves, dtype=np.int64),
        )
        if best < 0:
            return None
        parent, rank = additions[best]
        return nodes[leaves[leaf]], (*nodes[parent], rank)

    def _missing_slots(self, depths: Integers, last: Integers, slots: Integers) -> Integers:
        """Per position, the free place whose node would also be accepted; -1 for none."""
        heads = self._ranks.shape[1]
        following = self._ranks[np.arange(len(depths)), np.minimum(depths, heads - 1)]
        in_table = (depths < heads) & (following < slots.shape[1])
        return np.where(in_table, slots[last, np.where(in_table, following, 0)], -1)

    def _accept(self, paths: Sequence[Node]) -> tuple[Integers, Integers]:
        """Per position, the number of accepted draft tokens and the last accepted node."""
        index = {(): 0} | {path: i for i, path in enumerate(paths, 1)}
        most = 1 + max((path[-1] for path in paths), default=0)
        children = np.full((len(index), most), -1, dtype=np.int64)
        for path in paths:
            children[index[path[:-1]], path[-1]] = index[path]
        depths, last = _walk(children, self._ranks)
        return depths, last


@compile_loop
def _walk(children: Integers, ranks: Integers) -> tuple[Integers, Integers]:
    positions, heads = ranks.shape
    depths, last = np.zeros(positions, np.int64), np.zeros(positions, np.int64)
    for at in range(positions):
        node = 0
        for head in range(heads):
            rank = ranks[at, head]
            if rank >= children.shape[1] or children[node, rank] < 0:
                break
            node = children[node, rank]
            depths[at] += 1
        last[at] = node
    return depths, last


@compile_loop
def _rounds(depths: Integers, begins: Integers, ends: Integers) -> int:
    count = 0
    for begin in begins:
        at, end = begin, ends[begin]
        while at < end:
            at += depths[at] + 1
            count += 1
    return count


@compile_loop
def _best_exchange(
    depths: Integers,
    gains: Integers,
    firsts: Integers,
    lost: Integers,
    lasts: Integers,
    begins: Integers,
    ends: Integers,
    parents: Integers,
    leaves: Integers,
) -> tuple[int, int, int]:
    """Verifications with the best exchange, its leaf and its place (-1 for none); ties go to the first.

    Positions `gains[firsts[j] : firsts[j + 1]]` would accept a node at place j, below node `parents[j]`;
    positions `lost[lasts[i] : lasts[i + 1]]` accept leaf i, which is node `leaves[i]`, now.
    """
    fewest, best_leaf, best_slot = _rounds(depths, begins, ends), -1, -1
    trial = depths.copy()
    for i in range(len(leaves)):
        for at in lost[lasts[i] : lasts[i + 1]]:
            trial[at] -= 1
        for j in range(len(parents)):
            gained = gains[firsts[j] : firsts[j + 1]]
            if parents[j] == leaves[i] or not len(gained):
                continue
            for at in gained:
                trial[at] += 1
            count = _rounds(trial, begins, ends)
            if count < fewest:
                fewest, best_leaf, best_slot = count, i, j
            for at in gained:
                trial[at] -= 1
        for at in lost[lasts[i] : lasts[i + 1]]:
            trial[at] += 1
    return fewest, best_leaf, best_slot


def _group(groups: Integers, count: int) -> tuple[Integers, Integers]:
    """Positions sorted by group, and the start of each group; group -1 is ignored."""
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(count + 1))
    return order, bounds
