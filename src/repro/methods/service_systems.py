"""Systems of the elastic service: which levels each has, and how it comes from one to another.

Owns ElastiLM and the baselines that keep whole matrices or layers (ElastiLM 5.1). Must not know who decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from repro.core.device import Device
from repro.core.errors import InputError
from repro.methods.compression.level import layers_at
from repro.methods.elastic_levels import kept_at
from repro.methods.objectives import LEVELS
from repro.methods.service_profile import PROMPTS, DeviceProfile, profiled
from repro.methods.switching import Nothing, Pointer, Relayout, Swap, Switching
from repro.models.network import NoNetwork
from repro.models.placement import RESIDENT
from repro.models.session import Session
from repro.models.shape import Bill
from repro.models.uneven_bill import config_of_shape, sub_bill


@dataclass(frozen=True)
class System:
    """What an elastic service chooses from.

    Attributes:
        levels: the bill of each level of the model, by its share of the whole.
        full: the whole model's, of whose latency objectives are shares.
        switching: how it changes its level.
        prompts: levels of the prompt; a system that compresses none has 1.0 alone.
    """

    levels: Mapping[float, Bill]
    full: Bill
    switching: Switching
    prompts: tuple[float, ...] = (1.0,)


def elastilm(
    full: Bill, anchors: float = 0.2, rule: str = "paper", levels: Iterable[float] = LEVELS
) -> System:
    """Sub-models under a pointer, their adapters, and prompts of all levels.

    What a level costs depends on how many layers are locked, and not on which.

    Args:
        full: the whole model's.
        anchors: the share of layers that are locked.
        rule: see `elastic_levels.kept_at`.
        levels: of the model.
    """
    config = config_of_shape(full.shape)
    locked = range(max(1, round(anchors * config.layers)) if anchors else 0)
    bills = {level: sub_bill(full, kept_at(config, level, locked, rule)) for level in levels}
    return System(bills, full, Pointer(), LEVELS)


def llm_pruner(full: Bill, fetched: float = 1.0, levels: Iterable[float] = LEVELS) -> System:
    """All layers pruned alike, without adapters; what stays is laid out anew.

    Args:
        full: the whole model's.
        fetched: see `switching.Relayout`.
        levels: of the model.
    """
    config = config_of_shape(full.shape)
    bills = {level: sub_bill(full, kept_at(config, level, ()), adapted=False) for level in levels}
    return System(bills, full, Relayout(fetched))


def layerwise(full: Bill, levels: Iterable[float] = LEVELS) -> System:
    """Whole layers left out, which takes nothing: LE and ShortGPT, who differ in which."""
    return System(_layers(full, levels), full, Nothing())


def laco(full: Bill, levels: Iterable[float] = LEVELS) -> System:
    """Layers merged, so that levels share the tables alone and the rest is read from flash."""
    return System(_layers(full, levels), full, Swap(tables=False))


def pfs(full: Bill, family: Sequence[Bill]) -> System:
    """Models trained from scratch, each a level by its parameters' share of the full model's, swapped.

    Raises:
        InputError: the family has none.
    """
    if not family:
        raise InputError("pfs serves with a family of models; name at least one")
    return System({bill.shape.parameters / full.shape.parameters: bill for bill in family}, full, Swap())


def profile_of(system: System, device: Device, prompts: Sequence[int] = PROMPTS) -> DeviceProfile:
    """A system's levels on a device by their costs alone, all in memory: nothing computes.

    Args:
        system: the system.
        device: an emulated one, without work.
        prompts: tokens to measure at.
    """
    switching = {level: system.switching.ops(bill, device.main) for level, bill in system.levels.items()}
    sessions = {level: _costing(device, bill) for level, bill in system.levels.items()}
    full = sessions.get(1.0) or _costing(device, system.full)
    return profiled(device, sessions, full, switching, prompts)


def _costing(device: Device, bill: Bill) -> Session:
    return Session("model", device, bill, NoNetwork(), RESIDENT)


def _layers(full: Bill, levels: Iterable[float]) -> dict[float, Bill]:
    count = full.shape.layers
    return {
        level: replace(full, shape=replace(full.shape, layers=layers_at(level, count))) for level in levels
    }
