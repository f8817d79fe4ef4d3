"""What every compression has: a decoder in, a smaller one out, and what it says of itself.

Owns the contract. Must not know datasets, tasks, devices or time. A compression is a frozen dataclass,
registered under `compression`; its fields are its configuration (`compression=NAME compression.FIELD=VALUE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar


@dataclass(frozen=True)
class Compressed:
    """What came out.

    Attributes:
        decoder: computes like the one that was given, on other weights or in other arithmetic.
        figures: what the compression says of itself (`bits_per_weight`, `shadowed_linears`), for the record.
    """

    decoder: Decoder
    figures: Mapping[str, Scalar] = field(default_factory=dict)


class Compression(Protocol):
    """A way to make a model smaller.

    A class may have a `version`, raised by hand when its outcomes change (docs/identity.md), and `inputs`,
    the content hashes of files that it reads by itself (`identity.ReadsFiles`).

    Attributes:
        calibrated: whether it looks at a corpus; one that does not is given none.
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
