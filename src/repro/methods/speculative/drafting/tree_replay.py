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
        nodes, paths_in_tree = [(), *paths], set(paths)
        parent_paths = {path[:-1] for path in paths}
        leaves = [i for i, node in enumerate(nodes) if node and node not in parent_paths]
        additions = [
            (parent, rank)
            for parent, node in sorted(enumerate(nodes), key=lambda item: (len(item[1]), item[1]))
            if len(node) < self._ranks.shape[1]
            for rank in range(ranks)
            if (*node, rank) not in paths_in_tree
        ]
        depths, last_nodes = self._accept(paths)
        slots = np.full((len(nodes), ranks), -1, dtype=np.int64)
        for slot_number, slot in enumerate(additions):
            slots[slot] = slot_number
        leaf_of = np.full(len(nodes), -1, dtype=np.int64)
        leaf_of[leaves] = np.arange(len(leaves))
        gain_positions, gain_starts = _group(self._missing_slots(depths, last_nodes, slots), len(additions))
        loss_positions, loss_starts = _group(leaf_of[last_nodes], len(leaves))
        parents = np.array([parent for parent, _ in additions], dtype=np.int64)
        _, leaf, best_slot = _best_exchange(
            depths,
            gain_positions,
            gain_starts,
            loss_positions,
            loss_starts,
            self._begins,
            self._ends,
            parents,
            np.array(leaves, dtype=np.int64),
        )
        if best_slot < 0:
            return None
        parent, rank = additions[best_slot]
        return nodes[leaves[leaf]], (*nodes[parent], rank)

    def _missing_slots(self, depths: Integers, last_nodes: Integers, slots: Integers) -> Integers:
        """Per position, the free place whose node would also be accepted; -1 for none."""
        heads = self._ranks.shape[1]
        next_ranks = self._ranks[np.arange(len(depths)), np.minimum(depths, heads - 1)]
        in_table = (depths < heads) & (next_ranks < slots.shape[1])
        return np.where(in_table, slots[last_nodes, np.where(in_table, next_ranks, 0)], -1)

    def _accept(self, paths: Sequence[Node]) -> tuple[Integers, Integers]:
        """Per position, the number of accepted draft tokens and the last accepted node."""
        index = {(): 0} | {path: i for i, path in enumerate(paths, 1)}
        rank_count = 1 + max((path[-1] for path in paths), default=0)
        children = np.full((len(index), rank_count), -1, dtype=np.int64)
        for path in paths:
            children[index[path[:-1]], path[-1]] = index[path]
        depths, last_nodes = _walk(children, self._ranks)
        return depths, last_nodes


@compile_loop
def _walk(children: Integers, ranks: Integers) -> tuple[Integers, Integers]:
    position_count, heads = ranks.shape
    depths, last_nodes = np.zeros(position_count, np.int64), np.zeros(position_count, np.int64)
    for position in range(position_count):
        node = 0
        for head in range(heads):
            rank = ranks[position, head]
            if rank >= children.shape[1] or children[node, rank] < 0:
                break
            node = children[node, rank]
            depths[position] += 1
        last_nodes[position] = node
    return depths, last_nodes


@compile_loop
def _rounds(depths: Integers, answer_starts: Integers, answer_ends: Integers) -> int:
    count = 0
    for start in answer_starts:
        position, end = start, answer_ends[start]
        while position < end:
            position += depths[position] + 1
            count += 1
    return count


@compile_loop
def _best_exchange(
    depths: Integers,
    gain_positions: Integers,
    gain_starts: Integers,
    loss_positions: Integers,
    loss_starts: Integers,
    answer_starts: Integers,
    answer_ends: Integers,
    parents: Integers,
    leaves: Integers,
) -> tuple[int, int, int]:
    """Verifications with the best exchange, its leaf and its place (-1 for none); ties go to the first.

    Positions `gain_positions[gain_starts[j] : gain_starts[j + 1]]` would accept a node at place j, below node
    `parents[j]`; positions `loss_positions[loss_starts[i] : loss_starts[i + 1]]` accept leaf i, which is node
    `leaves[i]`, now.
    """
    least_rounds, best_leaf, best_slot = _rounds(depths, answer_starts, answer_ends), -1, -1
    trial_depths = depths.copy()
    for i in range(len(leaves)):
        for position in loss_positions[loss_starts[i] : loss_starts[i + 1]]:
            trial_depths[position] -= 1
        for j in range(len(parents)):
            new_positions = gain_positions[gain_starts[j] : gain_starts[j + 1]]
            if parents[j] == leaves[i] or not len(new_positions):
                continue
            for position in new_positions:
                trial_depths[position] += 1
            count = _rounds(trial_depths, answer_starts, answer_ends)
            if count < least_rounds:
                least_rounds, best_leaf, best_slot = count, i, j
            for position in new_positions:
                trial_depths[position] -= 1
        for position in loss_positions[loss_starts[i] : loss_starts[i + 1]]:
            trial_depths[position] += 1
    return least_rounds, best_leaf, best_slot


def _group(groups: Integers, group_count: int) -> tuple[Integers, Integers]:
    """Positions sorted by group, and the start of each group; group -1 is ignored."""
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(group_count + 1))
    return order, bounds
