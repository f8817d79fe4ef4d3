"""The base class of scenarios without decoding: a target computed on the CPU, and a calibration corpus.

No costs are charged unless the scenario uses a device. Must not know what is computed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from repro import data
from repro.core.bounds import Tokens
from repro.core.errors import InputError
from repro.core.typed import typed
from repro.data.corpus import Corpus, load_corpus
from repro.libraries import Tensor, torch
from repro.methods.speculative.drafting.head_model import HeadModel, open_model
from repro.models.checkpoints.validate import stored_notes
from repro.models.runtime.model import Model, ModelConfig
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from repro.records.identity import dataset_asked, files_read, model_asked
from repro.scenarios.base import (
    WEIGHT_VERSIONS,
    Scenario,
    appended_tokens,
    component,
    component_version,
    metric_versions,
    names_in,
)
from repro.scenarios.sections import ANSWER_SETTINGS

UNBILLED_NOTE = "nothing is billed: figures of real weights, which have no device"


@dataclass(frozen=True)
class CorpusSettings:
    """The calibration corpus: `texts` sequences of `tokens` tokens from `dataset`."""

    dataset: dict[str, Any]
    texts: Tokens
    tokens: Tokens


def corpus_settings(config: Mapping[str, Any]) -> CorpusSettings:
    """The calibration corpus of a resolved configuration; InputError for a wrong setting."""
    settings = typed(CorpusSettings, config["corpus"], "corpus")
    data.parse(settings.dataset)
    return settings


def corpus_asked(corpus: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a corpus's settings that can change an outcome."""
    return {**corpus, "dataset": dataset_asked(corpus["dataset"])}


def calibration_corpus(settings: CorpusSettings, target: Model, data_dir: str | None) -> Corpus:
    """The texts to calibrate on, tokenized for a target."""
    dataset = data.parse(settings.dataset)
    return load_corpus(dataset, target.tokenizer, settings.texts, settings.tokens, data_dir)


class OfflineScenario(Scenario):
    """A cell without decoding; see `Scenario`.

    Attributes:
        metrics: names of the metrics that it computes.
    """

    metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        """As `Scenario`; also InputError for a target without weights."""
        super().__init__(config)
        if config["metrics"]:
            raise InputError(
                f"metrics is {config['metrics']}; they are of answers that a method generates, and "
                f"{self.group}={self.name} has figures of its own; leave metrics out"
            )
        self._component = component(self.group, config[self.group])
        self.dataset = data.parse(config["dataset"])
        self.settings = corpus_settings(config)
        self._model = ModelConfig.parse(config["target"])
        self._require_whole()

    @classmethod
    def labels_of(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """See `Scenario`; `method` is the component's name, so that tables treat it like a method."""
        labels = names_in(config, cls.group, "dataset", "target")
        fixed_labels = {"device": "host", "draft": "none", "agreement": "native"}
        return {"method": labels[cls.group]} | labels | fixed_labels

    @property
    def unread(self) -> Mapping[str, str]:
        """See `Scenario`."""
        reason = f"with {self.group}={self.name} no method answers prompts"
        unread = dict.fromkeys(ANSWER_SETTINGS, reason)
        unread |= dict.fromkeys(("device", "engine", "format"), f"{self.group}={self.name} bills no device")
        unread["trace"] = "only a service has requests"
        if not self.reads_corpus:
            unread["corpus"] = f"{self.group}={self.name} needs no calibration data"
        return unread

    @property
    def component(self) -> Any:
        """See `Scenario`."""
        return self._component

    def _require_whole(self) -> None:
        """InputError unless the target has an unrounded checkpoint and `host` is `cpu`."""
        choice, name = f"{self.group}={self.name}", self._model.name
        if self._model.checkpoint is None:
            raise InputError(
                f"{name} has no checkpoint, and {choice} computes on weights; choose a target that has one"
            )
        if self._model.rounded:
            raise InputError(
                f"{name} is rounded to {self._model.rounded} bits before {choice} sees it; choose "
                "target.rounded=null"
            )
        if self._model.compression:
            raise InputError(
                f"{name} has a compression, and {choice} takes its weights whole; leave "
                "compression@target.compression out"
            )
        if self.config["host"] != "cpu":
            raise InputError(f"host is {self.config['host']!r}; {choice} computes on the cpu")

    @cached_property
    def target(self) -> Model:
        """The target; its checkpoint is fetched if necessary."""
        return open_model(self._model)

    @property
    def folder(self) -> Path:
        """Folder of the target's checkpoint."""
        assert self.target.folder is not None
        return self.target.folder

    @property
    @abstractmethod
    def reads_corpus(self) -> bool:
        """Whether the component needs the corpus."""

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus; empty if the component does not need it."""
        if not self.reads_corpus:
            return Corpus((), "none")
        return calibration_corpus(self.settings, self.target, self.config.get("data_dir"))

    @property
    def sequences(self) -> list[Tensor]:
        """The corpus as int64 tensors of shape `[tokens]`."""
        return [torch.tensor(sequence) for sequence in self.corpus.sequences]

    @property
    def inputs(self) -> dict[str, str]:
        """See `Scenario`."""
        corpus = {"corpus": self.corpus.digest} if self.reads_corpus else {}
        other_files = appended_tokens(self.target) | files_read(self.component)
        return {"target": self.target.digest} | corpus | other_files

    @property
    def asked(self) -> dict[str, Any]:
        """See `Scenario`."""
        settings: dict[str, Any] = {self.group: self.config[self.group]}
        settings["target"] = model_asked(self.config["target"])
        if self.reads_corpus:
            settings["corpus"] = corpus_asked(self.config["corpus"])
        return settings

    @property
    def versions(self) -> dict[str, int]:
        """See `Scenario`."""
        versions = {f"scenario {self.group}": self.version} | component_version(self.group, self.name)
        return versions | metric_versions(self.metrics) | WEIGHT_VERSIONS

    @property
    def origin(self) -> dict[str, Any]:
        """See `Scenario`."""
        return {
            "clock": "virtual",
            "weights": self.target.weights,
            "costs": "predicted",
            "dequantized": self.target.is_dequantized,
            "notes": (UNBILLED_NOTE, *stored_notes(self.target.folder)),
        }

    def check(self) -> None:
        """See `Scenario`."""
        choice = f"{self.group}={self.name}"
        if isinstance(self.target, HeadModel) or self.target.encoder_decoder:
            raise InputError(f"{self._model.name} is no decoder by itself, and {choice} is for decoders")
        limit = self.target.decoder_config.max_positions
        if self.reads_corpus and limit is not None and self.settings.tokens > limit:
            raise InputError(
                f"corpus.tokens is {self.settings.tokens}, and {self._model.name} has {limit} positions"
            )


def dense(folder: Path) -> Decoder:
    """Load a checkpoint in fp32, unpacked and fully in memory."""
    return weights.load(folder, "float32", is_packed=False)


_dense_decoders: dict[tuple[Path, str], Decoder] = {}


def dense_once(folder: Path, digest: str) -> Decoder:
    """As `dense`; the last one is kept, since compressions of one decoder share what they measure of it.

    Args:
        folder: the checkpoint.
        digest: its content hash.
    """
    if (folder, digest) not in _dense_decoders:
        _dense_decoders.clear()  # before the next one is loaded
        _dense_decoders[folder, digest] = dense(folder)
    return _dense_decoders[folder, digest]
