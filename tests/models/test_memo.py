"""What is remembered equals what was computed, changes no byte of a run, and is shared between processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from repro.device.emulated import EmulatedDevice
from repro.device.timeline import chrome
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.plain.autoregressive import FlashAutoregressive
from repro.methods.speculative.chain_sd import ChainSD
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import RANK_COUNT, DecoderNetwork, Logits, Network, Step
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from tiny import NoisedNetwork, alone, answer, decoder, model_cost_of, toy

FAMILY = "qwen-3"
ASKED = Request("r", (7, 1, 9, 3), 12)
TREES = [EdgeLLM(limit=4, ahead=3, choices=3, verification=form) for form in ("tree", "branches")]
METHODS = [FlashAutoregressive(), ChainSD(length=3), *TREES]


class Counted:
    """A network that counts its passes and the rows that were wanted of it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.depth = network.depth
        self.wanted: list[list[int]] = []

    def start(self, prompt: Prefix) -> None:
        self._network.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        self.wanted.append([text.length for text in wanted])
        return self._network.begin(wanted, branches)

    def keep(self, text: Prefix) -> None:
        self._network.keep(text)


@pytest.fixture
def memo(tmp_path: Path) -> Iterator[LogitCache]:
    opened = LogitCache(tmp_path / "deep" / "memo.sqlite")
    yield opened
    opened.close()


def rows(network: Network, *texts: Prefix) -> list[Logits]:
    step = network.begin(texts)
    step.layers(0, network.depth)
    return step.rows()


def run(
    method: Method, memos: dict[str, LogitCache] | None, asked: Request = ASKED
) -> tuple[list[int], str, dict[str, Counted]]:
    """Tokens, trace, and what the networks behind the memos were asked."""
    made = decoder(FAMILY)
    counted = {
        "target": Counted(DecoderNetwork(made)),
        "draft": Counted(NoisedNetwork(DecoderNetwork(made), 0.2)),
    }
    networks = {r: MemoNetwork(n, memos[r]) if memos else n for r, n in counted.items()}
    device = EmulatedDevice(toy())
    generation = answer(method, asked, device, networks, dict.fromkeys(networks, model_cost_of(made)))
    return generation.tokens, chrome(device.trace, "run"), counted


@pytest.fixture
def memos(tmp_path: Path) -> Iterator[dict[str, LogitCache]]:
    opened = {role: LogitCache(tmp_path / f"{role}.sqlite") for role in ("target", "draft")}
    yield opened
    for each in opened.values():
        each.close()


def test_a_remembered_row_equals_the_computed_one(memo: LogitCache) -> None:
    made = decoder(FAMILY)
    text = Prefix.of([5, 2, 8])
    assert memo.get(text.digest) is None
    cold = rows(MemoNetwork(DecoderNetwork(made), memo), text)[0]
    warm = memo.get(Prefix.of([5, 2, 8]).digest)  # the same tokens, another tree
    assert warm is not None
    assert warm.top_ranks() == cold.top_ranks() == Logits(alone(made, [5, 2, 8])).top_ranks()
    assert len(warm.top_ranks()[0]) == RANK_COUNT
    logps = alone(made, [5, 2, 8]).log_softmax(-1)
    tokens, said = warm.top_ranks()
    torch.testing.assert_close(torch.tensor(said), logps[tokens], atol=1e-5, rtol=0)
    assert warm.choice == tokens[0] == int(logps.argmax())
    assert warm.top(2) == list(zip(tokens[:2], said[:2], strict=True))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_warm_memo_changes_no_byte_and_computes_nothing(
    method: Method, memos: dict[str, LogitCache]
) -> None:
    without = run(method, None)
    cold = run(method, memos)
    warm = run(method, memos)
    assert without[:2] == cold[:2] == warm[:2]
    asked_without, asked_cold = (sum(map(len, each[2]["target"].wanted)) for each in (without, cold))
    assert 0 < asked_cold <= asked_without  # of a tree only what the walk looks at
    assert warm[2]["target"].wanted == warm[2]["draft"].wanted == []


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("every", [2, 3])
def test_a_memo_with_holes_catches_up(
    method: Method, every: int, memos: dict[str, LogitCache], tmp_path: Path
) -> None:
    """As a killed or a shorter run leaves it: a pass then computes what others before it looked up."""
    cold = run(method, memos)
    for role in memos:
        with sqlite3.connect(tmp_path / f"{role}.sqlite") as file:
            keys = [key for (key,) in file.execute("select key from rows order by key")]
            file.executemany("delete from rows where key = ?", [(key,) for key in keys[::every]])
        file.close()
    holed = run(method, memos)
    assert holed[:2] == cold[:2]
    assert 0 < len(holed[2]["target"].wanted) <= len(cold[2]["target"].wanted)


def test_sampling_never_reads_from_a_memo(memos: dict[str, LogitCache]) -> None:
    sampled = Request("r", ASKED.prompt, 4, sampling=Sampling(1.0))
    for _ in ("cold", "warm"):
        with pytest.raises(RuntimeError, match="sampling must not read from a memo"):
            run(ChainSD(length=2), memos, sampled)


@pytest.mark.parametrize("method", METHODS[1:3], ids=str)
def test_a_memo_that_knows_the_text_computes_no_tree(method: Method, memos: dict[str, LogitCache]) -> None:
    """The target's own text is all that a verification looks at."""
    own = run(FlashAutoregressive(), memos)
    guessed = run(method, memos)
    assert guessed[0] == own[0]
    end = len(ASKED.prompt) + ASKED.max_tokens
    assert all(length >= end for pass_ in guessed[2]["target"].wanted for length in pass_)  # beyond its end
