"""Interface of elastic services: model levels, switching between them, decider and scorer.

Owns the interface, and the one-shot profile of a system from its costs. Must not know how levels are made.
A service is a frozen dataclass registered under `service`; its fields are its configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from repro.core.bounds import Part
from repro.core.errors import InputError
from repro.device.emulated import Device
from repro.methods.compression.base import Compression
from repro.methods.compression.level import layers_at
from repro.methods.serving.deciders import Fallback
from repro.methods.serving.service_profile import PROMPT_LENGTHS, DeviceProfile, profile_levels
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Switching
from repro.methods.serving.tlm import tiny_language_model
from repro.models.costs.model_cost import ModelCost
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.records.identity import files_read

Decider = Literal["decision_head", "fixed", "largest", "oracle", "random"]
Scorer = Literal["llmlingua2", "none", "random", "score_head"]

NO_FAMILY: Mapping[str, ModelCost] = MappingProxyType({})


@dataclass(frozen=True)
class System:
    """Levels and costs of an elastic service for one model.

    Attributes:
        levels: model cost of each level.
        full: cost of the whole model, to which SLOs are relative.
        switching: cost of switching levels.
        weights: bytes of all weights in memory while serving.
        prompts: prompt levels; only 1.0 without prompt compression.
        steps: costs of decode steps, for levels where they differ from prefill.
        models: model of `conf/model` that serves a level, if not the target.
        fitted: ids in `conf/reference` of the published values that the costs were fitted to.
    """

    levels: Mapping[float, ModelCost]
    full: ModelCost
    switching: Switching
    weights: float
    prompts: tuple[float, ...] = (1.0,)
    steps: Mapping[float, ModelCost] = field(default_factory=dict)
    models: Mapping[float, str] = field(default_factory=dict)
    fitted: tuple[str, ...] = ()

    def resident_bytes(self, token_count: int) -> float:
        """Peak bytes in memory: weights, and the largest KV cache of a level for `token_count` tokens."""
        return self.weights + max(model_cost.cache_bytes(token_count) for model_cost in self.levels.values())

    @property
    def adapter_bytes(self) -> float:
        """Bytes of the largest level's adapters."""
        return max(model_cost.adapter_bytes for model_cost in self.levels.values())


@dataclass(frozen=True)
class Service(ABC):
    """Base class of services, which serve requests under SLOs.

    Attributes:
        decider: chooses the levels: `decision_head`, `largest`, `random`, `oracle` or `fixed`. Baselines use
            `largest` (ElastiLM 5.1).
        scorer: scores prompt tokens: `score_head`, `llmlingua2`, `random` or `none`.
        check: feasibility rule: `profile` by measured latency, `nominal` by products of levels as in the
            release.
        fallback: replacement of infeasible decisions, see `deciders.SloGuard`.
        granule: kept prompt tokens are rounded down to a multiple of it, see `slo.kept_tokens`.
        fixed_prompt: prompt level with `decider=fixed`.
        fixed_model: model level with `decider=fixed`.
        family: models of `conf/model` that the service needs beside the target.
    """

    decider: Decider = "largest"
    scorer: Scorer = "none"
    check: Literal["profile", "nominal"] = "profile"
    fallback: Fallback = "random"
    granule: Annotated[int, Interval(ge=1, le=65_536)] = 8
    fixed_prompt: Part = 1.0
    fixed_model: Part = 1.0

    family: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    """Raised by hand when a service's decisions or costs change (docs/tables.md)."""

    @abstractmethod
    def system(self, cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """Levels and costs of the service for a model.

        Args:
            cost: cost of the whole model.
            family: costs of the models in the class attribute `family`, by name.
        """

    def compression(self, level: float) -> Compression | None:
        """Compression that makes a level's model; `None` for the whole model or a model of the family.

        Args:
            level: a level of the system.
        """
        return None

    def inputs(self) -> dict[str, str]:
        """Content hashes of files that the decider, scorer and compressions read, for a cell's inputs."""
        levels = (self.compression(level) for level in (LEVELS[0], 1.0))
        hashes = {name: value for level in levels for name, value in files_read(level).items()}
        if self.decider == "decision_head" or self.scorer in ("score_head", "llmlingua2"):
            hashes["trained heads"] = tiny_language_model().digest()
        return hashes


FINEST_STEP = 0.01
"""Smallest step between levels."""


def levels_by(step: float) -> tuple[float, ...]:
    """Equally spaced levels from the smallest to 1.

    Raises:
        InputError: no number of steps reaches 1.
    """
    count = round((1.0 - LEVELS[0]) / step) if step >= FINEST_STEP else 0
    if not count or abs(count * step - (1.0 - LEVELS[0])) > 1e-9:
        raise InputError(f"service.step is {step}; steps go from {LEVELS[0]} to 1, such as 0.05, 0.1 or 0.2")
    # Rounded to nine decimals, so that 0.2 + 0.1 equals 0.3.
    return tuple(round(LEVELS[0] + step * i, 9) for i in range(count + 1))


def by_layers(cost: ModelCost, levels: Iterable[float] = LEVELS) -> dict[float, ModelCost]:
    """Model costs of levels that keep a share of equal layers."""
    count = cost.shape.layers
    return {
        level: replace(cost, shape=replace(cost.shape, layers=layers_at(level, count))) for level in levels
    }


def profile_of(system: System, device: Device, prompts: Sequence[int] = PROMPT_LENGTHS) -> DeviceProfile:
    """Profile a system's levels on an emulated device from costs, all in memory, without computing.

    Args:
        system: the system.
        device: an idle emulated device.
        prompts: prompt lengths to measure.
    """
    switching = {
        level: system.switching.ops(model_cost, device.main) for level, model_cost in system.levels.items()
    }
    sessions = {level: _costing(device, model_cost) for level, model_cost in system.levels.items()}
    decode_sessions = {level: _costing(device, model_cost) for level, model_cost in system.steps.items()}
    session = None if system.models else sessions.get(1.0)
    whole_session = session or _costing(device, system.full)
    return profile_levels(device, sessions, whole_session, switching, prompts, decode_sessions)


def _costing(device: Device, model_cost: ModelCost) -> Session:
    return Session(Engine("model", device, model_cost, NoNetwork(), RESIDENT))
