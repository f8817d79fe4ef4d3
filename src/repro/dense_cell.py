"""A cell about real weights alone: a target read densely in fp32, without a device, a draft or a clock.

Owns what such cells have in common: their part of the configuration, their key and their record. Must not
know what is found out about the weights. A kind of them is a subclass with a registry group of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from repro import data, versions
from repro.core.errors import InputError
from repro.core.identity import (
    cell_key,
    dataset_asked,
    files_read,
    model_asked,
    portable,
    portable_text,
)
from repro.core.late import late
from repro.core.provenance import Provenance, circumstances, peak_resident_bytes
from repro.core.record import Record, Round, Scalar, Spread, content_hash
from repro.core.registry import lookup
from repro.core.sources import source_hash
from repro.data.corpus import Corpus, load_corpus
from repro.data.typed import typed
from repro.models import weights
from repro.models.decoder import Decoder
from repro.models.head_model import HeadModel, opened
from repro.models.model import Model, ModelConfig
from repro.settings import check_scalars, own_labels

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

Progress = Callable[[str, int, int], None]
"""Told what is under way, how many steps are done, and of how many."""

UNBILLED = "nothing is billed: figures of real weights, which have no device"


@dataclass(frozen=True)
class CorpusSettings:
    """Which texts are read before: `texts` sequences of `tokens` tokens of `dataset`."""

    dataset: dict[str, Any]
    texts: int
    tokens: int


@dataclass(frozen=True)
class Findings:
    """What a cell found: figures, their standard errors or intervals, and lines of detail."""

    values: Mapping[str, Scalar]
    uncertainty: Mapping[str, Spread]
    rounds: list[Round]


class DenseCell(ABC):
    """A cell that can be computed.

    Attributes:
        version: of the scenario, raised by hand when its outcomes change (docs/identity.md).
        group: the key of the configuration that makes a cell of this kind, and the registry's group.
        metrics: names of the metrics that it scores by.
        config: the resolved configuration, plain.
        component: what the configuration names there, with its fields.
        labels: short names for tables; `method` is the component's, so that tables take it like a method.
    """

    version: ClassVar[int] = 1
    group: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()

    emulated: ClassVar[bool] = True  # nothing waits for the wall clock
    blank: ClassVar[bool] = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check a resolved configuration; nothing long happens.

        Raises:
            InputError: a part of it cannot work.
        """
        self.config = config
        self.name = str(config[self.group]["name"])
        self.component = named(self.group, config[self.group])
        check_scalars(config)
        self.dataset = data.parse(config["dataset"])
        self.settings = typed(CorpusSettings, config["corpus"], "corpus")
        for what, count in (("texts", self.settings.texts), ("tokens", self.settings.tokens)):
            if count < 1:
                raise InputError(f"corpus.{what} is {count}; it must be a whole number of at least 1")
        self._model = ModelConfig.parse(config["target"])
        self._require_whole()
        self.labels = {
            "method": self.name,
            self.group: self.name,
            "device": "host",
            "dataset": self.dataset.name,
            "target": self._model.name,
            "draft": "none",
            "agreement": "native",
        }
        self.labels |= own_labels(config, taken=self.labels)

    def _require_whole(self) -> None:
        """That there are weights, as they are, and that the CPU computes."""
        what, name = f"{self.group}={self.name}", self._model.name
        if self._model.checkpoint is None:
            raise InputError(
                f"{name} has no checkpoint, and {what} computes on weights; choose a target that has one"
            )
        if self._model.rounded:
            raise InputError(
                f"{name} is rounded to {self._model.rounded} bits before {what} sees it; choose "
                "target.rounded=null"
            )
        if self.config["host"] != "cpu":
            raise InputError(f"host is {self.config['host']!r}; {what} computes on the cpu")

    @cached_property
    def target(self) -> Model:
        """The target; its checkpoint is fetched if need be."""
        return opened(self._model)

    @property
    def folder(self) -> Path:
        """Where the target's checkpoint lies."""
        assert self.target.folder is not None
        return self.target.folder

    @property
    @abstractmethod
    def reads_corpus(self) -> bool:
        """Whether the component looks at a corpus."""

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus; of no sequences where none is looked at."""
        if not self.reads_corpus:
            return Corpus((), "none")
        wanted, folder = self.settings, self.config.get("data_dir")
        dataset = data.parse(wanted.dataset)
        return load_corpus(dataset, self.target.tokenizer, wanted.texts, wanted.tokens, folder)

    @property
    def sequences(self) -> list[Tensor]:
        """The corpus as tensors, int64 `[tokens]` each."""
        return [torch.tensor(sequence) for sequence in self.corpus.sequences]

    @property
    def inputs(self) -> dict[str, str]:
        """Content hashes of all that the cell is given."""
        corpus = {"corpus": self.corpus.digest} if self.reads_corpus else {}
        return {"target": self.target.digest} | corpus | files_read(self.component)

    @property
    def asked(self) -> dict[str, Any]:
        """What of the configuration decides the outcome, and so the key."""
        asked: dict[str, Any] = {self.group: self.config[self.group]}
        asked["target"] = model_asked(self.config["target"])
        if self.reads_corpus:
            corpus = self.config["corpus"]
            asked["corpus"] = corpus | {"dataset": dataset_asked(corpus["dataset"])}
        return asked

    @cached_property
    def key(self) -> str:
        """The cell's identity."""
        return cell_key(self.asked, self.inputs, self.versions)

    @property
    def versions(self) -> dict[str, int]:
        """Versions of the components that decide the outcome, by name."""
        own = {f"scenario {self.group}": self.version} | versions.of_component(self.group, self.name)
        return own | versions.of_metrics(self.metrics) | versions.WEIGHTS

    @property
    def sources(self) -> str:
        """Hash of the source code of the project and of the component's own package, for its provenance."""
        return source_hash(type(self.component).__module__.partition(".")[0])

    def check(self) -> None:
        """Find out before the long work whether it can succeed.

        Raises:
            InputError: it cannot.
        """
        what = f"{self.group}={self.name}"
        if isinstance(self.target, HeadModel) or self.target.encoder_decoder:
            raise InputError(f"{self._model.name} is no decoder by itself, and {what} is for decoders")
        most = self.target.decoder_config.max_positions
        if self.reads_corpus and most is not None and self.settings.tokens > most:
            raise InputError(
                f"corpus.tokens is {self.settings.tokens}, and {self._model.name} has {most} positions"
            )

    @abstractmethod
    def find(self, progress: Progress) -> Findings:
        """Do the work."""

    def compute(self, progress: Progress) -> tuple[Record, list[Round]]:
        """The cell's record, and its lines of detail.

        Raises:
            Exception: whatever went wrong; `failed` makes a record of it.
        """
        started = _now()
        found = self.find(progress)
        about = (self.key, self.config["name"], self.labels)
        record = Record(*about, "done", found.values, self._provenance(started), found.uncertainty)
        return record, found.rounds

    def failed(self, error: str) -> Record:
        """The record of a cell that could not be computed, from its traceback."""
        about = (self.key, self.config["name"], self.labels)
        return Record(*about, "failed", {}, self._provenance(_now()), error=portable_text(error))

    def _provenance(self, started: str) -> Provenance:
        config = portable(self.config)
        return Provenance(
            config=config,
            config_hash=content_hash(config),
            inputs=self.inputs,
            versions=self.versions,
            sources=self.sources,
            seed=self.config["seed"],
            clock="virtual",
            weights=self.target.weights,
            costs="predicted",
            started=started,
            finished=_now(),
            dequantized=self.target.dequantized,
            memory={"resident_set": peak_resident_bytes()},
            notes=(UNBILLED,),
            **circumstances(),
        )


def dense(folder: Path) -> Decoder:
    """A checkpoint's weights, dense in fp32 and all resident."""
    return weights.load(folder, "float32", packed=False)


def named(group: str, given: Mapping[str, Any]) -> Any:
    """The component that a part of the configuration names, with its fields; InputError for one unknown."""
    fields = {name: value for name, value in given.items() if name not in ("name", "_target_")}
    return typed(lookup(group, str(given["name"])), fields, f"{group} {given['name']}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
