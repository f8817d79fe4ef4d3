"""Prefill as subgraphs of fixed-size chunks (mllm-NPU sec. 3): linears on an NPU, float ops on a CPU.

Knows nothing of the order in which subgraphs run, of their durations, or of the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from repro.core.errors import InputError
from repro.device.op import CPU, FLASH, NPU, Op
from repro.models.costs.model_cost import ModelCost, Shape

NORM, QKV, ATTENTION, OUTPUT, POST_NORM, FFN = STAGES = (
    "norm",
    "qkv",
    "attention",
    "output",
    "post_norm",
    "ffn",
)
"""A layer's subgraphs in order. Norms also quantize their output."""

LINEARS = (FFN, QKV, OUTPUT)
"""Stages with weights, by priority for the NPU's memory window: FFN first (sec. 4)."""

UP, DOWN = "ffn_up", "ffn_down"
"""The FFN's linears. Where one keeps outliers of its own, the FFN is two subgraphs, `UP` and `FFN`."""

STAGE_OF = {"qkv": QKV, "out": OUTPUT, "up": UP, "down": DOWN}
"""The stage of each of a decoder layer's linears, as `analysis.hooks.LinearId` calls them."""

Shadowed = Mapping[tuple[int, str], float]
"""The linears that keep outliers, by layer and stage: the share of their input channels that have one."""

DYNAMIC_STAGES = (ATTENTION,)
"""Stages whose size depends on the chunk's position in the prompt, so chunks cannot share them."""

FLOAT_BYTES = 4.0
"""Bytes per element on the CPU: mllm's float operators are fp32."""


@dataclass(frozen=True)
class Layout:
    """How prompts are cut into subgraphs and which processor runs them.

    Attributes:
        chunk: tokens per chunk; 0 makes the whole prompt one chunk.
        linear: op kind of the linears, which selects their efficiency on a device.
        shadowed: linears whose outliers the CPU computes separately (shadow outlier execution).
        cold: share of the outliers' channels whose weights are read from flash.
        beyond: linears, by layer and stage, that run on the CPU because they do not fit the NPU.
    """

    chunk: int = 256
    linear: str = "linear"
    shadowed: Shadowed = field(default_factory=dict)
    cold: float = 0.0
    beyond: frozenset[tuple[int, str]] = frozenset()

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise InputError(f"a chunk has {self.chunk} rows; it has 1 or more, or 0 for the whole prompt")
        for name, share in (("cold", self.cold), *(("outliers", value) for value in self.shadowed.values())):
            if not 0 <= share <= 1:
                raise InputError(f"{name} is {share}; it is a share from 0 to 1")

    def rows(self, prompt_length: int) -> list[int]:
        """Tokens of each chunk of a prompt; the last chunk is padded."""
        return [self.chunk] * ceil(prompt_length / self.chunk) if self.chunk else [prompt_length]

    def cuts(self, layer: int) -> bool:
        """Whether a layer's FFN is two subgraphs: one of its linears keeps outliers of its own."""
        on_npu = (layer, FFN) not in self.beyond
        return on_npu and ((layer, UP) in self.shadowed or (layer, DOWN) in self.shadowed)


@dataclass(frozen=True)
class Subgraph:
    """A part of a pass that one processor runs as one op.

    Attributes:
        op: its cost; it has no real computation.
        parents: indices of its dependencies in the list of subgraphs.
        chunk: chunk index, from 0.
        layer: layer index, from 0.
        stage: one of `STAGES`, or `UP` for the first part of an FFN that is cut; a shadow product or its
            flash read has the stage of its linear.
    """

    op: Op
    parents: tuple[int, ...]
    chunk: int
    layer: int
    stage: str


def weights(shape: Shape, stage: str) -> int:
    """Number of weights of a layer's stage."""
    output_weights = shape.hidden * shape.head_dim * shape.heads
    down_weights = shape.hidden * shape.intermediate
    return {
        QKV: shape.attention_weights - output_weights,
        OUTPUT: output_weights,
        FFN: shape.mlp_weights,
        UP: shape.mlp_weights - down_weights,
        DOWN: down_weights,
    }.get(stage, 0)


def products(shape: Shape, stage: str) -> int:
    """Number of matrix products of a layer's stage: Q, K and V; the output; two or three of the FFN."""
    ups = 2 if shape.gated else 1
    return {QKV: 3, OUTPUT: 1, FFN: ups + 1, UP: ups, DOWN: 1}.get(stage, 0)


def width(shape: Shape, stage: str) -> tuple[int, int]:
    """Input and output channels of a stage with weights; an FFN's inner channels count as both."""
    query_width = shape.heads * shape.head_dim
    if stage == FFN:
        return shape.hidden + shape.intermediate, shape.hidden + shape.intermediate
    if stage == UP:
        return shape.hidden, products(shape, UP) * shape.intermediate
    if stage == DOWN:
        return shape.intermediate, shape.hidden
    if stage == QKV:
        return shape.hidden, query_width + 2 * shape.kv_heads * shape.head_dim
    return query_width, shape.hidden


def beyond(model_cost: ModelCost, window: float) -> frozenset[tuple[int, str]]:
    """Linears that do not fit an NPU's `window` of addressable bytes (0: unlimited); FFNs come first."""
    free_bytes, linears = window, set()
    for stage in LINEARS if window else ():
        size = model_cost.weight_bytes(weights(model_cost.shape, stage))
        for layer in range(model_cost.shape.layers):
            if size <= free_bytes:
                free_bytes -= size
            else:
                linears.add((layer, stage))
    return frozenset(linears)


def shadowed_as_measured(outliers: Mapping[tuple[int, str], float]) -> Shadowed:
    """The linears that keep outliers by a measurement: layers and linears (`STAGE_OF`) to shares."""
    return {(layer, STAGE_OF[part]): share for (layer, part), share in outliers.items()}


def shadowed_at_ends(layer_count: int, pruned_share: float, outlier_share: float) -> Shadowed:
    """The linears that keep outliers where nothing was measured: all those of the layers nearest both ends.

    Deviation: the paper does not state which layers it keeps, only that those near both ends are important.
    """
    return {
        (layer, stage): outlier_share
        for layer in layers_at_ends(layer_count, pruned_share)
        for stage in LINEARS
    }


def layers_at_ends(layer_count: int, pruned_share: float) -> frozenset[int]:
    """The layers nearest both ends that remain if a share `pruned_share` of all is left out."""
    if not 0 <= pruned_share <= 1:
        raise InputError(f"pruned is {pruned_share}; it is a share of the layers from 0 to 1")
    kept_count = round((1 - pruned_share) * layer_count)
    front_count = ceil(kept_count / 2)
    return frozenset([*range(front_count), *range(layer_count - (kept_count - front_count), layer_count)])


def subgraphs(
    model_cost: ModelCost, layout: Layout, prompt_length: int, name: str = "target"
) -> list[Subgraph]:
    """The subgraphs of a prompt of `prompt_length` tokens, chunk by chunk, each after its dependencies."""
    return list(_Cutter(model_cost, layout, name).cut(layout.rows(prompt_length)))


@dataclass
class _Cutter:
    """Cuts a prompt; `_ends` maps chunk, layer and stage to the indices of its last subgraphs."""

    model_cost: ModelCost
    layout: Layout
    name: str
    _ends: dict[tuple[int, int, str], tuple[int, ...]] = field(default_factory=dict)
    _count: int = 0

    def cut(self, rows: Sequence[int]) -> Iterator[Subgraph]:
        for chunk, (size, context) in enumerate(zip(rows, _starts(rows), strict=True)):
            parents: tuple[int, ...] = ()
            for layer in range(self.model_cost.shape.layers):
                for stage in STAGES:
                    # To add a shadow product, the CPU first synchronizes with the NPU (sec. 3.3).
                    is_synced = len(parents) > 1
                    if stage == ATTENTION:  # Eq. 2 as the text explains it: depends on earlier chunks too
                        parents = tuple(i for c in range(chunk + 1) for i in self._ends[c, layer, QKV])
                    for subgraph in self._stage(chunk, layer, stage, size, context, parents, is_synced):
                        self._count += 1
                        yield subgraph
                    parents = self._ends[chunk, layer, stage]

    def _stage(
        self,
        chunk_number: int,
        layer: int,
        stage: str,
        row_count: int,
        context_length: int,
        parents: tuple[int, ...],
        is_synced: bool,
    ) -> Iterator[Subgraph]:
        """A stage's subgraph; for shadowed linears also the flash read and the shadow product."""
        label = f"chunk {chunk_number} layer {layer} {stage}"
        first_number = self._count
        if stage not in LINEARS:
            yield Subgraph(
                self._float(stage, row_count, context_length, label, is_synced),
                parents,
                chunk_number,
                layer,
                stage,
            )
            self._ends[chunk_number, layer, stage] = (first_number,)
            return
        if stage == FFN and self.layout.cuts(layer):
            yield from self._up(chunk_number, layer, row_count, parents)
            parents = self._ends[chunk_number, layer, UP]
            first_number = parents[-1] + 1
            stage = DOWN
        parts = list(self._product(chunk_number, layer, stage, row_count, parents, first_number))
        yield from parts
        self._ends[chunk_number, layer, FFN if stage == DOWN else stage] = _ends(first_number, parts)

    def _up(
        self, chunk_number: int, layer: int, row_count: int, parents: tuple[int, ...]
    ) -> Iterator[Subgraph]:
        """The first part of an FFN that is cut; its shadow product is added before the activation."""
        first_number = self._count
        parts = list(self._product(chunk_number, layer, UP, row_count, parents, first_number))
        ends = _ends(first_number, parts)
        if len(ends) > 1:
            # Read gate and up of both products; write the activated ones in int8.
            count = row_count * self.model_cost.shape.intermediate
            size = count * (2 * products(self.model_cost.shape, UP) * FLOAT_BYTES + 1)
            label = f"chunk {chunk_number} layer {layer} {UP}"
            op = self._op(CPU, NORM, row_count, 8.0 * count, size, label, precision="fp32", synced=True)
            parts.append(Subgraph(op, ends, chunk_number, layer, UP))
            ends = (first_number + len(parts) - 1,)
        yield from parts
        self._ends[chunk_number, layer, UP] = ends

    def _product(
        self,
        chunk_number: int,
        layer: int,
        stage: str,
        row_count: int,
        parents: tuple[int, ...],
        first_number: int,
    ) -> Iterator[Subgraph]:
        """A linear's subgraph, `first_number`; for outliers also the flash read and the shadow product."""
        label = f"chunk {chunk_number} layer {layer} {stage}"
        subgraph_stage = FFN if stage == DOWN else stage
        processor = CPU if (layer, stage) in self.layout.beyond else NPU
        yield Subgraph(
            self._linear(processor, stage, row_count, label), parents, chunk_number, layer, subgraph_stage
        )
        share = self.layout.shadowed.get((layer, stage))
        if processor == NPU and share is not None:
            read_op, all_parents = self._cold(stage, share, label), parents
            if read_op:
                yield Subgraph(read_op, parents, chunk_number, layer, subgraph_stage)
                all_parents = (*parents, first_number + 1)
            yield Subgraph(
                self._shadow(stage, share, row_count, label), all_parents, chunk_number, layer, subgraph_stage
            )

    def _float(self, stage: str, row_count: int, context_length: int, label: str, is_synced: bool) -> Op:
        shape = self.model_cost.shape
        if stage == ATTENTION:
            flops = shape.attention_flops(row_count, context_length + row_count)
            size = shape.cache_elements(context_length + row_count) * self.model_cost.stored.activation
            size += 2 * row_count * shape.heads * shape.head_dim * FLOAT_BYTES
        else:
            # Read linear output and residual; write their sum in fp32 and its norm in int8.
            flops, size = 8.0 * row_count * shape.hidden, row_count * shape.hidden * (3 * FLOAT_BYTES + 1)
        kind = ATTENTION if stage == ATTENTION else NORM
        return self._op(CPU, kind, row_count, flops, size, label, precision="fp32", synced=is_synced)

    def _linear(self, on: str, stage: str, row_count: int, label: str) -> Op:
        count = weights(self.model_cost.shape, stage)
        size = self.model_cost.weight_bytes(count) + row_count * sum(width(self.model_cost.shape, stage))
        kind = self.layout.linear if on == NPU else "linear"
        flops, arithmetic = 2.0 * row_count * count, self.model_cost.stored.arithmetic
        launches = products(self.model_cost.shape, stage)
        return self._op(on, kind, row_count, flops, size, label, arithmetic, launch_count=launches)

    def _shadow(self, stage: str, share: float, row_count: int, label: str) -> Op:
        """Find outlier channels in a linear's input and multiply them in float."""
        inputs, outputs = width(self.model_cost.shape, stage)
        outlier_weights = share * weights(self.model_cost.shape, stage)
        size = FLOAT_BYTES * (outlier_weights + row_count * (inputs + outputs))
        return self._op(
            CPU, "shadow", row_count, 2.0 * row_count * outlier_weights, size, f"{label} shadow", "fp32"
        )

    def _cold(self, stage: str, share: float, label: str) -> Op | None:
        count = self.layout.cold * share * weights(self.model_cost.shape, stage)
        if not count:
            return None
        name, request = (
            f"{self.name} flash {label} cold",
            self.model_cost.weight_bytes(self.model_cost.shape.hidden),
        )
        return Op(FLASH, "load", name, bytes=self.model_cost.weight_bytes(count), request=request)

    def _op(
        self,
        on: str,
        kind: str,
        row_count: int,
        flops: float,
        moved_bytes: float,
        label: str,
        precision: str,
        synced: bool = False,
        launch_count: int = 1,
    ) -> Op:
        name = f"{self.name} {on} {label}"
        return Op(
            on, kind, name, row_count, flops, moved_bytes, precision, synced=synced, launches=launch_count
        )


def _ends(first_number: int, parts: Sequence[Subgraph]) -> tuple[int, ...]:
    """The numbers of a product and of its shadow product, the last of what was made, if it has one."""
    return (first_number,) if len(parts) == 1 else (first_number, first_number + len(parts) - 1)


def _starts(rows: Sequence[int]) -> Iterator[int]:
    """Number of tokens before each chunk."""
    start = 0
    for size in rows:
        yield start
        start += size


class Graphs(NamedTuple):
    """Number and memory of the graphs prepared for a prompt.

    Attributes:
        total: subgraphs of one chunk.
        shared: subgraphs that all chunks share.
        built: graphs built with sharing.
        separate: graphs built without sharing.
        bytes: bytes with sharing: weights of the linears and an output buffer per operator.
        separate_bytes: bytes without sharing.
    """

    total: int
    shared: int
    built: int
    separate: int
    bytes: float
    separate_bytes: float

    @property
    def bytes_saved(self) -> float:
        """Bytes saved by sharing."""
        return self.separate_bytes - self.bytes


def graphs(model_cost: ModelCost, chunk_length: int, token_count: int) -> Graphs:
    """Count the graphs of a prompt and their memory; each graph has its own weights and buffers.

    Deviation: the paper gives the memory saved but no formula; we count a buffer for every operator, as QNN
    allocates (sec. 4.5), and the weights of each graph.
    """
    layer_count, chunk_count = model_cost.shape.layers, ceil(token_count / chunk_length)
    total, dynamic_count = len(STAGES) * layer_count, len(DYNAMIC_STAGES) * layer_count
    static_bytes = layer_count * (model_cost.layer_bytes + chunk_length * static_buffers(model_cost.shape))
    dynamic_total = sum(
        dynamic_bytes(model_cost.shape, chunk_length, (i + 1) * chunk_length) for i in range(chunk_count)
    )
    return Graphs(
        total,
        total - dynamic_count,
        total - dynamic_count + chunk_count * dynamic_count,
        chunk_count * total,
        static_bytes + dynamic_total,
        chunk_count * static_bytes + dynamic_total,
    )


def static_buffers(shape: Shape) -> float:
    """Bytes per token of a layer's static operator outputs, in float and quantized."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 2 * shape.hidden * (FLOAT_BYTES + 1)
    projections = (queries + 2 * keys + shape.hidden) * FLOAT_BYTES
    residuals = 2 * shape.hidden * FLOAT_BYTES
    mlp_bytes = (4 if shape.gated else 2) * shape.intermediate * FLOAT_BYTES + shape.intermediate
    return norms + projections + residuals + mlp_bytes + shape.hidden * FLOAT_BYTES


def dynamic_bytes(shape: Shape, row_count: int, key_count: int) -> float:
    """Bytes of one chunk's attention outputs over all layers: rotated queries and keys, scores, softmax, and
    weighted values (in float and quantized)."""
    queries = shape.heads * shape.head_dim
    a_row = (
        queries + shape.kv_heads * shape.head_dim
    ) * FLOAT_BYTES + 2 * shape.heads * key_count * FLOAT_BYTES
    return shape.layers * row_count * (a_row + queries * (FLOAT_BYTES + 1))


def shadow_bytes(model_cost: ModelCost, layout: Layout, hot_share: float) -> float:
    """Bytes of the float weights kept in memory for shadow products, `hot_share` of the input channels."""
    return hot_share * FLOAT_BYTES * sum(weights(model_cost.shape, stage) for _, stage in layout.shadowed)
