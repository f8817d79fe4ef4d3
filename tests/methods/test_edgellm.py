"""EdgeLLM's parts worked out by hand: how a tree grows, when it is verified, what the threshold becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import log

import pytest

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Generation, Request
from repro.methods.edgellm.edgellm import EdgeLLM, tree_confidence
from repro.models.forward.network import KnownStep, Logits, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from tiny import MODEL_COST, answer, toy

PROMPT = (7, 7)
Chances = Callable[[tuple[int, ...]], Sequence[float]]


class Written:
    """A model whose rows are written down: each token's chance after an answer's tokens, the best first."""

    depth = 0

    def __init__(self, chances: Chances, best: int = 0) -> None:
        """`best` is the token of the first rank; it changes places with token 0."""
        self._chances, self._best = chances, best
        self.wanted: Counter[tuple[int, ...]] = Counter()

    def start(self, prompt: Prefix) -> None:
        """Nothing is held."""

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        return KnownStep([self._row(tuple(prefix.tokens(start=len(PROMPT)))) for prefix in wanted])

    def keep(self, text: Prefix) -> None:
        """Nothing is held."""

    def _row(self, said: tuple[int, ...]) -> Logits:
        self.wanted[said] += 1
        chances = self._chances(said)
        tokens = [self._best, *(t for t in range(len(chances)) if t != self._best)]
        return Logits(None, (tokens, [log(chance) for chance in chances]))


def even(said: tuple[int, ...]) -> Sequence[float]:
    return 0.6, 0.3, 0.1


def sure(said: tuple[int, ...]) -> Sequence[float]:
    return 0.99, 0.006, 0.004


def draft_of(chances: Chances) -> Session:
    return Session(Engine("draft", EmulatedDevice(toy()), MODEL_COST, Written(chances), RESIDENT))


def said(tree: TokenTree) -> list[list[int]]:
    """The drafted sequences in the order in which they came."""
    return [prefix.tokens(start=len(PROMPT)) for prefix in tree.prefixes[1:]]


def grown(method: EdgeLLM, count: int, chances: Chances = even) -> list[list[int]]:
    tree, draft = TokenTree(Prefix.of(PROMPT)), draft_of(chances)

    async def run() -> None:
        for _ in range(count):
            await method._navigate(tree, draft)

    draft.device.play(run())
    return said(tree)


def test_a_tree_grows_where_its_share_is_not_reached_yet() -> None:
    """First choices at 0.6 and second ones at 0.3.

    [0] and [0, 0] (0.36) have no rival but the root's second choice (0.3), which beats [0, 0, 0] (0.216).
    Then three tokens stand: [0, 0, 0] is due 3 * 0.216 / 0.396 of them and would be 3 long, [1, 0] is due
    3 * 0.18 / 0.396 and would be 2 long. With four, both would be 3 long. Then [0, 1] (0.18) beats
    [0, 0, 0, 0] (0.13).
    """
    expected = [[0], [0, 0], [1], [1, 0], [0, 0, 0], [0, 1]]
    assert grown(EdgeLLM(), 6) == expected


def test_as_many_branches_open_as_there_are_choices() -> None:
    def flat(said: tuple[int, ...]) -> Sequence[float]:
        return (0.34, 0.33, 0.32, 0.01) if not said else (0.5, 0.3, 0.1, 0.1)

    assert grown(EdgeLLM(choices=3), 3, flat) == [[0], [1], [2]]
    # [0, 0] is at 0.17 and [1, 0] at 0.165; the second is as long and due less.
    assert grown(EdgeLLM(choices=2), 3, flat) == [[0], [1], [0, 0]]
    assert grown(EdgeLLM(choices=1), 3, flat) == [[0], [0, 0], [0, 0, 0]]


def test_without_navigation_it_is_a_chain() -> None:
    assert grown(EdgeLLM(navigation=False, choices=3), 4) == [[0] * n for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("method", "alpha", "drafted", "reason"),
    [
        (EdgeLLM(), 0.5, 2, "confidence"),  # [0, 0] is at 0.36
        (EdgeLLM(), 0.3, 5, "confidence"),  # [0, 0] stays a leaf until [0, 0, 0] comes fifth, at 0.216
        (EdgeLLM(navigation=False), 0.3, 3, "confidence"),
        (EdgeLLM(limit=4), 0.3, 4, "limit"),
        (EdgeLLM(limit=4, fallback=False, length=6), 0.3, 6, "limit"),
    ],
)
def test_a_round_ends_when_confidence_falls_below_alpha(
    method: EdgeLLM, alpha: float, drafted: int, reason: str
) -> None:
    tree, draft = TokenTree(Prefix.of(PROMPT)), draft_of(even)
    assert draft.device.play(method._draft(tree, alpha, draft)) == reason
    assert len(tree) - 1 == drafted
    assert reason == "limit" or tree_confidence(tree) < alpha


def test_the_trees_confidence_is_its_best_branchs() -> None:
    tree = TokenTree(Prefix.of(PROMPT))
    assert tree_confidence(tree) == 1
    first = tree.grow(0, 0, log(0.6))
    tree.grow(first, 0, log(0.5))
    assert tree_confidence(tree) == pytest.approx(0.3)
    tree.grow(0, 1, log(0.35))
    assert tree_confidence(tree) == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("update", "confidence", "correct", "drafted", "alpha"),
    [
        ("exponential", 0.25, 3, 3, 0.005),
        ("printed", 0.25, 3, 3, 0.005),
        ("exponential", 0.25, 1, 2, 0.02),  # 0.01 / 0.25^(1/2)
        ("exponential", 0.04, 0, 2, 0.25),  # 0.01 / 0.04
        ("exponential", 0.001, 0, 5, 0.9),  # 10, but no tree could grow at 1
        ("printed", 0.25, 1, 4, 0.75),
        ("printed", 0.25, 0, 4, 0.9),
    ],
)
def test_alpha_follows_errors(
    update: str, confidence: float, correct: int, drafted: int, alpha: float
) -> None:
    adapted = EdgeLLM(update=update)._adapt(0.01, confidence, correct, drafted)
    assert adapted == pytest.approx(alpha)


def serve(
    method: EdgeLLM, best: int = 0, tokens: int = 20
) -> tuple[Generation, Counter[tuple[int, ...]], EmulatedDevice]:
    """An answer of zeros, what the draft was asked for, and the device."""
    device, draft = EmulatedDevice(toy()), Written(sure, best)
    networks = {"target": Written(sure), "draft": draft}
    return answer(method, Request("", PROMPT, tokens), device, networks), draft.wanted, device


@pytest.mark.parametrize("provisional", ["gaps", "naive"])
def test_what_was_drafted_while_the_target_verified_is_not_drafted_again(provisional: str) -> None:
    # All drafts are right, so that of a chain nothing is lost.
    method = EdgeLLM(provisional=provisional, navigation=False, limit=4, ahead=3)
    made, asked, _ = serve(method)
    waiting, _, _ = serve(EdgeLLM(provisional="never", navigation=False, limit=4))
    assert made.tokens == waiting.tokens == [0] * 20
    assert set(asked.values()) == {1}
    # The verification's own token is the first of three that were drafted beside it; two more follow.
    assert [r.drafted for r in made.rounds] == [4] * 4
    assert [r.drafted for r in waiting.rounds] == [4] * 4
    assert made.ended - made.arrived < waiting.ended - waiting.arrived


def test_provisional_tokens_are_so_many_at_most() -> None:
    made, asked, _ = serve(EdgeLLM(navigation=False, limit=2, ahead=9), tokens=4)
    assert [r.drafted for r in made.rounds] == [2]
    # The first token, two that are verified, up to nine that nobody waits for.
    assert 3 < len(asked) <= 3 + 9


def test_below_a_wrong_token_nothing_is_kept() -> None:
    made, asked, _ = serve(EdgeLLM(navigation=False, limit=3, ahead=3), best=2, tokens=4)
    assert made.tokens == [0] * 4
    assert [(r.accepted, r.emitted, r.drafted) for r in made.rounds] == [(0, 1, 3)] * 3
    assert {text[:1] for text in asked} == {(0,)}
    assert all(asked[(0,) * n] == 1 for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("provisional", "target", "draft"),
    [
        (
            "gaps",
            Placement(resident=0.0, preload=True, fill=None),
            Placement(run=1, background=True, prefetch=0),
        ),
        ("naive", Placement(resident=0.0, preload=True, fill=None), Placement(run=1, prefetch=0)),
        ("never", Placement(resident=0.0), Placement(prefetch=0)),
    ],
)
def test_places(provisional: str, target: Placement, draft: Placement) -> None:
    assert EdgeLLM(provisional=provisional).places() == {"target": target, "draft": draft}
