"""The models that answer a service's requests: levels of the target, or a family of other models.

Owns that choice, the examples as each model tokenizes them, and the token scorer. Must not know objectives,
deciders or devices.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from repro import data
from repro.core.errors import InputError
from repro.data.config import DatasetConfig
from repro.data.corpus import Corpus
from repro.device.op import Op
from repro.methods.serving import llmlingua2
from repro.methods.serving.shortening import AnyToken, Scorer
from repro.methods.serving.slo import Decision
from repro.methods.serving.systems.base import Service, System
from repro.models.costs.model_cost import ModelCost, Precision
from repro.models.encoders.trained_heads import heads_digest
from repro.models.quantization import round_to_nearest
from repro.models.runtime.head_model import opened
from repro.models.runtime.model import Model, ModelConfig
from repro.models.transformer.decoder import Decoder
from repro.records.build_cache import memory_root
from repro.scenarios.base import Progress
from repro.scenarios.named_models import read_model
from repro.scenarios.serving.answer_cache import AnswerCache, DatasetRequests, Query, Shortening

log = logging.getLogger(__name__)

_made: dict[tuple[str, str, str, float], DatasetRequests] = {}


@dataclass(frozen=True)
class StandIn(Scorer):
    """LLMLingua-2 without its weights: the trained score head scores, the cost is that of its encoder."""

    chooses: Scorer
    stored: Precision

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`."""
        return self.chooses.scores(tokens)

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """See `Scorer`."""
        return llmlingua2.scoring(len(tokens), on, self.stored)


class LevelModels:
    """The models of one service, and the examples that they answer."""

    def __init__(
        self,
        service: Service,
        target: Model,
        rows: Mapping[str, tuple[DatasetConfig, data.Rows]],
        concise: float,
        seed: int,
    ) -> None:
        """`target` is the full model, `rows` are examples by dataset, `concise` is `TraceConfig.concise`."""
        self._service, self._target, self._rows = service, target, rows
        self._concise, self._seed = concise, seed

    @cached_property
    def _family(self) -> dict[str, ModelConfig]:
        return {name: read_model(name) for name in self._service.family}

    @cached_property
    def system(self) -> System:
        """The service's levels, with costs at the target's size."""
        model_costs = {name: _model_cost(one) for name, one in self._family.items()}
        return self._service.system(self._target.model_cost, model_costs)

    @cached_property
    def _members(self) -> dict[str, Model]:
        """The family's models; empty if a checkpoint is unavailable, so that only costs are known."""
        try:
            return {name: opened(config) for name, config in self._family.items()}
        except InputError as reason:
            log.info("costs alone: %s", reason)
            return {}

    @property
    def inputs(self) -> dict[str, str]:
        """Content hashes of the examples, the family's models, and the score head that shortened prompts."""
        found = {name: rows.digest for name, (_, rows) in self._rows.items()}
        found |= {f"model {name}": one.digest for name, one in self._members.items()}
        if self._concise < 1.0:
            found["trained heads"] = heads_digest()
        return found

    @cached_property
    def known(self) -> bool:
        """Whether answers can be computed; if not, the run has costs only."""
        return bool(self.requests) and (bool(self._members) or not self._family)

    @cached_property
    def calibrated(self) -> bool:
        """Whether the levels' compression needs calibration data."""
        made = self._service.compression(min(self.system.levels))
        return self.known and made is not None and made.calibrated

    @cached_property
    def requests(self) -> dict[str, DatasetRequests]:
        """The requests for the target, by dataset; empty without its checkpoint."""
        return self._requests(self._target) if self._target.folder else {}

    def _requests(self, model: Model) -> dict[str, DatasetRequests]:
        """The requests for a model, by dataset."""
        return {name: self._request(model, dataset, rows) for name, (dataset, rows) in self._rows.items()}

    def _request(self, model: Model, dataset: DatasetConfig, rows: data.Rows) -> DatasetRequests:
        """The requests of a dataset, cached in the process, since tokenizing them takes seconds.

        If callers shorten their prompts, they use the score head.
        """
        key = (model.digest, dataset.name, rows.digest, self._concise)
        if key not in _made:
            scorer = score_head(model) if self._concise < 1.0 else None
            _made[key] = DatasetRequests(dataset, rows, model.tokenizer, scorer, self._concise)
        return _made[key]

    @cached_property
    def _chooser(self) -> Scorer | None:
        """The scorer that chooses the tokens to keep."""
        if self._service.scorer == "none":
            return None
        return AnyToken(self._seed) if self._service.scorer == "random" else score_head(self._target)

    @cached_property
    def scorer(self) -> Scorer | None:
        """The scorer with its cost; with a decision head, shared bottom layers are not charged twice."""
        chooser, service = self._chooser, self._service
        if chooser and service.scorer == "llmlingua2":
            return StandIn(chooser, self._target.config.stored)
        if service.scorer == "score_head" and service.decider == "decision_head":
            return score_head(self._target, shares_bottom=True)
        return chooser

    def right(self, wanted: Collection[Query], corpus: Corpus, progress: Progress) -> dict[Query, bool]:
        """Whether each query is answered correctly by the model of its level."""
        models = self.system.models
        found: dict[Query, bool] = {}
        for name in sorted({models.get(one.decision.model) for one in wanted}, key=str):
            asked = [one for one in wanted if models.get(one.decision.model) == name]
            found |= self._answers(name, corpus).right(asked, progress)
        return found

    def plain(self, wanted: Collection[Query], progress: Progress) -> dict[Query, bool]:
        """Whether the full target answers the example of each query correctly."""
        whole = {one: one._replace(decision=Decision(1.0, 1.0)) for one in wanted}
        found = self._answers(None, Corpus((), "none")).right(set(whole.values()), progress)
        return {one: found[row] for one, row in whole.items()}

    def _answers(self, name: str | None, corpus: Corpus) -> AnswerCache:
        """The answer cache of a family member, or of the target if `name` is None."""
        model = self._members[name] if name else self._target
        folder = model.folder
        assert folder is not None
        return AnswerCache(
            model.digest,
            lambda: _weights(folder, model.config.rounded),
            self._service.compression,
            corpus.sequences,
            corpus.digest,
            self._requests(model) if name else self.requests,
            Shortening(self._chooser, self._service.granule),
            memory_root(),
        )


def score_head(model: Model, shares_bottom: bool = False) -> Scorer:
    """The trained score head for a model's tokenizer."""
    from repro.methods.serving import dual_head  # late: transformers takes seconds to import

    stored = model.config.stored
    return dual_head.score_head(model.tokenizer, shares_bottom=shares_bottom, stored=stored)


def _model_cost(config: ModelConfig) -> ModelCost:
    """Model cost of a family member, from its shape, since its checkpoint may be unavailable."""
    assert config.shape is not None, "a family's models are billed by their shapes"
    return ModelCost(config.shape, config.stored)


@lru_cache(maxsize=1)
def _weights(folder: Path, rounded: int | None) -> Decoder:
    """Load a checkpoint, dense in fp32 and optionally rounded; cached for all levels of a cell."""
    return round_to_nearest.load(folder, rounded)
