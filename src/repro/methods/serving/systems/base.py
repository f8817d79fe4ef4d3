"""What every elastic service has: levels of a model, how it comes from one to another, who decides for it.

Owns the contract, and the one-shot profile of a system by its costs alone. Must not know how levels are made.
A service is a frozen dataclass, registered under `service`; its fields are its configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.emulated import Device
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning.level import layers_at
from repro.methods.serving.deciders import FALLBACKS
from repro.methods.serving.service_profile import PROMPTS, DeviceProfile, profiled
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Switching
from repro.models.costs.model_cost import ModelCost
from repro.models.elastic.uneven_cost import UnevenCost
from repro.models.encoders.trained_heads import heads_digest
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.records.identity import files_read

DECIDERS = ("decision_head", "fixed", "largest", "oracle", "random")
SCORERS = ("llmlingua2", "none", "random", "score_head")
CHECKS = ("profile", "nominal")

NO_FAMILY: Mapping[str, ModelCost] = MappingProxyType({})


@dataclass(frozen=True)
class System:
    """What an elastic service chooses from, for one model.

    Attributes:
        levels: the cost of each level of the model, by its share of the whole.
        full: the whole model's, of whose latency objectives are shares.
        switching: how it changes its level.
        weights: bytes of all weights that lie in memory while it serves.
        prompts: levels of the prompt; a system that compresses none has 1.0 alone.
        steps: costs of passes over one token, of levels that are billed otherwise there than for a prompt.
        models: by level, the model of `conf/model` that serves it, where it is not the target.
        fitted: published figures that its costs were fitted to, by their ids in `conf/reference`.
    """

    levels: Mapping[float, ModelCost]
    full: ModelCost
    switching: Switching
    weights: float
    prompts: tuple[float, ...] = (1.0,)
    steps: Mapping[float, ModelCost] = field(default_factory=dict)
    models: Mapping[float, str] = field(default_factory=dict)
    fitted: tuple[str, ...] = ()

    def resident_bytes(self, tokens: int) -> float:
        """Bytes in memory at most: weights, and a level's keys and values for so many tokens."""
        return self.weights + max(model_cost.cache_bytes(tokens) for model_cost in self.levels.values())

    @property
    def adapter_bytes(self) -> float:
        """Bytes of one level's adapters at most."""
        model_costs = (
            model_cost for model_cost in self.levels.values() if isinstance(model_cost, UnevenCost)
        )
        return max((model_cost.adapter_bytes for model_cost in model_costs), default=0.0)


@dataclass(frozen=True)
class Service(ABC):
    """A way to serve requests under objectives.

    Attributes:
        decider: chooses among what an objective allows: `decision_head`, `largest`, `random`, `oracle` or
            `fixed`. Baselines take as much as the objective allows (ElastiLM 5.1).
        scorer: says which tokens of a prompt stay: `score_head`, `llmlingua2`, `random` or `none`.
        check: `profile` lets through what a device was measured to do in time, `nominal` what products of
            levels allow, as the release does.
        fallback: what serves instead of a decision that fails the check, see `deciders.SloGuard`.
        granule: kept tokens of a prompt are rounded down to a multiple of it.
        fixed_prompt: the level of the prompt that `fixed` decides.
        fixed_model: that of the model.
        family: models of `conf/model` that serve beside the target.
    """

    decider: str = "largest"
    scorer: str = "none"
    check: str = "profile"
    fallback: str = "random"
    granule: int = 8
    fixed_prompt: float = 1.0
    fixed_model: float = 1.0

    family: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    """Raised by hand when what a service decides or is billed changes (docs/identity.md)."""

    def __post_init__(self) -> None:
        """InputError for a name that is none of the choices, or tokens that are not rounded to any number."""
        named = {"decider": DECIDERS, "scorer": SCORERS, "check": CHECKS, "fallback": FALLBACKS}
        for name, choices in named.items():
            if getattr(self, name) not in choices:
                raise InputError(unknown(f"service.{name}", getattr(self, name), choices))
        if self.granule < 1:
            raise InputError(f"service.granule is {self.granule}; it must be at least 1 token")

    @abstractmethod
    def system(self, full: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """What it chooses from.

        Args:
            full: the whole model's cost.
            family: those of the models that `family` names.
        """

    def compression(self, level: float) -> Compression | None:
        """What makes the model of a level out of the whole one; None where it is another model, or the whole.

        Args:
            level: one of the system's.
        """
        return None

    def inputs(self) -> dict[str, str]:
        """Content hashes of the files that deciding, scoring or a level reads beside a cell's inputs."""
        levels = (self.compression(level) for level in (LEVELS[0], 1.0))
        found = {name: value for level in levels for name, value in files_read(level).items()}
        if self.decider == "decision_head" or self.scorer in ("score_head", "llmlingua2"):
            found["trained heads"] = heads_digest()
        return found


def levels_by(step: float) -> tuple[float, ...]:
    """Levels from the smallest to the whole, as far from each other as this.

    Raises:
        InputError: no number of such steps ends at the whole.
    """
    count = round((1.0 - LEVELS[0]) / step) if step > 0 else 0
    if not count or abs(count * step - (1.0 - LEVELS[0])) > 1e-9:
        raise InputError(f"service.step is {step}; steps go from {LEVELS[0]} to 1, such as 0.05, 0.1 or 0.2")
    # Nine decimals, so that 0.2 + 0.1 is the level 0.3 and no other.
    return tuple(round(LEVELS[0] + step * i, 9) for i in range(count + 1))


def by_layers(full: ModelCost, levels: Iterable[float] = LEVELS) -> dict[float, ModelCost]:
    """The cost of levels that have fewer of the same layers."""
    count = full.shape.layers
    return {
        level: replace(full, shape=replace(full.shape, layers=layers_at(level, count))) for level in levels
    }


def profile_of(system: System, device: Device, prompts: Sequence[int] = PROMPTS) -> DeviceProfile:
    """A system's levels on a device by their costs alone, all in memory: nothing computes.

    Args:
        system: the system.
        device: an emulated one, without work.
        prompts: tokens to measure at.
    """
    switching = {
        level: system.switching.ops(model_cost, device.main) for level, model_cost in system.levels.items()
    }
    sessions = {level: _costing(device, model_cost) for level, model_cost in system.levels.items()}
    steps = {level: _costing(device, model_cost) for level, model_cost in system.steps.items()}
    own = None if system.models else sessions.get(1.0)
    full = own or _costing(device, system.full)
    return profiled(device, sessions, full, switching, prompts, steps)


def _costing(device: Device, model_cost: ModelCost) -> Session:
    return Session(Engine("model", device, model_cost, NoNetwork(), RESIDENT))
