"""Which channels of a decoder's linears have outliers, and how often.

Owns the counting and what follows from it: how many channels at a time, how few cause most of them, what
keeping those alone saves. Must not know how thresholds were found or what computes with them.

A channel is one input of one linear. An element of an input row is an outlier if it is larger in magnitude
than its linear's threshold (mllm-NPU, sec. 3.3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

import torch
from torch import Tensor

from repro.models.analysis.hooks import Place, matrices, read, watched
from repro.models.transformer.decoder import Decoder


@dataclass(frozen=True)
class Counted:
    """The outliers of one linear's inputs over some passes.

    Attributes:
        outputs: weights of one channel.
        rows: input rows that were looked at.
        passes: texts that they came from.
        times: rows in which each channel had an outlier, int64 `[inputs]`.
        met: channels with an outlier in a pass, summed over the passes.
    """

    outputs: int
    rows: int
    passes: int
    times: Tensor
    met: int

    @property
    def inputs(self) -> int:
        """Channels."""
        return len(self.times)

    @property
    def at_once(self) -> float:
        """Mean channels with an outlier in one row, which is one token's."""
        return int(self.times.sum()) / self.rows

    @property
    def a_pass(self) -> float:
        """Mean channels with an outlier in one pass."""
        return self.met / self.passes


def count(
    decoder: Decoder, thresholds: Mapping[Place, float], texts: Sequence[Tensor]
) -> dict[Place, Counted]:
    """Count outliers while a decoder reads.

    Args:
        decoder: all layers resident.
        thresholds: of every linear, positive.
        texts: a pass each, int64 `[tokens]`.
    """
    found: dict[Place, Counted] = {}

    def look(place: Place, x: Tensor) -> None:
        times = (x.abs() > thresholds[place]).sum(0)
        had = found.get(place) or _none(sum(matrices(decoder.config, place.part)), x.shape[1])
        found[place] = replace(
            had,
            rows=had.rows + len(x),
            passes=had.passes + 1,
            times=had.times + times,
            met=had.met + int((times > 0).sum()),
        )

    read(watched(decoder, look), texts)
    return found


def _none(outputs: int, inputs: int) -> Counted:
    return Counted(outputs, 0, 0, torch.zeros(inputs, dtype=torch.int64), 0)


# What follows from the counts of some linears.


def at_once(linears: Collection[Counted]) -> float:
    """Channels with an outlier in one row, mean over the linears."""
    return fmean(linear.at_once for linear in linears)


def share_at_once(linears: Collection[Counted]) -> float:
    """Share of all elements that are outliers."""
    outliers = sum(int(linear.times.sum()) for linear in linears)
    return outliers / sum(linear.rows * linear.inputs for linear in linears)


def a_pass(linears: Collection[Counted]) -> float:
    """Channels with an outlier anywhere in a pass, mean over the linears."""
    return fmean(linear.a_pass for linear in linears)


def share_a_pass(linears: Collection[Counted]) -> float:
    """Share of channels with an outlier anywhere in a pass."""
    return sum(linear.a_pass for linear in linears) / sum(linear.inputs for linear in linears)


def share_ever(linears: Collection[Counted]) -> float:
    """Share of channels with an outlier in any pass."""
    ever = sum(int((linear.times > 0).sum()) for linear in linears)
    return ever / sum(linear.inputs for linear in linears)


def caused(linears: Collection[Counted], hot: float) -> float:
    """Share of the outliers that the most frequent channels, a share `hot` of all, have."""
    times = _times(linears).sort(descending=True).values
    return int(times[: _kept(len(times), hot)].sum()) / max(1, int(times.sum()))


def needed(linears: Collection[Counted], outliers: float) -> float:
    """The smallest share of all channels that has this share of the outliers."""
    times = _times(linears).sort(descending=True).values
    had = torch.cat([times.new_zeros(1), times.cumsum(0)])
    return int((had >= outliers * int(times.sum())).int().argmax()) / len(times)


def weights(linears: Collection[Counted]) -> int:
    """Weights of all channels."""
    return sum(linear.outputs * linear.inputs for linear in linears)


def hot_weights(linears: Collection[Counted], hot: float) -> int:
    """Weights of the most frequent channels, a share `hot` of all; of equals those of earlier linears."""
    order = _times(linears).sort(descending=True, stable=True).indices
    outputs = torch.cat([torch.full((linear.inputs,), linear.outputs) for linear in linears])
    return int(outputs[order[: _kept(len(order), hot)]].sum())


def _times(linears: Collection[Counted]) -> Tensor:
    return torch.cat([linear.times for linear in linears])


def _kept(channels: int, hot: float) -> int:
    return ceil(hot * channels)
