"""Chooses the bit width of each shard of a streamed model (planner of STI, Guo et al., ASPLOS 2023).

Pure arithmetic on bytes and seconds. Knows nothing of weights, of how shards are rounded, or of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from repro.core.errors import InputError
from repro.models.quantization.dictionary_rounding import FULL_WIDTH, OUTLIER_SHARE
from repro.models.streaming.loading import LayerLoads
from repro.records.record import Scalar

OUTLIER_BITS = 64
"""Bits per outlier: a 32-bit value and its index."""

Widths = tuple[tuple[int, ...], ...]
"""Bit width by layer and shard."""


@dataclass(frozen=True)
class Sharding:
    """Constraints of a shard plan.

    Attributes:
        widths: allowed bit widths; a shard may always stay unrounded.
        latency: target time per token, as a share of that with all shards unrounded and streamed.
        preload: size of the buffer that holds the first layers' shards, as a share of all layers' bytes.
    """

    widths: tuple[int, ...]
    latency: float
    preload: float

    def __post_init__(self) -> None:
        if not self.widths:
            raise InputError("method.widths is empty; give whole numbers of bits, 1 to 8")


@dataclass(frozen=True)
class StagePace:
    """Seconds of the parts of a one-token forward pass on a device.

    Attributes:
        load: seconds to read a number of bytes from flash.
        compute: seconds of a layer that moves a number of extra bytes in memory.
        embed: seconds of the embedding lookup.
        head: seconds of the output projection.
        ahead: layers that are read ahead of the one that computes.
        head_bytes: bytes of the output projection if it is streamed, else 0.
    """

    load: Callable[[float], float]
    compute: Callable[[float], float]
    embed: float
    head: float
    ahead: int
    head_bytes: float = 0.0


@dataclass(frozen=True)
class ShardPlan(LayerLoads):
    """A plan for streaming a model: bytes per layer without preloaded shards, and those of rounded ones.

    Attributes:
        widths: bit width by costed layer and shard.
        bits: mean stored bits per layer weight, outliers included.
        seconds: planned seconds per token.
        target: target seconds per token; less than `seconds` if even the narrowest shards are too slow.
    """

    widths: Widths
    bits: float
    seconds: float
    target: float

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """Figures of the plan, for the record."""
        return {
            "shard_bits": self.bits,
            "shards_preloaded_bytes": self.preloaded,
            "planned_time_per_token": self.seconds,
            "latency_target": self.target,
        }


@dataclass(frozen=True)
class Layers:
    """The costed layers: stored bytes of one layer, and bits per stored weight."""

    layer_bytes: float
    bits: float


def plan(
    sharding: Sharding, importance: Sequence[Sequence[float]], layers: Layers, pace: StagePace
) -> ShardPlan:
    """Plan in STI's two stages: the largest uniform width that fits, then wider important shards.

    A plan fits if a pass with overlapping loads and compute meets the target. In STI's terms, no layer's
    accumulated I/O budget is negative: the target minus the compute time of this and later layers suffices
    to load all layers up to this one.

    Args:
        sharding: constraints of the plan.
        importance: importance by costed layer and shard; higher is more important.
        layers: size of the costed layers.
        pace: timing of the device.
    """
    planner = _Planner(sharding, len(importance), len(importance[0]), layers, pace)
    widths = planner.uniform()
    ranked_shards = sorted(
        (-score, layer, shard) for layer, row in enumerate(importance) for shard, score in enumerate(row)
    )
    for _, layer, shard in ranked_shards:
        planner.raise_one(widths, layer, shard)
    return planner.plan(widths)


def pass_seconds(loads: Sequence[float], unpacking: Sequence[float], pace: StagePace) -> float:
    """Seconds of a pass whose layers are read and computed in order, reads running ahead as slots allow."""
    read_end = computed_end = 0.0
    slot_times: list[float] = []
    layers = [
        (loaded_bytes, pace.compute(moved_bytes))
        for loaded_bytes, moved_bytes in zip(loads, unpacking, strict=True)
    ]
    for loaded_bytes, seconds in [*layers, (pace.head_bytes, pace.head)]:
        if loaded_bytes:
            slot = slot_times[-1 - pace.ahead] if len(slot_times) > pace.ahead else 0.0
            read_end = max(read_end, slot) + pace.load(loaded_bytes)
            computed_end = max(computed_end, read_end)
        computed_end += seconds
        if loaded_bytes:
            slot_times.append(computed_end)
    return pace.embed + computed_end


def layer_ranges(layer_count: int, real_layers: int) -> list[range]:
    """For each of `layer_count` costed layers, the checkpoint layers that map to it, possibly none."""
    starts = [layer * real_layers // layer_count for layer in range(layer_count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


class _Planner:
    """Tries shard widths against one latency target."""

    def __init__(
        self, sharding: Sharding, layer_count: int, shard_count: int, layers: Layers, pace: StagePace
    ) -> None:
        self._pace = pace
        self._bits = {FULL_WIDTH: layers.bits}
        self._bits |= {w: bits for w in sharding.widths if (bits := stored_bits(w)) < layers.bits}
        self._bytes_per_bit = layers.layer_bytes / layers.bits / shard_count
        self._rising = sorted(self._bits, key=lambda width: self._bits[width])
        self._buffer = sharding.preload * layers.layer_bytes * layer_count
        self._shape = layer_count, shard_count
        loads = [layers.layer_bytes] * layer_count
        self.target = sharding.latency * pass_seconds(loads, [0.0] * layer_count, pace)

    def uniform(self) -> list[list[int]]:
        """All shards at the largest width that fits, or at the narrowest if none does."""
        layer_count, shard_count = self._shape
        candidates = [[[width] * shard_count for _ in range(layer_count)] for width in self._rising]
        return next((widths for widths in reversed(candidates) if self._fits(widths)), candidates[0])

    def raise_one(self, widths: list[list[int]], layer: int, shard: int) -> None:
        """Widen one shard as far as the target allows, in place."""
        old_width = widths[layer][shard]
        for width in reversed(self._rising[self._rising.index(old_width) :]):
            widths[layer][shard] = width
            if width == old_width or self._fits(widths):
                return

    def plan(self, widths: Sequence[Sequence[int]]) -> ShardPlan:
        """The plan with these widths."""
        loads = self._loads(widths)
        return ShardPlan(
            widths=tuple(map(tuple, widths)),
            bits=fmean(self._bits[width] for row in widths for width in row),
            loads=tuple(loads),
            unpacking=tuple(self._unpacking(widths)),
            preloaded=sum(sum(self._sizes(row)) for row in widths) - sum(loads),
            seconds=self._seconds(widths),
            target=self.target,
        )

    def _fits(self, widths: Sequence[Sequence[int]]) -> bool:
        return self._seconds(widths) <= self.target * (1 + 1e-9)

    def _seconds(self, widths: Sequence[Sequence[int]]) -> float:
        return pass_seconds(self._loads(widths), self._unpacking(widths), self._pace)

    def _sizes(self, row: Sequence[int]) -> list[float]:
        return [self._bits[width] * self._bytes_per_bit for width in row]

    def _loads(self, widths: Sequence[Sequence[int]]) -> list[float]:
        """Bytes to read per layer; the preload buffer holds the first shards that fit."""
        free_bytes, loads = self._buffer, []
        for row in widths:
            sizes, count = self._sizes(row), 0
            while count < len(sizes) and sizes[count] <= free_bytes:
                free_bytes -= sizes[count]
                count += 1
            if count < len(sizes):
                free_bytes = 0.0
            loads.append(sum(sizes[count:]))
        return loads

    def _unpacking(self, widths: Sequence[Sequence[int]]) -> list[float]:
        """Bytes moved per layer to dequantize its rounded shards: read rounded, written at stored width."""
        rounded_widths = [[width for width in row if width != FULL_WIDTH] for row in widths]
        return [sum(self._sizes([*row, *[FULL_WIDTH] * len(row)])) for row in rounded_widths]


def stored_bits(width: int) -> float:
    """Bits per weight of a rounded shard; its dictionary of 2^width values is neglected."""
    return width + OUTLIER_SHARE * OUTLIER_BITS
