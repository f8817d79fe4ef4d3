"""AWQ: 4-bit weights with activation-aware scales and clipped ranges.

Owns the search for scales and clipping limits. Must not know where the corpus comes from. Source: llm-awq's
`auto_scale`, `auto_clip` and `quantizer`, described in the AWQ paper's section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from repro.core.bounds import Tokens
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.activations import Sample, samples
from repro.models.analysis.hooks import PARTS, LinearId, matrices, with_linears
from repro.models.quantization.grouped import (
    SCALE_BITS,
    BlockLinear,
    Group,
    asymmetric,
    bits_per_weight,
    groups_of,
    split_groups,
)
from repro.models.quantization.scale_folding import feeds, fold_scales, scaled_inputs, scaled_outputs
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, as_plain

GRID_STEPS = 20
"""Grid steps: exponents of the scales, and fractions by which a range is clipped."""
SHRINK_STEPS = GRID_STEPS // 2
CHUNK_WEIGHTS = 1 << 18
"""Weights quantized at a time, to fit in a core's cache."""
UNCLIPPED_PARTS = ("q", "k")
"""Matrices that are not clipped: clipping harms the product of queries and keys."""


@register("compression", "awq")
@dataclass(frozen=True)
class Awq:
    """Asymmetric group-wise weight quantization; activations stay fp32.

    Scales are folded from each norm into the linears that it feeds, from the value projection into the output
    projection if there is no grouped-query attention, and from `up` into `down` if the function between them
    is linear in `up` or ReLU (gated or ReLU MLP). All inputs are those of the uncompressed model, as in the
    release.
    Deviation: scales minimize the error of the scaled linears' own outputs, as in the paper's Eq. 4; the
    release measures norms' scales after attention and after the whole MLP.

    Attributes:
        bits: bits per weight.
        group: inputs that share a scale and a zero point.
        clip: whether to search clipping limits.
        rows: maximum input rows on which errors are measured.
    """

    calibrated: ClassVar[bool] = True

    bits: Annotated[int, Interval(ge=2, le=8)] = 4
    group: Group = 128
    clip: bool = True
    rows: Tokens = 512

    @torch.no_grad()
    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        samples_by_linear = samples(decoder, corpus, self.rows)
        config, layers = decoder.config, decoder.resident_layers()
        linears: dict[LinearId, BlockLinear] = {}
        for i, layer in enumerate(layers):
            scaled, inputs = self.scale_layer(
                config, layer, {part: samples_by_linear[LinearId(i, part)] for part in PARTS}
            )
            layers[i] = scaled
            for part in PARTS:
                linears[LinearId(i, part)] = self._quantize(config, part, getattr(scaled, part), inputs[part])
        quantized_decoder = with_linears(decoder.with_layers(layers), linears)
        return Compressed(quantized_decoder, {"bits_per_weight": bits_per_weight(linears.values())})

    def scale_layer(
        self, config: DecoderConfig, layer: LayerWeights, inputs: Mapping[str, Sample]
    ) -> tuple[LayerWeights, dict[str, Sample]]:
        """An equivalent layer with scaled weights, and the scaled inputs of its linears by part."""
        scaled_layer, inputs_by_part = layer, dict(inputs)
        for norm, matrix_names in feeds(config).items():
            scales = self._scales(layer, matrix_names, inputs)
            scaled_layer = fold_scales(scaled_layer, norm, matrix_names, scales)
            inputs_by_part |= {part: inputs[part].over(scales) for part in matrix_names}
        for producer, part in (("qkv", "out"), ("up", "down")):
            first_output = _first_scalable_output(config, producer)
            if first_output is not None:
                scales = self._scales(layer, (part,), inputs)
                inverse = F.pad(1.0 / scales, (first_output, 0), value=1.0)
                linears = {producer: scaled_outputs(getattr(scaled_layer, producer), inverse)}
                linears[part] = scaled_inputs(getattr(scaled_layer, part), scales)
                scaled_layer = replace(scaled_layer, **linears)  # type: ignore[arg-type]
                inputs_by_part[part] = inputs[part].over(scales)
        return scaled_layer, inputs_by_part

    def _scales(
        self, layer: LayerWeights, matrix_names: tuple[str, ...], inputs: Mapping[str, Sample]
    ) -> Tensor:
        """Scales of the input columns of linears that share their inputs, fp32 `[inputs]`."""
        sample = inputs[matrix_names[0]]
        weight = torch.cat([as_plain(getattr(layer, part)).weight for part in matrix_names])
        best_scales, least_error = torch.ones_like(sample.magnitude), float("inf")
        for step in range(GRID_STEPS):
            scales = sample.magnitude.pow(step / GRID_STEPS).clamp_min(1e-4)
            scales = scales / (scales.max() * scales.min()).sqrt()
            error = self._error(weight, sample.rows, scales)
            if error < least_error:
                best_scales, least_error = scales, error
        return best_scales

    def _error(self, weight: Tensor, rows: Tensor, scales: Tensor) -> float:
        """Summed squared error of the outputs of a scaled and quantized weight."""
        error = 0.0
        for chunk in torch.split(weight, max(CHUNK_WEIGHTS // weight.shape[1], 1)):
            difference = asymmetric(chunk * scales, self.bits, self.group).div_(scales).sub_(chunk)
            error += float(F.linear(rows, difference).square_().sum())
        return error

    def _quantize(self, config: DecoderConfig, part: str, linear: Linear, sample: Sample) -> BlockLinear:
        dense_linear, outputs = as_plain(linear), matrices(config, part)
        names = ("q", "k", "v") if part == "qkv" else (part,) * len(outputs)
        pieces = [
            self.clip_weight(piece, sample.rows) if self.clip and name not in UNCLIPPED_PARTS else piece
            for name, piece in zip(names, torch.split(dense_linear.weight, list(outputs)), strict=True)
        ]
        weight = asymmetric(torch.cat(pieces), self.bits, self.group)
        inputs = weight.shape[1]
        bits = self.bits + (SCALE_BITS + self.bits) * groups_of(inputs, self.group) / inputs
        return BlockLinear(weight, bits, None, dense_linear.bias)

    def clip_weight(self, weight: Tensor, rows: Tensor) -> Tensor:
        """Clip each group of a weight at the limit that minimizes the error of its partial output.

        Args:
            weight: fp32 `[outputs, inputs]`.
            rows: sample inputs, fp32 `[rows, inputs]`.
        """
        groups = split_groups(weight, self.group)
        x = F.pad(rows, (0, groups[0].numel() - rows.shape[1])).view(len(rows), *groups.shape[1:])
        # sum over rows of (x . delta)^2 = delta . (x^T x) . delta, so the loop needs only the Gram matrix.
        gram = x.permute(1, 2, 0) @ x.transpose(0, 1)
        chunks = torch.split(groups, max(CHUNK_WEIGHTS // groups[0].numel(), 1))
        clipped_chunks = [self._clip_groups(chunk.transpose(0, 1).contiguous(), gram) for chunk in chunks]
        return torch.cat(clipped_chunks, 1).transpose(0, 1).flatten(1)[:, : weight.shape[1]].contiguous()

    def _clip_groups(self, groups: Tensor, gram: Tensor) -> Tensor:
        """Clip groups `[groups, outputs, group]` at the limit of least error; `gram` is x^T x per group."""
        magnitudes = groups.abs().amax(2, keepdim=True)
        limits, errors = magnitudes, torch.full_like(magnitudes, float("inf"))
        for step in range(SHRINK_STEPS):
            limit = magnitudes * (1.0 - step / GRID_STEPS)
            clip = groups.clamp(-limit, limit)
            delta = asymmetric(clip.view(-1, self.group), self.bits, self.group).view_as(groups).sub_(groups)
            error = (delta @ gram).mul_(delta).sum(2, keepdim=True)
            is_better = error < errors
            limits, errors = torch.where(is_better, limit, limits), torch.where(is_better, error, errors)
        return groups.clamp(-limits, limits)


def _first_scalable_output(config: DecoderConfig, producer: str) -> int | None:
    """First output of a linear from which scales commute with the next linear's inputs; None if none do."""
    if producer == "qkv":
        return (config.heads + config.kv_heads) * config.head_dim if config.heads == config.kv_heads else None
    if config.gated:
        return config.intermediate
    return 0 if config.activation == "relu" else None
