"""A model file whose checkpoint is an EAGLE-3 head: a draft that reads its target, as a run knows it.

Knows nothing of methods. `opened` is how a run opens any model file. On a real device the head reads what the
target's own passes leave behind; on an emulated one, where a memo answers, features are computed apart.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.models import eagle_head
from repro.models.checkpoint import open_checkpoint
from repro.models.config import DecoderConfig
from repro.models.decoder import Decoder
from repro.models.eagle import EagleNetwork, RememberedHead
from repro.models.eagle_head import EagleConfig, EagleHead
from repro.models.features import Features
from repro.models.memo import Memo
from repro.models.model import Model, ModelConfig
from repro.models.network import Network
from repro.models.remembered import Remembered
from repro.models.shape import Shape
from repro.models.stored import read_config


def opened(config: ModelConfig, lender: Model | None = None, host: str = "cpu") -> Model:
    """The model of a model file; arguments as of `Model`.

    Raises:
        InputError: a head is billed as a whole model, or the other way round; see `HeadModel`.
    """
    head = bool(config.checkpoint and eagle_head.config_of(read_config(open_checkpoint(config.checkpoint))))
    if config.checkpoint and config.shape and bool(config.shape.features) != head:
        computes, billed = ("a head", "none") if head else ("no head", "one")
        raise InputError(
            f"{config.name}: checkpoint {config.checkpoint.name} is {computes} that reads its target's "
            f"features, and the shape that is billed is {billed}"
        )
    return (HeadModel if head else Model)(config, lender, host)


class HeadModel(Model):
    """A head and the target that lends it embeddings, tokenizer and features."""

    def __init__(self, config: ModelConfig, lender: Model | None = None, host: str = "cpu") -> None:
        """See `Model`.

        Raises:
            InputError: there is no target or it is no decoder; the head is for another one; a dtype or a
                rounding that heads do not have.
        """
        super().__init__(config, lender, host)
        if config.dtype not in eagle_head.DTYPES:
            raise InputError(f"{config.name}: {unknown('dtype', config.dtype, eagle_head.DTYPES)}")
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
    def borrows(self) -> bool:
        """Every head does."""
        return True

    @property
    def target(self) -> Model:
        """The model that it drafts for."""
        assert self._lender is not None
        return self._lender

    @cached_property
    def head_config(self) -> EagleConfig:
        """The checkpoint's own structure."""
        assert self.folder is not None
        found = eagle_head.config_of(read_config(self.folder))
        assert found is not None
        return found

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
        return prompt + answer, self.head_config.layer.max_positions

    def memo(self, root: Path, variant: str = "") -> Memo:
        """The file of what it says after this target; features of the target lie beside."""
        theirs = self.target
        return super().memo(root, f"{variant}-{theirs.digest[:24]}-{theirs.config.dtype}")

    def network(self, memo: Memo | None = None) -> Network:
        """What computes, with a cache of its own and features that are computed apart."""
        made = self._reading(Remembered(self._depths, self.target.decoder, memo))
        return RememberedHead(made, memo) if memo else made

    def _resident_network(self) -> Network:
        """What computes beside its target on a real device."""
        return self._reading(self.target.capture(self._depths))

    def _reading(self, features: Features) -> EagleNetwork:
        return EagleNetwork(self.head_config, lambda: self._head, features, self._host)

    @cached_property
    def _head(self) -> EagleHead:
        """The weights, loaded once."""
        assert self.folder is not None
        embedding = self.target.decoder(resident=False).ends.embedding
        return eagle_head.load(self.folder, self.head_config, self.config.dtype, embedding, self._host)
