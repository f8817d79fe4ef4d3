"""Interface of probes: a decoder and texts in, figures out.

Must not know datasets, devices or time. A probe is a frozen dataclass registered under `probe`; its fields
are its configuration (`probe=NAME probe.FIELD=VALUE`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

Texts = tuple[tuple[int, ...], ...]
"""Token sequences of equal length."""


class Probe(Protocol):
    """Computes figures from a decoder's forward passes over texts.

    Attributes:
        calibrated: whether it needs a calibration corpus; otherwise `corpus` is empty.
        tokens: tokens per text; each text is one forward pass.
    """

    calibrated: ClassVar[bool]
    tokens: int

    def look(self, decoder: Decoder, corpus: Texts, texts: Texts) -> Mapping[str, Scalar]:
        """Run a decoder over texts and return figures.

        Args:
            decoder: dense linears in fp32 (`linear.PlainLinear`), all layers resident. It is not changed.
            corpus: calibration texts.
            texts: evaluation texts.

        Raises:
            InputError: a setting cannot work with this decoder.
        """
        ...
