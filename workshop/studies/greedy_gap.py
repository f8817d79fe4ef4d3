"""Gap of LEVER's greedy trees to the optimal ones, over small random drafts and random costs.

python -m workshop.studies.greedy_gap
python -m workshop.studies.greedy_gap --trees 1000 --width 4 --seed 1

The optimal tree has the largest expected tokens per second (LEVER Eq. 1) of all subtrees of the draft's full
tree, with every expandable node expanded alone, as printed in Algorithm 1. The gap is the share by which the
greedy tree's rate is lower. Batches save draft time, so their gaps may be negative.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log

from repro.methods.lever.greedy_tree import CycleCosts, Expansion, Grown, Growth, grow_greedily
from repro.methods.lever.latency_profile import DraftLatency, LatencyProfile, Measurement
from repro.models.tokens.prefix import Prefix

Shape = tuple[int, int, int]
"""Nodes, leaves and expanded nodes of a tree, which determine its cost."""

KINDS = ("rows", "reads", "leaves")
"""What a verification's time depends on: nodes; nodes beyond those hidden by reads; nodes and leaves."""

HIDDEN = 8
"""Nodes whose verification is hidden by disk reads."""


@dataclass(frozen=True)
class Case:
    """A draft with `width` candidates per node down to `depth`, and the costs of draft and target passes.

    Attributes:
        seed: of the draft's probabilities.
        width: candidates of a node.
        depth: of the tree.
        sharpness: of the draft's distribution; larger is more confident.
        fixed: seconds of a verification of no nodes.
        row: seconds per node.
        leaf: seconds per leaf.
        hidden: nodes verified at no cost during reads.
        draft: seconds of expanding one node.
    """

    seed: int
    width: int
    depth: int
    sharpness: float
    fixed: float
    row: float
    leaf: float
    hidden: int
    draft: float

    def candidates(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        """The draft's candidates after some tokens with log-probabilities, most likely first."""
        chance = random.Random(f"{self.seed} {list(tokens)}")
        weights = sorted((exp(self.sharpness * chance.gauss(0, 1)) for _ in range(32)), reverse=True)
        return [(token, log(weights[token] / sum(weights))) for token in range(self.width)]

    def verification(self, rows: int, leaves: int) -> float:
        """Seconds of a verification."""
        return self.fixed + self.row * max(0, rows - self.hidden) + self.leaf * leaves

    def expansion(self, nodes: int, on: str) -> float:
        """Seconds of a draft pass: nodes one after the other on the CPU, else nearly as fast as one."""
        return self.draft * (nodes if on == "cpu" else 1 + 0.1 * (nodes - 1))

    def costs(self) -> CycleCosts:
        """The exact costs of all tree shapes."""
        most = sum(self.width**level for level in range(self.depth + 1))
        shapes = product(range(1, most + 1), range(1, self.width**self.depth + 1))
        measured = (Measurement(rows, leaves, self.verification(rows, leaves)) for rows, leaves in shapes)
        return CycleCosts(LatencyProfile(measured), DraftLatency())


def cases(kind: str, count: int, width: int, depth: int, seed: int) -> Iterator[Case]:
    """Random drafts and costs, in units of a verification's fixed time."""
    for number in range(count):
        chance = random.Random(f"{kind} {seed} {number}")
        row = 10 ** chance.uniform(-2.5, -0.5)
        yield Case(
            seed=chance.randrange(1 << 30),
            width=width,
            depth=depth,
            sharpness=chance.uniform(1.0, 3.0),
            fixed=1.0,
            row=row,
            leaf=row * chance.uniform(0.0, 4.0) if kind == "leaves" else 0.0,
            hidden=HIDDEN if kind == "reads" else 0,
            draft=chance.uniform(0.0, 0.05),
        )


def greedy_tree(case: Case, batch: int = 1) -> Grown:
    """The tree that `grow_greedily` makes of a case."""
    root = Prefix.of([0])

    async def expand(nodes: Sequence[Prefix], on: str) -> Expansion:
        said = [case.candidates(node.tokens(after=root.length)) for node in nodes]
        return Expansion(said, case.expansion(len(nodes), on))

    whole = sum(case.width**level for level in range(1, case.depth + 1))
    growth = Growth(depth=case.depth, limit=whole, batch=batch)
    return asyncio.run(grow_greedily(root, expand, case.costs(), 1.0, growth))


def best_rate(case: Case) -> float:
    """The largest rate of all subtrees with the root; the root's gain is the one fallback token."""
    return max(
        gain / (case.verification(rows, leaves) + case.draft * expanded)
        for (rows, leaves, expanded), gain in most_gain(case, (), 1.0).items()
    )


def most_gain(case: Case, node: tuple[int, ...], reach: float) -> dict[Shape, float]:
    """The largest gain of the subtrees rooted at a node, by shape."""
    expandable = len(node) < case.depth
    below: dict[Shape, float] = {(0, 0, 0): 0.0}
    for token, logp in case.candidates(node) if expandable else ():
        child = most_gain(case, (*node, token), reach * exp(logp))
        joined = dict(below)
        for (one, gain), (other, more) in product(below.items(), child.items()):
            shape = (one[0] + other[0], one[1] + other[1], one[2] + other[2])
            joined[shape] = max(joined.get(shape, 0.0), gain + more)
        below = joined
    return {
        (rows + 1, max(leaves, 1), expanded + expandable): gain + reach
        for (rows, leaves, expanded), gain in below.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trees", type=int, default=200, help="cases of each kind")
    parser.add_argument("--width", type=int, default=3, help="candidates of a node")
    parser.add_argument("--depth", type=int, default=3, help="levels below the root")
    parser.add_argument("--batch", type=int, default=4, help="nodes that wait for a joint expansion, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(f"{'costs':8}{'batch':>6}{'trees':>7}{'nodes':>7}{'equal':>8}{'mean gap':>10}{'max gap':>9}")
    for kind in KINDS:
        made = list(cases(kind, options.trees, options.width, options.depth, options.seed))
        best = [best_rate(case) for case in made]
        for batch in dict.fromkeys((1, options.batch)):
            grown = [greedy_tree(case, batch) for case in made]
            gaps = [1 - g.gain / g.seconds / rate for g, rate in zip(grown, best, strict=True)]
            nodes = sum(len(g.tree) - 1 for g in grown) / len(grown)
            equal = sum(abs(gap) < 1e-9 for gap in gaps) / len(gaps)
            mean = sum(gaps) / len(gaps)
            print(f"{kind:8}{batch:6}{len(gaps):7}{nodes:7.1f}{equal:8.1%}{mean:10.2%}{max(gaps):9.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
