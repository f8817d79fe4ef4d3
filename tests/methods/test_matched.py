"""A matched draft: the coin's contexts are swapped and no others, confidences stay, the agreement is met."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from repro.core.errors import InputError
from repro.device.cost import FREE_MACHINE
from repro.device.emulated import EmulatedDevice
from repro.device.timeline import chrome
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.speculative.chain_sd import ChainSD
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.drafting.calibrated_draft import (
    MatchedNetwork,
    coin,
    mean_confidence,
    swap_probability,
    temper,
    temperature_for,
    with_first,
)
from repro.models.forward.network import DecoderNetwork, Logits, Network, Step
from repro.models.tokens.prefix import Prefix
from tiny import NoisedNetwork, TableNetwork, answer, decoder, model_cost_of, plain, toy

VOCAB = 100


FAMILY = "qwen-3"


ASKED = Request("r", (7, 1, 9, 3), 12)


METHODS = [Corrected(), ChainSD(length=3), EdgeLLM(limit=4, ahead=3, choices=3)]


class Oracle(TableNetwork):
    """A target that notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(VOCAB, seed=1)
        self.asked: list[Prefix] = []

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        self.asked += wanted
        return super().begin(wanted, branches)


def rows(network: Network, texts: Sequence[Prefix]) -> list[Logits]:
    step = network.begin(texts)
    step.layers(0, network.depth)
    return step.rows()


# One row


def test_a_swap_changes_two_places_and_no_confidence() -> None:
    row = Logits(None, ([5, 3, 8, 1], [-0.1, -2.0, -3.0, -4.0]))
    assert with_first(row, 8).top_ranks() == ([8, 3, 5, 1], [-0.1, -2.0, -3.0, -4.0])
    assert with_first(row, 5).top_ranks() == ([5, 3, 8, 1], [-0.1, -2.0, -3.0, -4.0])
    assert row.top_ranks()[0] == [5, 3, 8, 1], "a remembered row must stay what it was"


# The temperature


@pytest.mark.parametrize("temperature", [0.2, 0.7, 1.0, 3.0])
def test_a_temperature_divides_logits_and_keeps_their_order(temperature: float) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 3
    tokens, logps = temper(Logits(logits), temperature).top_ranks()
    assert tokens == Logits(logits).top_ranks()[0]
    assert logps == pytest.approx(
        (logits / temperature).log_softmax(-1).sort(descending=True).values.tolist()[: len(logps)], abs=1e-5
    )


def test_the_temperature_brings_the_mean_confidence_to_the_agreement() -> None:
    generator = torch.Generator().manual_seed(0)
    said = [Logits(torch.randn(300, generator=generator) * 2) for _ in range(200)]
    own = mean_confidence(said, 1.0)
    for wanted in (0.05, own, 0.87):
        found = temperature_for(said, wanted)
        assert mean_confidence(said, found) == pytest.approx(wanted, abs=2e-3)
        assert (found < 1) == (wanted > own) or wanted == own
    with pytest.raises(InputError, match="choose draft_calibration=choices"):
        temperature_for([Logits(torch.zeros(300))], 0.9)


# The coin


def test_the_coin_is_the_same_in_every_process_and_on_every_tree() -> None:
    assert coin(Prefix.of([1, 2, 3]), 0) == 0.35090478117875357
    assert coin(Prefix.of([1, 2, 3]), 0) == coin(Prefix.empty().then(1).then(2).then(3), 0)
    assert len({coin(Prefix.of([1, 2, 3]), seed) for seed in range(9)}) == 9


# The network


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8, 1.0])
def test_exactly_the_contexts_of_the_coin_are_swapped(probability: float) -> None:
    oracle, draft, texts = Oracle(), TableNetwork(VOCAB, seed=2), [Prefix.of([i, i + 1]) for i in range(200)]
    made = rows(MatchedNetwork(draft, oracle, probability, seed=3), texts)
    swapped = [text for text in texts if coin(text, 3) < probability]
    assert oracle.asked == swapped, "the oracle is asked for these alone"
    for text, row in zip(texts, made, strict=True):
        own = Logits(draft.logits(text))
        assert row.top_ranks()[1] == own.top_ranks()[1]
        if text in swapped:
            choice = Logits(oracle.logits(text)).choice
            assert row.top_ranks() == with_first(own, choice).top_ranks()
        else:
            assert row.top_ranks() == own.top_ranks()
    assert {0.0: 0, 1.0: 200}.get(probability, len(swapped)) == len(swapped)


def served(method: Method, probability: float) -> tuple[list[int], list[int], str]:
    """Tokens, accepted tokens by round, and the trace, of networks that really compute."""
    target, oracle, plain_draft = (DecoderNetwork(decoder(FAMILY)) for _ in range(3))
    draft = MatchedNetwork(NoisedNetwork(plain_draft, 20.0), oracle, probability, seed=0)
    networks: dict[str, Network] = {"target": target, "draft": draft}
    device = EmulatedDevice(toy())
    made = answer(method, ASKED, device, networks, dict.fromkeys(networks, model_cost_of(decoder(FAMILY))))
    assert oracle.lineage.length <= plain_draft.lineage.length, "both forget what was not accepted"
    return made.tokens, [r.accepted for r in made.rounds], chrome(device.trace, "run")


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_the_text_stays_the_targets_own(method: Method, probability: float) -> None:
    assert served(method, probability)[0] == plain(decoder(FAMILY), ASKED)


def test_the_oracle_costs_nothing() -> None:
    """One text, one trace to the byte, whether the oracle is asked for nothing or for everything."""
    native, everything = (served(Corrected(), p) for p in (0.0, 1.0))
    assert native[2] == everything[2]
    assert native[1] != everything[1] == [1] * 11


# How often


def test_the_probability_is_the_closed_form() -> None:
    assert swap_probability(0.25, 0.85) == pytest.approx(0.8)
    assert swap_probability(0.0, 0.3) == 0.3
    assert swap_probability(0.4, 0.4) == swap_probability(1.0, 1.0) == 0.0
    assert swap_probability(0.4, 1.0) == 1.0
    assert swap_probability(0.83, 0.81, error=0.01) == 0.0
    with pytest.raises(InputError, match=r"95\.0%.*87\.1%"):
        swap_probability(0.95, 0.871)


def test_the_measured_agreement_is_the_wanted_one() -> None:
    target, draft = TableNetwork(8, seed=1), TableNetwork(8, seed=2)
    requests = [Request(f"{i}", (i, 0), 101) for i in range(40)]

    def correctness(draft: Network, asked: Sequence[Request]) -> float:
        networks: dict[str, Network] = {"target": target, "draft": draft}
        made = [answer(Corrected(), request, EmulatedDevice(FREE_MACHINE), networks) for request in asked]
        drafted = [r for generation in made for r in generation.rounds]
        assert len(drafted) == 100 * len(asked)
        return sum(r.accepted for r in drafted) / len(drafted)

    native = correctness(draft, requests[20:])
    assert native == pytest.approx(1 / 8, abs=0.03)
    for wanted in (0.5, 0.816, 0.907):
        found = correctness(MatchedNetwork(draft, target, swap_probability(native, wanted), 0), requests[:20])
        assert found == pytest.approx(wanted, abs=3 * math.sqrt(wanted * (1 - wanted) / 2000))
