"""Compute planned observations in pieces, and write what is known as packs.

Owns the order of the work and where it pauses. What was computed is stored at once, so a killed or paused run
goes on where it stood. Must not know how a text is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch

from repro.core.errors import InputError
from repro.models.forward.side_by_side import GreedyText, Told
from repro.models.observations import own_text, transfer
from repro.models.runtime.model import Model
from repro.models.tokens.prefix import Prefix
from repro.observations.plan import Planned
from repro.records.build_cache import cache_root


class Paused(Exception):
    """The time of this piece is over."""


class Piece:
    """A stretch of work that ends after some minutes, between two groups of prompts."""

    def __init__(self, minutes: float) -> None:
        self._end = datetime.now(UTC) + timedelta(minutes=minutes)
        self._worked = False

    def compute(self, model: Model) -> own_text.Compute:
        """Texts of a model; Paused once the time is over, but not before one group of this piece."""

        def texts(prompts: Sequence[Prefix], tokens: int, told: Told) -> list[GreedyText]:
            if self._worked and datetime.now(UTC) >= self._end:
                raise Paused
            self._worked = True
            return model.compute_texts(prompts, tokens, told)

        return texts


def require_host(host: str) -> None:
    """InputError if tensors cannot be computed on this host."""
    if host == "cuda" and not torch.cuda.is_available():
        raise InputError("host=cuda needs a CUDA device, and torch sees none; choose host=cpu")


def compute(one: Planned, piece: Piece, told: Callable[[int, int], None]) -> list[GreedyText]:
    """The own texts of a planned pack, stored in the machine's cache.

    Args:
        one: the planned pack.
        piece: when to pause.
        told: progress callback, called with tokens done and all tokens.

    Raises:
        Paused: the piece's time is over; what was computed is stored.
    """
    target, prompts, total = one.cell.target, one.prompts, one.tokens * len(one.prompts)
    with closing(target.texts(cache_root())) as store:
        transfer.fill_texts(store, target.observed())
        return own_text.own_texts(
            store, piece.compute(target), prompts, one.tokens, lambda done: told(done, total)
        )


def stored(one: Planned) -> list[GreedyText]:
    """The own texts of a planned pack that this machine knows; InputError if one is missing."""
    target = one.cell.target
    with closing(target.texts(cache_root())) as store:
        transfer.fill_texts(store, target.observed())
        found = [store.get(prompt, one.tokens) for prompt in one.prompts]
    texts = [text for text in found if text is not None]
    if len(texts) < len(found):
        raise InputError(
            f"{one.name}: {len(found) - len(texts)} of {len(found)} texts are not computed; run "
            f"python -m repro.observations compute {one.name}"
        )
    return texts


def export(one: Planned, folder: Path) -> list[Path]:
    """Write the pack of a plan's own texts, and those of its drafts' rows that this machine's runs have left.

    Raises:
        InputError: a text is not computed.
    """
    texts, target = stored(one), one.cell.target
    written = [transfer.text_pack(one.name, target.observed(), one.cell.host, texts).write(folder)]
    for name, kind, draft in one.models():
        with closing(draft.memo(cache_root())) as memo:
            transfer.fill(memo, draft.observed())
            known = memo.known()
        heads = draft.own_shape.medusa
        pack = transfer.branch_pack(name, kind, draft.observed(), one.cell.host, texts, known, heads)
        if pack.rows:
            written.append(pack.write(folder))
    return written
