"""Interface of compressions: a decoder in, a compressed decoder and figures out.

Must not know datasets, tasks, devices or time. A compression is a frozen dataclass registered under
`compression`; its fields are its configuration (`compression=NAME compression.FIELD=VALUE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from repro.models.analysis.hooks import LinearId
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar


@dataclass(frozen=True)
class Compressed:
    """Result of a compression.

    Attributes:
        decoder: the compressed decoder.
        figures: figures for the record, such as `bits_per_weight` or `shadowed_linears`.
        outliers: linears that keep outliers, each with the mean share of its input channels that have one in
            a text of the corpus; None if the compression keeps none anywhere by its nature.
    """

    decoder: Decoder
    figures: Mapping[str, Scalar] = field(default_factory=dict)
    outliers: Mapping[LinearId, float] | None = None


class Compression(Protocol):
    """Compresses a decoder.

    A class may have a `version`, raised by hand when its outcomes change (docs/tables.md), and `inputs`,
    the content hashes of files that it reads by itself (`identity.ReadsFiles`).

    Attributes:
        calibrated: whether it needs a calibration corpus; otherwise `corpus` is empty.
    """

    calibrated: ClassVar[bool]

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """Compress a decoder.

        Args:
            decoder: dense linears in fp32 (`linear.PlainLinear`), all layers resident. It is not changed.
            corpus: token sequences to calibrate on, int64 `[tokens]` each.

        Raises:
            InputError: a setting cannot work with this decoder.
        """
        ...
