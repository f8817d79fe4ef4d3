"""mllm-NPU (arXiv 2407.05858): chunked prefill out of order on NPU and CPU, decode on the CPU.

Must not know the costs of ops, how a prompt is cut into subgraphs, or where weights are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from repro.core.bounds import Share
from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.clock import Future
from repro.device.emulated import Device
from repro.device.op import CPU, NPU, Op
from repro.methods.base import Generation, Method, Request, Serving, Sessions
from repro.methods.mllm_npu.scheduling import ORDERS, Agenda, Policy, SubgraphTask
from repro.methods.mllm_npu.subgraphs import (
    FFN,
    QKV,
    STAGE_OF,
    UP,
    Layout,
    Shadowed,
    Subgraph,
    beyond,
    graphs,
    shadow_bytes,
    shadowed_as_measured,
    shadowed_at_ends,
    subgraphs,
)
from repro.methods.plain.autoregressive import decode
from repro.models.runtime.arrangement import Arrangement, ForwardPass
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.records.record import Scalar

LONGEST = 65_536
"""Most tokens of a chunk."""


@register("method", "mllm_npu")
@dataclass(frozen=True)
class MllmNpu(Method):
    """Prefill linears run in int8 on the NPU; float operations and all of decoding run on the CPU.

    Attributes:
        chunk: tokens per chunk.
        chunks: cut prompts into chunks that share graphs built once; else a graph is built per request.
        shadow: per-tensor quantized linears with outliers on the CPU; else per-group linears on the NPU.
        order: scheduling policy of subgraphs, a key of `ORDERS`.
        pruned: share of the layers whose outliers are dropped; of a target that is itself so quantized
            (`compression@target.compression=shadow`) the share of linears, which must be its own.
        outliers: share of a linear's input channels that have outliers (sec. 3.3: 0.1% to 0.3%), where none
            were counted.
        hot: share of all channels whose float weights stay in memory (below 3%).
        cold: share of the outliers in other channels (below 20%).
        shapes: use the equivalent input shapes that are fastest on the NPU.
        window: bytes of weights that the NPU can address; 0 is what the sessions of the device's engine
            address. The paper's 4 GB (sec. 4) are one session's; its 7B latencies are out of reach with them.
    """

    arithmetic: ClassVar[str] = "8-bit weights and activations with outliers beside them"
    arithmetic_by: ClassVar[str] = "shadow"
    format: ClassVar[str] = "w8a8"
    version: ClassVar[int] = 2  # 1 launched once a subgraph, and sent linears beyond 4 GB to the CPU

    chunk: Annotated[int, Interval(ge=1, le=65_536)] = 256
    chunks: bool = True
    shadow: bool = True
    order: Literal["in_order", "overlapped", "longest_first", "out_of_order", "mixed"] = "out_of_order"
    pruned: Share = 0.85
    outliers: Share = 0.003
    hot: Share = 0.03
    cold: Share = 0.2
    shapes: bool = True
    window: Annotated[float, Interval(ge=0, le=1e15)] = 0.0

    def __post_init__(self) -> None:
        if not self.chunks and self.order != "in_order":
            raise InputError(
                f"method.order is {self.order!r}, but a prompt without chunks has one order; choose "
                "method.order=in_order"
            )

    @property
    def processors(self) -> frozenset[str]:
        """See `Method`."""
        return frozenset({CPU, NPU})

    def places(self) -> Mapping[str, Placement]:
        """The target in memory, on the CPU except for prefill."""
        return {"target": Placement(on=CPU)}

    def prefill_rows(self, prompt_length: float) -> float:
        """See `Method`: those of a chunk's graph."""
        return self.chunk if self.chunks else prompt_length

    def layout(self, target: Session) -> Layout:
        """Layout of the subgraphs of the target's prompts."""
        kernel_kind = "linear" if self.shapes else "linear_flat"
        window = self.window or target.engine.device.addressable(NPU)
        return Layout(
            chunk=self.chunk if self.chunks else 0,
            linear=kernel_kind if self.shadow else "linear_per_group",
            shadowed=self._shadowed_linears(target.engine),
            cold=self.cold,
            beyond=beyond(target.engine.model_cost, window),
        )

    def _shadowed_linears(self, engine: Engine) -> Shadowed:
        """The linears that keep outliers: those of the target's own arithmetic, where that has any.

        Raises:
            InputError: schedule and arithmetic would keep the outliers of different linears.
        """
        layer_count, outliers = engine.model_cost.shape.layers, engine.outliers
        if outliers is None:
            return shadowed_at_ends(layer_count, self.pruned, self.outliers) if self.shadow else {}
        if not self.shadow:
            raise InputError(
                "method.shadow is false, and the target's arithmetic keeps outliers beside the NPU's; choose "
                "method.shadow=true, or a target without that compression"
            )
        linear_count = len(STAGE_OF) * layer_count
        number = len(outliers)
        if number != linear_count - round(self.pruned * linear_count):
            raise InputError(
                f"method.pruned is {self.pruned}, and the target's arithmetic keeps the outliers of {number} "
                f"of {linear_count} linears; give {round(1 - number / linear_count, 4)}, or "
                "another target.compression.pruned"
            )
        return shadowed_as_measured(outliers)

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Build the graphs that chunks share, profile subgraphs, reserve memory for hot channels' weights."""
        target = sessions["target"]
        layout, figures = self.layout(target), dict[str, Scalar]()
        profile = ChunkProfile()
        if self.chunks:
            with device.phase("build"):
                figures = await self._build_graphs(device, target, layout)
            with device.phase("profile"):
                parts = subgraphs(target.engine.model_cost, layout, 2 * self.chunk, target.name)
                await profile.measure(device, parts)
            first_ops = {
                part.stage: part.op for part in reversed(parts) if part.layer == 0
            }  # each stage's linear
            for stage, extra_stages in ((QKV, ()), (FFN, (UP,))):
                products = [first_ops[name] for name in (stage, *extra_stages) if name in first_ops]
                figures[f"{stage}_per_token"] = sum(map(profile.seconds, products)) / self.chunk
            for processor in (NPU, CPU):
                ops = [part.op for part in parts if part.chunk == 0 and part.op.on == processor]
                figures[f"chunk_{processor}_seconds"] = sum(map(profile.seconds, ops))
        if layout.shadowed:
            size = shadow_bytes(target.engine.model_cost, layout, self.hot)
            device.memory.reserve(size, f"{target.name} hot channels")
            layers = {layer for layer, _ in layout.shadowed}
            figures |= {"shadow_layers": len(layers), "shadow_bytes": size}
        figures |= {"linears_beyond": len(layout.beyond), "memory_bytes": device.memory.in_use}
        prefill = ChunkedPrefill(layout, ORDERS[self.order], profile)
        target.engine.arrange(prefill)
        return Prepared(self, target, prefill, figures)

    async def _build_graphs(self, device: Device, target: Session, layout: Layout) -> dict[str, Scalar]:
        """Build all shared graphs as one op, since device files give the time for a whole model."""
        cost = target.engine.model_cost
        sizes, arithmetic = graphs(cost, layout.chunk, layout.chunk), cost.stored.arithmetic
        buffers = sizes.bytes - cost.block_bytes
        device.memory.reserve(buffers, f"{target.name} buffers of chunk graphs")
        cut_count = sum(map(layout.cuts, range(cost.shape.layers)))
        start, on, name = device.now, device.resource(NPU, arithmetic), f"{target.name} chunk graphs"
        await device.run(Op(on, "graphs", name, self.chunk, precision=arithmetic, graph=name))
        return {
            "graph_seconds": device.now - start,
            "subgraphs": sizes.total + cut_count,
            "shared_subgraphs": sizes.shared + cut_count,
            "graph_buffers": buffers,
        }

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Prefill, then one token per pass."""
        target = sessions["target"]
        return await decode(request, device, target)


@dataclass(frozen=True)
class Prepared(Serving):
    """The method after preparation; `preparation` holds the figures of the preparation."""

    method: MllmNpu
    target: Session
    prefill: ChunkedPrefill
    preparation: Mapping[str, Scalar]

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """Time, number and memory of graphs, memory of outliers, NPU seconds per token; and the savings of
        shared graphs at the longest prompt so far."""
        if not (self.method.chunks and self.prefill.longest):
            return self.preparation
        prompt_graphs = graphs(self.target.engine.model_cost, self.method.chunk, self.prefill.longest)
        return {
            **self.preparation,
            "graphs_shared": prompt_graphs.built,
            "graphs_separate": prompt_graphs.separate,
            "graph_bytes_saved": prompt_graphs.bytes_saved,
            "graph_share_saved": prompt_graphs.bytes_saved / prompt_graphs.separate_bytes,
        }

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """See `MllmNpu`."""
        return await self.method.serve(request, device, sessions)


@dataclass
class ChunkProfile:
    """Latencies of subgraphs, measured once before the first request (sec. 3.4)."""

    _seconds: dict[tuple[object, ...], float] = field(default_factory=dict)
    _lines: dict[tuple[object, ...], list[tuple[float, float]]] = field(default_factory=dict)

    async def measure(self, device: Device, parts: Sequence[Subgraph]) -> None:
        """Run every distinct subgraph once, each alone."""
        for part in parts:
            if _like(part.op) not in self._seconds:
                start = device.now
                await device.run(part.op)
                self._seconds[_like(part.op)] = device.now - start
                self._lines.setdefault(_kind(part.op), []).append((part.op.flops, device.now - start))

    def seconds(self, op: Op) -> float:
        """Seconds of an op: measured, or for later chunks' attention extrapolated in FLOPs from the first two
        chunks; 0 without measurements."""
        if (measured_seconds := self._seconds.get(_like(op))) is not None:
            return measured_seconds
        points = self._lines.get(_kind(op), [])
        if len(points) < 2:
            return points[0][1] if points else 0.0
        (x0, y0), (x1, y1) = points[:2]
        return y0 + (y1 - y0) * (op.flops - x0) / (x1 - x0)


def _kind(op: Op) -> tuple[object, ...]:
    return op.on, op.kind, op.rows, op.synced


def _like(op: Op) -> tuple[object, ...]:
    return *_kind(op), op.flops, op.bytes


@dataclass
class ChunkedPrefill(Arrangement):
    """Runs a prefill as subgraphs: one at a time per processor, chosen by a policy.

    Attributes:
        longest: tokens of the longest prompt so far.
    """

    layout: Layout
    policy: Policy
    profile: ChunkProfile
    longest: int = 0
    _requests: count[int] = field(default_factory=count)

    def takes(self, forward_pass: ForwardPass) -> bool:
        """Whether a pass is a prefill, without cached context."""
        return not forward_pass.context

    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """Run all subgraphs; the last chunk's FFN op of a layer computes the layer for all chunks."""
        self.longest = max(self.longest, forward_pass.rows)
        parts = subgraphs(engine.model_cost, self.layout, forward_pass.rows, engine.name)
        ops = [self._on_resource(engine, part.op) for part in parts]
        last_chunk = parts[-1].chunk
        for index, part in enumerate(parts):
            if (part.chunk, part.stage, part.op.kind) == (last_chunk, FFN, self._linear(part)):
                computing = engine.computing(forward_pass, part.layer, part.layer + 1)
                ops[index] = ops[index]._replace(compute=computing)
        if not self.layout.chunk:  # without chunks, a graph is built once the length is known
            first_index = next(i for i, part in enumerate(parts) if part.stage == QKV)
            ops[first_index] = ops[first_index]._replace(graph=f"{engine.name} prompt {next(self._requests)}")
        tasks = [
            SubgraphTask(op.on, self.profile.seconds(part.op), part.parents)
            for op, part in zip(ops, parts, strict=True)
        ]
        await run(engine.device, ops, Agenda(tasks), self.policy)

    def _linear(self, part: Subgraph) -> str:
        return self.layout.linear if part.op.on == NPU else "linear"

    def _on_resource(self, engine: Engine, op: Op) -> Op:
        return op._replace(on=engine.device.resource(op.on, op.precision))


async def run(device: Device, ops: Sequence[Op], agenda: Agenda, policy: Policy) -> None:
    """Run ops when their dependencies are done, one at a time per processor, in the policy's order."""
    idle_processors, completions = set(agenda.processors), list[tuple[int, Future[Any]]]()
    wakeup = Future[None]()

    def wake(index: int, future: Future[Any]) -> None:
        completions.append((index, future))
        if not wakeup.done:
            wakeup.set(None)

    while agenda.left:
        for processor in [processor for processor in agenda.processors if processor in idle_processors]:
            index = policy(agenda, processor)
            if index is not None:
                agenda.start(index)
                idle_processors.remove(processor)
                future = device.run(ops[index])
                if future.done:
                    wake(index, future)
                else:
                    future.on_done(partial(wake, index, future))
        await wakeup
        wakeup = Future()
        while completions:
            index, future = completions.pop()
            future.result()
            agenda.finish(index)
            idle_processors.add(ops[index].on)
