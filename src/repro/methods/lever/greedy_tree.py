"""LEVER's greedy token tree: inserts the node of largest gain per second while that raises the tree's rate
(sec. 4.2, Algorithm 1; batches of sec. 4.4).

Must not know sessions, devices or verification: the draft is a coroutine that returns the candidates of some
nodes and the seconds of the pass.

Algorithm 1 expands each node when it is inserted. Here inserted nodes wait until there are `batch` of them,
and are then expanded in one draft pass. They are expanded earlier

- if the next choice depends on them: the best child of a waiting node, with this tree's mean probability of
  best children, would precede the best node of the frontier;
- if construction would stop, but a child of probability 1 would still raise the rate. If not, waiting nodes
  are never expanded.

So batches are small in small trees with one dominant branch, and larger once many nodes are similarly likely.
The objective is unchanged: a node is inserted only if Eq. 6 does not stop at it, with the estimated pass over
the waiting nodes included in the cycle's cost, and at the end Eq. 6 stops at every node of the frontier. The
order of insertion differs, so some nodes are inserted that Algorithm 1 would reject later. `batch=1` is
Algorithm 1 as printed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import NamedTuple

from repro.methods.lever.latency_profile import DraftLatency, LatencyProfile
from repro.methods.lever.token_gain import calibrate
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree


class Expansion(NamedTuple):
    """Result of one draft pass.

    Attributes:
        candidates: candidates of each expanded node, tokens with log-probabilities, most likely first.
        seconds: time of the pass, t_u of Algorithm 1; 0 if all logits were cached.
    """

    candidates: Sequence[Sequence[tuple[int, float]]]
    seconds: float


Expand = Callable[[Sequence[Prefix], str], Awaitable[Expansion]]
"""Runs one draft pass over some nodes on a processor."""


@dataclass(frozen=True)
class Growth:
    """Bounds and batching of a tree's construction.

    Attributes:
        depth: a node is expandable if its depth is below this (the root's children have depth 1) ...
        reach: ... and the target reaches it with at least this probability. Deviation: the paper does not
            say which nodes are expandable; others are leaves that cost only their row in the verification.
        limit: maximum draft tokens in a tree. Deviation: the paper gives none.
        batch: maximum nodes expanded in one pass; 1 is Algorithm 1 as printed.
        switch: number of nodes from which a pass runs on `large_processor`; 0 chooses by measured seconds.
        small_processor: processor of smaller passes.
        large_processor: processor of larger passes.
    """

    depth: int = 8
    reach: float = 0.0
    limit: int = 63
    batch: int = 1
    switch: int = 2
    small_processor: str = "cpu"
    large_processor: str = "npu"

    @property
    def processors(self) -> tuple[str, ...]:
        """The processors that passes run on."""
        return tuple(dict.fromkeys((self.small_processor, self.large_processor)))

    def processor(self, nodes: int, costs: DraftLatency) -> str:
        """Processor of a pass over `nodes` nodes, given the measured seconds of passes."""
        if self.switch:
            return self.large_processor if nodes >= self.switch else self.small_processor
        return min(self.processors, key=lambda on: costs.estimate(on, nodes))


class CycleCosts(NamedTuple):
    """Latency profiles of a cycle; tree construction updates `draft` with its passes.

    Attributes:
        verify: seconds of a verification by |T| (root included) and leaves.
        draft: seconds of an expansion by processor and number of nodes.
    """

    verify: LatencyProfile
    draft: DraftLatency


class GrownTree(NamedTuple):
    """A constructed tree with its estimates.

    Attributes:
        tree: the token tree, with the draft's uncalibrated log-probabilities.
        gain: expected tokens of the cycle, fallback token included (Eq. 2).
        seconds: time of the cycle: measured drafting plus estimated verification.
        passes: number of draft passes by processor.
        candidates: C(u), tokens most likely first, of every expanded node.
        reason: why construction stopped: `rate` (Eq. 6), `limit`, or `frontier` (no node left to insert).
    """

    tree: TokenTree
    gain: float
    seconds: float
    passes: Mapping[str, int]
    candidates: Mapping[Prefix, tuple[int, ...]]
    reason: str


class Candidate(NamedTuple):
    """A node of the frontier: a token after a node of the tree; `reach` is b, its reach probability."""

    parent: int
    token: int
    logp: float
    reach: float


async def grow_greedily(
    root: Prefix, expand: Expand, costs: CycleCosts, reliability: float, growth: Growth
) -> GrownTree:
    """Build a token tree after `root` (Algorithm 1).

    Args:
        root: the text so far.
        expand: the draft.
        costs: the profiles; `costs.verify` must not be empty.
        reliability: the factor r, in (0, 1].
        growth: bounds and batching.
    """
    growing = _Growing(root, expand, costs, reliability, growth)
    await growing.expand([0])
    while len(growing.tree) <= growth.limit:
        best_candidate = growing.best()
        if len(growing.waiting) >= growth.batch or growing.hangs_on_waiting(best_candidate):
            await growing.expand_waiting()
        elif best_candidate is None:
            return growing.finish("frontier")
        elif growing.rate(best_candidate) <= growing.average:
            return growing.finish("rate")
        else:
            growing.insert(best_candidate)
    return growing.finish("limit")


class _Growing:
    """Algorithm 1's variables: T, b, G, C_draft, F, and the nodes of T that wait for their expansion."""

    def __init__(
        self, root: Prefix, expand: Expand, costs: CycleCosts, reliability: float, growth: Growth
    ) -> None:
        self.tree = TokenTree(root)
        self.waiting: list[int] = []
        self._expand, self._costs, self._reliability, self._growth = expand, costs, reliability, growth
        self._reach = [1.0]
        self._gain, self._drafted, self._leaves = 1.0, 0.0, 1
        self._frontier: dict[tuple[int, bool], deque[Candidate]] = {}
        self._candidates: dict[Prefix, tuple[int, ...]] = {}
        self._firsts: list[float] = []
        self._passes: Counter[str] = Counter()

    async def expand(self, nodes: list[int]) -> None:
        """AddFrontier of lines 16-24, for several nodes in one pass."""
        prefixes, processor = [self.tree.prefixes[node] for node in nodes], self._processor(len(nodes))
        expansion, seconds = await self._expand(prefixes, processor)
        self._drafted += seconds
        if seconds:
            self._passes[processor] += 1
            self._learn(nodes, processor, seconds)
        for node, candidates in zip(nodes, expansion, strict=True):
            self._candidates[self.tree.prefixes[node]] = tuple(token for token, _ in candidates)
            probabilities = calibrate([exp(logp) for _, logp in candidates], self._reliability)
            self._firsts.append(max(probabilities, default=0.0))
            for (token, logp), probability in zip(candidates, probabilities, strict=True):
                child = Candidate(node, token, logp, self._reach[node] * probability)
                self._frontier.setdefault((node, self._expandable(child)), deque()).append(child)

    def _learn(self, nodes: list[int], processor: str, seconds: float) -> None:
        # The root's pass also computes the last emitted tokens, so it counts only without other measurements.
        if nodes != [0] or self._costs.draft.empty:
            self._costs.draft.observe(processor, len(nodes), seconds)

    async def expand_waiting(self) -> None:
        """Line 12, for all waiting nodes."""
        nodes, self.waiting = self.waiting, []
        await self.expand(nodes)

    def best(self) -> Candidate | None:
        """Line 6: the candidate with the largest gain per cost; ties go to the most likely.

        Expandable children of one node have equal cost, and so have the others, so only the most likely of
        each kind is compared.
        """
        kinds = {
            (is_leaf, is_expandable): self._marginal(is_leaf, is_expandable)
            for is_leaf in (False, True)
            for is_expandable in (False, True)
        }
        firsts = (children[0] for children in self._frontier.values() if children)
        return max(firsts, key=lambda c: (per(c.reach, kinds[self._kind(c)]), c.reach), default=None)

    def rate(self, candidate: Candidate) -> float:
        """The marginal gain per second of a candidate."""
        return per(candidate.reach, self._marginal(*self._kind(candidate)))

    @property
    def average(self) -> float:
        """G / C_cycle, the expected tokens per second of the current tree."""
        return per(self._gain, self._seconds())

    def hangs_on_waiting(self, best_candidate: Candidate | None) -> bool:
        """Whether children of waiting nodes could change the next step."""
        if not self.waiting:
            return False
        if best_candidate is None or self.rate(best_candidate) <= self.average:
            most_reach = max(self._reach[node] for node in self.waiting)
            return per(most_reach, self._marginal(leaf=False, expandable=False)) > self.average
        mean_share = sum(self._firsts) / len(self._firsts)
        children = (Candidate(u, 0, 0.0, self._reach[u] * mean_share) for u in self.waiting)
        return max(map(self.rate, children)) > self.rate(best_candidate)

    def insert(self, candidate: Candidate) -> None:
        """Line 10, and the test of line 11."""
        is_expandable = self._expandable(candidate)
        self._frontier[candidate.parent, is_expandable].popleft()
        self._leaves += self._adds_leaf(candidate.parent)
        node = self.tree.grow(candidate.parent, candidate.token, candidate.logp)
        self._reach.append(candidate.reach)
        self._gain += candidate.reach
        if is_expandable:
            self.waiting.append(node)

    def finish(self, reason: str) -> GrownTree:
        """Finish the tree; waiting nodes are not expanded and add no cost."""
        self.waiting = []
        return GrownTree(self.tree, self._gain, self._seconds(), dict(self._passes), self._candidates, reason)

    def _kind(self, candidate: Candidate) -> tuple[bool, bool]:
        """Whether a candidate adds a leaf, and whether it is expandable; these determine its cost."""
        return self._adds_leaf(candidate.parent), self._expandable(candidate)

    def _adds_leaf(self, parent: int) -> bool:
        return bool(self.tree.children(parent))

    def _expandable(self, candidate: Candidate) -> bool:
        depth = self.tree.depth(candidate.parent) + 1
        return depth < self._growth.depth and candidate.reach >= self._growth.reach

    def _seconds(self) -> float:
        """Line 5, including the pending pass over the waiting nodes."""
        return self._drafted + self._joint(len(self.waiting)) + self._verify(0, 0)

    def _marginal(self, leaf: bool, expandable: bool) -> float:
        """Seconds that one more node adds to the verification, and to the pending draft pass if expandable.

        Negative differences, which are measurement noise, count as 0.
        """
        verify = self._verify(1, int(leaf)) - self._verify(0, 0)
        waiting_count = len(self.waiting)
        draft = self._joint(waiting_count + 1) - self._joint(waiting_count) if expandable else 0.0
        return max(0.0, verify) + max(0.0, draft)

    def _verify(self, nodes: int, leaves: int) -> float:
        return self._costs.verify.estimate(len(self.tree) + nodes, self._leaves + leaves)

    def _joint(self, nodes: int) -> float:
        return self._costs.draft.estimate(self._processor(nodes), nodes)

    def _processor(self, nodes: int) -> str:
        return self._growth.processor(nodes, self._costs.draft)


def per(gain: float, seconds: float) -> float:
    """Gain per second; infinite for a positive gain at no cost."""
    if seconds:
        return gain / seconds
    return inf if gain else 0.0
