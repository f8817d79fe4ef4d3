"""A matched draft: the coin's contexts are swapped and no others, confidences stay, the agreement is met."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from repro.core.errors import InputError
from repro.device.cost import FREE_MACHINE
from repro.device.emulated import EmulatedDevice
from repro.device.timeline import chrome
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.plain.autoregressive import DraftAlone
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
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import RANK_COUNT, DecoderNetwork, Logits, Network, Step
from repro.models.tokens.prefix import Prefix
from tiny import DEVICES, NoisedNetwork, Rewritten, TableNetwork, answer, decoder, model_cost_of, plain, toy

VOCAB = 100
FAMILY = "qwen-3"
ASKED = Request("r", (7, 1, 9, 3), 12)
METHODS = [Corrected(), ChainSD(length=3), EdgeLLM(limit=4, ahead=3, choices=3)]


class Noted:
    """A network that notes which sequences were wanted, what it said and which texts were kept."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.depth = network.depth
        self.said: dict[bytes, tuple[list[int], list[float]]] = {}
        self.kept: list[bytes] = []

    def start(self, prompt: Prefix) -> None:
        self._network.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        return Rewritten(self._network.begin(wanted, branches), lambda rows: self._note(wanted, rows))

    def _note(self, wanted: Sequence[Prefix], rows: list[Logits]) -> list[Logits]:
        self.said |= {text.digest: row.top_ranks() for text, row in zip(wanted, rows, strict=True)}
        return rows

    def keep(self, text: Prefix) -> None:
        self.kept.append(text.digest)
        self._network.keep(text)


def tables() -> tuple[TableNetwork, TableNetwork]:
    """A target and a draft that have nothing to do with each other."""
    return TableNetwork(VOCAB, seed=1), TableNetwork(VOCAB, seed=2)


def contexts(count: int) -> list[Prefix]:
    return [Prefix.of([i, i + 1]) for i in range(count)]


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


def test_a_choice_beyond_the_ranks_comes_first_and_the_first_goes_beyond_them() -> None:
    _, draft = tables()
    (row,) = rows(draft, contexts(1))
    tokens, logps = row.top_ranks()
    assert len(tokens) == RANK_COUNT < VOCAB
    unlikely = next(token for token in range(VOCAB) if token not in tokens)
    changed = with_first(row, unlikely)
    assert changed.choice == unlikely
    assert changed.top_ranks() == ([unlikely, *tokens[1:]], logps)
    assert changed.top(2) == [(unlikely, logps[0]), (tokens[1], logps[1])]


# The temperature


@pytest.mark.parametrize("temperature", [0.2, 0.7, 1.0, 3.0])
def test_a_temperature_divides_logits_and_keeps_their_order(temperature: float) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 3
    tokens, logps = temper(Logits(logits), temperature).top_ranks()
    assert tokens == Logits(logits).top_ranks()[0]
    assert logps == pytest.approx(
        (logits / temperature).log_softmax(-1).sort(descending=True).values.tolist()[: len(logps)], abs=1e-5
    )


def test_what_lies_beyond_the_kept_ranks_counts_as_probable_as_the_last_of_them() -> None:
    flat = Logits(torch.zeros(6400))
    assert temper(flat, 0.3).top_ranks()[1] == pytest.approx([-math.log(6400)] * 64, rel=1e-4)
    logits = torch.randn(6400, generator=torch.Generator().manual_seed(1)) * 4
    assert temper(Logits(logits), 1.0).top_ranks()[1] == pytest.approx(
        Logits(logits).top_ranks()[1], abs=1e-5
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


def test_a_matched_draft_is_at_one_temperature_swapped_or_not() -> None:
    target, draft = tables()
    texts = contexts(50)
    warm, own = (rows(MatchedNetwork(draft, Noted(target), 0.5, 3, t), texts) for t in (0.4, 1.0))
    for one, other in zip(warm, own, strict=True):
        assert one.choice == other.choice
        assert one.top_ranks() == temper(other, 0.4).top_ranks()


# The coin


def test_the_coin_is_the_same_in_every_process_and_on_every_tree() -> None:
    assert coin(Prefix.of([1, 2, 3]), 0) == 0.35090478117875357
    assert coin(Prefix.of([1, 2, 3]), 0) == coin(Prefix.empty().then(1).then(2).then(3), 0)
    assert len({coin(Prefix.of([1, 2, 3]), seed) for seed in range(9)}) == 9


def test_the_coin_is_uniform_and_independent_of_the_seed_before() -> None:
    tossed = [[coin(text, seed) for text in contexts(4000)] for seed in (0, 1)]
    for share in (0.1, 0.5, 0.8):
        found = sum(number < share for number in tossed[0]) / 4000
        assert found == pytest.approx(share, abs=3 * math.sqrt(share * (1 - share) / 4000))
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(*tossed, strict=True)) / 4000
    assert both == pytest.approx(0.25, abs=3 * math.sqrt(0.25 * 0.75 / 4000))


# The network


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8, 1.0])
def test_exactly_the_contexts_of_the_coin_are_swapped(probability: float) -> None:
    target, draft = tables()
    oracle, texts = Noted(target), contexts(200)
    made = rows(MatchedNetwork(draft, oracle, probability, seed=3), texts)
    swapped = [text for text in texts if coin(text, 3) < probability]
    assert list(oracle.said) == [text.digest for text in swapped], "the oracle is asked for these alone"
    for text, row in zip(texts, made, strict=True):
        own = Logits(draft.logits(text))
        assert row.top_ranks()[1] == own.top_ranks()[1]
        if text in swapped:
            choice = Logits(target.logits(text)).choice
            assert row.top_ranks() == with_first(own, choice).top_ranks()
        else:
            assert row.top_ranks() == own.top_ranks()
    assert {0.0: 0, 1.0: 200}.get(probability, len(swapped)) == len(swapped)


def matched(
    probability: float, memos: dict[str, LogitCache] | None = None
) -> tuple[dict[str, Network], dict[str, Noted]]:
    """A target and a matched draft that really compute, and what was asked of draft and oracle."""
    made = decoder(FAMILY)
    noted = {
        "draft": Noted(NoisedNetwork(DecoderNetwork(made), 20.0)),
        "oracle": Noted(DecoderNetwork(made)),
    }
    behind = {name: MemoNetwork(n, memos[name]) if memos else n for name, n in noted.items()}
    draft = Noted(MatchedNetwork(behind["draft"], behind["oracle"], probability, seed=0))
    return {"target": DecoderNetwork(made), "draft": draft}, noted | {"matched": draft}


def served(method: Method, networks: dict[str, Network]) -> tuple[list[int], list[int], str]:
    """Tokens, accepted tokens by round, and the trace."""
    device = EmulatedDevice(toy())
    made = answer(method, ASKED, device, networks, dict.fromkeys(networks, model_cost_of(decoder(FAMILY))))
    return made.tokens, [r.accepted for r in made.rounds], chrome(device.trace, "run")


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_the_text_stays_the_targets_own(method: Method, probability: float) -> None:
    tokens, _, _ = served(method, matched(probability)[0])
    assert tokens == plain(decoder(FAMILY), ASKED)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_the_oracle_keeps_up_and_is_told_what_to_forget(method: Method) -> None:
    networks, noted = matched(0.5)
    served(method, networks)
    swapped = {text for text in noted["matched"].said if text in noted["oracle"].said}
    assert 0 < len(swapped) == len(noted["oracle"].said) < len(noted["matched"].said)
    assert noted["oracle"].kept == noted["draft"].kept == noted["matched"].kept != []
    for text in swapped:
        assert noted["matched"].said[text][0][0] == noted["oracle"].said[text][0][0]


def test_a_context_has_the_same_row_in_every_method() -> None:
    said: list[dict[bytes, tuple[list[int], list[float]]]] = []
    for method in METHODS:
        networks, noted = matched(0.5)
        served(method, networks)
        said.append(noted["matched"].said)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        common = said[one].keys() & said[other].keys()
        assert len(common) >= 4
        for text in common:
            assert said[one][text][0][:3] == said[other][text][0][:3]
            assert said[one][text][1] == pytest.approx(said[other][text][1], abs=1e-3)


def test_a_draft_that_always_agrees_is_accepted_whole_and_writes_the_targets_text() -> None:
    _, accepted, _ = served(ChainSD(length=3), matched(1.0)[0])
    assert accepted == [3, 3, 3][: len(accepted)]
    _, native, _ = served(ChainSD(length=3), matched(0.0)[0])
    assert sum(native) < sum(accepted)
    assert served(DraftAlone(), matched(1.0)[0])[0] == plain(decoder(FAMILY), ASKED)


def test_the_oracle_costs_nothing() -> None:
    """One text, one trace to the byte, whether the oracle is asked for nothing or for everything."""
    native, everything = (served(Corrected(), matched(p)[0]) for p in (0.0, 1.0))
    assert native[2] == everything[2]
    assert native[1] != everything[1] == [1] * 11


@pytest.fixture
def memos(tmp_path: Path) -> Iterator[dict[str, LogitCache]]:
    opened = {name: LogitCache(tmp_path / f"{name}.sqlite") for name in ("draft", "oracle")}
    yield opened
    for memo in opened.values():
        memo.close()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_memos_hold_native_rows_and_only_what_lacks_is_computed(
    method: Method, memos: dict[str, LogitCache]
) -> None:
    without, cold, warm = (matched(0.5, each) for each in (None, memos, memos))
    results = [served(method, networks) for networks, _ in (without, cold, warm)]
    assert results[0] == results[1] == results[2]
    assert warm[1]["draft"].said == warm[1]["oracle"].said == {}
    assert cold[1]["oracle"].said.keys() == without[1]["oracle"].said.keys()
    networks, more = matched(0.9, memos)
    served(method, networks)
    new = more["oracle"].said.keys()
    assert not new & cold[1]["oracle"].said.keys(), "what a lower probability swapped is known"
    assert len(new) > 0


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


# The method


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strength", [0.0, 0.2, 20.0])
def test_corrected_emits_the_targets_own_tokens_and_one_a_round(device: str, strength: float) -> None:
    opened, made = DEVICES[device](), decoder(FAMILY)
    networks: dict[str, Network] = {
        "target": DecoderNetwork(made), "draft": NoisedNetwork(DecoderNetwork(made), strength)
    }  # fmt: skip
    model_costs = dict.fromkeys(networks, model_cost_of(made))
    generation = answer(Corrected(resident=1.0), ASKED, opened, networks, model_costs)
    opened.close()
    assert generation.tokens == plain(made, ASKED)
    assert [(r.drafted, r.rows, r.emitted) for r in generation.rounds] == [(1, 1, 1)] * 11
    assert {r.accepted for r in generation.rounds} == ({1} if strength == 0.0 else {0, 1})


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_corrected_ends_where_the_answer_does(max_tokens: int) -> None:
    target, draft = tables()
    networks: dict[str, Network] = {"target": target, "draft": draft}
    whole = answer(Corrected(), ASKED, EmulatedDevice(FREE_MACHINE), networks)
    cut = answer(Corrected(), Request("r", ASKED.prompt, max_tokens), EmulatedDevice(FREE_MACHINE), networks)
    assert cut.tokens == whole.tokens[:max_tokens]
    assert len(cut.rounds) == max_tokens - 1
