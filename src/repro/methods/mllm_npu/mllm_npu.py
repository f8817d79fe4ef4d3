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

    def prefill_rows(self, prompt: float) -> float:
        """See `Method`: those of a chunk's graph."""
        return self.chunk if self.chunks else prompt

    def layout(self, target: Session) -> Layout:
        """Layout of the subgraphs of the target's prompts."""
        flat = "linear" if self.shapes else "linear_flat"
        reach = self.window or target.engine.device.addressable(NPU)
        return Layout(
            chunk=self.chunk if self.chunks else 0,
            linear=flat if self.shadow else "linear_per_group",
            shadowed=self._shadowed_linears(target.engine),
            cold=self.cold,
            beyond=beyond(target.engine.model_cost, reach),
        )

    def _shadowed_linears(self, engine: Engine) -> Shadowed:
        """The linears that keep outliers: those of the target's own arithmetic, where that has any.

        Raises:
            InputError: schedule and arithmetic would keep the outliers of different linears.
        """
        layers, counted = engine.model_cost.shape.layers, engine.outliers
        if counted is None:
            return shadowed_at_ends(layers, self.pruned, self.outliers) if self.shadow else {}
        if not self.shadow:
            raise InputError(
                "method.shadow is false, and the target's arithmetic keeps outliers beside the NPU's; choose "
                "method.shadow=true, or a target without that compression"
            )
        linears = len(STAGE_OF) * layers
        number = len(counted)
        if number != linears - round(self.pruned * linears):
            raise InputError(
                f"method.pruned is {self.pruned}, and the target's arithmetic keeps the outliers of {number} "
                f"of {linears} linears; give {round(1 - number / linears, 4)}, or "
                "another target.compression.pruned"
            )
        return shadowed_as_measured(counted)

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
            first = {
                part.stage: part.op for part in reversed(parts) if part.layer == 0
            }  # each stage's linear
            for stage, cut in ((QKV, ()), (FFN, (UP,))):
                products = [first[name] for name in (stage, *cut) if name in first]
                figures[f"{stage}_per_token"] = sum(map(profile.seconds, products)) / self.chunk
            for on in (NPU, CPU):
                ops = [part.op for part in parts if part.chunk == 0 and part.op.on == on]
                figures[f"chunk_{on}_seconds"] = sum(map(profile.seconds, ops))
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
        sizes = graphs(target.engine.model_cost, layout.chunk, layout.chunk)
        buffers = sizes.bytes - target.engine.model_cost.shape.layers * target.engine.model_cost.layer_bytes
        device.memory.reserve(buffers, f"{target.name} buffers of chunk graphs")
        cut = sum(map(layout.cuts, range(target.engine.model_cost.shape.layers)))
        start, on = device.now, device.resource(NPU, target.engine.model_cost.stored.arithmetic)
        name = f"{target.name} chunk graphs"
        await device.run(
            Op(
                on,
                "graphs",
                name,
                self.chunk,
                precision=target.engine.model_cost.stored.arithmetic,
                graph=name,
            )
        )
        return {
            "graph_seconds": device.now - start,
            "subgraphs": sizes.total + cut,
            "shared_subgraphs": sizes.shared + cut,
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
    choose: Policy
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
        last = parts[-1].chunk
        for index, part in enumerate(parts):
            if (part.chunk, part.stage, part.op.kind) == (last, FFN, self._linear(part)):
                computing = engine.computing(forward_pass, part.layer, part.layer + 1)
                ops[index] = ops[index]._replace(compute=computing)
        if not self.layout.chunk:  # without chunks, a graph is built once the length is known
            first = next(i for i, part in enumerate(parts) if part.stage == QKV)
            ops[first] = ops[first]._replace(graph=f"{engine.name} prompt {next(self._requests)}")
        tasks = [
            SubgraphTask(op.on, self.profile.seconds(part.op), part.after)
            for op, part in zip(ops, parts, strict=True)
        ]
        await run(engine.device, ops, Agenda(tasks), self.choose)

    def _linear(self, part: Subgraph) -> str:
        return self.layout.linear if part.op.on == NPU else "linear"

    def _on_resource(self, engine: Engine, op: Op) -> Op:
        return op._replace(on=engine.device.resource(op.on, op.precision))


async def run(device: Device, ops: Sequence[Op], agenda: Agenda, choose: Policy) -> None:
    """Run ops when their dependencies are done, one at a time per processor, in the policy's order."""
    idle, completions = set(agenda.processors), list[tuple[int, Future[Any]]]()
    wakeup = Future[None]()

    def wake(index: int, done: Future[Any]) -> None:
        completions.append((index, done))
        if not wakeup.done:
            wakeup.set(None)

    while agenda.left:
        for on in [on for on in agenda.processors if on in idle]:
            index = choose(agenda, on)
            if index is not None:
                agenda.start(index)
                idle.remove(on)
                done = device.run(ops[index])
                if done.done:
                    wake(index, done)
                else:
                    done.on_done(partial(wake, index, done))
        await wakeup
        wakeup = Future()
        while completions:
            index, done = completions.pop()
            done.result()
            agenda.finish(index)
            idle.add(ops[index].on)
