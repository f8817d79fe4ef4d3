"""Compute planned observations in pieces, and write what is known as packs.

Owns the order of the work and where it pauses. What was computed is stored at once, so a killed or paused run
goes on where it stood. Must not know how a text is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch

from repro.core.errors import InputError
from repro.methods.lever.exit_scores import scores_variant
from repro.models.forward.logit_cache import AHEAD, LogitCache
from repro.models.forward.side_by_side import GreedyText, Report
from repro.models.observations import own_text, transfer
from repro.models.runtime.model import Model
from repro.models.tokens.prefix import Prefix
from repro.records.build_cache import cache_root
from workshop.packs.ahead import Likely, exits_ahead, rows_ahead
from workshop.packs.plan import Planned

LIKELY = Likely()
"""The draft rows that are computed ahead: all that LEVER's default expands, and chains of 8 tokens."""


class Paused(Exception):
    """The time of this piece is over."""


class Piece:
    """A stretch of work that ends after some minutes, between two groups of prompts."""

    def __init__(self, minutes: float) -> None:
        self._end = datetime.now(UTC) + timedelta(minutes=minutes)
        self._worked = False

    def begin_group(self) -> None:
        """To call before each group of prompts; Paused once the time is over and a group was computed."""
        if self._worked and datetime.now(UTC) >= self._end:
            raise Paused
        self._worked = True

    def compute(self, model: Model) -> own_text.Compute:
        """Texts of a model, each call a group (`begin_group`)."""

        def texts(prompts: Sequence[Prefix], tokens: int, told: Report) -> list[GreedyText]:
            self.begin_group()
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
    with known_texts(target) as store:
        return own_text.own_texts(
            store, piece.compute(target), prompts, one.tokens, lambda done: told(done, total)
        )


def draft_ahead(one: Planned, piece: Piece, told: Callable[[int, int], None]) -> None:
    """The likely rows of a pack's drafts after all places of the texts, and the early exit's scores there.

    They are stored in the machine's cache. Medusa heads are left out: runs compute their rows in one pass.

    Raises:
        InputError: a text is not computed.
        Paused: the piece's time is over; what was computed is stored.
    """
    drafts = [draft for _, kind, draft in one.models() if kind != "medusa"]
    if not drafts:
        return
    target, texts, done = one.cell.target, stored(one), 0
    with ExitStack() as opened:
        variant = scores_variant(target)
        exits = opened.enter_context(known_rows(target, variant)) if variant else None
        for draft in drafts:
            memo = opened.enter_context(known_rows(draft))
            for text in texts:
                which = text.prompt.digest + repr((one.places, LIKELY, exits is not None)).encode()
                if memo.file.get(AHEAD, which) is None:
                    piece.begin_group()
                    found = rows_ahead(draft, text, one.places, memo, LIKELY)
                    if exits is not None:
                        exits_ahead(target, found, exits, LIKELY)
                    memo.file.put(AHEAD, [(which, b"")])
                done += 1
                told(done, len(drafts) * len(texts))


@contextmanager
def known_rows(model: Model, of: str = "") -> Iterator[LogitCache]:
    """The machine's cache of a model's rows, or of its early exit's scores, with those of packs."""
    with closing(model.memo(cache_root(), of)) as memo:
        transfer.fill(memo, model.outputs_key(of))
        yield memo


@contextmanager
def known_texts(target: Model) -> Iterator[own_text.TextStore]:
    """The machine's cache of a target's own texts, with those of packs."""
    with closing(target.texts(cache_root())) as store:
        transfer.fill_texts(store, target.outputs_key())
        yield store


def stored(one: Planned) -> list[GreedyText]:
    """The own texts of a planned pack that this machine knows; InputError if one is missing."""
    with known_texts(one.cell.target) as store:
        found = [store.get(prompt, one.tokens) for prompt in one.prompts]
    texts = [text for text in found if text is not None]
    if len(texts) < len(found):
        raise InputError(
            f"{one.name}: {len(found) - len(texts)} of {len(found)} texts are not computed; run "
            f"python -m workshop.packs compute {one.name}"
        )
    return texts


def export(one: Planned, folder: Path) -> list[Path]:
    """Write the pack of a plan's own texts, and those of its drafts' rows that this machine's runs have left.

    Raises:
        InputError: a text is not computed.
    """
    texts, target = stored(one), one.cell.target
    written = [transfer.text_pack(one.name, target.outputs_key(), one.cell.host, texts).write(folder)]
    models = [(*named, "") for named in one.models()]
    if variant := scores_variant(target):
        models.append((f"{one.name}.exit", "exit", target, variant))
    for name, kind, model, of in models:
        with known_rows(model, of) as memo:
            known = memo.read_rows()
        pack = transfer.branch_pack(name, kind, model.outputs_key(of), one.cell.host, texts, known)
        if pack.rows:
            written.append(pack.write(folder))
    return written
