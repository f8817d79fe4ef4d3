"""Trees of ranks: their text, growth against every tree there is, the replay against a literal one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from invented_ranks import accuracies, record
from repro.core.errors import InputError
from repro.methods.speculative.drafting.head_ranks import TOP_RANKS, HeadRanks
from repro.methods.speculative.drafting.verification_tree import (
    Accuracies,
    Path,
    VerificationTree,
    estimate_tree,
    expected_acceptance,
    measured_acceptance,
    refine,
)
from repro.models.forward.network import RANK_COUNT

WIDTHS = (2, 4, 8, 16, 32, 64)


def literal(tree: VerificationTree, ranks: HeadRanks) -> float:
    """Greedy decoding along the answers, token by token."""
    tokens = verifications = 0
    rows, ends = ranks.ranks.tolist(), (*ranks.begins[1:], ranks.positions)
    for begin, end in zip(ranks.begins, ends, strict=True):
        left, at = end - begin, begin
        while left > 0:
            accepted = 0
            while accepted < ranks.heads and tuple(rows[at][: accepted + 1]) in tree.paths:
                accepted += 1
            emitted = min(accepted + 1, left)
            tokens, verifications = tokens + emitted, verifications + 1
            left, at = left - emitted, at + emitted
    return tokens / verifications


# The tree


def test_a_tree_is_its_text() -> None:
    tree = VerificationTree.parse("0;1;0.0;0.0.3")
    assert tree.paths == ((0,), (1,), (0, 0), (0, 0, 3))
    assert (tree.width, tree.height, tree.parents) == (5, 3, (-1, 0, 0, 1, 3))
    assert list(tree.leaves()) == [(1,), (0, 0, 3)]
    assert VerificationTree.parse(str(tree)) == tree
    assert (
        VerificationTree.parse("")
        == VerificationTree(())
        == VerificationTree.parse(str(VerificationTree(())))
    )
    assert VerificationTree(()).width == 1


# The estimate


@pytest.mark.parametrize("seed", range(12))
def test_the_grown_tree_is_the_best_of_all(seed: int) -> None:
    given = accuracies(seed)
    for width in range(1, 7):
        assert expected_acceptance(estimate_tree(given, width), given) == pytest.approx(
            expected_acceptance(best(given, width), given)
        )


def test_a_width_that_cannot_be_is_said() -> None:
    assert estimate_tree([[0.5, 0.1], [0.5, 0.1]], 7).width == 7
    with pytest.raises(InputError, match="a width of 8 is beyond 2 heads of 2 ranks"):
        estimate_tree([[0.5, 0.1], [0.5, 0.1]], 8)
    with pytest.raises(InputError, match="width is 0"):
        estimate_tree([[0.5]], 0)


# The replay


@pytest.mark.parametrize("seed", range(6))
def test_the_replay_is_greedy_decoding(seed: int) -> None:
    ranks = record(seed)
    given = ranks.accuracies()
    for width in (1, *WIDTHS):
        tree = estimate_tree(given, width)
        assert measured_acceptance(tree, ranks) == literal(tree, ranks)
    assert measured_acceptance(VerificationTree(()), ranks) == 1.0


def exchanges(tree: VerificationTree) -> list[tuple[Path, ...]]:
    """Every tree that one exchange makes."""
    out = []
    for leaf in tree.leaves():
        left = [path for path in tree.paths if path != leaf]
        places = [(*path, rank) for path in ((), *left) if len(path) < 4 for rank in range(TOP_RANKS)]
        out += [VerificationTree.of([*left, place]).paths for place in places if place not in tree.paths]
    return out


@pytest.mark.parametrize("seed", range(3))
def test_no_exchange_is_better_than_the_refined_tree(seed: int) -> None:
    ranks = record(seed, positions=120, answers=3)
    start = estimate_tree(ranks.accuracies(), 8)
    found = refine(start, ranks)
    best_one = measured_acceptance(found, ranks)
    assert found.width == 8
    assert best_one >= measured_acceptance(start, ranks)
    assert all(literal(VerificationTree(paths), ranks) <= best_one for paths in exchanges(found))


def test_a_tree_that_growth_cannot_see_is_found() -> None:
    """Heads that depend on each other: after the first one's first rank comes the second one's second."""
    rows = [[0, 1], [2, 0], [RANK_COUNT, 0]] * 20 + [[0, RANK_COUNT]]
    ranks = HeadRanks(torch.tensor(rows, dtype=torch.int16), (0,))
    start = estimate_tree(ranks.accuracies(), 3)
    assert start.paths == ((0,), (0, 0))
    assert measured_acceptance(start, ranks) == 61 / 41
    assert refine(start, ranks).paths == ((0,), (0, 1))
    assert measured_acceptance(refine(start, ranks), ranks) == 61 / 21


def every(
    nodes: tuple[Path, ...], free: list[Path], given: Accuracies, left: int
) -> Iterator[VerificationTree]:
    """Every tree with `left` nodes more than `nodes`, once; skipped nodes stay out."""
    if not left:
        yield VerificationTree.of(nodes)
        return
    for i, path in enumerate(free):
        below = [(*path, rank) for rank in range(len(given[len(path)]))] if len(path) < len(given) else []
        yield from every((*nodes, path), [*free[i + 1 :], *below], given, left - 1)


def best(given: Accuracies, width: int) -> VerificationTree:
    """The tree of a width with the largest estimate, by exhaustive search."""
    trees = every((), [(rank,) for rank in range(len(given[0]))], given, width - 1)
    return max(trees, key=lambda tree: expected_acceptance(tree, given))
