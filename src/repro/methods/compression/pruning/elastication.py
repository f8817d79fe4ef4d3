"""What ElastiLM and the pruning it is measured against have in common: a profile, a sub-model, its recovery.

Owns where a profile and adapters come from, and what is said of the outcome. Must not know how a system
chooses its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from repro.core.errors import InputError
from repro.models.elastic import elastic_profile, lora
from repro.models.elastic.elastic_profile import ElasticProfile
from repro.models.elastic.submodels import (
    Kept,
    Order,
    UnitDecoder,
    reordered,
    submodel,
)
from repro.models.elastic.unit_importance import Measure
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

SOURCES = ("committed", "corpus", "none")


@dataclass(frozen=True)
class Ranked:
    """A decoder's profile and the folder that it came from, if it was not made just now."""

    profile: ElasticProfile
    folder: Path | None


@dataclass(frozen=True)
class Cut:
    """A sub-model of views, and how many elements its adapters have."""

    decoder: UnitDecoder
    kept: Kept
    adapted: int


def ranked(decoder: Decoder, corpus: Sequence[Tensor], source: str, measure: Measure) -> Ranked:
    """The units of a decoder in order.

    Args:
        decoder: dense.
        corpus: read unless a committed profile is wanted, of the default measure, and there is one.
        source: `committed`, `corpus`, or `none`, which leaves units in the checkpoint's own order and takes
            the rest of a profile as `committed` does.
        measure: what makes a unit important.

    Raises:
        InputError: an unknown source, or as `elastic_profile.profiled`.
    """
    if source not in SOURCES:
        raise InputError(f"compression.order is {source!r}; choose from {', '.join(SOURCES)}")
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
    """Content hashes of the committed parts that a profile from this source reads, for a cell's inputs."""
    return {} if source == "corpus" else {"elastic parts": elastic_profile.parts_digest()}


def cut(decoder: Decoder, found: Ranked, kept: Kept, system: str, level: float, recover: bool) -> Cut:
    """The most important units, with the adapters that were trained for just these if they are wanted.

    Args:
        decoder: dense.
        found: its ranking.
        kept: how much of each layer.
        system: whose adapters.
        level: of these adapters; the whole model has none.
        recover: whether adapters are wanted.
    """
    sub = submodel(reordered(decoder, found.profile.order), kept)
    if not recover or found.folder is None or level == 1.0:
        return Cut(sub, kept, 0)
    adapters = elastic_profile.committed_lora(found.folder, system, level, kept, found.profile.order)
    if adapters is None:
        return Cut(sub, kept, 0)
    return Cut(lora.attached(sub, adapters), kept, adapters.parameters)


def figures(config: DecoderConfig, found: Ranked, made: Cut, locked: Sequence[int]) -> dict[str, Scalar]:
    """What is said of a sub-model: shares of units, and of its adapters, where 0 says that there are none."""
    kept = made.kept
    return {
        "true_ratio": kept.true_ratio(config),
        "kept_units": sum(kept.units) / (config.layers * config.kv_heads),
        "kept_neurons": sum(kept.neurons) / (config.layers * config.intermediate),
        "locked_layers": " ".join(map(str, locked)),
        "lora_share": made.adapted / Kept.whole(config).parameters(config),
        "profile": "corpus" if found.folder is None else "committed",
    }
