"""Tree nodes and accepted tokens that LEVER's pruning keeps, for many pruning rules at once.

    python -m workshop.studies.tune_pruning --target FOLDER --draft FOLDER --predictor FOLDER --answers SHARDS

Drafts a tree every few tokens of answers that `train_predictor` held out, verifies it completely, and
applies each rule to it. Rows kept is the share of tree nodes that are not pruned, retention the share of
accepted draft tokens that are still accepted, as in LEVER's Fig. 12. The trees are OPT-Tree's with a fixed
size, so that they do not depend on a cost model. Prints one line of JSON per rule.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from repro.methods.lever.pruning import PruningRule
from repro.methods.speculative.opt_tree import chosen, likeliest
from repro.models.drafting.early_exit import Candidates, ExitPredictor
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.acceptance import drive, greedy
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from repro.models.transformer import weights
from workshop.training import answers
from workshop.training.train_predictor import split

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25)
TEMPERATURES = (0.5, 1.0, 2.0)
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"shadow": False},
    {"safeguards": False},
    {"near_children": 1},
    {"near_children": 3},
)


@dataclass(frozen=True)
class Case:
    """A tree, the predictor's scores of its nodes' candidates, and the path that the target accepts."""

    tree: TokenTree
    candidates: list[Candidates]
    scores: list[list[float]]
    path: list[int]


@dataclass(frozen=True)
class Size:
    """Size of the trees: nodes, drafting steps, nodes expanded per step, candidates per node."""

    nodes: int
    depth: int
    beam: int
    width: int


def grow(draft: DecoderNetwork, root: Prefix, size: Size) -> tuple[TokenTree, dict[Prefix, Candidates]]:
    """The most likely nodes after `root`, and the candidates of every expanded sequence."""
    tree, layer, known = TokenTree(root), [0], dict[Prefix, Candidates]()
    for _ in range(size.depth):
        step = draft.begin([tree.prefixes[node] for node in layer])
        step.layers(0, draft.depth)
        grown = []
        for node, row in zip(layer, step.rows(), strict=True):
            best = row.top(size.width)
            known[tree.prefixes[node]] = tuple(token for token, _ in best)
            grown += [tree.grow(node, *proposal) for proposal in best]
        layer = sorted(grown, key=tree.confidence, reverse=True)[: size.beam]
    draft.keep(root)
    return chosen(tree, min(size.nodes, len(likeliest(tree, size.nodes)))), known


def verify(
    target: DecoderNetwork, predictor: ExitPredictor, tree: TokenTree, known: dict[Prefix, Candidates]
) -> Case:
    """The target's complete verification of a tree, with the predictor's scores at its layer."""
    step = target.begin(tree.prefixes)
    step.layers(0, predictor.layer)
    inner = [bool(tree.children(node)) for node in range(len(tree))]
    candidates = [known[tree.prefixes[node]] if inner[node] else () for node in range(len(tree))]
    scores = [found.tolist() for found in predictor.scores(step.hidden(), candidates)]
    step.layers(predictor.layer, target.depth)
    rows = step.rows()
    path, _ = drive(greedy(tree), lambda node: rows[node].choice)
    target.keep(tree.root)
    return Case(tree, candidates, scores, path)


def cases(
    target: DecoderNetwork,
    draft: DecoderNetwork,
    predictor: ExitPredictor,
    made: list[answers.Answer],
    every: int,
    size: Size,
) -> Iterator[Case]:
    """A case every few tokens of each answer."""
    for one in made:
        prompt = Prefix.of(one.prompt.tolist())
        for network in (target, draft):
            network.start(prompt)
        text = prompt.extend(one.tokens.tolist())
        for length in range(prompt.length + 1, text.length, every):
            yield verify(target, predictor, *grow(draft, text.up_to(length), size))


def outcome(rule: PruningRule, found: list[Case]) -> dict[str, float]:
    """Shares that a rule keeps of the trees."""
    rows = kept = accepted = still = whole = 0
    for case in found:
        left = rule.keep(case.tree, case.candidates, case.scores)
        path = [node for node in case.path if node in set(left)]
        rows, kept = rows + len(case.tree), kept + len(left)
        accepted, still = accepted + len(case.path) - 1, still + len(path) - 1
        whole += len(left) == len(case.tree)
    return {
        "rows_kept": round(kept / rows, 4),
        "retention": round(still / max(1, accepted), 4),
        "unpruned": round(whole / len(found), 4),
    }


def main(argv: list[str] | None = None) -> None:
    """Record the cases, then print the outcome of each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    for name in ("target", "draft", "predictor", "answers"):
        add(f"--{name}", type=Path, required=True)
    add("--answers-used", type=int, default=24, help="held-out answers, spread over the sources")
    add("--every", type=int, default=12, help="tokens from tree to tree")
    add("--nodes", type=int, default=24, help="nodes of a tree, the root left out")
    add("--depth", type=int, default=8)
    add("--beam", type=int, default=6)
    add("--width", type=int, default=8, help="candidates of a node, |C(u)|")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    whole = weights.load(args.target)
    small = weights.load(args.draft, embeddings_from=whole)
    predictor = ExitPredictor.load(args.predictor, whole)
    _, heldout = split(answers.read_answers(answers.shards(args.answers)), 10**9)
    stride = max(1, len(heldout) // args.answers_used)
    size = Size(args.nodes, args.depth, args.beam, args.width)
    networks = DecoderNetwork(whole), DecoderNetwork(small)
    found = list(cases(*networks, predictor, heldout[::stride][: args.answers_used], args.every, size))
    per_tree = sum(len(case.path) - 1 for case in found) / len(found)
    print(json.dumps({"trees": len(found), "layer": predictor.layer, "accepted": round(per_tree, 3)}))
    for policy, temperature, threshold in product(POLICIES, TEMPERATURES, THRESHOLDS):
        rule = replace(PruningRule(threshold=threshold, temperature=temperature), **policy)
        said = {"threshold": threshold, "temperature": temperature, **policy}
        print(json.dumps(said | outcome(rule, found)), flush=True)


if __name__ == "__main__":
    main()
