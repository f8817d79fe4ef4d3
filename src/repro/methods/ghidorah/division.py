"""Divides a session's passes between two processors: billed on an emulated device, computed on a real one.

Owns when the parts of a layer run. Must not know how large they are (`partition`), how they are computed
(`tensor_parallel`), or how a good split is found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from repro.core.errors import InputError
from repro.device.emulated import EmulatedDevice
from repro.methods.ghidorah.partition import AttentionExtent, Split, Stage, attention, split_work, stages
from repro.methods.ghidorah.tensor_parallel import DividableDecoder
from repro.models.forward.network import DecoderNetwork, Logits
from repro.models.runtime.arrangement import Arrangement, ForwardPass, InOrder
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session


def divide(session: Session, split: Split | None) -> None:
    """Divide layers and output projection of later passes between two processors; None stops it.

    Raises:
        InputError: layers are streamed, or the model is an encoder-decoder.
    """
    engine, division = session.engine, session.engine.arrangement
    shape = engine.model_cost.shape
    if split and (engine.residency.layers < shape.layers or shape.encoder):
        raise InputError(f"{engine.name} is divided between processors only if it is a decoder in memory")
    if isinstance(engine.network, DecoderNetwork) and not isinstance(engine.device, EmulatedDevice):
        if not isinstance(division, RealDivision):
            division = RealDivision(engine.network)
        engine.arrange(division)
        division.divide(split)
    else:
        engine.arrange(BilledDivision(split) if split else None)


async def attend(session: Session, extent: AttentionExtent) -> None:
    """Run one layer's attention with the current split, only to time it.

    Raises:
        RuntimeError: the session is not divided.
    """
    division = session.engine.arrangement
    if not isinstance(division, BilledDivision | RealDivision):
        raise RuntimeError(f"{session.name} is not divided")
    await division.attend(session.engine, extent)


class BilledDivision(Arrangement):
    """Stages of each layer, whose pieces run on both processors at once.

    Attributes:
        split: how the work is divided.
    """

    def __init__(self, split: Split) -> None:
        self.split = split

    def takes(self, forward_pass: ForwardPass) -> bool:
        """Whether a pass runs to the end: one that is pruned on its way is not divided."""
        return forward_pass.exit_point is None

    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """See `Arrangement`; a layer's last stage computes it."""
        extent = AttentionExtent.of(forward_pass.missing, forward_pass.context)
        parts = list(stages(engine.model_cost, self.split, extent))
        for layer in range(engine.model_cost.shape.layers):
            for stage in parts[:-1]:
                await self._run(engine, stage, forward_pass.rows, f"layer {layer}")
            compute = engine.computing(forward_pass, layer, layer + 1)
            await self._run(engine, parts[-1], forward_pass.rows, f"layer {layer}", compute)

    async def project(
        self, engine: Engine, rows: int, compute: Callable[[], list[Logits]], on: str
    ) -> list[Logits]:
        """See `Arrangement`; by columns, whichever processor was named."""
        stage = split_work(self.split.share, "head", *engine.model_cost.head(rows))
        logits: list[Logits] = await self._run(engine, stage, rows, "head", compute)
        return logits

    async def attend(self, engine: Engine, extent: AttentionExtent) -> None:
        """Run one layer's attention."""
        await self._run(engine, attention(engine.model_cost, self.split, extent), extent.rows, "attention")

    async def _run(self, engine: Engine, stage: Stage, rows: int, name: str, compute: Any = None) -> Any:
        """Run a stage's pieces at once; each processor's first piece synchronizes with the other.

        The last piece carries the real computation; its value is returned.
        """
        first = {piece.other: piece for piece in reversed(stage)}
        ops = []
        for piece in stage:
            on, is_last = self.split.to if piece.other else engine.on, piece is stage[-1]
            cost = piece.flops, piece.bytes
            op = engine.op(piece.kind, on, rows, cost, compute if is_last else None, name, piece.launches)
            synced = first[piece.other] is piece
            ops.append(op._replace(synced=synced, decoder=op.decoder if is_last else ""))
        return (await engine.run_together(ops))[-1]


class RealDivision(InOrder):
    """Passes in order, each computed by a decoder whose layers are divided between two torch devices."""

    def __init__(self, network: DecoderNetwork) -> None:
        """Divide the decoder of a network from the first `divide` on."""
        self._network = network
        self._decoder = DividableDecoder(network.decoder)

    def divide(self, split: Split | None) -> None:
        """Compute later passes with a split, or undivided for None; InputError as `DividableDecoder`."""
        self._network.decoder = self._decoder.at(split)

    def leave(self) -> None:
        """See `Arrangement`."""
        self.divide(None)

    async def attend(self, engine: Engine, extent: AttentionExtent) -> None:
        """Run one layer's attention."""
        rehearsal = partial(self._decoder.rehearse, extent)
        await engine.run(engine.op("attention", engine.on, extent.rows, (0.0, 0.0), rehearsal))
