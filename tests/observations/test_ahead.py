"""What is computed ahead along a text is what passes of their own say; known scores compute nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from repro.methods.lever.exit_predictor import ExitPredictor, PredictorConfig
from repro.methods.lever.exit_scores import ExitScores
from repro.methods.speculative.drafting import eagle_head
from repro.methods.speculative.drafting.eagle import EagleNetwork
from repro.methods.speculative.drafting.eagle_head import EagleHead
from repro.models.forward.cached_features import CachedFeatures, lowest
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import DecoderNetwork, Logits, Network
from repro.models.forward.side_by_side import greedy_tokens
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder
from tiny import alone, decoder
from tiny_eagle import raw_config, tensors_of, write_head
from workshop.packs import ahead
from workshop.packs.ahead import Ahead, Likely

PROMPT = (3, 17, 92, 5, 40, 8)
PLACES = 2 * ahead.TOGETHER + 3
LIKELY = Likely(depth=3, reach=0.01, width=3, chain=5)
TOLERANCE = 1e-4


@cache
def target() -> Decoder:
    return decoder("llama-3.1")


@cache
def roots() -> list[Prefix]:
    """Places of the target's own text, the prompt not among them."""
    text = Prefix.of(PROMPT)
    tokens = greedy_tokens(DecoderNetwork(target()), text, PLACES, (), lambda row: None)
    return [text.extend(tokens[: i + 1]) for i in range(PLACES)]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    raw = raw_config(target())
    folder = write_head(tmp_path_factory.mktemp("head"), raw, tensors_of(raw, 0))
    config = eagle_head.config_of(raw)
    assert config is not None
    return eagle_head.load(folder, config, "float32", target().ends.embedding)


def said(network: Network, prefix: Prefix) -> Logits:
    step = network.begin([prefix])
    step.layers(0, network.depth)
    return step.rows()[0]


def close(one: Logits, other: Logits) -> bool:
    """Whether two rows have the same first ranks, ties of rounding aside."""
    (ours, logps), (theirs, others) = one.top_ranks(), other.top_ranks()
    known = dict(zip(theirs, others, strict=True))
    return all(abs(known.get(t, others[-1]) - p) < TOLERANCE for t, p in zip(ours, logps, strict=True))


def likely_ones(found: Sequence[Ahead]) -> Iterator[tuple[Ahead, Prefix]]:
    for one in found:
        for prefix in one.rows:
            yield one, prefix


def test_a_decoders_rows_are_those_of_passes_of_their_own() -> None:
    found = list(ahead.of_decoder(target(), roots(), LIKELY))
    assert [one.root for one in found] == roots()
    for one, prefix in likely_ones(found):
        assert close(one.rows[prefix], Logits(alone(target(), prefix.tokens())))


def test_a_heads_rows_are_those_of_passes_of_their_own(head: EagleHead) -> None:
    depths = head.config.depths(target().config.layers)
    before = list(roots()[-1].back())[:0:-1]
    features = CachedFeatures(depths, target).of(before)
    found = ahead.of_head(head, features, roots()[-1], roots(), LIKELY)
    for one in found[:: len(found) // 5]:
        network = EagleNetwork(head.config, lambda: head, CachedFeatures(depths, target), capacity=4)
        network.start(Prefix.of(PROMPT) if one.root.length <= len(PROMPT) else roots()[0].up_to(len(PROMPT)))
        network.keep(one.root)
        for prefix, row in one.rows.items():
            assert close(row, said(network, prefix)), (one.root, prefix)


def test_which_continuations_are_likely(head: EagleHead) -> None:
    """First choices down to `chain`, and what is reached with enough probability down to `depth`."""
    for one in ahead.of_decoder(target(), roots()[:4], LIKELY):
        first = one.root
        for level in range(LIKELY.chain):
            assert first in one.rows, level
            first = first.then(one.rows[first].choice)
        assert first not in one.rows
        for prefix in one.rows:
            depth = prefix.length - one.root.length
            assert depth < LIKELY.depth or prefix in on_first_choices(one)
            for token, logp in one.rows[prefix].top(LIKELY.width):
                reach = one.reach[prefix] * torch.tensor(logp).exp()
                if depth + 1 < LIKELY.depth and reach > 1.001 * LIKELY.reach:
                    assert prefix.then(token) in one.rows


def on_first_choices(one: Ahead) -> set[Prefix]:
    line = [one.root]
    while line[-1] in one.rows:
        line.append(line[-1].then(one.rows[line[-1]].choice))
    return set(line)


def predictor(seed: int = 0) -> ExitPredictor:
    shape = target().config
    config = PredictorConfig({"name": "tiny"}, shape.layers, 1, shape.hidden, shape.vocab, 4, {})
    chance = torch.Generator().manual_seed(seed)
    inner, outer = (torch.randn(size, generator=chance) for size in ((4, shape.hidden), (shape.hidden, 4)))
    return ExitPredictor(config, target(), inner, outer)


def hidden_of(prefix: Prefix) -> Tensor:
    step = DecoderNetwork(lowest(target(), 1)).begin([prefix])
    step.layers(0, 1)
    return step.hidden()


def test_scores_ahead_are_those_of_a_pass_of_their_own() -> None:
    found = list(ahead.of_decoder(target(), roots(), LIKELY))
    scores: dict[Prefix, dict[int, float]] = {}
    for prefix, more in ahead.exit_scores(predictor(), target(), found, LIKELY):
        scores.setdefault(prefix, {}).update(more)
    asked = {p for one, p in likely_ones(found) if one.reach[p] >= LIKELY.reach}
    assert set(scores) == asked
    for prefix, known in list(scores.items())[::7]:
        (expected,) = predictor().scores(hidden_of(prefix), [tuple(known)])
        assert torch.allclose(torch.tensor([*known.values()]), expected, atol=TOLERANCE)


def test_known_scores_ask_for_no_hidden_states(tmp_path: Path) -> None:
    prefixes, candidates = roots()[:2], [(5, 6, 7), ()]

    def refused() -> Tensor:
        raise AssertionError("the scores are known")

    with closing(LogitCache(tmp_path / "exits.sqlite")) as memo:
        made = ExitScores(predictor().layer, predictor, memo)
        hidden = torch.cat([hidden_of(prefix) for prefix in prefixes])
        first = made.scores(prefixes, candidates, lambda: hidden)
        again = made.scores(prefixes, [(7, 5), ()], refused)
        assert again[0] == [first[0][2], first[0][0]]
        with pytest.raises(AssertionError):
            made.scores(prefixes, [(5, 9), ()], refused)
        more = made.scores(prefixes, [(5, 9), ()], lambda: hidden)
        assert made.scores(prefixes, [(9, 6), ()], refused)[0] == [more[0][1], first[0][1]]
