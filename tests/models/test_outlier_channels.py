"""ChannelCounts are counted where they are, and what follows from the counts agrees with itself."""

from __future__ import annotations

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
        assert got.channels_met == sum(int(each.any(0).sum()) for each in beyond)
        assert 0 < got.at_once <= got.a_pass <= got.inputs


def test_shares_of_two_linears_are_those_worked_out_by_hand() -> None:
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
