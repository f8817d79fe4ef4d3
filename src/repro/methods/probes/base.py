"""What every probe has: a decoder and texts in, figures out.

Owns the contract. Must not know datasets, devices or time. A probe is a frozen dataclass, registered under
`probe`; its fields are its configuration (`probe=NAME probe.FIELD=VALUE`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

Texts = tuple[tuple[int, ...], ...]
"""Token sequences of one length each."""


class Probe(Protocol):
    """A look at a decoder that reads.

    Attributes:
        calibrated: whether it reads a corpus beforehand; one that does not is given none.
        tokens: how long a text is; a pass each.
    """

    calibrated: ClassVar[bool]
    tokens: int

    def look(self, decoder: Decoder, corpus: Texts, texts: Texts) -> Mapping[str, Scalar]:
        """Let a decoder read and say what was seen.

        Args:
            decoder: dense linears in fp32 (`linear.PlainLinear`), all layers resident. It is not changed.
            corpus: what is read beforehand.
            texts: what is looked at.

        Raises:
            InputError: a setting cannot work with this decoder.
        """
        ...
