"""Time of one forward pass through a session: on this machine, or on an emulated one.

Owns how a pass over some rows after a context is asked for. Must not know fits, files or which cells are
measured. The context's keys and values are random: what is in a cache takes no time, and computing 1,024
tokens would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repro.device.emulated import Device
from repro.device.op import FLASH
from repro.libraries import torch
from repro.models.costs.model_cost import ModelCost, precision
from repro.models.forward.network import DecoderNetwork, Network, NoNetwork
from repro.models.runtime.cuda import GraphRecorder
from repro.models.runtime.engine import Engine
from repro.models.runtime.model import PRECISION_OF_DTYPE
from repro.models.runtime.placement import RESIDENT, STREAMED
from repro.models.runtime.recorded_passes import RecordedNetwork
from repro.models.runtime.session import Session
from repro.models.streaming.loading import LayerSource
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder

SPARE_SLOTS = 64
"""Slots of a cache beyond the context; it grows where a pass has more rows."""


class PassTime(NamedTuple):
    """Seconds of one pass, and of its layers and its output projection.

    Attributes:
        seconds: from asking to having the logits.
        layers: all layers, without waiting for weights.
        head: the output projection.
        read_s: the reads of weights.
        read_bytes: bytes of them.
    """

    seconds: float
    layers: float
    head: float
    read_s: float = 0.0
    read_bytes: float = 0.0

    @property
    def rest(self) -> float:
        """What the runtime does beside its ops: bookkeeping, the embedding, and waiting for weights."""
        return self.seconds - self.layers - self.head


def fill(cache: KVCache, config: DecoderConfig, token_count: int) -> None:
    """Put random keys and values of `token_count` positions into an empty cache."""
    device = cache.positions.device
    cache.set_positions(0, torch.arange(token_count, device=device))
    rows = torch.randn(token_count, 2 * config.kv_heads, config.head_dim, device=device)
    for layer in range(config.layers):
        cache.append_joint(layer, rows)


def cost_of(config: DecoderConfig, dtype: str) -> ModelCost:
    """What a decoder in one of `weights.DTYPES` is billed."""
    return ModelCost(config.shape, precision(PRECISION_OF_DTYPE[dtype]))


class PrefilledSession(Session):
    """A session that can be told what its network's cache holds."""

    def assume(self, text: Prefix) -> None:
        """Count a sequence and its ancestors as cached, without a pass."""
        if text.length:
            self._lineage.add(self._lineage.missing([text]))


class PassTimer:
    """Passes of one model on one device, after each of some contexts."""

    def __init__(
        self,
        device: Device,
        cost: ModelCost,
        contexts: Sequence[int],
        decoder: Decoder | None = None,
        reader: LayerSource | None = None,
        is_streamed: bool = False,
    ) -> None:
        """Open the model.

        Args:
            device: the local device, or an emulated one.
            cost: what an emulated device bills.
            contexts: numbers of cached tokens after which passes are timed.
            decoder: computes on a local device; none on an emulated one.
            reader: reads the layers of a streamed decoder on a local device.
            is_streamed: whether all layers are read from flash in each pass.
        """
        self.device = device
        self._contexts: dict[int, tuple[PrefilledSession, Prefix]] = {}
        for context_length in contexts:
            text = Prefix.of(range(context_length))
            network: Network = NoNetwork()
            if decoder is not None:
                network = _holding(decoder, text)
            placement = STREAMED if is_streamed else RESIDENT
            session = PrefilledSession(Engine("target", device, cost, network, placement, reader))
            session.assume(text)
            self._contexts[context_length] = session, text
        self._passes = 0

    def time(self, row_count: int, context_length: int, last_only: bool = False) -> PassTime:
        """Time a pass over a chain of `row_count` new tokens after `context_length` cached ones.

        Logits are computed for each of them, or for the last one only.
        """
        session, text = self._contexts[context_length]
        self._passes += 1
        chain = [text.then(self._passes)]  # new tokens each time, whose logits no earlier pass left
        session.keep(chain[0])  # drops the rows of earlier passes, which continue `text` otherwise
        while len(chain) < row_count:
            chain.append(chain[-1].then(0))
        trace, span_count = self.device.trace, len(self.device.trace.spans)

        async def run() -> tuple[float, float]:
            start = self.device.now
            await session.forward(chain[-1:] if last_only else chain)
            return start, self.device.now

        start, end = self.device.play(run())
        spans = trace.spans[span_count:]
        layers, head = (sum(s.seconds for s in spans if s.kind == kind) for kind in ("layer", "head"))
        del trace.spans[span_count:]
        load_spans = [s for s in spans if s.on == FLASH]
        read_s, read_bytes = sum(s.seconds for s in load_spans), sum(s.bytes for s in load_spans)
        return PassTime(end - start, layers, head, read_s, read_bytes)


def _holding(decoder: Decoder, text: Prefix) -> DecoderNetwork:
    """A network whose cache holds a sequence; on a GPU its passes are recorded, as a run's are."""
    slot_count = text.length + SPARE_SLOTS
    on_gpu = decoder.device.type == "cuda"
    network = (
        RecordedNetwork(decoder, slot_count, GraphRecorder())
        if on_gpu
        else DecoderNetwork(decoder, slot_count)
    )
    if text.length:
        fill(network.cache, decoder.config, text.length)
        network.lineage.add(network.lineage.missing([text]))
    return network
