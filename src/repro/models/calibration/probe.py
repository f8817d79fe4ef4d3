"""Decoders with random weights, whose layers and output projection are timed as this project computes them.

The shapes are those of `board_calibrator`. Must not know checkpoints, fits or files. A probe is timed in
passes of the same session that runs a model, so a layer has all that a real one has: norms, rotation, cache,
mask, attention, the small kernels between, memory that is allocated again. Its weights come from memory: a
probe has enough layers that no cache still holds the one that is asked next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from repro.device.direct_io import page_aligned
from repro.device.local import LocalDevice
from repro.device.op import GPU
from repro.libraries import Tensor, torch
from repro.models.calibration import board_calibrator
from repro.models.calibration.passes import PassTimer, cost_of
from repro.models.streaming.layer_streaming import LayerFile, LayerReader, write_layers
from repro.models.transformer.config import DecoderConfig, Rope
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.models.transformer.layer import LayerWeights, buffer_bytes, layout
from repro.models.transformer.norm import RMSNorm
from repro.models.transformer.weights import builders
from repro.records.build_cache import cache_root

LAYER, HEAD, REST, READ = "layer", "head", "rest", "read"
"""Parts of a pass: one layer, the output projection, what is beside all ops, and reading one layer."""
LAYER_LIMITS = 4, 32
"""Fewest and most layers of a probe: fewer do not show a pass as it is, more take long."""


def _shape(hidden: int, heads: int, head_dim: int, intermediate: int, vocab: int) -> DecoderConfig:
    """A gated decoder with as many query heads to a key-value head as most of today's have."""
    return DecoderConfig(
        vocab=vocab,
        hidden=hidden,
        layers=1,
        heads=heads,
        kv_heads=heads // board_calibrator.QUERIES_PER_KEY,
        head_dim=head_dim,
        intermediate=intermediate,
        max_positions=1 << 16,
        rope=Rope(),
        tied=True,
    )


SHAPES = {name: _shape(**sizes) for name, sizes in board_calibrator.SHAPES.items()}
"""The invented shapes."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which kernels compute: weights in `dtype` (one of `weights.DTYPES`), reordered if `packed`.

    Layers in memory are packed; layers streamed from disk cannot be.
    """

    dtype: str
    packed: bool = True

    @property
    def label(self) -> str:
        """Name in tables."""
        return self.dtype if self.packed else f"{self.dtype}, as stored"


class PartTiming(NamedTuple):
    """One timed part of a pass.

    Attributes:
        kernels: what computed.
        part: `layer`, `head`, `rest` or `read`.
        weights: weights of its linears; 0 for the rest, bytes of a read.
        attention: attention's FLOPs.
        rows: tokens of the pass.
        context: cached tokens before them.
        seconds: of one layer (the mean over the pass), of the output projection, or of the rest.
        single: weights that one row alone is multiplied by.
    """

    kernels: Kernels
    part: str
    weights: float
    attention: float
    rows: int
    context: int
    seconds: float
    single: float = 0.0


def random_decoder(config: DecoderConfig, kernels: Kernels, device: torch.device) -> Decoder:
    """A decoder with random weights; its layers are equal, but each has memory of its own."""
    layer_builders = builders(kernels.dtype, kernels.packed, device)
    ends = builders(kernels.dtype, True, device)  # streamed models, too, keep a packed output projection

    def weight(output_count: int, input_count: int) -> Tensor:
        matrix: Tensor = torch.randn(output_count, input_count, device=device) * input_count**-0.5
        return matrix

    def norm() -> RMSNorm:
        return RMSNorm.of(torch.ones(config.hidden, device=device), config.norm_eps)

    hidden, intermediate = config.hidden, config.intermediate
    first_layer = LayerWeights(
        qkv=layer_builders.build(weight(config.qkv_rows, hidden), None),
        out=layer_builders.build(weight(hidden, config.heads * config.head_dim), None),
        up=layer_builders.build(weight(2 * intermediate, hidden), None),
        down=layer_builders.build(weight(hidden, intermediate), None),
        before_attention=norm(),
        before_mlp=norm(),
    )
    table = weight(config.vocab, hidden)
    layers = [first_layer, *(_copy(first_layer) for _ in range(config.layers - 1))]
    return Decoder(config, layers, EmbeddingAndHead(table.to(ends.table), ends.head(table, None), norm()))


def _copy(part: Any) -> Any:
    """A copy of an operator, or of a layer of them, with memory of its own."""
    if isinstance(part, torch.Tensor):
        return part.clone()
    if not is_dataclass(part):
        return part
    copies = {field.name: _copy(getattr(part, field.name)) for field in fields(part)}
    return replace(part, **copies)  # type: ignore[type-var]


def _write_file(path: Path, layers: Sequence[LayerWeights]) -> LayerFile:
    """A file of layers that a reader can stream."""
    size = page_aligned(buffer_bytes(layout(layers[0])))
    file = LayerFile(path, len(layers), size, layers[0].skeleton())
    write_layers(path, file, iter(layers), {})
    return file


def probe_config(shape: DecoderConfig, kernels: Kernels, footprint: float) -> DecoderConfig:
    """A shape with as many layers as have `footprint` bytes together, within `LAYER_LIMITS`."""
    fewest_layers, most_layers = LAYER_LIMITS
    layer_count = ceil(footprint / cost_of(shape, kernels.dtype).layer_bytes)
    return replace(shape, layers=min(most_layers, max(fewest_layers, layer_count)))


class LayerProbe:
    """A decoder of an invented shape, timed in passes.

    Attributes:
        config: its shape.
        contexts: numbers of cached tokens after which it can be timed.
    """

    def __init__(
        self, config: DecoderConfig, kernels: Kernels, contexts: Sequence[int], local_device: LocalDevice
    ) -> None:
        """Build it with random weights, and caches of `contexts` tokens each."""
        self.config, self.contexts = config, contexts
        device = torch.device("cuda" if local_device.main == GPU else "cpu")
        decoder = random_decoder(config, kernels, device)
        self._kernels = kernels
        cost, is_streamed = cost_of(config, kernels.dtype), not kernels.packed
        reader = None
        if is_streamed:  # a layer that was just read starts later than one that follows another in memory
            root = cache_root() / "calibrate"
            root.mkdir(parents=True, exist_ok=True)
            self._scratch = TemporaryDirectory(dir=root, prefix="probe-")  # deleted with the probe
            layer_file = _write_file(Path(self._scratch.name) / "layers", decoder.resident_layers())
            reader = LayerReader(layer_file, slot_count=2)
            decoder = decoder.with_layers([None] * config.layers)
        self._timer = PassTimer(local_device, cost, contexts, decoder, reader, is_streamed)

    def time(self, row_count: int, context_length: int) -> Iterator[PartTiming]:
        """Time the parts of one pass of `row_count` tokens after `context_length` cached ones."""
        shape, pass_time = self.config.shape, self._timer.time(row_count, context_length)

        def timing(part: str, weights: float, seconds: float, attention: float = 0.0) -> PartTiming:
            return PartTiming(self._kernels, part, weights, attention, row_count, context_length, seconds)

        attention = shape.attention_flops(row_count, context_length)
        yield timing(LAYER, shape.layer_weights, pass_time.layers / shape.layers, attention)
        yield timing(HEAD, shape.head_weights, pass_time.head)
        if pass_time.read_bytes:
            yield timing(READ, pass_time.read_bytes / shape.layers, pass_time.read_s / shape.layers)
        else:  # the rest of a streamed pass is waiting for weights
            yield timing(REST, 0, pass_time.rest)
