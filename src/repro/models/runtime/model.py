"""A model of a run: the checkpoint that computes tokens, and the shape whose cost the device is charged.

Knows nothing of methods or datasets. A model file names checkpoint and shape; they differ where a smaller
checkpoint is a proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.registry import require_choice
from repro.core.typed import typed
from repro.device.emulated import Device
from repro.models.checkpoints.checkpoint import CheckpointTokenizer, open_checkpoint, provenance, tokenizer
from repro.models.checkpoints.origin import Checkpoint
from repro.models.costs.model_cost import ModelCost, Precision, Shape, precision
from repro.models.forward import encdec
from repro.models.forward.encdec import EncoderDecoder, EncoderDecoderConfig, EncoderDecoderNetwork
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import (
    RANK_COUNT,
    VERSION,
    Captured,
    DecoderNetwork,
    LateNetwork,
    Network,
    NoNetwork,
)
from repro.models.forward.side_by_side import GreedyText, Report, greedy_texts
from repro.models.observations.own_text import TextStore, one_by_one
from repro.models.quantization.dictionary_rounding import require_dense, rounded_layers
from repro.models.runtime.cuda import GraphRecorder
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import Placement, settle
from repro.models.runtime.recorded_passes import RecordedNetwork
from repro.models.runtime.session import Session
from repro.models.streaming.layer_streaming import LayerFile, LayerReader, layer_file
from repro.models.streaming.loading import LayerLoads
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.records.record import content_hash

PRECISION_OF_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "int4": "q4_1"}
"""Default stored precision for each compute dtype of `weights.DTYPES`; 32 weights of `int4` share a scale and
a zero in bf16: 5 bits a weight."""

NEEDED_KEYS = ("name", "checkpoint", "shape", "precision", "dtype")
"""Entries that every model file has."""

WeightsKind = Literal["real", "proxy", "none"]

OutlierShares = Mapping[tuple[int, str], float]
"""Linears that keep outliers, by layer and name: the share of their input channels that have one."""


@dataclass(frozen=True)
class Altered:
    """A compression of a model, as the model needs it.

    Attributes:
        digest: content hash of the compression, its version and its calibration data.
        decoder: returns the compressed decoder, all layers resident, and its linears that keep outliers
            (`methods.compression.base.Compressed`).
    """

    digest: str
    decoder: Callable[[], tuple[Decoder, OutlierShares | None]]


@dataclass(frozen=True)
class ModelConfig:
    """One model file.

    Attributes:
        name: name of the costed model.
        checkpoint: weights that compute; `None` models costs only.
        shape: shape that is costed; `None` is the checkpoint's shape.
        precision: stored precision of the costed weights; `None` follows `dtype`.
        dtype: compute dtype of the checkpoint, one of `weights.DTYPES`.
        rounded: bits to which all layer weights are rounded before they compute; `None` does not round.
        compression: the compression with which they compute, as its section of a configuration, or `None`.
    """

    name: str
    checkpoint: Checkpoint | None
    shape: Shape | None
    precision: str | None
    dtype: str
    rounded: Annotated[int, Interval(ge=2, le=8)] | None = None
    compression: dict[str, Any] | None = None

    @property
    def stored(self) -> Precision:
        """How the costed weights are stored."""
        return precision(self.precision or PRECISION_OF_DTYPE[self.dtype])

    @classmethod
    def parse(cls, mapping: Mapping[str, Any]) -> ModelConfig:
        """Parse a resolved configuration; InputError for invalid values."""
        raw = dict(mapping)
        if missing_keys := [name for name in NEEDED_KEYS if name not in raw]:
            raise InputError(f"model {raw.get('name')!r} lacks {', '.join(missing_keys)}")
        checkpoint, shape = raw.pop("checkpoint"), raw.pop("shape")
        for key, part in (("checkpoint", checkpoint), ("shape", shape)):
            if part is not None and not (isinstance(part, Mapping) and part):
                raise InputError(f"model {raw['name']!r}: {key} is {part!r}; it must be a mapping or null")
        if checkpoint is None and shape is None:
            raise InputError(
                f"model {raw['name']!r} has neither a checkpoint nor a shape; "
                "+model/shape@target.shape=llama_3_2_1b gives a target a shape of `repro list models`"
            )
        require_choice("dtype", raw["dtype"], PRECISION_OF_DTYPE)
        if raw["precision"] is not None:
            precision(raw["precision"])
        if raw.get("rounded") is not None:
            require_dense(raw["dtype"])
        if raw.get("compression") is not None and (raw.get("rounded") or checkpoint is None):
            excess = "no checkpoint" if checkpoint is None else f"rounded={raw['rounded']}"
            raise InputError(
                f"model {raw['name']!r} has {excess}, and a compression is of whole weights; choose a model "
                "with a checkpoint and rounded=null, or leave compression@target.compression out"
            )
        config = typed(cls, {**raw, "checkpoint": None, "shape": None}, f"model {raw['name']!r}")
        return replace(
            config,
            checkpoint=Checkpoint.from_mapping(checkpoint) if checkpoint else None,
            shape=Shape.parse(shape) if shape else None,
        )


class Model:
    """A model with an opened checkpoint; weights are loaded lazily."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings_from: Model | None = None,
        host: str = "cpu",
        folder: Path | None = None,
    ) -> None:
        """Open the checkpoint, downloading it if necessary.

        Args:
            config: the model file.
            embeddings_from: the target whose embeddings and tokenizer this draft reuses, if it has none.
            host: torch device that computes.
            folder: the checkpoint's folder, if it has been opened.
        """
        self.config = config
        self.folder = folder or (open_checkpoint(config.checkpoint) if config.checkpoint else None)
        self._host = host
        self._loaded: dict[bool, Decoder] = {}
        self._captured: Captured | None = None
        self._altered: Altered | None = None
        self._outliers: OutlierShares | None = None
        self.tokens: int | None = None  # ids that logits are of; `None` for all of the checkpoint's
        uses_target_embeddings = self.uses_target_embeddings
        self._embeddings_from = embeddings_from if uses_target_embeddings else None
        if uses_target_embeddings and embeddings_from is None:
            raise InputError(f"{config.name} uses its target's embeddings, and there is no target")
        if config.rounded and self.folder and self.encoder_decoder:
            raise InputError(
                f"{config.name} is an encoder-decoder, and rounded={config.rounded} is for decoders; "
                "choose target.rounded=null or draft.rounded=null"
            )

    @property
    def uses_target_embeddings(self) -> bool:
        """Whether the model reuses its target's embeddings and tokenizer."""
        return bool(self.folder and not self.encoder_decoder and self.decoder_config.shares_embeddings)

    @cached_property
    def encoder_decoder(self) -> EncoderDecoderConfig | None:
        """Configuration of an encoder-decoder checkpoint; `None` for a decoder."""
        return encdec.config_of(weights.read_config(self.folder)) if self.folder else None

    @cached_property
    def decoder_config(self) -> DecoderConfig:
        """Configuration of a decoder checkpoint; InputError for an encoder-decoder."""
        assert self.folder is not None
        if self.encoder_decoder:
            raise InputError(
                f"{self.config.name} is an encoder-decoder, whose layers are not ours to round or to stream; "
                "choose a decoder, or a proxy that computes in its place"
            )
        return weights.decoder_config(self.folder)

    def positions(self, prompt_length: int, answer_length: int) -> tuple[int, int | None]:
        """Positions that a prompt and its answer need, and the model's maximum; `None` is unlimited."""
        if self.folder is None:
            return prompt_length + answer_length, None
        if self.encoder_decoder:
            return max(prompt_length, answer_length), self.encoder_decoder.max_positions
        return prompt_length + answer_length, self.decoder_config.max_positions

    @cached_property
    def own_shape(self) -> Shape:
        """Shape of the checkpoint."""
        return (self.encoder_decoder or self.decoder_config).shape

    @property
    def weights(self) -> WeightsKind:
        """Whether the costed weights compute, a proxy does, or nothing does."""
        if self.folder is None:
            return "none"
        return "real" if self.config.shape in (None, self.own_shape) else "proxy"

    @property
    def model_cost(self) -> ModelCost:
        """Cost of the costed shape."""
        return ModelCost(self.config.shape or self.own_shape, self.config.stored)

    @cached_property
    def digest(self) -> str:
        """Content hash of the checkpoint, and of the target's if it reuses those embeddings."""
        if self.folder is None:
            return "none"
        content = weights.digest(self.folder)
        if self.config.rounded:
            content = f"{self.config.rounded}bit-{content}"
        if self._altered:
            content = content_hash([self._altered.digest, content])
        return f"{content}+{self._embeddings_from.digest}" if self._embeddings_from else content

    @cached_property
    def is_dequantized(self) -> bool:
        """Whether weights or reused embeddings were dequantized from a quantized checkpoint."""
        from_target = self._embeddings_from is not None and self._embeddings_from.is_dequantized
        return self.folder is not None and (bool(provenance(self.folder).get("dequantized")) or from_target)

    @cached_property
    def tokenizer(self) -> CheckpointTokenizer:
        """The checkpoint's tokenizer, or the target's if it reuses those embeddings."""
        if self._embeddings_from:
            return self._embeddings_from.tokenizer
        if self.folder is None:
            raise InputError(f"{self.config.name} has no checkpoint, hence no tokenizer for real prompts")
        return tokenizer(self.folder)

    def alter(self, altered: Altered) -> None:
        """Compute with compressed weights from now on.

        Raises:
            InputError: it is an encoder-decoder.
        """
        if self.encoder_decoder:
            raise InputError(f"{self.config.name} is an encoder-decoder, and a compression is for decoders")
        self._altered = altered

    @property
    def outliers(self) -> OutlierShares | None:
        """The checkpoint's linears that keep outliers; None if its arithmetic has nothing of the kind."""
        if self._altered:
            self.decoder()
        return self._outliers

    @property
    def computes_in(self) -> str:
        """The dtype by which its logits are judged: inputs that a compression rounds make them coarse."""
        return "int8" if self._altered else self.config.dtype

    def decoder(self, is_resident: bool = True) -> Decoder:
        """The weights, loaded once; with `resident=False`, without the layers."""
        if is_resident not in self._loaded:
            self._loaded[is_resident] = self._load(is_resident)
        return self._loaded[is_resident]

    def _load(self, is_resident: bool) -> Decoder:
        """See `decoder`; layers that are rounded are so as in STI, embeddings and head are not."""
        config = self.config
        if config.compression and not self._altered:
            raise InputError(
                f"{config.name} has a compression, which is for a target that answers prompts; leave "
                "compression@target.compression out"
            )
        if is_resident and self._altered:
            decoder, self._outliers = self._altered.decoder()
            return decoder.with_layers(decoder.layers, replace(decoder.ends, tokens=self.tokens))
        assert self.folder is not None
        embeddings_from = self._embeddings_from.decoder(is_resident=False) if self._embeddings_from else None
        arguments = self.folder, config.dtype, True, embeddings_from
        with_layers = is_resident and not config.rounded
        loaded = weights.load(*arguments, is_resident=with_layers, device=self._host)
        loaded.ends = replace(loaded.ends, tokens=self.tokens)
        if not (is_resident and config.rounded):
            return loaded
        device = str(loaded.device)
        layers = rounded_layers(self.folder, config.dtype, self.decoder_config, config.rounded, device)
        return loaded.with_layers(layers)

    @cached_property
    def _layers(self) -> LayerFile:
        """The file that layers are streamed from, checked once."""
        assert self.folder is not None
        return layer_file(self.folder, self.config.dtype)

    @cached_property
    def _both(self) -> EncoderDecoder:
        """An encoder-decoder's weights, loaded once."""
        assert self.folder is not None
        assert self.encoder_decoder is not None
        return encdec.load(self.folder, self.encoder_decoder, self.config.dtype, self._host, self.tokens)

    def network(self, memo: LogitCache | None = None, ranks: int = RANK_COUNT) -> Network:
        """A network with its own KV cache; with `memo`, the `ranks` first ranks are looked up on disk."""
        if self.folder is None:
            return NoNetwork()
        if memo is None:
            return self._resident_network()
        if self.encoder_decoder:
            return MemoNetwork(self._resident_network(), memo, ranks)
        late_network = LateNetwork(self.decoder_config.layers, self._resident_network)
        return MemoNetwork(late_network, memo, ranks)

    def _resident_network(self) -> Network:
        if self.encoder_decoder:
            return EncoderDecoderNetwork(self._both)
        return DecoderNetwork(self.decoder(), captured=self._captured)

    def _local_network(self, token_count: int) -> Network:
        """The network that computes on this machine: passes of few rows are recorded on a GPU."""
        network = self._resident_network()
        if isinstance(network, DecoderNetwork) and network.decoder.device.type == "cuda":
            return RecordedNetwork(network.decoder, token_count, GraphRecorder(), self._captured)
        return network

    def capture(self, depths: Sequence[int]) -> Captured:
        """Hidden states that networks created from now on record for a draft head.

        Raises:
            InputError: another draft head already reads other depths.
        """
        if self._captured is None:
            self._captured = Captured(depths)
        if self._captured.depths != tuple(depths):
            raise InputError(
                f"two draft heads read {self.config.name} after {self._captured.depths} and {tuple(depths)} "
                "layers; choose heads that read the same"
            )
        return self._captured

    def outputs_key(self, variant: str = "") -> str:
        """Identity of what the checkpoint, or a variant of it, computes: content, precision and version."""
        variant += f"-tokens{self.tokens}" if self.tokens else ""
        return f"{self.digest[:24].replace('+', '-')}-{self.computes_in}-runtime{VERSION}{variant}"

    def memo(self, root: Path, variant: str = "") -> LogitCache:
        """Logit cache file of this checkpoint, or of a variant of it."""
        return LogitCache(root / "memo" / f"{self.outputs_key(variant)}-{self._host}.sqlite")

    def texts(self, root: Path, variant: str = "") -> TextStore:
        """The file of own greedy texts of this checkpoint, or of a variant of it."""
        return TextStore(root / "memo" / f"{self.outputs_key(variant)}-{self._host}-texts.sqlite")

    def compute_texts(self, prompts: Sequence[Prefix], token_count: int, report: Report) -> list[GreedyText]:
        """The checkpoint's own greedy texts, without any cache of logits.

        Args:
            prompts: the prompts; those of a decoder are computed side by side.
            token_count: length of each text; stop tokens do not end it.
            report: progress callback, called with the number of tokens done of each text.
        """
        if not self.encoder_decoder:
            return greedy_texts(self.decoder(), prompts, token_count, report)
        network = self._resident_network()
        return [one_by_one(network, prompt, token_count) for prompt in prompts]

    @property
    def loads(self) -> LayerLoads | None:
        """What is read of each layer, if that is not its stored form."""
        return None

    def session(
        self, role: str, device: Device, placement: Placement, network: Network, token_count: int = 0
    ) -> Session:
        """Open the model on an emulated device: the network computes, the device charges costs."""
        engine = Engine(
            role, device, self.model_cost, network, placement, None, token_count, self.loads, self.outliers
        )
        return Session(engine, self._beside(placement))

    def local_session(self, role: str, device: Device, placement: Placement, token_count: int = 0) -> Session:
        """Open the model on this machine: fully resident, or with layers streamed from disk.

        Raises:
            InputError: the costed shape is not the checkpoint's, only some layers are resident, or an
                encoder-decoder or a rounded model would be streamed.
        """
        if self.weights != "real":
            raise InputError(
                f"{device.name} computes for real, but {self.config.name} is only billed there: "
                f"{self.config.checkpoint.name if self.config.checkpoint else None!r} computes in its place; "
                "choose a model without a `shape` of its own"
            )
        if self._altered:
            raise InputError(
                f"{device.name} computes for real, and compressed weights compute on emulated devices only; "
                f"leave compression@{role}.compression out, or choose an emulated device"
            )
        resident_layers, slots, *_ = settle(placement, self.model_cost, device.memory, token_count)
        if resident_layers == self.own_shape.layers:
            network = self._local_network(token_count)
            engine = Engine(role, device, self.model_cost, network, placement, None, token_count)
            return Session(engine, self._beside(placement))
        if resident_layers:
            raise InputError(
                f"resident is {placement.resident}; a real device holds all layers (1) or none of them (0)"
            )
        if self.encoder_decoder:
            raise InputError(
                f"{device.name} would have to stream {self.config.name} for real, which works for decoders "
                "alone; choose an emulated device, or keep all layers in memory (method.resident=1)"
            )
        if self.config.rounded:
            raise InputError(
                f"{device.name} would stream {self.config.name}'s layers as they are stored, not rounded to "
                f"{self.config.rounded} bits; choose {role}.rounded=null, or keep all layers in memory "
                "(method.resident=1)"
            )
        network = DecoderNetwork(self.decoder(is_resident=False), captured=self._captured)
        reader = LayerReader(self._layers, slots, device=self._host)
        engine = Engine(role, device, self.model_cost, network, placement, reader, token_count)
        return Session(engine, self._beside(placement))

    def _beside(self, placement: Placement) -> object | None:
        return placement.beside(self) if placement.beside else None
