"""What a serving cell is asked: a service, a trace of requests with SLOs, and a phone (ElastiLM 5).

Owns the cell's models, the examples as its apps ask them, its key and its checks. Must not know how requests
are decided, billed and answered; that is in `scenario`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from repro import data
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import parse_yaml, read_mapping, read_yaml
from repro.core.registry import unknown
from repro.data.config import DatasetConfig, read_config, scoring_of
from repro.data.prompts import Prompt, Tokens
from repro.data.traces import Arrival, parse_trace, trace
from repro.methods.serving.service import Service, System
from repro.methods.serving.shortening import Scorer, shorten_prompt
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.tlm import tiny_language_model
from repro.methods.speculative.drafting.head_model import open_model
from repro.models.analysis.likelihood import Likelihood, common
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.checkpoints.validate import stored_notes
from repro.models.costs.model_cost import ModelCost, precision
from repro.models.runtime.model import Model, ModelConfig
from repro.records.identity import dataset_asked, device_asked, model_asked, version_of
from repro.scenarios.accuracy import best_of, is_right, metric_of
from repro.scenarios.base import COST_VERSIONS, names_in
from repro.scenarios.emulation import EmulatedCell
from repro.scenarios.offline import OfflineScenario
from repro.scenarios.sections import ANSWER_SETTINGS

log = logging.getLogger(__name__)

DEMONSTRATION = "demonstration"
"""The trace of a service without one."""
CORPUS_OF_DEMONSTRATION = "demonstration_assistant"

PREFIX_EXAMPLES = 16
"""Number of examples used to detect the common prompt prefix."""

OWN_OR_PATTERN = re.compile(r"\$\{own_or:[^,{}]*,([^{}]*)\}")
"""What depends on `weights` in a model's file; the group is the stand-in's part."""

_request_cache: dict[tuple[str, str, str, float], DatasetRequests] = {}
"""Requests by model, dataset, rows and share of the prefix: tokenizing them takes seconds."""


class ServingCell(OfflineScenario):
    """What a configuration with `service=NAME` and a trace asks; see `OfflineScenario`."""

    group: ClassVar[str] = "service"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """As `OfflineScenario`; also InputError for a device that is not emulated."""
        section = config.get("trace") or read_mapping(conf_dir() / "trace" / f"{DEMONSTRATION}.yaml")
        config = {**config, "trace": section}
        if section["name"] == DEMONSTRATION:  # it needs no data beside this project's own
            texts = read_mapping(conf_dir() / "dataset" / f"{CORPUS_OF_DEMONSTRATION}.yaml")
            config["corpus"] = {"dataset": texts, "texts": 6, "tokens": 128}
        self.cell = EmulatedCell(config, format="fp16")
        super().__init__(self.cell.config)
        self.service: Service = self.component
        self.trace = parse_trace(config["trace"])
        if config["device"].get("kind") != "emulated":
            raise InputError(
                f"device {config['device']['name']} is no emulated one, and a service is profiled on such; "
                "choose redmi_k60_champion, xiaomi_14, redmi_k70_pro or another phone"
            )
        self.cell.machine()  # finds numbers out of range

    @classmethod
    def labels_of(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """As `OfflineScenario`, with the device, the trace as `dataset`, and the decider."""
        names = names_in(config, "device", "trace")
        names["trace"] = names["trace"] if config.get("trace") else DEMONSTRATION
        decider = str(config[cls.group]["decider"])
        return super().labels_of(config) | {
            "device": names["device"],
            "dataset": names["trace"],
            "decider": decider,
        }

    @property
    def unread(self) -> Mapping[str, str]:
        """See `OfflineScenario`."""
        unread = dict.fromkeys(
            (*ANSWER_SETTINGS, "dataset", "skip"), "the trace says what a service is asked"
        )
        if self.trace.name == DEMONSTRATION:
            unread["corpus"] = "the demonstration has texts of its own"
        return unread

    def _require_whole(self) -> None:
        """Allow targets without weights (a cost-only run) and rounded ones."""

    @cached_property
    def datasets(self) -> dict[str, DatasetConfig]:
        """The datasets that the trace's apps ask, by name."""
        return {app.dataset: read_config(app.dataset) for app in self.trace.apps if app.dataset}

    @cached_property
    def rows(self) -> dict[str, data.Rows]:
        """The examples that apps may ask, by dataset."""
        count, folder = self.config["prompts"], self.config.get("data_dir")
        return {name: data.load_rows(dataset, count, folder) for name, dataset in self.datasets.items()}

    @cached_property
    def family(self) -> dict[str, ModelConfig]:
        """The models that serve in place of levels of the target, by name; empty for levels."""
        return {name: read_model(name) for name in self.service.family}

    @cached_property
    def members(self) -> dict[str, Model]:
        """The family, opened; empty if a checkpoint is unavailable, so that only costs are known."""
        try:
            return {name: open_model(config) for name, config in self.family.items()}
        except InputError as reason:
            log.info("costs alone: %s", reason)
            return {}

    @cached_property
    def system(self) -> System:
        """The service's levels, with costs at the target's size."""
        costs = {name: _model_cost(config) for name, config in self.family.items()}
        return self.service.system(self.target.model_cost, costs)

    @cached_property
    def requests(self) -> dict[str, DatasetRequests]:
        """The examples as the target reads them, by dataset; empty without its checkpoint."""
        return self.requests_of(self.target) if self.target.folder else {}

    def requests_of(self, model: Model) -> dict[str, DatasetRequests]:
        """The examples as a model reads them, by dataset; callers shorten them with the score head."""
        requests, concise = {}, self.trace.concise
        for name, dataset in self.datasets.items():
            rows = self.rows[name]
            key = (model.digest, dataset.name, rows.digest, concise)
            if key not in _request_cache:
                scorer = score_head(model) if concise < 1.0 else None
                _request_cache[key] = DatasetRequests(dataset, rows, model.tokenizer, scorer, concise)
            requests[name] = _request_cache[key]
        return requests

    @cached_property
    def answers_known(self) -> bool:
        """Whether answers can be computed; if not, the run has costs only."""
        return bool(self.requests) and (bool(self.members) or not self.family)

    @cached_property
    def reads_corpus(self) -> bool:
        """Whether the levels' compression needs calibration data."""
        compression = self.service.compression(min(self.system.levels))
        return self.answers_known and compression is not None and compression.calibrated

    @cached_property
    def arrivals(self) -> tuple[Arrival, ...]:
        """All requests in the order of arrival."""
        rows = {name: len(pool.rows.rows) for name, pool in self.requests.items()}
        blanks = {app.source: self.trace.requests for app in self.trace.apps if app.tokens}
        return trace(self.trace, rows | blanks)

    @property
    def inputs(self) -> dict[str, str]:
        """See `OfflineScenario`."""
        inputs = {name: rows.digest for name, rows in self.rows.items()}
        inputs |= {f"model {name}": model.digest for name, model in self.members.items()}
        if self.trace.concise < 1.0:
            inputs["trained heads"] = tiny_language_model().digest()
        return super().inputs | inputs

    @property
    def decisive_settings(self) -> dict[str, Any]:
        """See `Scenario`; with a corpus that its levels may not need."""
        settings = {name: self.config[name] for name in (self.group, "trace", "prompts", "seed", "corpus")}
        settings["target"] = model_asked(self.config["target"])
        return settings | {"device": device_asked(self.cell.described)}

    @property
    def asked(self) -> dict[str, Any]:
        """See `OfflineScenario`."""
        settings = {name: self.config[name] for name in ("trace", "prompts", "seed")}
        settings["device"] = device_asked(self.cell.described)
        settings["datasets"] = {n: dataset_asked(asdict(dataset)) for n, dataset in self.datasets.items()}
        return super().asked | settings

    @property
    def versions(self) -> dict[str, int]:
        """See `OfflineScenario`; adds the cost model and the compression that makes the levels."""
        level = self.service.compression(LEVELS[0])
        versions = COST_VERSIONS if level is None else {**COST_VERSIONS, "level": version_of(type(level))}
        if self._model.stored != precision("fp16"):
            versions = {**versions, "heads": 2}  # which ran in fp16 beside any target before
        if self.trace.answer < 2:
            versions = {**versions, "time per later token": 2}  # which was 0 of one token before
        return super().versions | versions

    def check(self) -> None:
        """As `OfflineScenario`; also InputError for a trace of dataset examples without a checkpoint."""
        names = [app.name for app in self.trace.apps if app.dataset]
        if self.target.folder is None and names:
            raise InputError(
                f"{self.target.config.name} has no checkpoint, and apps {', '.join(names)} ask for rows of "
                "datasets; choose a target that has one, or prompts of blanks (trace=standalone "
                "app.dataset=null app.tokens=256)"
            )
        if self.target.folder:
            super().check()
        if self.service.decider == "fixed" and self.service.fixed_model not in self.system.levels:
            choices = ", ".join(f"{level:g}" for level in sorted(self.system.levels))
            raise InputError(f"service.fixed_model is {self.service.fixed_model}; its levels are {choices}")
        if self.service.decider == "oracle" and not self.answers_known:
            raise InputError("service.decider is oracle, and no answers are known; choose another decider")

    @property
    def origin(self) -> dict[str, Any]:
        """See `Scenario`."""
        fitted = tuple(sorted(self.cell.fitted_cells | set(self.system.fitted)))
        without_answers = {} if self.answers_known else {"weights": "none", "dequantized": False}
        return super().origin | {"fitted": fitted, "notes": tuple(self._notes())} | without_answers

    def _notes(self) -> Iterator[str]:
        yield "latencies are those of the device's profile; requests do not overlap"
        if self.trace.name == DEMONSTRATION:
            yield "a demonstration on questions written for it, no benchmark"
        if self.answers_known:
            yield from stored_notes(self.target.folder)
        else:
            yield "costs alone: no checkpoint answers"
        if self.service.scorer == "llmlingua2":
            yield "the trained score head chooses tokens in LLMLingua-2's place, whose encoder is billed"


def read_model(name: str) -> ModelConfig:
    """The model of `conf/model/<name>.yaml`, with the checkpoint and shape of its defaults list.

    If another checkpoint computes in its place, it is that one.

    Raises:
        InputError: there is no such model (with near misses), or its file is invalid.
    """
    folder = conf_dir() / "model"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise InputError(unknown("model", name, [file.stem for file in folder.glob("*.yaml")]))
    content: dict[str, Any] = parse_yaml(OWN_OR_PATTERN.sub(r"\1", read_yaml(path)), str(path))
    defaults = [part for part in content.pop("defaults", []) if isinstance(part, dict)]
    choices = {group: choice for part in defaults for group, choice in part.items()}
    contents = {group: read_mapping(folder / group / f"{choice}.yaml") for group, choice in choices.items()}
    return ModelConfig.parse({"checkpoint": None, "shape": None} | contents | content)


def score_head(model: Model, shares_bottom: bool = False) -> Scorer:
    """The trained score head for a model's tokenizer."""
    return tiny_language_model().score_head(model.tokenizer, shares_bottom, model.config.stored)


def _model_cost(config: ModelConfig) -> ModelCost:
    """Model cost of a family member, from its shape, since its checkpoint may be unavailable."""
    assert config.shape is not None, "a family's models are billed by their shapes"
    return ModelCost(config.shape, config.stored)


@dataclass(frozen=True)
class DatasetRequests:
    """The examples of one dataset as requests of an app.

    Attributes:
        dataset: the dataset.
        rows: its examples.
        text: the tokenizer of the serving model.
        scorer: token scorer with which callers have shortened the common prefix; None if they have not.
        concise: share of the common prefix that callers keep.
    """

    dataset: DatasetConfig
    rows: data.Rows
    text: Tokenizer
    scorer: Scorer | None = None
    concise: float = 1.0

    def __post_init__(self) -> None:
        if not scoring_of(self.dataset).scores_continuations:
            raise InputError(
                f"the answers of dataset {self.dataset.name!r} are generated, and requests are answered by a "
                "choice; take a dataset whose scoring is a choice, such as hellaswag (`repro list datasets`)"
            )

    @cached_property
    def _prompts(self) -> dict[int, Prompt]:
        return {}

    def _whole(self, row: int) -> Prompt:
        """An example's full prompt, tokenized on first use, since many choices take long to tokenize."""
        if row not in self._prompts:
            single_row = replace(self.rows, rows=self.rows.rows[row : row + 1])
            self._prompts[row] = data.prompts(self.dataset, single_row, _Repeating(self.text))[0]
        return self._prompts[row]

    @cached_property
    def _beginning(self) -> Tokens:
        """The common prefix of all requests, detected from the first `PREFIX_EXAMPLES`."""
        prompts = [self._whole(row) for row in range(min(PREFIX_EXAMPLES, len(self.rows.rows)))]
        return prompts[0].continuations[0].context[: beginning(prompts, self.text)]

    @cached_property
    def spare(self) -> int:
        """Number of tokens of a request that may be dropped: instructions and worked examples."""
        return int(self.concise * len(self._beginning))

    @cached_property
    def _scores(self) -> Sequence[float]:
        """Token scores of the common prefix, used if callers shorten it."""
        assert self.scorer is not None, "somebody has to choose what callers leave out"
        return self.scorer.scores(self._beginning)

    def prompt(self, row: int) -> Prompt:
        """An example's prompt, its prefix shortened by the caller if `concise` is below 1."""
        prompt, prefix_size = self._whole(row), len(self._beginning)
        if self.concise == 1.0:
            return prompt

        def shorten_context(context: Tokens) -> Tokens:
            return shorten_prompt(context, len(context) - prefix_size + self.spare, self._scores, prefix_size)

        return replace(
            prompt,
            continuations=tuple(replace(c, context=shorten_context(c.context)) for c in prompt.continuations),
        )

    def read(self, row: int) -> Tokens:
        """All prompt tokens of a request."""
        return self.prompt(row).continuations[0].context

    def is_right(self, row: int, likelihoods: Sequence[Likelihood]) -> bool:
        """Whether an example's correct continuation is among the `best_of` likeliest."""
        scoring = scoring_of(self.dataset)
        return is_right(self.prompt(row), likelihoods, metric_of(scoring), best_of(scoring))

    def chance(self, row: int) -> float:
        """Probability that a random guess is correct."""
        return best_of(scoring_of(self.dataset)) / len(self._whole(row).continuations)


class _Repeating:
    """A tokenizer that caches its last texts: the same context is encoded before each choice."""

    def __init__(self, text: Tokenizer) -> None:
        self._text = text
        self._encoded = lru_cache(maxsize=4)(text.encode)

    @property
    def has_chat(self) -> bool:
        """See `Tokenizer`."""
        return self._text.has_chat

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return self._encoded(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return self._text.decode(ids)

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """See `Tokenizer`."""
        return self._text.chat(messages)


def beginning(prompts: Sequence[Prompt], text: Tokenizer) -> int:
    """Length in tokens of the common prefix, cut back to the end of a line."""
    shared_length = common(c.context for prompt in prompts for c in prompt.continuations)
    context = prompts[0].continuations[0].context
    while shared_length and "\n" not in text.decode(context[shared_length - 1 : shared_length]):
        shared_length -= 1
    return shared_length
