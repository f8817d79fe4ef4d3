"""What is remembered equals what was computed, changes no byte of a run, and is shared between processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from repro import __file__ as package
from repro.device.emulated import EmulatedDevice
from repro.device.timeline import chrome
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.plain.autoregressive import FlashAutoregressive
from repro.methods.speculative.chain_sd import ChainSD
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import RANKED, DecoderNetwork, Logits, Network, Step
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from tiny import NoisedNetwork, TableNetwork, alone, answer, decoder, model_cost_of, toy

FAMILY = "qwen-3"
ASKED = Request("r", (7, 1, 9, 3), 12)
METHODS = [FlashAutoregressive(), ChainSD(length=3), EdgeLLM(limit=4, ahead=3, choices=3)]


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
        return self._network.begin(wanted)

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
    assert len(warm.top_ranks()[0]) == RANKED
    logps = alone(made, [5, 2, 8]).log_softmax(-1)
    tokens, said = warm.top_ranks()
    torch.testing.assert_close(torch.tensor(said), logps[tokens], atol=1e-5, rtol=0)
    assert warm.choice == tokens[0] == int(logps.argmax())
    assert warm.top(2) == list(zip(tokens[:2], said[:2], strict=True))


def test_a_small_vocabulary_has_fewer_ranks(memo: LogitCache) -> None:
    text = Prefix.of([1])
    memo.put([text.digest], [Logits(torch.tensor([0.0, 2.0, 1.0]))])
    found = memo.get(text.digest)
    assert found is not None
    assert found.top_ranks()[0] == [1, 2, 0]


def test_what_is_known_is_not_written_over(memo: LogitCache) -> None:
    text = Prefix.of([1])
    memo.put([text.digest], [Logits(torch.tensor([0.0, 2.0]))])
    memo.put([text.digest, text.then(1).digest], [Logits(torch.tensor([3.0, 0.0]))] * 2)
    found = [memo.get(text.digest), memo.get(text.then(1).digest)]
    assert [row.choice for row in found if row] == [1, 0]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
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


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("known", ["target", "draft"])
def test_a_memo_of_one_model_alone(
    method: Method, known: str, memos: dict[str, LogitCache], tmp_path: Path
) -> None:
    cold = run(method, memos)
    other = {role: memo if role == known else LogitCache(tmp_path / "empty") for role, memo in memos.items()}
    half = run(method, other)
    assert half[:2] == cold[:2]
    assert half[2][known].wanted == []
    next(memo for role, memo in other.items() if role != known).close()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
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


def test_a_longer_answer_goes_on_where_the_memo_ends(memos: dict[str, LogitCache]) -> None:
    run(FlashAutoregressive(), memos, Request("r", ASKED.prompt, 5))
    tokens, trace, counted = run(FlashAutoregressive(), memos)
    assert (tokens, trace) == run(FlashAutoregressive(), None)[:2]
    assert counted["target"].wanted == [[length] for length in range(9, 16)]


def test_looked_up_rows_are_computed_when_a_later_pass_needs_them(memo: LogitCache) -> None:
    made, text = decoder(FAMILY), Prefix.of([5, 2])
    rows(MemoNetwork(DecoderNetwork(made), memo), text, text.then(4))
    behind = DecoderNetwork(made)
    network = MemoNetwork(behind, memo)
    rows(network, text, text.then(4))
    assert behind.cache.length == 0
    found = rows(network, text.extend([4, 6]))[0]
    assert behind.cache.length == 4
    assert found.choice == int(alone(made, [5, 2, 4, 6]).argmax())


def test_sampling_never_reads_from_a_memo(memos: dict[str, LogitCache]) -> None:
    sampled = Request("r", ASKED.prompt, 4, sampling=Sampling(1.0))
    for _ in ("cold", "warm"):
        with pytest.raises(RuntimeError, match="sampling must not read from a memo"):
            run(ChainSD(length=2), memos, sampled)


OTHER = """
import sys
from pathlib import Path
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.tokens.prefix import Prefix
from tiny import TableNetwork

memo = LogitCache(Path(sys.argv[1]))
print("open", flush=True)
input()
for i in range(200):
    MemoNetwork(TableNetwork(10), memo).begin([Prefix.of([i, 1])]).rows()
print(sum(memo.get(Prefix.of([i, 1]).digest) is not None for i in range(200)))
memo.close()
"""


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "memo.sqlite"
    paths = f"{Path(package).parents[1]}:{Path(__file__).parents[1]}"
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path)],
        env={"PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    memo = LogitCache(path)
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()
    mine = [MemoNetwork(TableNetwork(10), memo).begin([Prefix.of([i, 1])]).rows()[0] for i in range(100, 300)]
    out, _ = other.communicate(timeout=60)
    assert (other.returncode, out) == (0, "200\n")
    assert [row.top_ranks() for row in mine[:3]] == [
        Logits(TableNetwork(10).logits(Prefix.of([i, 1]))).top_ranks() for i in (100, 101, 102)
    ]
    assert all(memo.get(Prefix.of([i, 1]).digest) for i in range(300))
    memo.close()


def test_late_rows_are_computed_one_by_one_and_only_when_looked_at(memo: LogitCache) -> None:
    counted = Counted(DecoderNetwork(decoder(FAMILY)))
    network = MemoNetwork(counted, memo)
    text = Prefix.of((7, 1, 9))
    tree = [text, text.then(4), text.then(5), text.then(4).then(6)]
    step = network.begin(tree)
    step.layers(0, network.depth)
    late = step.late_rows()
    assert counted.wanted == []
    (alone_first,) = rows(DecoderNetwork(decoder(FAMILY)), tree[3])
    assert late[3].choice == alone_first.choice
    assert late[3].top(5) == late[3].top(5)
    assert counted.wanted == [[5]]
    assert memo.get(tree[3].digest) is not None
    assert memo.get(tree[1].digest) is None


@pytest.mark.parametrize("method", METHODS[1:], ids=["chain_sd", "edgellm"])
def test_a_memo_that_knows_the_text_computes_no_tree(method: Method, memos: dict[str, LogitCache]) -> None:
    """The target's own text is all that a verification looks at."""
    own = run(FlashAutoregressive(), memos)
    guessed = run(method, memos)
    assert guessed[0] == own[0]
    end = len(ASKED.prompt) + ASKED.max_tokens
    assert all(length >= end for pass_ in guessed[2]["target"].wanted for length in pass_)  # beyond its end
