"""EdgeLLM's parts worked out by hand: how a tree grows, when it is verified, what the threshold becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log

import pytest

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Generation, Request
from repro.methods.edgellm.edgellm import EdgeLLM, tree_confidence
from repro.models.forward.network import KnownStep, Logits, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from tiny import MODEL_COST, answer, toy

PROMPT = (7, 7)


EVEN, SURE = (0.6, 0.3, 0.1), (0.99, 0.006, 0.004)


class Written:
    """A model whose tokens have the same chances after every text; it counts the texts it is asked for."""

    depth = 0

    def __init__(self, chances: Sequence[float]) -> None:
        self._row = Logits(None, (list(range(len(chances))), [log(chance) for chance in chances]))
        self.wanted: Counter[Prefix] = Counter()

    def start(self, prompt: Prefix) -> None:
        """Nothing is held."""

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        self.wanted.update(wanted)
        return KnownStep([self._row for _ in wanted])

    def keep(self, text: Prefix) -> None:
        """Nothing is held."""


def draft_session() -> Session:
    return Session(Engine("draft", EmulatedDevice(toy()), MODEL_COST, Written(EVEN), RESIDENT))


def test_a_tree_grows_where_its_share_is_not_reached_yet() -> None:
    """First choices at 0.6 and second ones at 0.3.

    [0] and [0, 0] (0.36) have no rival but the root's second choice (0.3), which beats [0, 0, 0] (0.216).
    Then three tokens stand: [0, 0, 0] is due 3 * 0.216 / 0.396 of them and would be 3 long, [1, 0] is due
    3 * 0.18 / 0.396 and would be 2 long. With four, both would be 3 long. Then [0, 1] (0.18) beats
    [0, 0, 0, 0] (0.13).
    """
    tree, draft = TokenTree(Prefix.of(PROMPT)), draft_session()

    async def grow() -> None:
        for _ in range(6):
            await EdgeLLM()._navigate(tree, draft)

    draft.device.play(grow())
    drafted = [prefix.tokens(len(PROMPT)) for prefix in tree.prefixes[1:]]
    assert drafted == [[0], [0, 0], [1], [1, 0], [0, 0, 0], [0, 1]]


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
    tree, draft = TokenTree(Prefix.of(PROMPT)), draft_session()
    assert draft.device.play(method._draft(tree, alpha, draft)) == reason
    assert len(tree) - 1 == drafted
    assert reason == "limit" or tree_confidence(tree) < alpha


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


def serve(method: EdgeLLM) -> tuple[Generation, Counter[Prefix]]:
    """An answer of zeros, and what the draft was asked for; all drafts are right."""
    networks = {"target": Written(SURE), "draft": Written(SURE)}
    made = answer(method, Request("", PROMPT, 20), EmulatedDevice(toy()), networks)
    return made, networks["draft"].wanted


@pytest.mark.parametrize("provisional", ["gaps", "naive"])
def test_what_was_drafted_while_the_target_verified_is_not_drafted_again(provisional: str) -> None:
    made, asked = serve(EdgeLLM(provisional=provisional, navigation=False, limit=4, ahead=3))
    waiting, _ = serve(EdgeLLM(provisional="never", navigation=False, limit=4))
    assert made.tokens == waiting.tokens == [0] * 20
    assert set(asked.values()) == {1}
    # The verification's own token is the first of three that were drafted beside it; two more follow.
    assert [r.drafted for r in made.rounds] == [r.drafted for r in waiting.rounds] == [4] * 4
    assert made.ended - made.arrived < waiting.ended - waiting.arrived
