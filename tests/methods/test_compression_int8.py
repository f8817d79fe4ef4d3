"""The 8-bit compressions on every family: what is rounded, what is not, and what outliers do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro.methods.compression.base import Compressed, Compression
from repro.methods.compression.quantization.int8 import W8A8, LlmInt8, SmoothQuant, smooth, smoothing
from repro.methods.mllm_npu.shadow import Shadow, important
from repro.models.analysis.activations import OutlierProfile, largest_by_channel, profile
from repro.models.analysis.hooks import LinearId, linears_of, matrices, read, with_observer
from repro.models.quantization.w8a8 import RowwiseLinear, W8A8Linear, scale_per_output
from repro.models.transformer.decoder import Decoder
from tiny_dense import CORPUS, dense, logits
from tiny_families import FAMILIES

COMPRESSIONS: dict[str, Compression] = {
    "w8a8": W8A8(),
    "smooth_quant": SmoothQuant(),
    "llm_int8": LlmInt8(),
    "shadow": Shadow(pruned=0.5, quantile=0.99),
}
POST = "opt-350m"


def compress(name: str, family: str) -> Compressed:
    return COMPRESSIONS[name].compress(dense(family), CORPUS)


def error(made: Decoder, family: str) -> float:
    """How far logits are off, of their own deviation."""
    exact = logits(dense(family))
    return float((logits(made) - exact).norm() / (exact - exact.mean(-1, keepdim=True)).norm())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_linears_are_rounded_and_all_else_is_as_it_was(name: str, family: str) -> None:
    if (name, family) == ("smooth_quant", POST):
        return
    given = dense(family)
    before = {place: linear.tensors()["weight"].clone() for place, linear in linears_of(given)}
    said = logits(given)
    found = compress(name, family)
    assert torch.equal(logits(given), said)
    assert all(torch.equal(linear.tensors()["weight"], before[place]) for place, linear in linears_of(given))
    assert found.decoder.ends is given.ends
    assert {linear.weight.weight.dtype for _, linear in linears_of(found.decoder)} == {torch.int8}
    assert found.figures["bits_per_weight"] == 8
    assert 0 < error(found.decoder, family) < 0.5
    for old, new in zip(given.layers, found.decoder.layers, strict=True):
        assert old is not None
        assert new is not None
        assert (new.after_attention, new.after_mlp, new.qk_norm) == (
            old.after_attention,
            old.after_mlp,
            old.qk_norm,
        )


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != POST])
def test_smoothing_alone_changes_no_answer(family: str) -> None:
    given = dense(family)
    largest = largest_by_channel(given, CORPUS)
    scales = smoothing(given, largest, 0.5)
    made = smooth(given, scales)
    assert float((logits(made) - logits(given)).abs().max()) < 1e-4
    after = largest_by_channel(made, CORPUS)
    for place, most in largest.items():
        torch.testing.assert_close(after[place], most / scales.get(place, 1.0), rtol=1e-3, atol=1e-4)
        assert (place in scales) == (place.part in ("qkv", "up"))


@pytest.mark.parametrize(("family", "joined"), [("llama-2", ("qkv",)), ("phi-2", ("qkv", "up"))])
def test_the_scales_are_the_papers(family: str, joined: tuple[str, ...]) -> None:
    """alpha 0.5 makes inputs and weights equally large; linears of one norm count together."""
    given = dense(family)
    largest = largest_by_channel(given, CORPUS)
    scale = smoothing(given, largest, 0.5)[LinearId(1, "qkv")]
    weights = torch.cat([dict(linears_of(given))[LinearId(1, part)].tensors()["weight"] for part in joined])
    expected = largest[LinearId(1, "qkv")].sqrt() / weights.abs().amax(0).sqrt()
    assert torch.allclose(scale, expected, rtol=1e-5)
    assert torch.allclose(largest[LinearId(1, "qkv")] / scale, weights.abs().amax(0) * scale, rtol=1e-4)


def test_a_static_step_is_a_127th_of_the_corpus_largest() -> None:
    made, largest = compress("w8a8", "llama-2").decoder, largest_by_channel(dense("llama-2"), CORPUS)
    for place, linear in linears_of(made):
        assert isinstance(linear, W8A8Linear)
        assert not linear.shadow
        assert linear.step == pytest.approx(float(largest[place].max()) / 127)


def test_each_published_matrix_has_one_scale() -> None:
    made = dict(linears_of(compress("w8a8", "llama-2").decoder))
    for part, scales in {"qkv": 3, "out": 1, "up": 2, "down": 1}.items():
        linear = made[LinearId(0, part)]
        assert isinstance(linear, W8A8Linear)
        assert len(linear.weight.scale.unique()) == scales
    rowwise = dict(linears_of(compress("llm_int8", "llama-2").decoder))[LinearId(0, "out")]
    assert isinstance(rowwise, RowwiseLinear)
    assert len(rowwise.weight.scale.unique()) > 32


@pytest.mark.parametrize("quantile", [0.9, 0.99, 1.0])
def test_a_profile_is_exact(quantile: float) -> None:
    """Against all inputs held and sorted."""
    seen: dict[LinearId, list[torch.Tensor]] = {}
    read(with_observer(dense("gemma-2"), lambda place, x: seen.setdefault(place, []).append(x)), CORPUS)
    for place, found in profile(dense("gemma-2"), CORPUS, quantile).items():
        every = torch.cat([x.abs().flatten() for x in seen[place]]).sort(descending=True).values
        allowed = int((1 - quantile) * len(every) + 1e-6)
        assert found == OutlierProfile(float(every[allowed]), float(every[0]))
        assert int((every > found.threshold).sum()) <= allowed


def test_the_most_important_linears_keep_their_outliers() -> None:
    largest = {"a": 9.0, "b": 8.0, "c": 4.0, "d": 6.0}
    profiles = {LinearId(0, part): OutlierProfile(2.0, most) for part, most in largest.items()}
    assert important(profiles, 0.5) == {LinearId(0, "a"), LinearId(0, "b")}
    assert important(profiles, 1.0) == frozenset()
    assert important(profiles, 0.0) == set(profiles)


@pytest.mark.parametrize("share", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("rest", ["clamp", "rescale"])
def test_what_becomes_of_the_others(rest: str, share: float) -> None:
    found = Shadow(pruned=share, quantile=0.99, rest=rest).compress(dense("qwen-3"), CORPUS)
    profiles = profile(dense("qwen-3"), CORPUS, 0.99)
    kept = important(profiles, share)
    assert found.figures["shadowed_linears"] == len(kept) == 16 - round(16 * share)
    assert found.figures["linears"] == 16
    for place, linear in linears_of(found.decoder):
        assert isinstance(linear, W8A8Linear)
        assert linear.shadow == (place in kept)
        one = profiles[place]
        whole = rest == "rescale" and place not in kept
        assert linear.step == pytest.approx((one.largest if whole else one.threshold) / 127)


@pytest.mark.parametrize("weights", ["row", "matrix"])
def test_the_scales_of_weights_are_rows_or_matrices(weights: str) -> None:
    made = Shadow(weights=weights, quantile=0.99).compress(dense("llama-2"), CORPUS)
    for place, linear in linears_of(made.decoder):
        assert isinstance(linear, W8A8Linear)
        own = dict(linears_of(dense("llama-2")))[place].tensors()["weight"]
        scales = scale_per_output(own)
        if weights == "matrix":
            sizes = list(matrices(made.decoder.config, place.part))
            scales = torch.cat([part.max().expand(len(part)) for part in torch.split(scales, sizes)])
        assert torch.equal(linear.weight.scale, scales)


def test_which_linears_keep_their_outliers() -> None:
    """By rank, by the layer's nearness to an end, and by the release's threshold, which needs no share."""
    importance = {
        **{LinearId(0, part): 2.0 for part in ("qkv", "out", "up", "down")},
        **{LinearId(1, part): 5.1 for part in ("qkv", "out", "up", "down")},
        **{LinearId(2, part): 5.0 for part in ("qkv", "out", "up", "down")},
    }
    profiles = {place: OutlierProfile(1.0, most) for place, most in importance.items()}

    def layers(**given: Any) -> set[int]:
        return {place.layer for place in Shadow(**given).shadowed_linears(profiles, 3)}

    assert layers(keeps="ranked", pruned=2 / 3) == {1}
    assert layers(keeps="ends", pruned=2 / 3) == {0}
    assert layers(keeps="ends", pruned=1 / 3) == {0, 2}
    assert layers(keeps="release", pruned=0.0) == layers(keeps="release", pruned=1.0) == {1}
