"""Draft heads (EAGLE-3, Medusa) that read their target's hidden states, and `open_model` for any model file.

Knows nothing of methods. On a real device a head reads the hidden states that the target's forward passes
record; on an emulated one, where the target's logits may come from a cache, they are computed separately.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import Tensor
from repro.methods.speculative.drafting import eagle_head, head_ranks, medusa_head
from repro.methods.speculative.drafting.eagle_head import EagleConfig, EagleHead, EagleNetwork
from repro.methods.speculative.drafting.head_ranks import Calibration, HeadRanks
from repro.methods.speculative.drafting.medusa_head import MedusaConfig, MedusaHeads, MedusaNetwork
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.weight_files import read_config
from repro.models.costs.model_cost import Shape
from repro.models.forward import encdec
from repro.models.forward.cached_features import CachedFeatures
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import RANK_COUNT, Features, Network
from repro.models.runtime.model import Model, ModelConfig
from repro.models.runtime.placement import Placement
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.families import family_of
from repro.records.record import content_hash


def open_model(config: ModelConfig, embeddings_from: Model | None = None, host: str = "cpu") -> Model:
    """Open a model file as `Model` or a draft head; arguments as for `Model`.

    Raises:
        InputError: checkpoint and costed shape are different kinds of model; see also `HeadModel`.
    """
    folder = open_checkpoint(config.checkpoint, check=_require_built) if config.checkpoint else None
    kind = _kind_of(read_config(folder)) if folder else Model
    billed_kind = config.shape and _kind_of_shape(config.shape)
    if config.checkpoint and billed_kind and billed_kind is not kind:
        raise InputError(
            f"{config.name}: checkpoint {config.checkpoint.name} is {KIND_NAMES[kind]}, and the shape that "
            f"is billed is {KIND_NAMES[billed_kind]}"
        )
    return kind(config, embeddings_from, host, folder)


def _kind_of(config: Mapping[str, Any]) -> type[Model]:
    """What a `config.json` describes."""
    if medusa_head.HEADS_KEY in config:
        return MedusaModel
    return EagleModel if config and eagle_head.config_of(config) else Model


def _require_built(config: Mapping[str, Any]) -> None:
    """InputError for a `config.json` of a model that cannot be computed here."""
    if _kind_of(config) is Model and not encdec.config_of(config):
        family_of(config)


def _kind_of_shape(shape: Shape) -> type[Model]:
    if shape.medusa:
        return MedusaModel
    return EagleModel if shape.features else Model


def align_vocabularies(models: Sequence[Model]) -> None:
    """Leave out ids that no token has, if models pad their common vocabulary to unequal sizes.

    To be called before weights are loaded; draft heads have their target's ids.
    """
    full_models = [model for model in models if model.folder and not isinstance(model, HeadModel)]
    if len({model.own_shape.vocab for model in full_models}) > 1:
        for model in full_models:
            model.tokens = max(model.tokenizer.vocabulary.values()) + 1


class HeadModel(Model):
    """A draft head with its target, which provides tokenizer, hidden states and missing tables."""

    dtypes: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        config: ModelConfig,
        embeddings_from: Model | None = None,
        host: str = "cpu",
        folder: Path | None = None,
    ) -> None:
        """See `Model`.

        Raises:
            InputError: the target is missing, is no decoder or has another vocabulary or hidden size; the
                dtype is unsupported; `rounded` is set; the file lacks something, or has something that is not
                read.
        """
        super().__init__(config, embeddings_from, host, folder)
        if config.dtype not in self.dtypes:
            raise InputError(f"{config.name}: {unknown('dtype', config.dtype, self.dtypes)}")
        if config.rounded:
            raise InputError(
                f"{config.name} is a draft head, and heads are not rounded; choose draft.rounded=null"
            )
        target, head = self.target.decoder_config, self.head_config
        if (target.vocab, target.hidden) != (head.target_vocab, head.target_hidden):
            raise InputError(
                f"{config.name} is for a target of {head.target_vocab} tokens and hidden rows of "
                f"{head.target_hidden}; {self.target.config.name} has {target.vocab} and {target.hidden}"
            )
        self._depths = head.depths(target.layers)
        self._require_sound()

    @abstractmethod
    def _require_sound(self) -> None:
        """InputError unless the head's file has all that is computed and costed."""

    @property
    @abstractmethod
    def head_config(self) -> EagleConfig | MedusaConfig:
        """Configuration of the checkpoint."""

    @property
    def uses_target_embeddings(self) -> bool:
        """Always true for draft heads."""
        return True

    @property
    def target(self) -> Model:
        """The model it drafts for."""
        assert self._embeddings_from is not None
        return self._embeddings_from

    @property
    def own_shape(self) -> Shape:
        """Shape of the checkpoint."""
        return self.head_config.shape

    @cached_property
    def decoder_config(self) -> DecoderConfig:
        """Raises InputError: a draft head is not a decoder."""
        raise self._no_decoder()

    def decoder(self, is_resident: bool = True) -> Decoder:
        """Raises InputError: a draft head is not a decoder."""
        raise self._no_decoder()

    def _no_decoder(self) -> InputError:
        return InputError(
            f"{self.config.name} is a draft head: it stays in memory and has no layers to stream or to cut "
            "in shards; choose a placement that holds all of it, or a draft that is a model of its own"
        )

    def positions(self, prompt_length: int, answer_length: int) -> tuple[int, int | None]:
        """See `Model`."""
        return prompt_length + answer_length, self.head_config.max_positions

    def outputs_key(self, variant: str = "") -> str:
        """See `Model`; what a head computes depends on its target."""
        target = self.target
        return super().outputs_key(f"{variant}-{target.digest[:24]}-{target.config.dtype}")

    def network(self, memo: LogitCache | None = None, ranks: int = RANK_COUNT) -> Network:
        """A network over target hidden states that are computed separately; see `Model`."""
        network = self._reading(CachedFeatures(self._depths, self.target.decoder, memo))
        return MemoNetwork(network, memo, ranks) if memo else network

    def features(self, prefixes: Sequence[Prefix]) -> Tensor:
        """The target's features at the last tokens of some sequences, computed apart from any run."""
        return CachedFeatures(self._depths, self.target.decoder).of(prefixes)

    def _resident_network(self) -> Network:
        """A network that reads the hidden states recorded by its target on a real device."""
        return self._reading(self.target.capture(self._depths))

    @abstractmethod
    def _reading(self, features: Features) -> Network:
        """A network that reads these target features."""


class EagleModel(HeadModel):
    """An EAGLE-3 head."""

    dtypes = eagle_head.DTYPES

    def _require_sound(self) -> None:
        """See `HeadModel`: no tensor is missing or not read."""
        assert self.folder is not None
        eagle_head.require_tensors(self.folder, self.head_config)

    @cached_property
    def head_config(self) -> EagleConfig:
        """Configuration of the checkpoint."""
        assert self.folder is not None
        config = eagle_head.config_of(read_config(self.folder))
        assert config is not None
        return config

    @cached_property
    def digest(self) -> str:
        """See `Model`; heads with an entry that was not read before are others than those of that time."""
        assert self.folder is not None
        config = read_config(self.folder)
        entries = [name for name in (eagle_head.IDS_KEY, eagle_head.NORM_KEY) if config.get(name)]
        return content_hash([*entries, super().digest]) if entries else super().digest

    def _reading(self, features: Features) -> Network:
        return EagleNetwork(self.head_config, lambda: self.head, features, self._host)

    @cached_property
    def head(self) -> EagleHead:
        """The weights, loaded once."""
        assert self.folder is not None
        embedding = self.target.decoder(is_resident=False).ends.embedding
        return eagle_head.load(self.folder, self.head_config, self.config.dtype, embedding, self._host)


class MedusaModel(HeadModel):
    """Medusa heads."""

    dtypes = medusa_head.DTYPES

    def _require_sound(self) -> None:
        """See `HeadModel`: no more heads are costed than the checkpoint has."""
        billed_heads, stored_heads = self.model_cost.shape.medusa, self.head_config.heads
        if billed_heads > stored_heads:
            raise InputError(
                f"{self.config.name} bills {billed_heads} Medusa heads, and its checkpoint has "
                f"{stored_heads}; bill no more than there are"
            )

    @cached_property
    def head_config(self) -> MedusaConfig:
        """Configuration of the checkpoint."""
        assert self.folder is not None
        config, vocab = read_config(self.folder), self.target.decoder_config.vocab
        return medusa_head.config_of(self.folder, config, vocab)

    def _reading(self, features: Features) -> Network:
        return MedusaNetwork(self.head_config.heads, lambda: self._heads, features)

    @cached_property
    def ranks(self) -> Path | None:
        """The file of the heads' recorded ranks, if there is one."""
        path = self.folder / head_ranks.RANKS_FILE if self.folder else None
        return path if path and path.is_file() else None

    def _beside(self, placement: Placement) -> object | None:
        """The heads' recorded accuracies, if there are any."""
        if self.ranks is None:
            return super()._beside(placement)
        return Calibration.of(HeadRanks.load(self.ranks).first(self.model_cost.shape.medusa))

    @cached_property
    def _heads(self) -> MedusaHeads:
        """The weights, loaded once."""
        assert self.folder is not None
        ends = self.target.decoder(is_resident=False).ends
        return medusa_head.load(self.folder, self.head_config, self.config.dtype, ends, self._host)


KIND_NAMES: dict[type[Model], str] = {
    Model: "no head that reads its target",
    EagleModel: "an EAGLE-3 head",
    MedusaModel: "Medusa heads",
}
