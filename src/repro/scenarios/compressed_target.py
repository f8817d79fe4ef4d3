"""A target that answers prompts with the weights of a compression: `compression@target.compression=NAME`.

Owns the compression's calibration and identity. Must not know methods, devices or how a compression computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.libraries import torch
from repro.models.runtime.model import Altered, Model, OutlierShares
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from repro.records.identity import files_read, version_of
from repro.records.record import Scalar, content_hash
from repro.scenarios.base import component
from repro.scenarios.offline import calibration_corpus, corpus_settings, dense_once

if TYPE_CHECKING:
    from repro.methods.compression.base import Compression


class CompressedTarget:
    """The compression of a cell's target.

    Attributes:
        name: the compression's registered name.
        figures: what it reports, such as `bits_per_weight`; empty until it has compressed.
    """

    def __init__(self, config: Mapping[str, Any], section: Mapping[str, Any]) -> None:
        """Check the settings; InputError for a wrong one, or another host than the CPU."""
        if config["host"] != "cpu":
            raise InputError(f"host is {config['host']!r}; a compression computes on the cpu")
        self.name = str(section.get("name"))
        self.figures: dict[str, Scalar] = {}
        self._section = section
        self._compression: Compression = component("compression", section)
        self._settings = corpus_settings(config)

    @property
    def calibrated(self) -> bool:
        """Whether the compression needs a corpus."""
        return self._compression.calibrated

    def alteration(self, target: Model, data_dir: str | None) -> Altered:
        """The compression as the target needs it; reads the corpus if the compression needs one."""
        corpus = calibration_corpus(self._settings, target, data_dir) if self.calibrated else None

        def decoder() -> tuple[Decoder, OutlierShares | None]:
            assert target.folder is not None
            texts = [torch.tensor(sequence) for sequence in corpus.sequences] if corpus else []
            dense_decoder = dense_once(target.folder, weights.digest(target.folder))
            output = self._compression.compress(dense_decoder, texts)
            self.figures = dict(output.figures)
            shares = output.outliers
            return output.decoder, None if shares is None else {(*at,): share for at, share in shares.items()}

        digests = corpus.digest if corpus else "none", files_read(self._compression)
        settings = [self._settings.texts, self._settings.tokens] if corpus else []
        version = version_of(type(self._compression))
        return Altered(content_hash([dict(self._section), version, settings, *digests]), decoder)
