"""A draft made of its target: each weight matrix part of the way from the target's to a random one.

Owns how weights are interpolated. Must not know how the share is chosen, which is calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

from repro.core.errors import InputError
from repro.libraries import np, torch
from repro.methods.speculative.drafting.head_model import HeadModel
from repro.models.quantization.dictionary_rounding import packed_layer, require_dense
from repro.models.runtime.model import PRECISION_OF_DTYPE, Model, WeightsKind
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, as_plain
from repro.records.record import content_hash

VERSION = 1
"""Of how weights are interpolated."""


class InterpolatedModel(Model):
    """The target's network with weights (1 - share) W + share P, billed as another model.

    P is Gaussian, and each of its rows has the norm of W's row. Embeddings, output projection, norms and
    biases are the target's. With share 0 the draft is the target; the larger the share, the less often it
    agrees.

    Attributes:
        target: the model whose weights are interpolated.
        billed: the draft that is billed.
        share: how far the weights are from the target's, from 0 to 1.
        seed: of P.
    """

    def __init__(self, target: Model, draft: Model, share: float = 0.0, seed: int = 0) -> None:
        """See the class.

        Raises:
            InputError: the target is no decoder of dense, unrounded weights, or the draft is a head.
        """
        self.target, self.billed, self.share, self.seed = target, draft, share, seed
        role = f"a draft of interpolated weights has {target.config.name}'s weights"
        if isinstance(draft, HeadModel):
            raise InputError(
                f"{role}, and {draft.config.name} is a draft head; choose another model@draft, or "
                "draft_calibration=true"
            )
        if target.encoder_decoder:
            raise InputError(f"{role}, and it is an encoder-decoder; choose draft_calibration=true")
        if target.config.rounded:
            raise InputError(f"{role}, and they are rounded; choose target.rounded=null")
        require_dense(target.config.dtype)
        billed_config = draft.config
        config = replace(
            target.config,
            name=billed_config.name,
            shape=billed_config.shape or draft.own_shape,
            precision=billed_config.precision or PRECISION_OF_DTYPE[billed_config.dtype],
        )
        super().__init__(config, host=target._host)
        self.tokens = target.tokens

    @property
    def weights(self) -> WeightsKind:
        """Never the billed draft's own."""
        return "proxy"

    def at(self, share: float) -> InterpolatedModel:
        """The model with its weights at another share."""
        return InterpolatedModel(self.target, self.billed, share, self.seed)

    @cached_property
    def digest(self) -> str:
        """Content hash of the target, the share and the seed: what rows are remembered under."""
        return content_hash([self.target.digest, "interpolated", VERSION, self.share, self.seed])

    def _load(self, is_resident: bool) -> Decoder:
        """See `Model`; embeddings and output projection are the target's own tensors."""
        ends = self.target.decoder(is_resident=False)
        if not is_resident:
            return ends
        assert self.folder is not None
        arguments = self.folder, self.config.dtype, self.share, self.seed, str(ends.device)
        return ends.with_layers(_interpolated_layers(*arguments))


@lru_cache(maxsize=1)
def _interpolated_layers(
    folder: Path, dtype: str, share: float, seed: int, device: str
) -> Sequence[LayerWeights]:
    """All layers of a checkpoint; the last result is cached, which the cells of a sweep share."""
    layers = weights.layers(folder, dtype, device=torch.device(device))
    return [packed_layer(interpolate(layer, share, [seed, i])) for i, layer in enumerate(layers)]


def interpolate(layer: LayerWeights, share: float, seed: Sequence[int]) -> LayerWeights:
    """A layer with `share` of the way from its weight matrices to Gaussian ones of the same row norms.

    The random numbers are numpy's, drawn in fp32 and equal on all hosts.
    """
    generator = np.random.default_rng(list(seed))

    def mix(linear: Linear) -> Linear:
        dense_linear = as_plain(linear)
        weight = dense_linear.weight.float()
        noise = torch.from_numpy(generator.standard_normal(tuple(weight.shape), dtype=np.float32))
        noise = noise.to(weight.device)
        noise *= weight.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
        return replace(dense_linear, weight=torch.lerp(weight, noise, share).to(dense_linear.weight.dtype))

    return layer.map(mix)
