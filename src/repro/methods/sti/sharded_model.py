"""A model streamed in shards of several bit widths (STI): its plan on a device and its rounded weights.

Knows nothing of methods. The plan covers the layers of the costed shape, with as many shards per layer as the
checkpoint has; each checkpoint layer takes the widths of a costed layer that it computes for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from repro.core.errors import InputError
from repro.device.emulated import Device, EmulatedDevice
from repro.device.op import FLASH, Op
from repro.methods.sti import shard_rank
from repro.methods.sti.shard_plan import Layers, Sharding, ShardPlan, StagePace, Widths, layer_ranges, plan
from repro.models.costs.model_cost import ModelCost
from repro.models.quantization.dictionary_rounding import packed_layer, require_dense, round_shards
from repro.models.runtime.model import Model
from repro.models.runtime.placement import Placement
from repro.models.transformer import weights
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.records.record import content_hash

CONTEXT_LENGTH = 256
"""Context length that plans assume; it hardly matters, since loading layers takes far longer."""


def shard_model(model: Model, sharding: Sharding, device: Device, placement: Placement) -> ShardedModel:
    """A model streamed in shards on a device.

    Raises:
        InputError: the device is real, or the model is an encoder-decoder, rounded, compressed or quantized.
    """
    name = model.config.name
    if not isinstance(device, EmulatedDevice):
        raise InputError(
            f"{device.name} computes for real, and shards are streamed on emulated devices only; "
            "choose an emulated device"
        )
    if model.encoder_decoder:
        raise InputError(f"{name} is an encoder-decoder, and shards are a decoder's")
    if model.config.rounded:
        raise InputError(
            f"{name} is rounded to {model.config.rounded} bits, and shards are rounded from "
            "whole weights; choose target.rounded=null"
        )
    if model.config.compression:
        raise InputError(
            f"{name} has a compression, and shards are rounded from whole weights; leave "
            "compression@target.compression out"
        )
    if model.folder:
        require_dense(model.config.dtype)
    return ShardedModel(model, sharding, pace(model.model_cost, device, placement))


class ShardedModel(Model):
    """A model whose layers are streamed by one shard plan, on an emulated device."""

    def __init__(self, whole: Model, sharding: Sharding, pace: StagePace) -> None:
        """`whole` has the unrounded weights."""
        super().__init__(whole.config, host=whole._host, folder=whole.folder)
        self.tokens = whole.tokens
        self._whole = whole
        self._sharding = sharding
        self._pace = pace

    @cached_property
    def plan(self) -> ShardPlan:
        """The shard plan for the costed layers."""
        model_cost, ranks = self.model_cost, self._importance()
        ranges = layer_ranges(model_cost.shape.layers, len(ranks))
        layers = Layers(model_cost.layer_bytes, model_cost.stored.bits)
        return plan(self._sharding, [ranks[layer_range.start] for layer_range in ranges], layers, self._pace)

    @property
    def widths(self) -> Widths:
        """Shard widths of the checkpoint's layers."""
        rows_and_ranges = zip(
            self.plan.widths, layer_ranges(len(self.plan.widths), self.decoder_config.layers), strict=True
        )
        return tuple(row for row, layers in rows_and_ranges for _ in layers)

    def outputs_key(self, variant: str = "") -> str:
        """Identity of what the checkpoint computes at these widths; see `Model`."""
        return super().outputs_key(f"-shards-{content_hash(self.widths)[:16]}{variant}")

    def _load(self, is_resident: bool) -> Decoder:
        """See `Model`; embeddings and output projection are those of the unrounded weights."""
        ends = self._whole.decoder(is_resident=False)
        if not is_resident:
            return ends
        assert self.folder is not None
        return sharded_decoder(self.folder, self.config.dtype, ends.ends, self.widths, self.decoder_config)

    @property
    def loads(self) -> ShardPlan:
        """See `Model`."""
        return self.plan

    def _importance(self) -> Sequence[Sequence[float]]:
        """Importance by checkpoint layer and shard; without a checkpoint all shards are equal."""
        if self.folder is None:
            return [[0.0] * self.model_cost.shape.kv_heads] * self.model_cost.shape.layers
        return shard_rank.importance(
            self.folder,
            self.config.dtype,
            self.decoder_config,
            self.decoder(is_resident=False).ends,
            self.tokenizer.encode(shard_rank.CALIBRATION_TEXT),
            min(self._sharding.widths),
        )


def sharded_decoder(
    folder: Path, dtype: str, ends: EmbeddingAndHead, widths: Widths, config: DecoderConfig
) -> Decoder:
    """A checkpoint's decoder with rounded shards.

    Args:
        folder: the checkpoint.
        dtype: one whose weights are dense.
        ends: embeddings and output projection of the unrounded decoder; they have no shards.
        widths: bit widths by checkpoint layer and shard.
        config: configuration of the checkpoint.
    """
    layers = weights.layers(folder, dtype, device=ends.embedding.device)
    rounded_layers = (round_shards(layer, config, row) for layer, row in zip(layers, widths, strict=True))
    return Decoder(config, [packed_layer(layer) for layer in rounded_layers], ends)


def pace(model_cost: ModelCost, device: EmulatedDevice, placement: Placement) -> StagePace:
    """Times of the parts of a one-token forward pass on an otherwise idle device."""
    arithmetic = model_cost.stored.arithmetic
    resource = device.resource(placement.on or device.main, arithmetic)
    head_on = device.resource(placement.head or resource, arithmetic)

    def seconds(processor: str, kind: str, cost: tuple[float, float]) -> float:
        decoder = resource if kind == "head" else ""
        op = Op(processor, kind, kind, flops=cost[0], bytes=cost[1], precision=arithmetic, decoder=decoder)
        demand = device.machine.demand(op)
        return demand.launch + demand.work

    flops, moved_bytes = model_cost.layers(1, 1, CONTEXT_LENGTH)
    return StagePace(
        load=lambda size: seconds(FLASH, "load", (0.0, size)),
        compute=lambda unpacking: seconds(resource, "layer", (flops, moved_bytes + unpacking)),
        embed=seconds(resource, "embed", model_cost.embed(1)),
        head=seconds(head_on, "head", model_cost.head(1)),
        ahead=placement.prefetch,
        head_bytes=0.0 if device.keeps_tables else model_cost.head(1)[1],
    )
