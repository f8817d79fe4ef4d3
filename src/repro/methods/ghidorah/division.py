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
from repro.libraries import torch
from repro.methods.ghidorah.partition import AttentionExtent, Split, Stage, attention, split_work, stages
from repro.methods.ghidorah.tensor_parallel import CPU, DividedDecoder, divided_linears
from repro.models.forward.network import DecoderNetwork, Logits
from repro.models.runtime.arrangement import Arrangement, ForwardPass, InOrder
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.transformer.decoder import Decoder


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
        layer_stages = list(stages(engine.model_cost, self.split, extent))
        for layer in range(engine.model_cost.shape.layers):
            for stage in layer_stages[:-1]:
                await self._run(engine, stage, forward_pass.rows, f"layer {layer}")
            compute = engine.computing(forward_pass, layer, layer + 1)
            await self._run(engine, layer_stages[-1], forward_pass.rows, f"layer {layer}", compute)

    async def project(
        self, engine: Engine, row_count: int, compute: Callable[[], list[Logits]], on: str
    ) -> list[Logits]:
        """See `Arrangement`; by columns, whichever processor was named."""
        stage = split_work(self.split.share, "head", *engine.model_cost.head(row_count))
        logits: list[Logits] = await self._run(engine, stage, row_count, "head", compute)
        return logits

    async def attend(self, engine: Engine, extent: AttentionExtent) -> None:
        """Run one layer's attention."""
        await self._run(engine, attention(engine.model_cost, self.split, extent), extent.rows, "attention")

    async def _run(self, engine: Engine, stage: Stage, row_count: int, name: str, compute: Any = None) -> Any:
        """Run a stage's pieces at once; each processor's first piece synchronizes with the other.

        The last piece carries the real computation; its value is returned.
        """
        first_pieces = {piece.other: piece for piece in reversed(stage)}
        ops = []
        for piece in stage:
            on, is_last = self.split.to if piece.other else engine.on, piece is stage[-1]
            cost = piece.flops, piece.bytes
            op = engine.op(
                piece.kind, on, row_count, cost, compute if is_last else None, name, piece.launches
            )
            synced = first_pieces[piece.other] is piece
            ops.append(op._replace(synced=synced, decoder=op.decoder if is_last else ""))
        return (await engine.run_together(ops))[-1]


class RealDivision(InOrder):
    """Passes in order, each computed by a decoder whose layers are divided between two torch devices.

    The other device is the CPU. Linears are divided anew only for another share or form; on the CPU itself
    they stay whole.
    """

    def __init__(self, network: DecoderNetwork) -> None:
        """Divide the decoder of a network from the first `divide` on."""
        self._network, self._undivided = network, network.decoder
        self._divided: DividedDecoder | None = None

    def divide(self, split: Split | None) -> None:
        """Compute later passes with a split, or undivided for None; InputError as `divided_linears`."""
        self._network.decoder = self._undivided if split is None else self._at(split)

    def _at(self, split: Split) -> Decoder:
        if self._undivided.device.type == CPU:
            split = Split(share=0.0, dense_keys=split.dense_keys, to=split.to)
        divided = self._divided
        if divided is None or (divided.split.share, divided.split.form) != (split.share, split.form):
            linears = self._undivided
            if split.share:
                linears = divided_linears(linears, split.share, split.form, torch.device(CPU))
            self._divided = divided = DividedDecoder(linears, split)
        divided.split = split
        return divided

    def leave(self) -> None:
        """See `Arrangement`."""
        self.divide(None)

    async def attend(self, engine: Engine, extent: AttentionExtent) -> None:
        """Run one layer's attention with the last split."""
        assert self._divided is not None, "attention is timed with a split"
        rehearsal = partial(self._divided.rehearse, extent)
        await engine.run(engine.op("attention", engine.on, extent.rows, (0.0, 0.0), rehearsal))
