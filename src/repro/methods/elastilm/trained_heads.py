"""Trained heads of the dual-head model: those in the repository, and loading them.

Owns the heads' folders and digests. Must not know the network's internals or its users.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.elastilm.dual_head_network import PARTS, DualHead, HeadSettings
from repro.methods.elastilm.elastic_profile import Parts
from repro.methods.elastilm.word_pieces import load_encoder, open_encoder
from repro.methods.serving.deciders import Decider
from repro.methods.serving.shortening import Scorer
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.costs.model_cost import Precision
from repro.records.record import content_hash

COMMITTED: dict[str, Parts] = {
    "6fceb34132ad726946adc26b588445bcb11811d1a28d8a42a03a6dccf63c1369": Parts(
        "assets/tlm/minilm", "7ca24eceb8e2d956139331ee0d559a98bda96cd6890f79768a335fa38ab786ca"
    ),
}
"""Heads trained with `workshop.training.train_tlm`, by the encoder's `fingerprint`."""


@register("tlm", "elastilm")
class DualHeadTlm:
    """The dual-head model with the committed heads, as services use it (`TinyLanguageModel`)."""

    def digest(self) -> str:
        """See `TinyLanguageModel`."""
        return content_hash(COMMITTED)

    def score_head(self, tokenizer: Tokenizer, shares_bottom: bool, stored_precision: Precision) -> Scorer:
        """See `TinyLanguageModel`."""
        from repro.methods.elastilm.tlm import open_score_head  # late: transformers takes seconds to import

        return open_score_head(tokenizer, shares_bottom=shares_bottom, stored_precision=stored_precision)

    def decision_head(self, tokenizer: Tokenizer, stored_precision: Precision) -> Decider:
        """See `TinyLanguageModel`."""
        from repro.methods.elastilm.tlm import open_decision_head

        return open_decision_head(tokenizer, stored_precision=stored_precision)


def fingerprint(folder: Path) -> str:
    """SHA-256 of an encoder's weight files, which identifies it."""
    hasher = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            hasher.update(hashlib.file_digest(file, "sha256").digest())
    return hasher.hexdigest()


def committed_folder(encoder: Path) -> Path:
    """The folder of the repository's heads for an encoder.

    Raises:
        InputError: there are none, or their digest does not match `COMMITTED`.
    """
    parts = COMMITTED.get(fingerprint(encoder))
    if parts is None:
        raise InputError(
            f"no heads were trained on the encoder in {encoder}; train them with workshop.training.train_tlm"
        )
    return parts.find()


def open_dual_head(encoder: str, heads: Path | None = None, part: str | None = None) -> tuple[DualHead, Path]:
    """Load an encoder with trained heads; also returns the folder of the heads.

    Args:
        encoder: name as in `open_encoder`.
        heads: folder of the heads; None for those in the repository.
        part: the only head to load; None for both.

    Raises:
        InputError: no such encoder, or no such heads for it.
    """
    encoder_folder = open_encoder(encoder)
    folder = committed_folder(encoder_folder) if heads is None else heads
    network = DualHead(load_encoder(encoder_folder), HeadSettings.read(folder))
    for name in PARTS if part is None else (part,):
        file = folder / head_file(name)
        if not file.is_file():
            raise InputError(
                f"{folder} has no {name} head; train one with workshop.training.train_tlm {name}"
            )
        network.load(name, file)
    return network, folder


def head_file(name: str) -> str:
    """The file name of one head."""
    return f"{name}.safetensors"
