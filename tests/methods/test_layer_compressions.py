"""The baselines that leave out, thin out or merge whole layers: layerwise, ShortGPT, LLM-Drop, LaCo."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro.core.registry import lookup
from repro.methods.compression.base import Compressed
from repro.methods.compression.level import layers_at
from repro.methods.compression.pruning.attn_drop import AttnDrop
from repro.methods.compression.pruning.laco import Laco, Merge, _Trials, merge_layers
from repro.methods.compression.pruning.whole_layers import Layerwise, ShortGpt
from repro.models.analysis.layers import (
    block_influences,
    half_similarities,
    has_attention,
    has_mlp,
    losses_without,
    of_layers,
    rows_by_layer,
)
from repro.models.transformer.decoder import Decoder
from tiny_dense import CORPUS, dense, logits, silent

NAMES = ("layerwise", "shortgpt", "attn_drop", "laco")
SAMPLE = ("llama-2", "gemma-3", "phi-2", "opt-350m")


def compressed(name: str, made: Decoder, **fields: Any) -> Compressed:
    return lookup("compression", name)(**fields).compress(made, CORPUS)


@pytest.mark.parametrize("family", SAMPLE)
@pytest.mark.parametrize("name", NAMES)
def test_at_level_1_nothing_changes(name: str, family: str) -> None:
    found = compressed(name, dense(family), level=1.0)
    assert torch.equal(logits(found.decoder), logits(dense(family)))
    assert (found.figures["true_ratio"], found.figures["kept_layers"]) == (1.0, 4)


def test_layers_at_a_level_are_rounded_down_and_never_none() -> None:
    assert [layers_at(level, 10) for level in (0.01, 0.2, 0.3, 0.7, 0.99, 1.0)] == [1, 2, 3, 7, 9, 10]
    assert [layers_at(0.1 * k, 30) for k in range(1, 11)] == [3 * k for k in range(1, 11)]


@pytest.mark.parametrize("level", [0.75, 0.5, 0.2])
@pytest.mark.parametrize("family", SAMPLE)
@pytest.mark.parametrize(("method", "measure"), [(Layerwise, losses_without), (ShortGpt, block_influences)])
def test_ranked_layers_go_whole(method: Any, measure: Any, family: str, level: float) -> None:
    made = dense(family)
    worth = measure(made, CORPUS)
    count = max(1, int(4 * level))
    kept = sorted(sorted(range(4), key=worth.__getitem__)[4 - count :])
    found = method(level).compress(made, CORPUS)
    assert torch.equal(logits(found.decoder), logits(of_layers(made, kept)))
    assert found.figures == {"true_ratio": count / 4, "kept_layers": count}


@pytest.mark.parametrize("family", ["llama-2", "gemma-3", "phi-2"])
@pytest.mark.parametrize("idle", [0, 2])
def test_a_layer_that_does_nothing_is_the_first_to_go_in_shortgpt(family: str, idle: int) -> None:
    made = silent(dense(family), idle, "out", "down")
    found = compressed("shortgpt", made, level=0.75)
    assert torch.equal(logits(found.decoder), logits(made))


def test_a_layer_whose_absence_costs_least_is_the_first_to_go_layerwise() -> None:
    """The corpus is what the decoder says itself, so that any other layer's absence costs something."""
    made = silent(dense("llama-2"), 1, "out", "down")
    tokens = CORPUS[0][:2]
    for _ in range(16):
        tokens = torch.cat((tokens, logits(made, tokens)[-1:].argmax(-1)))
    worth = losses_without(made, [tokens])
    assert min(range(4), key=worth.__getitem__) == 1
    found = Layerwise(0.75).compress(made, [tokens])
    assert torch.equal(logits(found.decoder), logits(made))


def halves(found: Decoder) -> list[tuple[bool, bool]]:
    return [(has_attention(layer), has_mlp(layer)) for layer in found.resident_layers()]


def test_attention_goes_first_where_it_turns_least() -> None:
    made = dense("llama-2")
    attention = half_similarities(made, CORPUS)[0]
    order = sorted(range(4), key=lambda i: -attention[i])
    share = (2 * 64 * 64 + 2 * 32 * 64) / (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)  # of a layer
    found = AttnDrop(1.0 - share / 2).compress(made, CORPUS)
    assert halves(found.decoder) == [(i not in order[:2], True) for i in range(4)]
    assert found.figures == {
        "true_ratio": pytest.approx(1.0 - share / 2),
        "kept_layers": 4,
        "kept_attention": 2,
        "kept_mlps": 4,
    }
    silenced = made
    for i in order[:2]:
        silenced = silent(silenced, i, "out")
    assert torch.equal(logits(found.decoder), logits(silenced))


def test_mlps_follow_where_no_attention_is_left_to_drop() -> None:
    made = dense("llama-2")
    mlp = half_similarities(made, CORPUS)[1]
    order = sorted(range(4), key=lambda i: -mlp[i])
    found = AttnDrop(0.5).compress(made, CORPUS)
    assert halves(found.decoder) == [(False, True)] * 3
    kept = [i for i in range(4) if i != order[0]]
    ups = [made.layers[i].up for i in kept]
    assert all(layer.up is up for layer, up in zip(found.decoder.resident_layers(), ups, strict=True))
    assert found.figures["true_ratio"] == pytest.approx(3 * 3 * 96 / 4 / (3 * 96 + 3 * 64))
    assert (found.figures["kept_attention"], found.figures["kept_mlps"]) == (0, 3)


def test_attention_and_mlps_may_stand_in_one_order() -> None:
    made = silent(dense("llama-2"), 2, "down")  # the only half that turns nothing
    found = AttnDrop(0.9, joint=True).compress(made, CORPUS)
    assert halves(found.decoder) == [(True, True), (True, True), (True, False), (True, True)]
    assert torch.equal(logits(found.decoder), logits(made))


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("level", [0.9, 0.7, 0.5, 0.3, 0.01])
def test_no_more_than_the_level_is_left_but_never_nothing(level: float, joint: bool) -> None:
    found = AttnDrop(level, joint).compress(dense("gemma-3"), CORPUS)
    assert found.figures["true_ratio"] <= level or halves(found.decoder) in ([(False, True)], [(True, False)])
    assert logits(found.decoder).isfinite().all()


def test_merged_layers_are_the_base_plus_the_differences_to_it() -> None:
    made = dense("qwen-2.5")  # its queries, keys and values have a bias
    found = merge_layers(made, Merge(1, 2))
    a, b, c = (made.layers[i] for i in (1, 2, 3))
    now = found.layers[1]
    for part in ("qkv", "out", "up", "down"):
        old = [getattr(layer, part) for layer in (a, b, c)]
        assert torch.allclose(
            getattr(now, part).weight, old[1].weight + old[2].weight - old[0].weight, atol=1e-6
        )
    assert torch.allclose(now.qkv.bias, b.qkv.bias + c.qkv.bias - a.qkv.bias, atol=1e-6)
    assert now.before_attention is a.before_attention
    assert now.before_mlp is a.before_mlp
    assert found.layers[0] is made.layers[0]
    assert found.config.layers == 2
    assert found.config.sliding == made.config.sliding[:2]


@pytest.mark.parametrize(
    ("settings", "merges", "threshold"),
    [
        # Of four layers the second is the highest that a merge of two leaves one layer above.
        ({"level": 0.75, "merged": 2}, [(1, 1)], -1.0),
        ({"level": 0.5, "merged": 2}, [(1, 1), (0, 1)], -1.0),
        ({"level": 0.5, "merged": 4}, [(0, 2)], -1.0),  # no more than the level asks for
        # What follows needs a second pass, and a threshold lower by a step.
        ({"level": 0.25, "merged": 2}, [(1, 1), (0, 1), (0, 1)], -1.1),
        ({"level": 0.5, "merged": 2, "interval": 2}, [(1, 1), (0, 1)], -1.1),
        ({"level": 0.5, "merged": 2, "lowest": 1}, [(1, 1), (1, 1)], -1.1),
    ],
)
def test_merges_go_from_the_top_down(
    settings: dict[str, Any], merges: list[tuple[int, int]], threshold: float
) -> None:
    """At a threshold that every merge passes."""
    made = dense("llama-2")
    found = Laco(**settings, threshold=-1.0).compress(made, CORPUS)
    for merge in merges:
        made = merge_layers(made, Merge(*merge))
    assert torch.equal(logits(found.decoder), logits(made))
    assert found.figures["kept_layers"] == made.config.layers == 4 * settings["level"]
    assert found.figures["threshold"] == pytest.approx(threshold)


@pytest.mark.parametrize(("threshold", "step"), [(0.9999, 0.1), (1.5, 0.5001)])
def test_a_merge_holds_only_above_the_threshold(threshold: float, step: float) -> None:
    """Two idle layers become one without a trace; the merge above them, which is tried first, would show."""
    made = silent(silent(dense("llama-2"), 0, "out", "down"), 1, "out", "down")
    found = Laco(0.75, merged=2, threshold=threshold, step=step).compress(made, CORPUS)
    assert torch.equal(logits(found.decoder), logits(made))
    assert found.figures["threshold"] == pytest.approx(0.9999)


@pytest.mark.parametrize("family", SAMPLE)
def test_trials_read_on_from_the_layer_below_a_merge(family: str) -> None:
    whole = dense(family)
    trials = _Trials(whole, CORPUS)
    trials.keep(Merge(1, 1))
    found = trials.similarity(Merge(1, 1))
    made = merge_layers(merge_layers(whole, Merge(1, 1)), Merge(1, 1))
    norm = whole.ends.final_norm or torch.nn.Identity()
    last = [[norm(rows_by_layer(one, tokens)[-1]).flatten() for tokens in CORPUS] for one in (whole, made)]
    cosines = [torch.nn.functional.cosine_similarity(*pair, dim=0) for pair in zip(*last, strict=True)]
    assert found == float(torch.stack(cosines).mean())
    assert trials.layer_count == 3
