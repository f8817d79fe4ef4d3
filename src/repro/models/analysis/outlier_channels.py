"""Which input channels of a decoder's linears have outliers, and how often.

Owns the counts and statistics of them: outlier channels per token and per pass, the share of outliers in the
hottest channels, and the weights of those channels. Must not know how thresholds were found or what computes
with them.

A channel is one input of one linear. An element of an input row is an outlier if its magnitude exceeds its
linear's threshold (mllm-NPU, sec. 3.3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

import torch
from torch import Tensor

from repro.models.analysis.hooks import LinearId, accumulate, matrices
from repro.models.transformer.decoder import Decoder


@dataclass(frozen=True)
class ChannelCounts:
    """Outlier counts of one linear's inputs over some passes.

    Attributes:
        outputs: number of outputs, which is the weights per channel.
        rows: input rows (tokens) examined.
        passes: forward passes, one per text.
        times: rows in which each channel had an outlier, int64 `[inputs]`.
        channels_met: channels with an outlier in a pass, summed over passes.
    """

    outputs: int
    rows: int
    passes: int
    times: Tensor
    channels_met: int

    @property
    def inputs(self) -> int:
        """Number of channels."""
        return len(self.times)

    @property
    def at_once(self) -> float:
        """Mean number of channels with an outlier per token."""
        return int(self.times.sum()) / self.rows

    @property
    def a_pass(self) -> float:
        """Mean number of channels with an outlier per pass."""
        return self.channels_met / self.passes


def count(
    decoder: Decoder, thresholds: Mapping[LinearId, float], texts: Sequence[Tensor]
) -> dict[LinearId, ChannelCounts]:
    """Count outliers during forward passes.

    Args:
        decoder: all layers resident.
        thresholds: positive threshold of every linear.
        texts: token sequences, int64 `[tokens]`; one pass each.
    """

    def add(name: LinearId, x: Tensor, counts: ChannelCounts | None) -> ChannelCounts:
        times = (x.abs() > thresholds[name]).sum(0)
        channel_count = int((times > 0).sum())
        if counts is None:
            return ChannelCounts(sum(matrices(decoder.config, name.part)), len(x), 1, times, channel_count)
        times, channel_count = counts.times + times, counts.channels_met + channel_count
        return ChannelCounts(counts.outputs, counts.rows + len(x), counts.passes + 1, times, channel_count)

    return accumulate(decoder, texts, add)


# Statistics over the counts of several linears.


def at_once(linears: Collection[ChannelCounts]) -> float:
    """Channels with an outlier per token, mean over the linears."""
    return fmean(linear.at_once for linear in linears)


def share_at_once(linears: Collection[ChannelCounts]) -> float:
    """Share of all elements that are outliers."""
    outlier_count = sum(int(linear.times.sum()) for linear in linears)
    return outlier_count / sum(linear.rows * linear.inputs for linear in linears)


def a_pass(linears: Collection[ChannelCounts]) -> float:
    """Channels with an outlier per pass, mean over the linears."""
    return fmean(linear.a_pass for linear in linears)


def share_a_pass(linears: Collection[ChannelCounts]) -> float:
    """Mean share of channels with an outlier in a pass."""
    return sum(linear.a_pass for linear in linears) / sum(linear.inputs for linear in linears)


def share_ever(linears: Collection[ChannelCounts]) -> float:
    """Share of channels with an outlier in any pass."""
    channels_met = sum(int((linear.times > 0).sum()) for linear in linears)
    return channels_met / sum(linear.inputs for linear in linears)


def hot_outliers(linears: Collection[ChannelCounts], hot_share: float) -> float:
    """Share of all outliers that lie in the share `hot_share` of channels with the most outliers."""
    times = _times(linears).sort(descending=True).values
    return int(times[: _hot_count(len(times), hot_share)].sum()) / max(1, int(times.sum()))


def hot_share_for(linears: Collection[ChannelCounts], outlier_share: float) -> float:
    """The smallest share of channels that contains a share `outlier_share` of all outliers."""
    times = _times(linears).sort(descending=True).values
    outliers_of_hottest = torch.cat([times.new_zeros(1), times.cumsum(0)])
    return int((outliers_of_hottest >= outlier_share * int(times.sum())).int().argmax()) / len(times)


def weights(linears: Collection[ChannelCounts]) -> int:
    """Number of weights of all channels."""
    return sum(linear.outputs * linear.inputs for linear in linears)


def hot_weights(linears: Collection[ChannelCounts], hot_share: float) -> int:
    """Weights of the share `hot_share` of channels with the most outliers; ties go to earlier linears."""
    order = _times(linears).sort(descending=True, stable=True).indices
    outputs = torch.cat([torch.full((linear.inputs,), linear.outputs) for linear in linears])
    return int(outputs[order[: _hot_count(len(order), hot_share)]].sum())


def _times(linears: Collection[ChannelCounts]) -> Tensor:
    return torch.cat([linear.times for linear in linears])


def _hot_count(channel_count: int, hot_share: float) -> int:
    return ceil(hot_share * channel_count)
