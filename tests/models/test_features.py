"""A target's features: the inputs of its layers, captured in its passes or remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from repro.models.forward.cached_features import CachedFeatures, lowest
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Captured, DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder
from tiny import decoder
from tiny_eagle import inputs_of_layers

FAMILY = "qwen-2.5"  # its later layers slide
DEPTHS = (1, 2, 4)
TOKENS = (3, 17, 92, 5, 40, 8, 11, 60)
# Rounding moves these rows by a few 1e-5 on some processors, a misplaced part by 1e-2.
TOLERANCE = 1e-4


def target() -> Decoder:
    return decoder(FAMILY)


def truth(prefix: Prefix, depths: tuple[int, ...] = DEPTHS) -> Tensor:
    """After i layers is what goes into layer i; of a sequence that is run on its own."""
    inputs = inputs_of_layers(target(), prefix.tokens())
    return torch.cat([inputs[depth][-1] for depth in depths])


def close(found: Tensor, prefixes: list[Prefix]) -> None:
    torch.testing.assert_close(found, torch.stack(list(map(truth, prefixes))), atol=TOLERANCE, rtol=0)


def run(network: DecoderNetwork, *wanted: Prefix) -> None:
    network.begin(wanted).layers(0, network.depth)


def test_the_input_of_a_layer_is_the_output_of_the_one_before() -> None:
    made, tokens = target(), torch.tensor(TOKENS)
    positions, seen = torch.arange(len(TOKENS)), inputs_of_layers(target(), TOKENS)
    for layers in range(1, made.config.layers):
        short = DecoderNetwork(lowest(made, layers))
        step = short.begin([Prefix.of(TOKENS)])
        step.layers(0, layers)
        torch.testing.assert_close(step.hidden()[0], seen[layers][-1], atol=TOLERANCE, rtol=0)
    assert torch.equal(seen[0], made.embed(tokens, positions))


def test_captured_in_passes_over_a_prompt_a_tree_and_a_text() -> None:
    captured = Captured(DEPTHS)
    network = DecoderNetwork(target(), captured=captured)
    text = Prefix.of(TOKENS)
    run(network, text)
    line = list(text.back())
    close(captured.of(line), line)
    tree = [text.then(1), text.then(2), text.extend((2, 3))]
    run(network, *tree)
    close(captured.of(tree), tree)
    network.keep(text.then(2))
    left = [text, text.then(2), text.extend((2, 3))]
    close(captured.of(left), left)
    with pytest.raises(RuntimeError, match="has not computed"):
        captured.of([text.then(1)])
    network.start(Prefix.of(TOKENS))
    assert text not in captured


def test_captured_where_rows_were_dropped_on_the_way() -> None:
    captured = Captured(DEPTHS)
    network = DecoderNetwork(target(), captured=captured)
    text = Prefix.of(TOKENS)
    tree = [text, text.then(1), text.then(2), text.extend((2, 3))]
    step = network.begin(tree)
    step.layers(0, 2)
    step.drop([0, 2, 3])
    step.layers(2, network.depth)
    left = [tree[i] for i in (0, 2, 3)]
    close(captured.of(left), left)
    assert tree[1] not in captured


@pytest.mark.parametrize("remembers", [False, True])
def test_remembered_are_the_same(remembers: bool, tmp_path: Path) -> None:
    memo = LogitCache(tmp_path / "memo.sqlite") if remembers else None
    features, text = CachedFeatures(DEPTHS, target, memo), Prefix.of(TOKENS)
    for wanted in ([text.up_to(4), text.up_to(5)], [text], [text.then(1), text.up_to(6)]):
        close(features.of(wanted), wanted)
    features.keep(text.then(1))
    close(features.of([text.extend((1, 2))]), [text.extend((1, 2))])
    features.start()
    other = Prefix.of((1, 2, 3))
    close(features.of([other]), [other])


def test_what_is_remembered_needs_no_target(tmp_path: Path) -> None:
    memo, line = LogitCache(tmp_path / "memo.sqlite"), list(Prefix.of(TOKENS).back())
    said = CachedFeatures(DEPTHS, target, memo).of(line)

    def never() -> Decoder:
        raise AssertionError("all was known")

    again = CachedFeatures(DEPTHS, never, memo)
    assert torch.equal(again.of(list(Prefix.of(TOKENS).back())), said)
    with pytest.raises(AssertionError):
        again.of([Prefix.of((*TOKENS, 1))])


def test_what_a_memo_knew_is_caught_up_with(tmp_path: Path) -> None:
    memo, text = LogitCache(tmp_path / "memo.sqlite"), Prefix.of(TOKENS)
    CachedFeatures(DEPTHS, target, memo).of([text])
    again = CachedFeatures(DEPTHS, target, memo)
    again.of([text])
    close(again.of([text.then(1)]), [text.then(1)])
    close(again.of([text, text.then(2)]), [text, text.then(2)])
