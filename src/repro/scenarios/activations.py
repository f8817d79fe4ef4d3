"""Activations of a model on a dataset's texts, analysed by a probe.

Owns the choice of texts. Must not know what the probe computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.data.corpus import Corpus, load_corpus
from repro.methods.probes.base import Probe
from repro.records.identity import dataset_asked
from repro.scenarios.base import Findings, Progress
from repro.scenarios.offline import OfflineScenario, dense_once


class ActivationsScenario(OfflineScenario):
    """The scenario selected by `probe=NAME`; it runs `prompts` texts, short ones concatenated.

    See `OfflineScenario`.
    """

    group: ClassVar[str] = "probe"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """See `OfflineScenario`."""
        super().__init__(config)
        self.probe: Probe = self.component

    @property
    def reads_corpus(self) -> bool:
        """Whether the probe needs calibration data."""
        return self.probe.calibrated

    @property
    def unread(self) -> Mapping[str, str]:
        """See `OfflineScenario`."""
        return {**super().unread, "skip": f"probe={self.name} reads the first texts"}

    @cached_property
    def texts(self) -> Corpus:
        """The dataset's texts as sequences of the probe's length."""
        count, folder = self.config["prompts"], self.config.get("data_dir")
        return load_corpus(self.dataset, self.target.tokenizer, count, self.probe.tokens, folder)

    @property
    def inputs(self) -> dict[str, str]:
        """See `OfflineScenario`."""
        return super().inputs | {"dataset": self.texts.digest}

    @property
    def asked(self) -> dict[str, Any]:
        """See `OfflineScenario`."""
        dataset_settings = {"dataset": dataset_asked(self.config["dataset"])}
        return super().asked | dataset_settings | {"prompts": self.config["prompts"]}

    def check(self) -> None:
        """As `OfflineScenario`; also InputError for sequences longer than the target's context."""
        super().check()
        limit = self.target.decoder_config.max_positions
        if limit is not None and self.probe.tokens > limit:
            raise InputError(
                f"probe.tokens is {self.probe.tokens}, and {self.target.config.name} has {limit} positions"
            )

    def find(self, progress: Progress) -> Findings:
        """Run the probe on the target."""
        progress("reading", 0, 1)
        decoder = dense_once(self.folder, self.target.digest)
        figures = self.probe.look(decoder, self.corpus.sequences, self.texts.sequences)
        progress("reading", 1, 1)
        return Findings(figures, {}, [])
