"""ChannelCounts are counted where they are, and what follows from the counts agrees with itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from repro.models.analysis import outlier_channels as channels
from repro.models.analysis.hooks import PARTS, LinearId, matrices, read, with_observer
from repro.models.analysis.outlier_channels import ChannelCounts, count
from tiny import decoder

TEXTS = (torch.arange(7), torch.arange(4))


def linear(
    *times: int, outputs: int = 1, rows: int = 10, passes: int = 1, met: int | None = None
) -> ChannelCounts:
    """An invented linear with a channel a number."""
    struck = sum(t > 0 for t in times) if met is None else met
    return ChannelCounts(outputs, rows, passes, torch.tensor(times), struck)


def test_counts_are_those_of_the_inputs_that_were_seen() -> None:
    small, seen = decoder("vicuna"), dict[LinearId, list[Tensor]]()
    read(with_observer(small, lambda place, x: seen.setdefault(place, []).append(x)), TEXTS)
    thresholds = {place: float(torch.cat(xs).abs().quantile(0.9)) for place, xs in seen.items()}

    found = count(small, thresholds, TEXTS)

    assert list(found) == [LinearId(i, part) for i in range(small.config.layers) for part in PARTS]
    for place, xs in seen.items():
        got, beyond = found[place], [x.abs() > thresholds[place] for x in xs]
        assert (got.rows, got.passes) == (11, 2)
        assert got.outputs == sum(matrices(small.config, place.part))
        assert got.times.tolist() == torch.cat(beyond).sum(0).tolist()
        assert got.met == sum(int(each.any(0).sum()) for each in beyond)
        assert 0 < got.at_once <= got.a_pass <= got.inputs


def test_no_element_is_beyond_the_largest() -> None:
    small, largest = decoder("vicuna"), dict[LinearId, float]()

    def look(place: LinearId, x: Tensor) -> None:
        largest[place] = max(largest.get(place, 0.0), float(x.abs().max()))

    read(with_observer(small, look), TEXTS)
    found = count(small, largest, TEXTS).values()
    assert (channels.share_at_once(found), channels.a_pass(found), channels.share_ever(found)) == (0, 0, 0)
    assert (channels.hot_outliers(found, 0.5), channels.hot_share_for(found, 0.5)) == (0, 0)


def test_by_hand() -> None:
    two = [linear(8, 2, 0, 0, outputs=3), linear(0, 0, 0, 0, 5, 5, outputs=1)]
    assert channels.at_once(two) == pytest.approx((1.0 + 1.0) / 2)
    assert channels.share_at_once(two) == pytest.approx(20 / (10 * 10))
    assert channels.a_pass(two) == 2
    assert channels.share_a_pass(two) == pytest.approx(4 / 10)
    assert channels.share_ever(two) == pytest.approx(4 / 10)
    assert channels.hot_outliers(two, 0.1) == pytest.approx(8 / 20)
    assert channels.hot_outliers(two, 0.11) == pytest.approx(13 / 20)
    assert channels.hot_share_for(two, 0.4) == pytest.approx(0.1)
    assert channels.hot_share_for(two, 0.9) == pytest.approx(0.3)
    assert channels.weights(two) == 4 * 3 + 6
    assert channels.hot_weights(two, 0.2) == 3 + 1


def test_a_channel_that_is_met_in_one_pass_of_two_counts_half() -> None:
    once, ever = linear(3, 4, rows=20, passes=2, met=3), linear(3, 4, rows=10)
    assert (channels.share_a_pass([once]), channels.share_ever([once])) == (0.75, 1.0)
    assert channels.share_a_pass([ever]) == channels.share_ever([ever])


def test_more_hot_channels_have_more_of_the_outliers_and_of_the_weights() -> None:
    linears = [linear(9, 0, 4, 1, outputs=2), linear(0, 7, 2, 2, outputs=5)]
    shares = [i / 8 for i in range(9)]
    caused = [channels.hot_outliers(linears, hot) for hot in shares]
    weights = [channels.hot_weights(linears, hot) for hot in shares]
    assert caused[0] == weights[0] == 0
    assert (caused[-1], weights[-1]) == (1, channels.weights(linears))
    assert all(a <= b for a, b in pairwise(caused))
    assert all(a < b for a, b in pairwise(weights))
    for outliers in (0.1, 0.5, 0.8, 1.0):
        hot = channels.hot_share_for(linears, outliers)
        assert channels.hot_outliers(linears, hot) >= outliers > channels.hot_outliers(linears, hot - 1 / 8)
