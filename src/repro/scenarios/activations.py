"""A cell that looks at what goes on within a model while it reads a dataset's texts.

Owns which texts are read. Must not know what is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.data.corpus import Corpus, load_corpus
from repro.methods.probes.base import Probe
from repro.models.transformer.decoder import Decoder
from repro.records.identity import dataset_asked
from repro.scenarios.base import Findings, Progress
from repro.scenarios.offline import OfflineScenario, dense


class ActivationsScenario(OfflineScenario):
    """A cell that `probe=NAME` makes; see `OfflineScenario`. It reads `prompts` texts, short ones joined."""

    group: ClassVar[str] = "probe"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """As of `OfflineScenario`."""
        super().__init__(config)
        self.probe: Probe = self.component

    @property
    def reads_corpus(self) -> bool:
        """Whether the probe reads something beforehand."""
        return self.probe.calibrated

    @cached_property
    def texts(self) -> Corpus:
        """The dataset's texts, of the probe's length."""
        count, folder = self.config["prompts"], self.config.get("data_dir")
        return load_corpus(self.dataset, self.target.tokenizer, count, self.probe.tokens, folder)

    @property
    def inputs(self) -> dict[str, str]:
        """See `OfflineScenario`."""
        return super().inputs | {"dataset": self.texts.digest}

    @property
    def asked(self) -> dict[str, Any]:
        """See `OfflineScenario`."""
        dataset = {"dataset": dataset_asked(self.config["dataset"])}
        return super().asked | dataset | {"prompts": self.config["prompts"]}

    def check(self) -> None:
        """As of `OfflineScenario`; InputError also for texts that the target cannot hold."""
        super().check()
        most = self.target.decoder_config.max_positions
        if most is not None and self.probe.tokens > most:
            raise InputError(
                f"probe.tokens is {self.probe.tokens}, and {self.target.config.name} has {most} positions"
            )

    def find(self, progress: Progress) -> Findings:
        """Let the target read."""
        progress("reading", 0, 1)
        decoder = _dense(self.folder, self.target.digest)
        found = self.probe.look(decoder, self.corpus.sequences, self.texts.sequences)
        progress("reading", 1, 1)
        return Findings(found, {}, [])


@lru_cache(maxsize=1)
def _dense(folder: Path, digest: str) -> Decoder:
    """A checkpoint's decoder; the last one is kept, so that a probe may know it again."""
    return dense(folder)
