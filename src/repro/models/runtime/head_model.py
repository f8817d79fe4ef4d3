"""A model file whose checkpoint is a draft head, which reads its target's hidden rows, as a run knows it.

Knows nothing of methods. `opened` is how a run opens any model file. On a real device a head reads what the
target's own passes leave behind; on an emulated one, where a memo answers, features are computed apart.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.emulated import Device
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.checkpoints.safetensors_io import read_config
from repro.models.costs.model_cost import Shape
from repro.models.costs.shard_plan import ShardPlan
from repro.models.drafting import eagle_head, head_ranks, medusa_head
from repro.models.drafting.eagle import CachedHead, EagleNetwork
from repro.models.drafting.eagle_head import EagleConfig, EagleHead
from repro.models.drafting.head_ranks import Calibration, HeadRanks
from repro.models.drafting.medusa import MedusaNetwork
from repro.models.drafting.medusa_head import MedusaConfig, MedusaHeads
from repro.models.forward.cached_features import CachedFeatures
from repro.models.forward.features import Features
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Network
from repro.models.runtime.model import Model, ModelConfig
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder


def opened(config: ModelConfig, embeddings_from: Model | None = None, host: str = "cpu") -> Model:
    """The model of a model file; arguments as of `Model`.

    Raises:
        InputError: one kind of model is billed for another; see `HeadModel`.
    """
    made = _kind(config)
    billed = config.shape and _billed(config.shape)
    if config.checkpoint and billed and billed is not made:
        raise InputError(
            f"{config.name}: checkpoint {config.checkpoint.name} is {KINDS[made]}, and the shape that is "
            f"billed is {KINDS[billed]}"
        )
    return made(config, embeddings_from, host)


def _kind(config: ModelConfig) -> type[Model]:
    raw = read_config(open_checkpoint(config.checkpoint)) if config.checkpoint else {}
    if medusa_head.describes(raw):
        return MedusaModel
    return EagleModel if raw and eagle_head.config_of(raw) else Model


def _billed(shape: Shape) -> type[Model]:
    if shape.medusa:
        return MedusaModel
    return EagleModel if shape.features else Model


class HeadConfig(Protocol):
    """The structure of a head's checkpoint: what it costs, and what it reads of which target."""

    @property
    def shape(self) -> Shape:
        """What it costs."""
        ...

    @property
    def target_vocab(self) -> int:
        """Tokens of the target."""
        ...

    @property
    def target_hidden(self) -> int:
        """Width of the target's hidden rows."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Positions that it has; `None` is any number."""
        ...

    def depths(self, layers: int) -> tuple[int, ...]:
        """After how many of a target's `layers` its hidden rows are read."""
        ...


class HeadModel(Model):
    """A head and the target that lends it tokenizer, features, and tables that it has none of."""

    dtypes: ClassVar[tuple[str, ...]]

    def __init__(self, config: ModelConfig, embeddings_from: Model | None = None, host: str = "cpu") -> None:
        """See `Model`.

        Raises:
            InputError: there is no target or it is no decoder; the head is for another one; a dtype or a
                rounding that heads do not have.
        """
        super().__init__(config, embeddings_from, host)
        if config.dtype not in self.dtypes:
            raise InputError(f"{config.name}: {unknown('dtype', config.dtype, self.dtypes)}")
        if config.rounded:
            raise InputError(f"{config.name} is a draft head, and heads are not rounded; choose rounded=null")
        theirs, own = self.target.decoder_config, self.head_config
        if (theirs.vocab, theirs.hidden) != (own.target_vocab, own.target_hidden):
            raise InputError(
                f"{config.name} is for a target of {own.target_vocab} tokens and hidden rows of "
                f"{own.target_hidden}; {self.target.config.name} has {theirs.vocab} and {theirs.hidden}"
            )
        self._depths = own.depths(theirs.layers)

    @property
    @abstractmethod
    def head_config(self) -> HeadConfig:
        """The checkpoint's own structure."""

    @property
    def uses_target_embeddings(self) -> bool:
        """Every head does."""
        return True

    @property
    def target(self) -> Model:
        """The model that it drafts for."""
        assert self._embeddings_from is not None
        return self._embeddings_from

    @property
    def own_shape(self) -> Shape:
        """The checkpoint's own shape."""
        return self.head_config.shape

    @cached_property
    def decoder_config(self) -> DecoderConfig:
        """Raises InputError: a head is no decoder."""
        raise self._no_decoder()

    def decoder(self, resident: bool = True) -> Decoder:
        """Raises InputError: a head is no decoder."""
        raise self._no_decoder()

    def _no_decoder(self) -> InputError:
        return InputError(
            f"{self.config.name} is a draft head: it stays in memory and has no layers to stream or to cut "
            "in shards; choose a placement that holds all of it, or a draft that is a model of its own"
        )

    def positions(self, prompt: int, answer: int) -> tuple[int, int | None]:
        """See `Model`."""
        return prompt + answer, self.head_config.max_positions

    def memo(self, root: Path, variant: str = "") -> LogitCache:
        """The file of what it says after this target; features of the target lie beside."""
        theirs = self.target
        return super().memo(root, f"{variant}-{theirs.digest[:24]}-{theirs.config.dtype}")

    def network(self, memo: LogitCache | None = None) -> Network:
        """What computes, with a cache of its own and features that are computed apart."""
        return self._reading(CachedFeatures(self._depths, self.target.decoder, memo), memo)

    def _resident_network(self) -> Network:
        """What computes beside its target on a real device."""
        return self._reading(self.target.capture(self._depths))

    @abstractmethod
    def _reading(self, features: Features, memo: LogitCache | None = None) -> Network:
        """What computes from these features."""


class EagleModel(HeadModel):
    """An EAGLE-3 head."""

    dtypes = eagle_head.DTYPES

    @cached_property
    def head_config(self) -> EagleConfig:
        """The checkpoint's own structure."""
        assert self.folder is not None
        found = eagle_head.config_of(read_config(self.folder))
        assert found is not None
        return found

    def _reading(self, features: Features, memo: LogitCache | None = None) -> Network:
        made = EagleNetwork(self.head_config, lambda: self._head, features, self._host)
        return CachedHead(made, memo) if memo else made

    @cached_property
    def _head(self) -> EagleHead:
        """The weights, loaded once."""
        assert self.folder is not None
        embedding = self.target.decoder(resident=False).ends.embedding
        return eagle_head.load(self.folder, self.head_config, self.config.dtype, embedding, self._host)


class MedusaModel(HeadModel):
    """Medusa heads."""

    dtypes = medusa_head.DTYPES

    def __init__(self, config: ModelConfig, embeddings_from: Model | None = None, host: str = "cpu") -> None:
        """See `HeadModel`; InputError also where more heads are billed than compute."""
        super().__init__(config, embeddings_from, host)
        if self.model_cost.shape.medusa > self.head_config.heads:
            raise InputError(
                f"{config.name} bills {self.model_cost.shape.medusa} Medusa heads, and its checkpoint has "
                f"{self.head_config.heads}; bill no more than there are"
            )

    @cached_property
    def head_config(self) -> MedusaConfig:
        """The checkpoint's own structure."""
        assert self.folder is not None
        raw, vocab = read_config(self.folder), self.target.decoder_config.vocab
        return medusa_head.config_of(self.folder, raw, vocab)

    def _reading(self, features: Features, memo: LogitCache | None = None) -> Network:
        return MedusaNetwork(self.head_config.heads, lambda: self._heads, features, memo)

    def session(
        self,
        role: str,
        device: Device,
        placement: Placement,
        network: Network,
        tokens: int = 0,
        plan: ShardPlan | None = None,
    ) -> Session:
        """See `Model`; it knows how often the heads are right, where that was recorded."""
        return self._calibrated(super().session(role, device, placement, network, tokens, plan))

    def local_session(self, role: str, device: Device, placement: Placement, tokens: int = 0) -> Session:
        """See `Model` and `session`."""
        return self._calibrated(super().local_session(role, device, placement, tokens))

    def _calibrated(self, session: Session) -> Session:
        assert self.folder is not None
        if (path := self.folder / head_ranks.FILE).is_file():
            session.calibration = Calibration.of(HeadRanks.load(path).first(session.heads))
        return session

    @cached_property
    def _heads(self) -> MedusaHeads:
        """The weights, loaded once."""
        assert self.folder is not None
        ends = self.target.decoder(resident=False).ends
        return medusa_head.load(self.folder, self.head_config, self.config.dtype, ends, self._host)


KINDS: dict[type[Model], str] = {
    Model: "no head that reads its target",
    EagleModel: "an EAGLE-3 head",
    MedusaModel: "Medusa heads",
}
