"""Steps shared by ElastiLM and its pruning baselines: unit ranking, sub-model, recovery with LoRA.

Owns where profiles and adapters come from, and the figures of a sub-model. Must not know how a system
chooses its locked layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from repro.methods.elastilm import elastic_profile, lora
from repro.methods.elastilm.elastic_profile import ElasticProfile
from repro.methods.elastilm.submodels import (
    LayerSizes,
    Order,
    UnitDecoder,
    reorder,
    submodel,
)
from repro.methods.elastilm.unit_importance import Measure
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

UnitOrder = Literal["committed", "corpus", "none"]


@dataclass(frozen=True)
class Ranking:
    """A decoder's profile, and its folder if it is a committed one."""

    profile: ElasticProfile
    folder: Path | None


@dataclass(frozen=True)
class Cut:
    """A sub-model of weight views, and the number of parameters of its adapters."""

    decoder: UnitDecoder
    sizes: LayerSizes
    adapter_parameters: int


def rank_units(
    decoder: Decoder, corpus: Sequence[Tensor], unit_order: UnitOrder, measure: Measure
) -> Ranking:
    """Rank the units of a decoder by importance.

    Args:
        decoder: dense decoder.
        corpus: calibration corpus, used if no committed profile is wanted or found.
        unit_order: `committed` (only of the default measure), `corpus`, or `none`: the checkpoint's order,
            with the other entries of the profile as `committed`.
        measure: importance measure of units.

    Raises:
        InputError: as `elastic_profile.profile_decoder`.
    """
    use_committed = unit_order != "corpus" and measure == Measure()
    folder = elastic_profile.committed_folder(decoder) if use_committed else None
    if folder is not None:
        profile = elastic_profile.load(folder / elastic_profile.PROFILE)
    else:
        profile = elastic_profile.profile_decoder(decoder, corpus, measure)
    if unit_order == "none":
        profile = replace(profile, order=Order.original(decoder.config))
    return Ranking(profile, folder)


def parts_read(unit_order: str) -> dict[str, str]:
    """Content hashes of the committed files that this source reads, for a cell's inputs."""
    return {} if unit_order == "corpus" else {"elastic parts": elastic_profile.parts_digest()}


def cut(
    decoder: Decoder, ranking: Ranking, sizes: LayerSizes, system: str, level: float, recover: bool
) -> Cut:
    """Cut out the most important units, and attach the adapters trained for them if available.

    Args:
        decoder: dense decoder.
        ranking: its ranking.
        sizes: units and neurons to keep per layer.
        system: system for which the adapters were trained.
        level: level of the adapters; level 1.0 has none.
        recover: whether to attach adapters.
    """
    sub = submodel(reorder(decoder, ranking.profile.order), sizes)
    if not recover or ranking.folder is None or level == 1.0:
        return Cut(sub, sizes, 0)
    adapters = elastic_profile.committed_lora(ranking.folder, system, level, sizes, ranking.profile.order)
    if adapters is None:
        return Cut(sub, sizes, 0)
    return Cut(lora.attach_adapters(sub, adapters), sizes, adapters.parameters)


def figures(config: DecoderConfig, ranking: Ranking, sub: Cut, locked: Sequence[int]) -> dict[str, Scalar]:
    """Figures of a sub-model: kept shares, locked layers, share of adapter parameters (0: none), profile."""
    sizes = sub.sizes
    return {
        "true_ratio": sizes.true_ratio(config),
        "kept_units": sum(sizes.units) / (config.layers * config.kv_heads),
        "kept_neurons": sum(sizes.neurons) / (config.layers * config.intermediate),
        "locked_layers": " ".join(map(str, locked)),
        "lora_share": sub.adapter_parameters / LayerSizes.full(config).parameters(config),
        "profile": "corpus" if ranking.folder is None else "committed",
    }
