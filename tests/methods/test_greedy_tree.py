"""Algorithm 1: against a literal transcription, batches, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import exp, inf
from typing import Any

import pytest

from repro.methods.lever.greedy_tree import CycleCosts, Expansion, GrownTree, Growth, grow_greedily, per
from repro.methods.lever.latency_profile import DraftLatency, LatencyProfile, Measurement
from repro.methods.lever.token_gain import calibrate
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from tiny import TableNetwork

Verify = Callable[[int, int], float]
Path_ = tuple[int, ...]
ROOT = Prefix.of([3, 1])
SEEDS = range(30)


@cache
def scaled(row: float, leaf: float = 0.0, hidden: int = 0) -> Verify:
    """Seconds of a verification: 1, and more for rows beyond those that hide behind the reads, and leaves."""
    return lambda rows, leaves: 1.0 + row * max(0, rows - hidden) + leaf * leaves


VERIFY = {
    "rows": scaled(0.02),
    "steep": scaled(0.2),
    "leaves": scaled(0.01, leaf=0.03),
    "reads": scaled(0.05, hidden=6),
}


@cache
def known(verify: Verify, rows: int = 80) -> LatencyProfile:
    """A profile in which every shape was seen; nothing here adds to it."""
    shapes = ((n, leaves) for n in range(1, rows) for leaves in range(1, n + 1))
    return LatencyProfile(Measurement(n, leaves, verify(n, leaves)) for n, leaves in shapes)


@dataclass
class Draft:
    """Random candidates that depend on the text alone, and seconds by nodes and processor."""

    seed: int
    width: int = 4
    sharpness: float = 2.0
    seconds: Callable[[int, str], float] = lambda nodes, on: 0.01 * nodes
    groups: list[tuple[list[Prefix], str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = TableNetwork(12, self.seed, self.sharpness)

    def candidates(self, node: Prefix) -> list[tuple[int, float]]:
        best = self.network.logits(node).log_softmax(-1).double().topk(self.width)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    async def expand(self, nodes: Sequence[Prefix], on: str) -> Expansion:
        self.groups.append((list(nodes), on))
        return Expansion([self.candidates(node) for node in nodes], self.seconds(len(nodes), on))


def grown(
    draft: Draft, verify: Verify, reliability: float = 1.0, costs: CycleCosts | None = None, **bounds: Any
) -> GrownTree:
    costs = costs or CycleCosts(known(verify), DraftLatency())
    return asyncio.run(grow_greedily(ROOT, draft.expand, costs, reliability, Growth(**bounds)))


def sequences(tree: TokenTree) -> list[Path_]:
    return [tuple(prefix.tokens(start=ROOT.length)) for prefix in tree.prefixes]


def leaves(nodes: set[Path_]) -> int:
    return sum(not any(other[:-1] == node for other in nodes if other) for node in nodes)


def as_printed(
    draft: Draft, verify: Verify, reliability: float, depth: int, each: float
) -> tuple[list[Path_], float, float]:
    """Algorithm 1 line by line, on token sequences, with seconds `each` for every expansion.

    Returns:
        The nodes in the order of their insertion, the gain, and the cycle's latency.
    """

    def cost(tree: set[Path_]) -> float:
        return verify(len(tree), leaves(tree))

    def added(v: Path_) -> float:
        return cost(tree | {v}) - cost(tree) + (each if len(v) < depth else 0.0)

    def add_frontier(u: Path_) -> float:
        said = draft.candidates(ROOT.extend(u))
        likely = calibrate([exp(logp) for _, logp in said], reliability)
        for (token, _), probability in zip(said, likely, strict=True):
            b[(*u, token)] = b[u] * probability
            frontier.add((*u, token))
        return each

    tree: set[Path_] = {()}
    order: list[Path_] = [()]
    b: dict[Path_, float] = {(): 1.0}
    gain, frontier = 1.0, set[Path_]()
    drafted = add_frontier(())
    while frontier:
        cycle = drafted + cost(tree)
        rate = {v: per(b[v], added(v)) for v in frontier}
        best = max(frontier, key=lambda v: (rate[v], b[v]))
        if rate[best] <= gain / cycle:
            break
        tree.add(best)
        order.append(best)
        frontier.remove(best)
        gain += b[best]
        if len(best) < depth:
            drafted += add_frontier(best)
    return order, gain, drafted + cost(tree)


@pytest.mark.parametrize("kind", VERIFY)
def test_without_batches_it_is_the_algorithm_as_printed(kind: str) -> None:
    sizes = []
    for seed in SEEDS:
        reliability, depth = 1.0 - seed / 60, 1 + seed % 6
        draft = Draft(seed, sharpness=1.0 + seed % 4)
        order, gain, cycle = as_printed(draft, VERIFY[kind], reliability, depth, 0.01)
        made = grown(draft, VERIFY[kind], reliability, depth=depth, limit=70)
        assert sequences(made.tree) == order
        assert (made.gain, made.seconds) == (pytest.approx(gain), pytest.approx(cycle))
        assert all(nodes == [made.tree.prefixes[0]] or len(nodes) == 1 for nodes, _ in draft.groups)
        assert set(made.passes) == {"cpu"}
        expandable = [p for p in made.tree.prefixes if p.length - ROOT.length < depth]
        assert set(made.candidates) == set(expandable)
        assert made.passes["cpu"] == len(draft.groups) == len(expandable)
        sizes.append(len(order))
    assert len(set(sizes)) >= 3, "trees of several sizes were compared"


def free(nodes: int, on: str) -> float:
    return 0.0


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_batches_hold_the_best_tree_where_drafting_is_free_and_rows_cost_alike(batch: int) -> None:
    """There Algorithm 1 is optimal: it takes nodes by their reach, which falls along paths. With batches the
    average is at no time above the best one, so that every node of the best tree passes; those that come in
    besides were worth it when they came, and so the rate is above the bare root's and at most the best."""
    verify, larger = VERIFY["rows"], 0
    for seed in SEEDS:
        alone = grown(Draft(seed, seconds=free), verify, depth=6, limit=70)
        made = grown(Draft(seed, seconds=free), verify, batch=batch, depth=6, limit=70)
        extra = len(made.tree) - len(alone.tree)
        assert set(sequences(made.tree)) >= set(sequences(alone.tree))
        best, rate = alone.gain / alone.seconds, made.gain / made.seconds
        each, bare = 0.02, 1 / verify(1, 1)
        assert rate <= best + 1e-9
        assert rate >= (alone.gain + extra * each * bare) / (alone.seconds + extra * each) - 1e-9
        larger += extra > 0
    assert larger < len(SEEDS) / 2


def wide(nodes: int, on: str) -> float:
    return 0.02 * nodes if on == "cpu" else 0.022 + 0.002 * nodes


def test_groups_go_to_the_wide_processor_and_save_time() -> None:
    saved, groups = 0.0, []
    for seed in SEEDS:
        draft = Draft(seed, seconds=wide)
        made = grown(draft, VERIFY["rows"], batch=4, switch=3, depth=6, limit=70)
        alone = grown(Draft(seed, seconds=wide), VERIFY["rows"], depth=6, limit=70)
        sizes = [len(nodes) for nodes, _ in draft.groups]
        assert [on for _, on in draft.groups] == ["npu" if size >= 3 else "cpu" for size in sizes]
        assert dict(made.passes) == {on: sum(o == on for _, o in draft.groups) for _, on in draft.groups}
        assert max(sizes) <= 4
        expanded = [node for nodes, _ in draft.groups for node in nodes]
        assert len(expanded) == len(set(expanded)) == len(made.candidates)
        assert made.seconds == pytest.approx(
            sum(wide(len(nodes), on) for nodes, on in draft.groups)
            + VERIFY["rows"](len(made.tree), len(list(made.tree.leaves())))
        )
        saved += made.gain / made.seconds - alone.gain / alone.seconds
        groups += sizes
    assert set(groups) == {1, 2, 3, 4}
    assert saved > 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_bounds(limit: int, batch: int) -> None:
    reasons = set()
    for seed in SEEDS:
        draft = Draft(seed)
        made = grown(draft, scaled(1e-4), batch=batch, depth=3, limit=limit)
        assert len(made.tree) - 1 <= limit
        assert made.tree.height <= 3
        assert all(node.length - ROOT.length < 3 for nodes, _ in draft.groups for node in nodes)
        reasons.add(made.reason)
        if made.reason == "limit":
            assert len(made.tree) - 1 == limit
            last = made.tree.prefixes[-1]
            assert last not in made.candidates, "a full tree's last node is not expanded"
    assert "limit" in reasons


def test_less_reliable_drafts_get_smaller_trees() -> None:
    sizes = [
        sum(len(grown(Draft(seed), VERIFY["rows"], r).tree) for seed in SEEDS) for r in (0.05, 0.3, 0.6, 1.0)
    ]
    assert sizes == sorted(set(sizes))


def test_impossible_candidates_are_never_inserted() -> None:
    """An EAGLE-3 head gives no probability to tokens outside its own vocabulary."""

    async def expand(nodes: Sequence[Prefix], on: str) -> Expansion:
        return Expansion([[(1, 0.0), (2, -inf)] for _ in nodes], 0.0)

    costs = CycleCosts(known(scaled(0.0)), DraftLatency())
    made = asyncio.run(grow_greedily(ROOT, expand, costs, 1.0, Growth(depth=3)))
    assert sequences(made.tree) == [(), (1,), (1, 1), (1, 1, 1)]
    assert made.reason == "rate"
