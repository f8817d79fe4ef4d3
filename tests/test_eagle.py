"""EAGLE-3 heads: the public format, their rows against a plain reference, losslessness, what they cost."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.core.device import Device, EmulatedDevice
from repro.methods.base import Generation, Method, Request
from repro.methods.decoding.chain_sd import ChainSD
from repro.methods.decoding.corrected import Corrected
from repro.methods.decoding.edgellm import EdgeLLM
from repro.methods.decoding.specinfer import SpecInfer
from repro.models import eagle_head
from repro.models.decoder import Decoder
from repro.models.eagle import EagleNetwork, RememberedHead
from repro.models.eagle_head import EagleConfig, EagleHead
from repro.models.features import Captured, Features
from repro.models.matched import MatchedNetwork
from repro.models.memo import Memo
from repro.models.network import DecoderNetwork, Network, Row
from repro.models.prefix import Prefix
from repro.models.remembered import Remembered
from repro.models.sampling import Sampling
from repro.models.shape import Bill, precision
from tiny import DEVICES, answer, bill_of, decoder, plain, toy
from tiny_eagle import DRAFT_VOCAB, raw_config, said, tensors_of, write_head

FAMILY = "llama-2"
TOLERANCE = 1e-4
PROMPT = (3, 17, 92, 5, 40, 8)


def target() -> Decoder:
    return decoder(FAMILY)


@cache
def tensors(seed: int = 0) -> dict[str, Tensor]:
    return tensors_of(raw_config(target()), seed)


def config(**changes: Any) -> EagleConfig:
    found = eagle_head.config_of(raw_config(target(), **changes))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    folder = write_head(tmp_path_factory.mktemp("head"), raw_config(target()), tensors())
    return eagle_head.load(folder, config(), "float32", target().ends.embedding)


def remembered(memo: Memo | None = None) -> Remembered:
    return Remembered(config().depths(target().config.layers), target, memo)


def network(head: EagleHead, features: Features | None = None) -> EagleNetwork:
    return EagleNetwork(head.config, lambda: head, features or remembered(), capacity=4)


def rows(made: Network, wanted: list[Prefix]) -> list[Row]:
    step = made.begin(wanted)
    step.layers(0, made.depth)
    return step.rows()


def require_rows(made: Network, wanted: list[Prefix], boundary: int) -> None:
    for prefix, row in zip(wanted, rows(made, wanted), strict=True):
        truth = said(raw_config(target()), tensors(), target(), prefix.tokens(), boundary)
        torch.testing.assert_close(row.logits, truth, atol=TOLERANCE, rtol=TOLERANCE)
        assert row.choice == int(truth.argmax())


def test_prompt_chain_tree_and_what_keep_makes_of_them(head: EagleHead) -> None:
    made, prompt = network(head), Prefix.of(PROMPT)
    made.start(prompt)
    root = prompt.then(11)
    require_rows(made, [root], 6)
    chain = [root.then(1), root.extend((1, 2)), root.extend((1, 2, 3))]
    for prefix in chain:
        require_rows(made, [prefix], 6)
    level = [root.then(4), root.then(5)]
    require_rows(made, level, 6)
    require_rows(made, [level[1].then(6), level[0].then(7), chain[0].then(9)], 6)
    text = chain[1].then(8)
    made.keep(text)
    require_rows(made, [text], text.length - 1)
    require_rows(made, [text.then(1), text.then(2)], text.length - 1)
    made.keep(text.then(3))
    require_rows(made, [text.extend((3, 4)), text.extend((3, 5))], text.length)
    made.keep(text.extend((3, 4)))
    require_rows(made, [text.extend((3, 4))], text.length + 1)
    made.start(prompt)
    require_rows(made, [prompt.extend((2, 3, 4))], 6)


def test_many_levels_in_one_pass(head: EagleHead) -> None:
    made, prompt = network(head), Prefix.of(PROMPT)
    made.start(prompt)
    require_rows(made, [prompt.extend((1, 2, 3)), prompt.extend((1, 2, 4)), prompt.extend((1, 5))], 6)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_walk(head: EagleHead, seed: int) -> None:
    """Trees grow anywhere below the text, and texts are kept anywhere in them."""
    rng, made = random.Random(seed), network(head)
    text = Prefix.of(rng.randrange(131) for _ in range(rng.randint(1, 6)))
    made.start(text)
    boundary, text = text.length, text.then(rng.randrange(131))
    nodes = [text]
    for _ in range(12):
        grown = {
            rng.choice(nodes).extend(rng.randrange(3) for _ in range(rng.randint(0, 2))) for _ in range(3)
        }
        lineage = made.lineage
        new = [prefix for prefix in grown if prefix not in lineage]
        if new:
            require_rows(made, new, boundary)
        nodes += new
        if rng.random() < 0.4:
            text = rng.choice([n for n in nodes if n.length >= text.length]).then(rng.randrange(3))
            made.keep(text)
            boundary, nodes = text.length - 1, [text]


def test_a_memo_changes_no_row(head: EagleHead, tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite")
    prompt = Prefix.of(PROMPT)
    root = prompt.then(11)

    def walk(made: Network) -> list[tuple[list[int], list[float]]]:
        made.start(prompt)
        out = (
            rows(made, [root]) + rows(made, [root.then(1)]) + rows(made, [root.extend((1, 2)), root.then(3)])
        )
        made.keep(root.extend((1, 2)))
        out += rows(made, [root.extend((1, 2))]) + rows(made, [root.extend((1, 2, 3))])
        return [row.ranked() for row in out]

    truth = walk(network(head))
    assert walk(RememberedHead(network(head, remembered(memo)), memo)) == walk(network(head))
    forgotten = RememberedHead(EagleNetwork(head.config, never, remembered(memo)), memo)
    for (tokens, logps), (known, close) in zip(truth, walk(forgotten), strict=True):
        assert tokens == known
        assert logps == pytest.approx(close, abs=1e-6)


def never() -> EagleHead:
    raise AssertionError("a memo that knows all needs no weights")


def test_a_memo_that_knows_a_part(head: EagleHead, tmp_path: Path) -> None:
    """What was looked up is caught up with when something else is asked for."""
    memo = Memo(tmp_path / "memo.sqlite")
    prompt = Prefix.of(PROMPT)
    first = RememberedHead(network(head, remembered(memo)), memo)
    first.start(prompt)
    rows(first, [prompt.then(1)])
    rows(first, [prompt.extend((1, 2))])
    second, alone = RememberedHead(network(head, remembered(memo)), memo), network(head)
    second.start(prompt)
    alone.start(prompt)
    for prefix in (prompt.then(1), prompt.extend((1, 2)), prompt.extend((1, 2, 3))):
        (known,), (truth,) = rows(second, [prefix]), rows(alone, [prefix])
        assert known.ranked()[0] == truth.ranked()[0]
        assert known.ranked()[1] == pytest.approx(truth.ranked()[1], abs=1e-5)


# --- as a draft ---------------------------------------------------------------------------------------------

METHODS = [
    ChainSD(length=3),
    SpecInfer(expansion=(2, 1, 2)),
    EdgeLLM(limit=4, ahead=3, fallback=False, length=3),
    EdgeLLM(limit=4, ahead=3, provisional="naive", choices=3),
    EdgeLLM(limit=4, provisional="never"),
    Corrected(),
]


def bills() -> dict[str, Bill]:
    return {"target": bill_of(target()), "draft": Bill(config().shape, precision("fp32"))}


def served(method: Method, device: Device, draft: Network, main: Network | None = None) -> Generation:
    request = Request("", PROMPT, 12)
    networks = {"target": main or DecoderNetwork(target()), "draft": draft}
    return answer(method, request, device, networks, bills())


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.6, 1.0])
def test_lossless(head: EagleHead, method: Method, probability: float) -> None:
    """A random head accepts nothing by itself; where the target's choice is put first, paths are accepted."""
    draft = MatchedNetwork(network(head), DecoderNetwork(target()), probability, seed=1)
    generation = served(method, EmulatedDevice(toy()), draft)
    assert generation.tokens == plain(target(), Request("", PROMPT, 12))
    accepted = [r.accepted for r in generation.rounds]
    assert (max(accepted) > 0) == (probability > 0)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("place", DEVICES)
def test_features_that_the_target_leaves_behind(head: EagleHead, method: Method, place: str) -> None:
    """Captured in the target's own passes they make the same rounds as computed apart."""
    captured = Captured(config().depths(target().config.layers))
    main = DecoderNetwork(target(), captured=captured)
    device = DEVICES[place]()
    own = served(method, device, network(head, captured), main)
    apart = served(method, EmulatedDevice(toy()), network(head))
    assert own.tokens == apart.tokens == plain(target(), Request("", PROMPT, 12))
    if place == "emulated":
        assert own.rounds == apart.rounds


def test_sampled(head: EagleHead) -> None:
    request = Request("", PROMPT, 6, sampling=Sampling(temperature=1.0))
    networks: dict[str, Network] = {"target": DecoderNetwork(target()), "draft": network(head)}
    generation = answer(ChainSD(length=2), request, EmulatedDevice(toy()), networks, bills())
    assert len(generation.tokens) == 6
    known = set((torch.arange(DRAFT_VOCAB) + tensors()["d2t"]).tolist())
    (row,) = rows(started(network(head)), [Prefix.of(PROMPT)])
    assert set(row.logits.isfinite().nonzero().flatten().tolist()) == known


def started(made: EagleNetwork) -> EagleNetwork:
    made.start(Prefix.of(PROMPT))
    return made
