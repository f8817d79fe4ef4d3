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
    Kept,
    Order,
    UnitDecoder,
    reordered,
    submodel,
)
from repro.methods.elastilm.unit_importance import Measure
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

UnitOrder = Literal["committed", "corpus", "none"]


@dataclass(frozen=True)
class Ranked:
    """A decoder's profile, and its folder if it is a committed one."""

    profile: ElasticProfile
    folder: Path | None


@dataclass(frozen=True)
class Cut:
    """A sub-model of weight views, and the number of parameters of its adapters."""

    decoder: UnitDecoder
    kept: Kept
    adapted: int


def ranked(decoder: Decoder, corpus: Sequence[Tensor], source: UnitOrder, measure: Measure) -> Ranked:
    """Rank the units of a decoder by importance.

    Args:
        decoder: dense decoder.
        corpus: calibration corpus, used if no committed profile is wanted or found.
        source: `committed` (only of the default measure), `corpus`, or `none`: the checkpoint's own order,
            with the other entries of the profile as `committed`.
        measure: importance measure of units.

    Raises:
        InputError: as `elastic_profile.profiled`.
    """
    wanted = source != "corpus" and measure == Measure()
    folder = elastic_profile.committed(decoder) if wanted else None
    if folder is not None:
        found = elastic_profile.load(folder / elastic_profile.PROFILE)
    else:
        found = elastic_profile.profiled(decoder, corpus, measure)
    if source == "none":
        found = replace(found, order=Order.own(decoder.config))
    return Ranked(found, folder)


def parts_read(source: str) -> dict[str, str]:
    """Content hashes of the committed files that this source reads, for a cell's inputs."""
    return {} if source == "corpus" else {"elastic parts": elastic_profile.parts_digest()}


def cut(decoder: Decoder, found: Ranked, kept: Kept, system: str, level: float, recover: bool) -> Cut:
    """Cut out the most important units, and attach the adapters trained for them if available.

    Args:
        decoder: dense decoder.
        found: its ranking.
        kept: units and neurons to keep per layer.
        system: system for which the adapters were trained.
        level: level of the adapters; level 1.0 has none.
        recover: whether to attach adapters.
    """
    sub = submodel(reordered(decoder, found.profile.order), kept)
    if not recover or found.folder is None or level == 1.0:
        return Cut(sub, kept, 0)
    adapters = elastic_profile.committed_lora(found.folder, system, level, kept, found.profile.order)
    if adapters is None:
        return Cut(sub, kept, 0)
    return Cut(lora.attached(sub, adapters), kept, adapters.parameters)


def figures(config: DecoderConfig, found: Ranked, made: Cut, locked: Sequence[int]) -> dict[str, Scalar]:
    """Figures of a sub-model: kept shares, locked layers, share of adapter parameters (0: none), profile."""
    kept = made.kept
    return {
        "true_ratio": kept.true_ratio(config),
        "kept_units": sum(kept.units) / (config.layers * config.kv_heads),
        "kept_neurons": sum(kept.neurons) / (config.layers * config.intermediate),
        "locked_layers": " ".join(map(str, locked)),
        "lora_share": made.adapted / Kept.whole(config).parameters(config),
        "profile": "corpus" if found.folder is None else "committed",
    }
